// SPDX-License-Identifier: Apache-2.0

// Package bfd implements sessions of bidirectional forwarding detection (RFC 5880) in
// asynchronous mode, without demand mode and echo packets. A session has no timers and no
// socket: its owner calls Tick and Receive with the time.
package bfd

import "encoding/binary"

// Length is the length in bytes of a control packet without authentication.
const Length = 24

// State is the state of a session (RFC 5880 section 4.1).
type State uint8

// States of a session (RFC 5880 section 4.1).
const (
	AdminDown State = iota
	Down
	Init
	Up
)

func (s State) String() string {
	return [...]string{"admin-down", "down", "init", "up"}[s&3]
}

// Diagnostic is the reason for the last change to the state Down (RFC 5880 section 4.1).
type Diagnostic uint8

// Diagnostics that a session sets. A remote may send others.
const (
	NoDiagnostic       Diagnostic = 0
	DetectionExpired   Diagnostic = 1
	NeighborSignalDown Diagnostic = 3
	// AdministrativelyDown is the diagnostic of a session in the state AdminDown.
	AdministrativelyDown Diagnostic = 7
)

var diagnostics = [...]string{
	"no diagnostic", "control detection time expired", "echo function failed", "neighbor signaled session down",
	"forwarding plane reset", "path down", "concatenated path down", "administratively down", "reverse concatenated path down",
}

func (d Diagnostic) String() string {
	if int(d) >= len(diagnostics) {
		return "reserved"
	}
	return diagnostics[d]
}

// Bits of Packet.Flags (RFC 5880 section 4.1).
const (
	flagPoll       = 0x20
	flagFinal      = 0x10
	flagCPI        = 0x08 // control plane independent
	flagAuth       = 0x04
	flagDemand     = 0x02
	flagMultipoint = 0x01

	version = 1
	// leastAuth is the length in bytes of the first two fields of an authentication section: type and
	// length
	leastAuth = 2
)

// Repeats reports whether p and an earlier packet of the same remote are equal, apart from the bits
// Poll and Final, which do not describe the remote's state.
func (p Packet) Repeats(earlier Packet) bool {
	p.Flags &^= flagPoll | flagFinal
	earlier.Flags &^= flagPoll | flagFinal
	return p == earlier
}

// Packet is a BFD control packet. Intervals are in microseconds.
type Packet struct {
	Diag         Diagnostic
	State        State
	Flags        uint8 // the low six bits of the packet's second byte
	Multiplier   uint8
	Mine, Yours  uint32 // discriminators
	MinTx, MinRx uint32 // desired and required
}

// Parse decodes a BFD control packet, the payload of a UDP datagram. ok is false if the packet must be
// discarded whatever session it belongs to (RFC 5880 section 6.8.6). Parse does not check the
// authentication; Session.Authentic does. It allocates no memory.
func Parse(b []byte) (p Packet, ok bool) {
	if len(b) < Length || b[0]>>5 != version || int(b[3]) < Length || int(b[3]) > len(b) {
		return Packet{}, false
	}
	p = Packet{
		Diag: Diagnostic(b[0] & 0x1f), State: State(b[1] >> 6), Flags: b[1] & 0x3f, Multiplier: b[2],
		Mine: binary.BigEndian.Uint32(b[4:]), Yours: binary.BigEndian.Uint32(b[8:]),
		MinTx: binary.BigEndian.Uint32(b[12:]), MinRx: binary.BigEndian.Uint32(b[16:]),
	}
	switch {
	case p.Multiplier == 0, p.Mine == 0, p.Flags&flagMultipoint != 0, p.Yours == 0 && p.State > Down,
		p.Flags&flagAuth != 0 && b[3] < Length+leastAuth:
		return Packet{}, false
	}
	return p, true
}

// Put encodes p into the first Length bytes of b.
func (p *Packet) Put(b []byte) {
	_ = b[Length-1]
	b[0], b[1], b[2], b[3] = version<<5|byte(p.Diag), byte(p.State)<<6|p.Flags, p.Multiplier, Length
	binary.BigEndian.PutUint32(b[4:], p.Mine)
	binary.BigEndian.PutUint32(b[8:], p.Yours)
	binary.BigEndian.PutUint32(b[12:], p.MinTx)
	binary.BigEndian.PutUint32(b[16:], p.MinRx)
	binary.BigEndian.PutUint32(b[20:], 0) // no echo packets are accepted
}
