// SPDX-License-Identifier: Apache-2.0

package fdb

import (
	"net/netip"
	"slices"
)

// ServiceMAC is the MAC address at which each host answers requests of its own guests (see
// Services). It is locally administered, the same on all hosts, and never leaves a host.
const ServiceMAC = 0x025765667400

// Services has the requests that a host answers the guests of a declared network itself. It is
// immutable.
type Services struct {
	// Addresses are the IP addresses for which ARP and neighbour discovery are answered with
	// ServiceMAC.
	Addresses []netip.Addr
	DHCPv4    bool
	DHCPv6    bool
	Advertise bool // router solicitations are answered
}

// Has reports whether ip is one of the addresses of the services s, which may be nil.
func (s *Services) Has(ip netip.Addr) bool { return s != nil && slices.Contains(s.Addresses, ip) }
