// SPDX-License-Identifier: Apache-2.0

package central

import (
	"encoding/binary"
	"net/netip"
	"time"

	"weft/control/agent"
	"weft/control/lease"
	"weft/openflow/fdb"
)

// servicesOf returns what translations need of a network's services: the host's addresses, and the kinds
// of guests' requests that the host answers. It returns nil if there is neither.
func servicesOf(s *agent.Services) *fdb.Services {
	if s == nil {
		return nil
	}
	services := &fdb.Services{Addresses: s.Addresses, DHCPv4: s.DHCP && ipv4Of(s.Addresses).IsValid(), DHCPv6: s.DHCP && s.HasIPv6(), Advertise: s.Advertise != ""}
	if len(s.Addresses) == 0 && !services.DHCPv6 && !services.Advertise {
		return nil
	}
	return services
}

// leaseOf returns the settings that the host tells the guest of a port by DHCP and router advertisements.
// It returns nil if the network has neither of them.
func leaseOf(p *agent.Port) *lease.Port {
	s := p.Services
	if s == nil || !s.DHCP && s.Advertise == "" {
		return nil
	}
	n := &lease.Network{Subnets: s.Subnets, Routers: s.Routers, DNS: s.DNS, Domain: s.Domain, ServiceMAC: macBytes(fdb.ServiceMAC),
		Lease: time.Duration(s.LeaseS) * time.Second, MTU: uint16(min(s.MTU, 1<<16-1)), DHCPv6: s.DHCP && s.HasIPv6(), Advertise: advertiseModes[s.Advertise]}
	if s.DHCP {
		n.Service = ipv4Of(s.Addresses)
	}
	for _, r := range s.Routes {
		n.Routes = append(n.Routes, lease.Route{To: r.To, Via: r.Via})
	}
	return &lease.Port{MAC: macBytes(p.MAC), Addresses: p.IPs, Host: p.Guest, Network: n}
}

// advertiseModes has the lease.AdvertiseMode of each text in agent.Services.Advertise.
var advertiseModes = map[string]lease.AdvertiseMode{
	"dhcpv6-stateful": lease.AdvertiseStateful, "dhcpv6-stateless": lease.AdvertiseStateless, "slaac": lease.AdvertiseSLAAC,
}

func ipv4Of(list []netip.Addr) netip.Addr {
	for _, a := range list {
		if a.Is4() {
			return a
		}
	}
	return netip.Addr{}
}

func macBytes(mac uint64) (b [6]byte) {
	copy(b[:], binary.BigEndian.AppendUint64(nil, mac)[2:])
	return b
}
