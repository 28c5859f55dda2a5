// SPDX-License-Identifier: Apache-2.0

package openflow

import (
	"math/bits"
	"slices"

	"weft/flowtable"
)

// list executes actions in order.
func (x *xlate) list(actions []Action) (next uint8, jump bool) {
	for i := range actions {
		a := &actions[i]
		if x.halted || x.exited {
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
		case ActGotoTable:
			return a.Table, true
		case ActDecTTL:
			if !x.decTTL() {
				return 0, false
			}
		case ActDecMPLSTTL:
			if !x.decMPLSTTL() {
				return 0, false
			}
		case ActOutput:
			x.output(a.Port)
		case ActCheckLarger:
			x.checkLarger(a, actions[i+1:])
			return 0, false
		case ActSetQueue:
			x.queue = uint32(a.Value[1])
		case ActPopQueue:
			x.queue = 0
		case ActEnqueue:
			x.enqueue(a)
		case ActEncap:
			x.encapsulate(uint32(a.Value[1]))
		case ActDecap:
			x.decapsulate(uint32(a.Value[1]))
		case ActOutputTrunc:
			x.outputTruncated(a.Port, a.Value[1])
		case ActOutputReg:
			if v := x.read(a.Src); v[0] == 0 && v[1] <= uint64(PortNone) {
				x.output(uint32(v[1]))
			}
		case ActResubmit:
			x.resubmit(a)
		case ActClone:
			x.clone(a)
		case ActController:
			if a.Controller.Pause {
				x.pause(a.Controller)
			} else {
				x.controller(a.Controller)
			}
		case ActGroup:
			x.group(uint32(a.Value[1]))
		case ActMeter:
			x.meter(uint32(a.Value[1]))
		case ActCT:
			x.ct(a.CT)
		case ActCTClear:
			x.ctClear()
		case ActFinTimeout:
			x.finTimeout(a)
		case ActLearn:
			x.learnFlow(a.Learn)
		case ActExit:
			x.exited = true
		case ActMultipath:
			x.multipath(a)
		case ActBundle:
			x.bundle(a)
		case ActPush:
			x.push(a.Src)
		case ActPop:
			x.pop(a.Dst)
		case ActWriteActions:
			x.writeActions(a.Sub)
		case ActClearActions:
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
func (x *xlate) clone(a *Action) {
	flow, keep, tags, decs, set, stack, queue := x.flow, x.keep, x.tags, x.decs, slices.Clone(x.actionSet), slices.Clone(x.stack), x.queue
	x.undone++
	x.list(a.Sub)
	x.endLists()
	x.undone--
	x.flow, x.keep, x.tags, x.decs, x.actionSet, x.stack, x.queue = flow, keep, tags, decs, set, stack, queue
	x.dirty = true
}

// change executes an action that changes the frame's fields.
func (x *xlate) change(a *Action) {
	switch a.Kind {
	case ActSetField, ActModField:
		if a.TLV != nil {
			x.setTLV(a.Dst.Field, a.TLV)
			return
		}
		x.set(a.Dst, a.Value, a.Mask)
	case ActDeleteField:
		x.deleteTLV(a.Dst.Field)
	case ActLoad:
		x.set(a.Dst, a.Value, a.Dst.ones())
	case ActMove:
		if x.hasField(a.Src.Field) && x.hasField(a.Dst.Field) {
			x.move(a.Src, a.Dst)
		}
	case ActWriteMetadata:
		x.set(wholeField(FMetadata), a.Value, a.Mask)
	case ActSetTunnel:
		x.set(wholeField(FTunID), a.Value, ones(64))
	case ActPushVLAN:
		x.pushTag(uint16(a.Value[1]), flowtable.VLANPresent)
	case ActPopVLAN:
		if x.tagged() {
			x.tags.pop()
			x.syncTags()
		}
	case ActPushMPLS:
		x.pushMPLS(uint16(a.Value[1]))
	case ActPopMPLS:
		x.popMPLS(uint16(a.Value[1]))
	case ActPushPBB:
		x.pushPBB()
	case ActPopPBB:
		x.popPBB()
	case ActModVLANVID:
		x.modTag(uint16(a.Value[1]), flowtable.VLANID)
	case ActModVLANPCP:
		x.modTag(uint16(a.Value[1])<<13, flowtable.VLANPCP)
	}
}

// hasField reports whether the frame has the field, according to the field's
// prerequisites.
func (x *xlate) hasField(id FieldID) bool { return id.Prerequisite().met(x) }

// set writes value v to a field, only the bits of the mask, and only if the frame has the
// field. FTCPSrc and FTCPDst also stand for the ports of UDP and SCTP, for mod_tp_src and
// mod_tp_dst.
func (x *xlate) set(dst Subfield, v, mask Value128) {
	if dst.Field.isTLV() {
		x.putTLV(dst, v, mask)
		return
	}
	switch dst.Field {
	case FVLANTCI:
		x.setTCI(uint16(v[1])<<dst.Offset, uint16(mask[1])<<dst.Offset)
		return
	case FVLANVID, FDLVLAN:
		if x.tagged() {
			x.modTag(uint16(v[1])<<dst.Offset, uint16(mask[1])<<dst.Offset)
		}
		return
	case FVLANPCP, FDLVLANPCP:
		if x.tagged() {
			x.modTag(uint16(v[1])<<(13+dst.Offset), uint16(mask[1])<<(13+dst.Offset))
		}
		return
	case FTCPSrc, FTCPDst:
		if !needPorts.met(x) {
			return
		}
	default:
		if !x.hasField(dst.Field) {
			return
		}
	}
	if dst.Field == FIPTTL {
		if dst.Bits < 8 {
			x.VisitWord(flowtable.WIP, ttlBits)
		}
		x.keep[flowtable.WIP] &^= ttlBits
	}
	dst.put(&x.flow, v, mask)
	word, hi, lo := dst.words(mask)
	x.keep[word] &^= hi
	if lo != 0 {
		x.keep[word+1] &^= lo
	}
	x.dirty = true
}

// decTTL decrements the TTL. It returns false if the TTL has expired, which ends the
// action list. If the highest set bit of the TTL proves that the TTL is high enough,
// the megaflow matches only this bit.
func (x *xlate) decTTL() bool {
	if !needIP.met(x) {
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
		x.ttlExpired()
		return false
	}
	if x.keep[flowtable.WIP]&ttlBits != 0 {
		x.decs++
	}
	x.flow[flowtable.WIP] -= 1 << flowtable.TTLShift
	x.dirty = true
	return true
}
