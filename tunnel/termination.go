package tunnel

import (
	"weft/flowtable"
	"weft/packet"
)

// Termination says which datapath port a decapsulated frame comes from.
// Pointer-free. The most specific entry wins: remote and VNI, remote, VNI, none.
type Termination struct {
	Port    uint32 // datapath port of the vxlan port; 0: entry is free
	VNI     uint32 // 24 bits; AnyVNI: taken from the frame (vni=flow)
	UDPPort uint16
	_       [6]byte
	// Local and Remote are addresses of the underlay, IPv4 mapped into IPv6;
	// all zero: any.
	Local, Remote [16]byte
}

// AnyVNI in Termination.VNI takes every VNI.
const AnyVNI = ^uint32(0)

// MaxTerminations bounds the entries of a Terminations; indexes run below it.
const MaxTerminations = 1024

// TerminationBytes is the size of an encoded Termination.
const TerminationBytes = 4 + 4 + 2 + 6 + 16 + 16

// AppendTo appends the termination's encoding, TerminationBytes bytes.
func (t *Termination) AppendTo(buf []byte) []byte {
	return append(buf, make([]byte, TerminationBytes)...)
}

// Parse decodes what AppendTo encoded; it reports false, t unchanged, for
// anything else. It allocates nothing.
func (t *Termination) Parse(body []byte) bool { return false }

// Terminations is a worker's table of the vxlan ports that tunnels end in.
// Worker owns. Make it with NewTerminations; after that nothing allocates.
type Terminations struct {
	entries [MaxTerminations]Termination
}

// NewTerminations makes an empty table.
func NewTerminations() *Terminations { return &Terminations{} }

// Set adds or replaces entry index; it reports false for an index out of range.
func (t *Terminations) Set(index uint32, e *Termination) bool { return false }

// Clear frees entry index.
func (t *Terminations) Clear(index uint32) {}

// Decapsulate validates the outer headers of what an uplink received, finds the
// vxlan port it belongs to, takes the outer headers off, sets f.InPort to that
// port, and fills the tunnel words of the frame's key (flowtable.Key.Tunnel; to
// be put there after Extract). f.InPort stays the uplink for a frame that drops.
func (t *Terminations) Decapsulate(b *packet.Batch, f *packet.Frame, words *[flowtable.TunnelWords]uint64) packet.DropReason {
	return packet.DropNotTunnel
}
