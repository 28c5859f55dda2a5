package underlay

import (
	"net/netip"

	"weft/tunnel"
)

// Encap is what a vxlan port's options set of its tunnels' outer headers. The zero
// value is a port's without such options.
type Encap struct {
	// Checksum of the outer UDP header is on, off, or empty: over IPv6 only, where
	// Linux by default drops a datagram without one.
	Checksum string
	TTL, TOS uint8 // TTL 0: 64, or 1 to a multicast group, the defaults of Linux
	// InheritTTL and InheritTOS copy them from the inner header.
	InheritTTL, InheritTOS bool
	DontFragment           bool
	Dev                    string // reaches a multicast group
	// PortBase and PortRange are those of tunnel.Params.
	PortBase, PortRange uint16
}

// params are the parameters of a template that the port decides.
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
