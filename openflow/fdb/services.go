// SPDX-License-Identifier: Apache-2.0

package fdb

import (
	"net/netip"
	"slices"
)

// ServiceMAC is the MAC address of the addresses at which each host answers its own guests. It is
// locally administered, the same on all hosts, and never leaves a host.
const ServiceMAC = 0x025765667400

// Services is what a host answers the guests of a declared network itself. It is immutable.
type Services struct {
	// Addresses are answered in ARP and neighbour discovery with ServiceMAC.
	Addresses []netip.Addr
	DHCPv4    bool
	DHCPv6    bool
	Advertise bool // router solicitations are answered
}

// Has reports whether ip is one of the addresses of the services s, which may be nil.
func (s *Services) Has(ip netip.Addr) bool { return s != nil && slices.Contains(s.Addresses, ip) }
