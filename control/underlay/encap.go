// SPDX-License-Identifier: Apache-2.0

package underlay

import (
	"net/netip"

	"weft/tunnel"
)

// Encap are the encap options of a vxlan port: they set fields of the outer headers.
// The zero value stands for a port without options.
type Encap struct {
	// Checksum of the outer UDP header is "on", "off" or "". "" means on over IPv6
	// only, where Linux by default drops a datagram without a checksum.
	Checksum string
	TTL, TOS uint8 // TTL 0: 64, or 1 to a multicast group, as in Linux
	// InheritTTL and InheritTOS copy the fields from the inner header.
	InheritTTL, InheritTOS bool
	DontFragment           bool
	Dev                    string // device through which a multicast group is reached
	// PortBase and PortRange are as in tunnel.Params.
	PortBase, PortRange uint16
}

// params returns the parameters of a template that depend on the port's options.
func (o Encap) params(remote netip.Addr, udpPort uint16) tunnel.Params {
	ttl := o.TTL
	if ttl == 0 && remote.IsMulticast() {
		ttl = 1
	}
	return tunnel.Params{
		UDPPort: udpPort, TTL: ttl, TOS: o.TOS, InheritTTL: o.InheritTTL, InheritTOS: o.InheritTOS, DontFragment: o.DontFragment && remote.Is4(),
		PortBase: o.PortBase, PortRange: o.PortRange,
		Checksum: o.Checksum == "on" || o.Checksum == "" && remote.Is6(),
	}
}
