// SPDX-License-Identifier: Apache-2.0

package underlay

import (
	"net/netip"

	"weft/tunnel"
)

// Encap has the encap options of a vxlan port, which set fields of the outer headers.
// The zero value means that no option is given.
type Encap struct {
	// Checksum says whether the outer UDP header has a checksum: "on", "off" or "".
	// The default "" means on over IPv6 only, where Linux by default drops a datagram
	// without a checksum.
	Checksum string
	TTL, TOS uint8 // TTL and TOS of the outer IP header; TTL 0 means 64, or 1 to a multicast group, as in Linux
	// InheritTTL and InheritTOS copy the inner header's TTL and TOS to the outer
	// header.
	InheritTTL, InheritTOS bool
	DontFragment           bool
	Dev                    string // name of the device through which a multicast group is reached
	// PortBase and PortRange select the outer UDP source port as in tunnel.Params.
	PortBase, PortRange uint16
}

// params returns the parameters of a template to remote that follow from the port's
// options.
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
