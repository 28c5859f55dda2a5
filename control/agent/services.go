// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"net/netip"
	"slices"

	"weft/central/wire"
)

// Services is what the hosts of a network tell its guests: addresses, routes and names. It is
// immutable. docs/central.md describes the settings in its fields.
type Services struct {
	Subnets      []netip.Prefix
	Routers, DNS []netip.Addr
	Domain       string
	Addresses    []netip.Addr // addresses of the host's services, at most one of IPv4 and one of IPv6
	DHCP         bool
	LeaseS       uint32 // seconds
	Advertise    string // mode of router advertisements, see wire.Addressing; "": none
	Routes       []Route
	MTU          uint32 // largest IP packet in bytes; 0: guests are not told
}

// Route is a static route that the host's DHCP server tells the guests.
type Route struct {
	To  netip.Prefix
	Via netip.Addr
}

// servicesOf returns the services of a network; nil: none. A network with settings that this
// version does not accept, as one of a later version may be, has no services.
func servicesOf(n *wire.Net) *Services {
	a := n.GetAddressing()
	if a == nil || a.Problem() != "" {
		return nil
	}
	s := &Services{Routers: addrsOf(a.GetRouters()), DNS: addrsOf(a.GetDns()), Domain: a.GetDomain(), Addresses: addrsOf(a.GetService()),
		DHCP: a.GetDhcp(), LeaseS: a.GetLeaseS(), MTU: n.GetMtu(), Advertise: a.GetAdvertise()}
	if s.LeaseS == 0 {
		s.LeaseS = wire.DefaultLease
	}
	for _, p := range a.GetSubnets() {
		s.Subnets = append(s.Subnets, p.Prefix())
	}
	for _, r := range a.GetRoutes() {
		s.Routes = append(s.Routes, Route{r.GetTo().Prefix(), addrOf(r.GetVia())})
	}
	return s
}

// guestName returns the host name that a guest is told: the name of its port, if this name is a
// single DNS label.
func guestName(p *wire.Port) string {
	if wire.IsLabel(p.GetName()) {
		return p.GetName()
	}
	return ""
}

// HasIPv6 reports whether the network has an IPv6 subnet.
func (s *Services) HasIPv6() bool {
	return slices.ContainsFunc(s.Subnets, func(p netip.Prefix) bool { return p.Addr().Is6() })
}
