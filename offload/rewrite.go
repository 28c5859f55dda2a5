// SPDX-License-Identifier: Apache-2.0

package offload

import (
	"encoding/binary"

	"weft/flowtable"
	"weft/packet"
)

// Rewrite is what the ingress program changes in a frame before the output. The zero Rewrite changes
// nothing. Rewrites that are equal (==) make the same changes.
type Rewrite struct {
	bits     uint32 // rewrite* bits
	dst, src [6]byte
	tpid     [2]byte // TPID of the tag that rewritePush inserts, in network byte order; 0: that of the removed tag
	tci      uint16  // TCI of the tag that rewritePush inserts
}

// Bits of Rewrite.bits.
const (
	rewriteDst = 1 << iota
	rewriteSrc
	rewriteTTL // decrement the TTL or hop limit; frames with a TTL of 1 or 0 go to the worker
	rewritePop // remove the VLAN tag
	// rewritePush inserts a VLAN tag, after rewritePop if both are set.
	rewritePush
	// rewriteCE sets the ECN field of the IP header to CE. Only the filter sets this bit, in a verdict.
	rewriteCE
	// rewriteNAT writes the addresses and ports of the verdict, over IPv4 or, with rewriteIPv6, over IPv6. Only
	// the filter sets these bits, in a verdict.
	rewriteNAT
	rewriteIPv6
	// rewriteTracked means that the megaflow's first action tracks the frame. The method install then adds
	// the megaflow to the map of stages (connections.go). The bit is never in a map.
	rewriteTracked
)

// Plan translates the actions of a megaflow into the form that the programs execute: a Rewrite and a
// Target. It returns false if the programs cannot execute the actions. The megaflow's frames must then
// go to the worker.
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

// Tracks reports whether the actions from which Plan has made r begin with connection tracking.
func (r *Rewrite) Tracks() bool { return r.bits&rewriteTracked != 0 }

// Target says where a megaflow sends its frames: to a port, into a tunnel, or to another look-up.
type Target struct {
	Port  uint32 // number of the output port, if Encap is nil
	Encap *Encap // nil: no tunnel
	// Recirculates is true for a megaflow that only tracks the frames and looks them up again.
	Recirculates bool
}

// planTag adds to r an action that changes VLAN tags. It returns false if r cannot express the actions:
// it can remove at most one tag and then insert at most one.
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

// suits reports whether the programs can apply r to all frames of the megaflow with key k and mask
// "mask". If r removes a VLAN tag, these frames must all have one. If r only inserts one, they must have
// none.
func (r *Rewrite) suits(k, mask *flowtable.Key) bool {
	tagged := k[flowtable.WEthSrc]&flowtable.VLANPresent != 0
	return r.bits&(rewritePop|rewritePush) == 0 ||
		mask[flowtable.WEthSrc]&flowtable.VLANPresent != 0 && tagged == (r.bits&rewritePop != 0)
}

// growth returns by how many bytes r makes a frame longer, as 16 bits in two's complement.
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
