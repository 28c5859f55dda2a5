// SPDX-License-Identifier: Apache-2.0

package offload

import (
	"encoding/binary"

	"weft/flowtable"
	"weft/packet"
)

// Rewrite is what the ingress program does to a frame before the output. The zero Rewrite leaves
// frames as they are. Two equal values do the same.
type Rewrite struct {
	bits     uint32 // rewrite* bits
	dst, src [6]byte
	tpid     [2]byte // network byte order; 0: the TPID of the tag that rewritePop removes
	tci      uint16  // of the tag that rewritePush inserts
}

// Bits of Rewrite.bits.
const (
	rewriteDst = 1 << iota
	rewriteSrc
	rewriteTTL // decrement the TTL; the filter leaves frames whose TTL ends to the worker
	rewritePop // remove the VLAN tag
	// rewritePush inserts a VLAN tag into a frame that has none, or that rewritePop has left without.
	rewritePush
	// rewriteCE sets the ECN field of the IP header to CE. The filter adds it to a verdict.
	rewriteCE
	// rewriteNAT writes the addresses and ports of the verdict. The filter adds it to a verdict.
	rewriteNAT
	// rewriteTracked is never in a map: the actions begin with tracking, and install makes a stage of them.
	rewriteTracked
)

// Plan returns what the programs do for the actions of a megaflow, and their target. It returns
// false if they do not know the actions: then the megaflow stays with the worker.
func Plan(actions []flowtable.Action) (r Rewrite, to Target, known bool) {
	for i := range actions {
		switch a := &actions[i]; a.Op {
		case flowtable.OpCT:
			r.bits |= rewriteTracked
			if i > 0 || a.U32&(flowtable.CTForce|flowtable.CTFTP|flowtable.CTTFTP) != 0 {
				return Rewrite{}, Target{}, false
			}
		case flowtable.OpData:
			if r.bits != rewriteTracked {
				return Rewrite{}, Target{}, false
			}
		case flowtable.OpRecirc:
			return r, Target{Recirculates: true}, r.bits == rewriteTracked && i == len(actions)-1
		case flowtable.OpSetEthDst:
			r.bits |= rewriteDst
			r.dst = address(a.U64)
		case flowtable.OpSetEthSrc:
			r.bits |= rewriteSrc
			r.src = address(a.U64)
		case flowtable.OpDecTTL:
			if r.bits&rewriteTTL != 0 {
				return Rewrite{}, Target{}, false
			}
			r.bits |= rewriteTTL
		case flowtable.OpPushVLAN, flowtable.OpPopVLAN, flowtable.OpSetVLAN:
			if !r.planTag(a) {
				return Rewrite{}, Target{}, false
			}
		case flowtable.OpOutput:
			return r, Target{Port: a.U32}, i == len(actions)-1
		case flowtable.OpTunnel:
			return r, Target{Encap: &Encap{Template: a.U32, VNI: a.VNI(), Port: uint32(a.U16)}}, i == len(actions)-1 && a.MaxInner() == 0
		default:
			return Rewrite{}, Target{}, false
		}
	}
	return Rewrite{}, Target{}, false
}

// Tracks reports whether the actions of a Plan begin with tracking.
func (r *Rewrite) Tracks() bool { return r.bits&rewriteTracked != 0 }

// Target is where a megaflow sends its frames.
type Target struct {
	Port  uint32 // output port, without a tunnel
	Encap *Encap // nil: no tunnel
	// Recirculates is true for a megaflow that only tracks the frames and looks them up again.
	Recirculates bool
}

// planTag adds an action on the VLAN tag. It returns false unless the frame's tag is replaced at most
// once.
func (r *Rewrite) planTag(a *flowtable.Action) bool {
	former := r.bits & (rewritePop | rewritePush)
	switch a.Op {
	case flowtable.OpPopVLAN:
		r.bits |= rewritePop
		return former == 0
	case flowtable.OpSetVLAN:
		r.bits |= rewritePop | rewritePush
		r.tci = uint16(a.U32)
		return former == 0
	}
	r.bits |= rewritePush
	binary.BigEndian.PutUint16(r.tpid[:], a.U16)
	r.tci = uint16(a.U32)
	return former&rewritePush == 0 && (a.U16 == packet.EtherTypeVLAN || a.U16 == packet.EtherTypeSVLAN)
}

// suits reports whether all frames of a megaflow have a VLAN tag if r removes one, and none if r only
// inserts one.
func (r *Rewrite) suits(k, mask *flowtable.Key) bool {
	tagged := k[flowtable.WEthSrc]&flowtable.VLANPresent != 0
	return r.bits&(rewritePop|rewritePush) == 0 ||
		mask[flowtable.WEthSrc]&flowtable.VLANPresent != 0 && tagged == (r.bits&rewritePop != 0)
}

// growth returns how many bytes longer a frame becomes, as 16 bits in two's complement.
func (r *Rewrite) growth() uint64 {
	switch r.bits & (rewritePop | rewritePush) {
	case rewritePop:
		return 0x10000 - packet.VLANLen
	case rewritePush:
		return packet.VLANLen
	}
	return 0
}

func address(mac uint64) (a [6]byte) {
	var word [8]byte
	binary.BigEndian.PutUint64(word[:], mac)
	copy(a[:], word[2:])
	return a
}
