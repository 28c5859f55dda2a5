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

// servicesOf returns what translations need of a network's services; nil: nothing.
func servicesOf(s *agent.Services) *fdb.Services {
	if s == nil || len(s.Addresses) == 0 {
		return nil
	}
	return &fdb.Services{Addresses: s.Addresses, DHCPv4: s.DHCP}
}

// leaseOf returns what the guest of a port is told; nil: nothing.
func leaseOf(p *agent.Port) *lease.Port {
	s := p.Services
	if s == nil || !s.DHCP {
		return nil
	}
	n := &lease.Network{Subnets: s.Subnets, Routers: s.Routers, DNS: s.DNS, Domain: s.Domain, ServiceMAC: macBytes(fdb.ServiceMAC),
		Lease: time.Duration(s.LeaseS) * time.Second, MTU: uint16(min(s.MTU, 1<<16-1)), Service: ipv4Of(s.Addresses)}
	for _, r := range s.Routes {
		n.Routes = append(n.Routes, lease.Route{To: r.To, Via: r.Via})
	}
	return &lease.Port{MAC: macBytes(p.MAC), Addresses: p.IPs, Host: p.Guest, Network: n}
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
