// SPDX-License-Identifier: Apache-2.0

package xlate

import (
	"math/bits"
	"slices"

	"weft/flowtable"
	"weft/openflow"
)

// list executes actions in order, until an exit or a limit ends the list. If goto_table ends it, jump
// is true, and the result "next" is the table.
func (x *xlate) list(actions []openflow.Action) (next uint8, jump bool) {
	for i := range actions {
		a := &actions[i]
		if x.halted || x.exited || !x.step() {
			return 0, false
		}
		if x.hook != nil {
			x.hook(TraceStep{Bridge: x.p.Bridge(), Depth: x.depth, Table: x.table, Action: a, Flow: x.flow})
		}
		if x.suspends(a) {
			x.continueLater(actions[i:], x.suspendedNote())
			return 0, false
		}
		switch a.Kind {
		case openflow.ActGotoTable:
			return a.Table, true
		case openflow.ActDecTTL:
			if !x.decTTL(a) {
				return 0, false
			}
		case openflow.ActDecMPLSTTL:
			if !x.decMPLSTTL() {
				return 0, false
			}
		case openflow.ActDecNSHTTL:
			if !x.decNSHTTL() {
				return 0, false
			}
		case openflow.ActOutput:
			x.output(a.Port)
		case openflow.ActCheckLarger:
			x.checkLarger(a, actions[i+1:])
			return 0, false
		case openflow.ActSetQueue:
			x.queue = uint32(a.Value[1])
		case openflow.ActPopQueue:
			x.queue = 0
		case openflow.ActEnqueue:
			x.enqueue(a)
		case openflow.ActEncap:
			x.encapsulate(a)
		case openflow.ActDecap:
			x.decapsulate(uint32(a.Value[1]))
		case openflow.ActOutputTrunc:
			x.outputTruncated(a.Port, a.Value[1])
		case openflow.ActOutputReg:
			if v := x.read(a.Src); v[0] == 0 && v[1] <= uint64(openflow.PortNone) {
				x.output(uint32(v[1]))
			}
		case openflow.ActResubmit:
			x.resubmit(a)
		case openflow.ActClone:
			x.clone(a)
		case openflow.ActController:
			if a.Controller.Pause {
				x.pause(a.Controller)
			} else {
				x.controller(a.Controller)
			}
		case openflow.ActGroup:
			x.group(uint32(a.Value[1]))
		case openflow.ActMeter:
			x.meter(uint32(a.Value[1]))
		case openflow.ActCT:
			x.ct(a.CT)
		case openflow.ActCTClear:
			x.ctClear()
		case openflow.ActSample:
			x.sample(a.Sample)
		case openflow.ActFinTimeout:
			x.finTimeout(a)
		case openflow.ActLearn:
			x.learnFlow(a.Learn)
		case openflow.ActExit:
			x.exited = true
		case openflow.ActMultipath:
			x.multipath(a)
		case openflow.ActBundle:
			x.bundle(a)
		case openflow.ActPush:
			x.push(a.Src)
		case openflow.ActPop:
			x.pop(a.Dst)
		case openflow.ActWriteActions:
			x.writeActions(a.Sub)
		case openflow.ActClearActions:
			x.actionSet = nil
		default:
			x.change(a)
		}
		if x.paused != nil {
			x.leaveList(actions[i+1:])
			return 0, false
		}
	}
	return 0, false
}

// clone executes actions and the resulting action set, and then undoes all their
// changes. As in Open vSwitch, an exit among them also ends the list around them.
func (x *xlate) clone(a *openflow.Action) {
	flow, keep, tags, decs, set, stack, queue := x.flow, x.keep, x.tags, x.decs, slices.Clone(x.actionSet), slices.Clone(x.stack), x.queue
	x.undone++
	x.list(a.Sub)
	x.endLists()
	x.undone--
	x.flow, x.keep, x.tags, x.decs, x.actionSet, x.stack, x.queue = flow, keep, tags, decs, set, stack, queue
	x.dirty = true
}

// change executes an action that changes the frame's fields.
func (x *xlate) change(a *openflow.Action) {
	switch a.Kind {
	case openflow.ActSetField, openflow.ActModField:
		if a.TLV != nil {
			x.setTLV(a.Dst.Field, a.TLV)
			return
		}
		x.set(a.Dst, a.Value, a.Mask)
	case openflow.ActDeleteField:
		x.deleteTLV(a.Dst.Field)
	case openflow.ActLoad:
		x.set(a.Dst, a.Value, a.Dst.Ones())
	case openflow.ActMove:
		if x.hasField(a.Src.Field) && x.hasField(a.Dst.Field) {
			x.move(a.Src, a.Dst)
		}
	case openflow.ActWriteMetadata:
		x.set(openflow.WholeField(openflow.FMetadata), a.Value, a.Mask)
	case openflow.ActSetTunnel:
		x.set(openflow.WholeField(openflow.FTunID), a.Value, openflow.Ones(64))
	case openflow.ActPushVLAN:
		x.pushTag(uint16(a.Value[1]), flowtable.VLANPresent)
	case openflow.ActPopVLAN:
		if x.tagged() {
			x.tags.pop()
			x.syncTags()
		}
	case openflow.ActPushMPLS:
		x.pushMPLS(uint16(a.Value[1]))
	case openflow.ActPopMPLS:
		x.popMPLS(uint16(a.Value[1]))
	case openflow.ActPushPBB:
		x.pushPBB()
	case openflow.ActPopPBB:
		x.popPBB()
	case openflow.ActModVLANVID:
		x.modTag(uint16(a.Value[1]), flowtable.VLANID)
	case openflow.ActModVLANPCP:
		x.modTag(uint16(a.Value[1])<<13, flowtable.VLANPCP)
	}
}

// hasField reports whether the frame has the field, according to the field's
// prerequisites.
func (x *xlate) hasField(id openflow.FieldID) bool { return id.Prerequisite().Met(x) }

// set writes the bits of v that mask selects to a field, if the frame has the field. FTCPSrc and
// FTCPDst also stand for the ports of UDP and SCTP, for mod_tp_src and mod_tp_dst.
func (x *xlate) set(dst openflow.Subfield, v, mask openflow.Value128) {
	if dst.Field.IsTLV() {
		x.putTLV(dst, v, mask)
		return
	}
	switch dst.Field {
	case openflow.FVLANTCI:
		x.setTCI(uint16(v[1])<<dst.Offset, uint16(mask[1])<<dst.Offset)
		return
	case openflow.FVLANVID, openflow.FDLVLAN:
		if x.tagged() {
			x.modTag(uint16(v[1])<<dst.Offset, uint16(mask[1])<<dst.Offset)
		}
		return
	case openflow.FVLANPCP, openflow.FDLVLANPCP:
		if x.tagged() {
			x.modTag(uint16(v[1])<<(13+dst.Offset), uint16(mask[1])<<(13+dst.Offset))
		}
		return
	case openflow.FTCPSrc, openflow.FTCPDst:
		if !openflow.NeedPorts.Met(x) {
			return
		}
	default:
		if !x.hasField(dst.Field) {
			return
		}
	}
	if dst.Field == openflow.FIPTTL {
		if dst.Bits < 8 {
			x.VisitWord(flowtable.WIP, ttlBits)
		}
		x.keep[flowtable.WIP] &^= ttlBits
	}
	dst.Put(&x.flow, v, mask)
	word, hi, lo := dst.Words(mask)
	x.keep[word] &^= hi
	if lo != 0 {
		x.keep[word+1] &^= lo
	}
	x.dirty = true
}

// decTTL decrements the TTL. It returns false if the TTL has expired, which ends the
// action list. If the highest set bit of the TTL proves that the TTL is high enough,
// the megaflow matches only this bit.
func (x *xlate) decTTL(a *openflow.Action) bool {
	if !openflow.NeedIP.Met(x) {
		return true
	}
	ttl := x.flow[flowtable.WIP] >> flowtable.TTLShift & 0xff
	if x.keep[flowtable.WIP]&ttlBits != 0 {
		was := ttl + uint64(x.decs)
		top := uint64(1) << bits.Len64(was) >> 1 // 0 for 0
		switch {
		case ttl > 1 && top > uint64(x.decs)+1:
			x.wc[flowtable.WIP] |= top << flowtable.TTLShift
		case ttl <= 1 && x.decs == 0:
			x.wc[flowtable.WIP] |= 0xfe << flowtable.TTLShift
		default:
			x.wc[flowtable.WIP] |= ttlBits
		}
	}
	if ttl <= 1 {
		x.ttlExpired(a)
		return false
	}
	if x.keep[flowtable.WIP]&ttlBits != 0 {
		x.decs++
	}
	x.flow[flowtable.WIP] -= 1 << flowtable.TTLShift
	x.dirty = true
	return true
}
