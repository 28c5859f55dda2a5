// SPDX-License-Identifier: Apache-2.0

package underlay

import (
	"net/netip"

	"weft/tunnel"
)

// Encap has a tunnel's options for the outer headers. The zero value has no
// options.
type Encap struct {
	// Checksum is "on", "off" or "". It controls the outer UDP checksum, or GRE's checksum. ""
	// means "on" over IPv6, where Linux requires a UDP checksum, and "off" over IPv4.
	Checksum string
	TTL, TOS uint8 // TTL and TOS of the outer header; TTL 0 means 64, or 1 to a multicast group, as in Linux
	// InheritTTL and InheritTOS copy the TTL and TOS of the inner IP header to the outer one.
	InheritTTL, InheritTOS bool
	DontFragment           bool
	Kind                   tunnel.Kind
	Dev                    string // device through which a multicast group is reached
	// PortBase and PortRange select the outer UDP source port: the lowest port, and the number of ports.
	// If PortRange is 0, the ports are 49152 to 65535.
	PortBase, PortRange uint16
	// Fields of a GRE header (Key, Sequence) and of an ERSPAN header (the others), as in tunnel.Params.
	Key, Sequence bool
	Index         uint32
	HardwareID    uint8
	Egress        bool
}

// Overhead returns the number of bytes by which an inner IP packet must be smaller than the
// outer packet to the remote, without Geneve options.
func (o Encap) Overhead(remote netip.Addr) int {
	if o.Kind.HasPort() {
		return tunnel.Overhead(remote)
	}
	p := o.params(remote, 0)
	p.Remote = remote
	return tunnel.GREOverhead(&p)
}

func (o Encap) params(remote netip.Addr, udpPort uint16) tunnel.Params {
	ttl := o.TTL
	if ttl == 0 && remote.IsMulticast() {
		ttl = 1
	}
	return tunnel.Params{
		UDPPort: udpPort, Kind: o.Kind, TTL: ttl, TOS: o.TOS, InheritTTL: o.InheritTTL, InheritTOS: o.InheritTOS, DontFragment: o.DontFragment && remote.Is4(),
		PortBase: o.PortBase, PortRange: o.PortRange,
		Key: o.Key, Sequence: o.Sequence, Index: o.Index, HardwareID: o.HardwareID, Egress: o.Egress,
		Checksum: o.Checksum == "on" || o.Checksum == "" && remote.Is6(),
	}
}
