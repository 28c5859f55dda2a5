// SPDX-License-Identifier: Apache-2.0

package fdb

import (
	"net/netip"
	"slices"
)

// ServiceMAC is the MAC address with which each host answers requests of its own guests (see
// Services). It is locally administered and the same on all hosts. No frame with this address leaves a host.
const ServiceMAC = 0x025765667400

// Services says which requests of a declared network's guests the host answers itself. It is immutable.
type Services struct {
	// The host answers ARP and neighbour discovery for these IP addresses with ServiceMAC.
	Addresses []netip.Addr
	DHCPv4    bool
	DHCPv6    bool
	Advertise bool // router solicitations are answered
}

// Has reports whether ip is one of the addresses of the services s, which may be nil.
func (s *Services) Has(ip netip.Addr) bool { return s != nil && slices.Contains(s.Addresses, ip) }
