// SPDX-License-Identifier: Apache-2.0

package underlay

import (
	"net/netip"

	"weft/tunnel"
)

// Encap has a tunnel's options for the outer headers. The zero value has no
// options.
type Encap struct {
	// Checksum is "on", "off" or "" for the outer UDP checksum. "" means "on" over
	// IPv6, where Linux requires a checksum, and "off" over IPv4.
	Checksum string
	TTL, TOS uint8 // TTL and TOS of the outer header; TTL 0 means 64, or 1 to a multicast group, as in Linux
	// InheritTTL and InheritTOS copy the fields of the inner IP header to the outer
	// header.
	InheritTTL, InheritTOS bool
	DontFragment           bool
	Kind                   tunnel.Kind
	Dev                    string // device through which a multicast group is reached
	// PortBase and PortRange select the outer UDP source port as in tunnel.Params.
	PortBase, PortRange uint16
}

func (o Encap) params(remote netip.Addr, udpPort uint16) tunnel.Params {
	ttl := o.TTL
	if ttl == 0 && remote.IsMulticast() {
		ttl = 1
	}
	return tunnel.Params{
		UDPPort: udpPort, Kind: o.Kind, TTL: ttl, TOS: o.TOS, InheritTTL: o.InheritTTL, InheritTOS: o.InheritTOS, DontFragment: o.DontFragment && remote.Is4(),
		PortBase: o.PortBase, PortRange: o.PortRange,
		Checksum: o.Checksum == "on" || o.Checksum == "" && remote.Is6(),
	}
}
