// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"weft/flowtable"
	"weft/packet"
	"weft/port"
	"weft/tunnel"
)

// execute executes the actions of the megaflows that the look-up has found. If these actions ask for another
// look-up of a frame (recirculation), execute makes it and executes the actions found.
func (w *Worker) execute() {
	w.executeFound()
	w.recirculated()
}

// recirculated looks up the frames of the set tracks.repeats again and executes their actions. It repeats
// this until the set is empty.
func (w *Worker) recirculated() {
	for w.tracks.repeats != 0 {
		w.lookAgain()
		w.executeFound()
	}
}

// executeFound executes the actions of the megaflows that the look-up has found, in the
// order in which the frames arrived. Consecutive frames of one megaflow form a run. The
// megaflow's statistics and actions are read once for each run.
func (w *Worker) executeFound() {
	b := &w.batch
	for i := w.outputRuns(0, b.N); i < b.N; i = w.outputRuns(i, b.N) {
		w.cursor = i
		switch slot := w.slots[i]; {
		case w.live>>i&1 == 0:
			i++
		case slot == flowtable.NoSlot:
			w.miss(i)
			i++
		default:
			i = w.executeRun(i, slot)
		}
	}
	w.cursor = b.N
}

// executeRun executes the actions of one megaflow on a run of frames: the frame with index
// firstIndex, and the following frames with the same megaflow. It returns the index of the first
// frame with another megaflow. Dropped frames between them do not end the run.
func (w *Worker) executeRun(firstIndex int, slot uint32) int {
	b := &w.batch
	packets, bytes, end := uint64(0), uint64(0), firstIndex
	for ; end < b.N; end++ {
		if w.live>>end&1 == 0 {
			continue
		}
		if w.slots[end] != slot {
			break
		}
		packets++
		bytes += uint64(b.Frames[end].Len())
	}
	if w.fragments.uncounted != 0 {
		w.uncount(firstIndex, end, &packets, &bytes)
	}
	flow := w.cache.Flow(slot)
	flow.Packets += packets
	flow.Bytes += bytes
	flow.UsedNS = w.now

	actions := w.cache.Actions(slot)
	tail := tailOf(actions)
	if packets > 1 && w.rxInUse != nil && w.rxInUse.tunnel {
		w.coalesce(firstIndex, end, actions)
	}
	done := 0
	if len(actions) > 0 && actions[0].Op == flowtable.OpSample {
		done = w.captures.sampleRun(firstIndex, end, actions)
	}
	if done < len(actions) && actions[done].Op == flowtable.OpCT {
		w.cursor = firstIndex
		done += w.trackRun(firstIndex, end, slot, actions[done:], done == 0)
	}
	for i := firstIndex; i < end; i++ {
		if w.live>>i&1 != 0 {
			w.cursor = i
			w.perform(i, actions, done, tail)
		}
	}
	return end
}

// outputRuns is the fast path for runs of frames (consecutive frames with the same megaflow) whose only
// action is one output. It begins with the frame at index firstIndex and ends before the frame at index
// "limit". It returns the index of the first frame that is not of this kind, or "limit".
func (w *Worker) outputRuns(firstIndex, limit int) int {
	if w.fragments.uncounted != 0 || w.tracks.forked != 0 || w.rxInUse != nil && w.rxInUse.tunnel {
		return firstIndex
	}
	flows := w.cache.Flows()
	var p *txPort // output port of the previous run
	alike := flowtable.ActionRef(0)
	for i := firstIndex; i < limit; {
		at := uint(i) % packet.BatchSize
		if w.live>>at&1 == 0 {
			i++
			continue
		}
		slot := w.slots[at]
		if slot >= uint32(len(flows)) {
			return i // the look-up missed: NoSlot
		}
		flow := &flows[slot]
		if flow.Actions != alike || p == nil { // The run has another action list than the previous run.
			a := w.cache.Only(flow)
			if a == nil || a.Op != flowtable.OpOutput || a.U32 >= port.MaxPorts {
				return i
			}
			p, alike = &w.ports[a.U32], flow.Actions
			if p.tx == nil || int(p.count)+limit-i > packet.BatchSize {
				return i
			}
			w.touch(p)
		}
		packets, bytes := uint64(0), uint64(0)
		for {
			packets++
			bytes += uint64(w.batch.Frames[at].Len())
			p.pending[p.count%packet.BatchSize] = uint8(at)
			p.count++
			i++
			at = uint(i) % packet.BatchSize
			if i >= limit || w.live>>at&1 == 0 || w.slots[at] != slot {
				break
			}
		}
		flow.Packets += packets
		flow.Bytes += bytes
		flow.UsedNS = w.now
	}
	return limit
}

// tailOf returns the index of the first action after the last action that changes the
// frame. From this index on, the list has only outputs or one tunnel action.
func tailOf(actions []flowtable.Action) int {
	tail := len(actions)
	if tail > 0 && actions[tail-1].Op == flowtable.OpTunnel {
		return tail - 1
	}
	for tail > 0 && actions[tail-1].Op == flowtable.OpOutput {
		tail--
	}
	return tail
}

// perform executes an action list on frame i, beginning at index start. tail is the
// result of tailOf for the list.
func (w *Worker) perform(i int, actions []flowtable.Action, start, tail int) {
	f := &w.batch.Frames[i]
	// muted is true if a meter suppresses the next OpController. unsent is the drop reason if no action sends
	// the frame.
	sent, muted, unsent := false, false, packet.DropFlow
	var fields *tunnel.Fields // tunnel fields that the list has set
	observation := uint64(0)  // IPFIX observation domain and point of the next OpSample
	for at := start; at < len(actions); at++ {
		a := &actions[at]
		switch a.Op {
		case flowtable.OpOutput:
			w.output(i, a.U32, at >= tail)
			sent = true
		case flowtable.OpTunnel:
			w.encapsulate(i, a, fields, at >= tail)
			sent = true
		case flowtable.OpQueue:
			if !w.meters.admit(f, a.U32, w.now) {
				w.dropAt(uint32(a.U16), i, packet.DropQueue)
				sent = true
				at++
			}
		case flowtable.OpLonger:
			if at += 2; at >= len(actions) {
				w.drop(f, packet.DropFlow)
				return
			}
			again := &actions[at]
			if f.SegmentLen() > int(a.U32) {
				again = &actions[at-1]
			}
			if !w.recirculate(i, again.U32, at+1 == len(actions)) {
				return
			}
			sent = true
		case flowtable.OpOutputTruncated:
			w.outputTruncated(i, a)
			sent = true
		case flowtable.OpDrop:
			w.drop(f, dropReason(a.U32))
			return
		case flowtable.OpController:
			if !muted {
				sent = w.captures.toController(i, a.U32, uint32(a.U64)) || sent
			}
			muted = false
		case flowtable.OpAnswer:
			w.answerNeighbour(i, a.U64)
			sent = true
		case flowtable.OpMeter:
			if !w.meters.admit(f, a.U32, w.now) {
				if a.U16 != 0 {
					w.tracks.rewritten |= 1 << i
					f.RaiseDropPrecedence(uint8(min(a.U16, 0xff)))
					continue
				}
				if a.U64 == 0 {
					muted, unsent = true, packet.DropMeter
					continue
				}
				w.drop(f, dropReason(uint32(a.U64)))
				return
			}
		case flowtable.OpCT:
			at += w.readRequest(actions[at:]) - 1
			w.tracks.order[0] = uint8(i)
			if w.track(w.tracks.order[:1]); w.live>>i&1 == 0 {
				return
			}
		case flowtable.OpTunOptions, flowtable.OpTunMeta:
			var taken int
			fields, taken = w.setFields(actions[at:], fields)
			at += taken - 1
		case flowtable.OpCTClear:
			w.tracks.tracked &^= 1 << i
		case flowtable.OpObserve:
			observation = a.U64
		case flowtable.OpSample:
			w.captures.sample(i, a, observation)
		case flowtable.OpRecirc:
			if !w.recirculate(i, a.U32, at+1 == len(actions)) {
				return
			}
			sent = true
		default:
			w.tracks.rewritten |= 1 << i
			lower := uint64(0)
			if at+1 < len(actions) {
				lower = actions[at+1].U64
			}
			if reason := rewrite(f, a, lower); reason != packet.DropNone {
				w.drop(f, reason)
				return
			}
		}
	}
	if !sent {
		w.drop(f, unsent)
	}
}

// dropReason returns the drop reason with number n, which comes from the control process. It returns
// DropFlow for an unknown number.
func dropReason(n uint32) packet.DropReason {
	if n == 0 || n >= uint32(packet.DropReasons) {
		return packet.DropFlow
	}
	return packet.DropReason(n)
}

// rewrite executes an action that changes the frame's header buffer. lowerHalf is the lower half of
// the address if the action sets an IPv6 address. The result is not DropNone if the action is
// impossible, for example because the header buffer has no room for a tag.
func rewrite(f *packet.Frame, a *flowtable.Action, lowerHalf uint64) packet.DropReason {
	switch a.Op {
	case flowtable.OpPushVLAN:
		return f.PushVLAN(a.U16, uint16(a.U32))
	case flowtable.OpPopVLAN:
		f.PopVLAN()
	case flowtable.OpSetVLAN:
		f.SetVLAN(uint16(a.U32))
	case flowtable.OpSetEthDst:
		f.SetEthDst(a.U64)
	case flowtable.OpSetEthSrc:
		f.SetEthSrc(a.U64)
	case flowtable.OpSetIPv4Src:
		f.SetIPv4Src(a.U32)
	case flowtable.OpSetIPv4Dst:
		f.SetIPv4Dst(a.U32)
	case flowtable.OpSetIPv6Src:
		f.SetIPv6Src(a.U64, lowerHalf)
	case flowtable.OpSetIPv6Dst:
		f.SetIPv6Dst(a.U64, lowerHalf)
	case flowtable.OpSetTOS:
		f.SetTOS(uint8(a.U32))
	case flowtable.OpSetTTL:
		f.SetTTL(uint8(a.U32))
	case flowtable.OpDecTTL:
		return f.DecTTL()
	case flowtable.OpSetTpSrc:
		f.SetTpSrc(uint16(a.U32))
	case flowtable.OpSetTpDst:
		f.SetTpDst(uint16(a.U32))
	case flowtable.OpPushMPLS:
		return f.PushMPLS(a.U16, a.U32)
	case flowtable.OpPopMPLS:
		f.PopMPLS(a.U16)
	case flowtable.OpPushPBB:
		return f.PushPBB(a.U32)
	case flowtable.OpPopPBB:
		return f.PopPBB()
	case flowtable.OpEncapMPLS:
		return f.EncapMPLS(a.U16, a.U32)
	case flowtable.OpDecapMPLS:
		return f.DecapMPLS()
	case flowtable.OpSetShim:
		f.SetShim(a.U32)
	case flowtable.OpEncapNSH:
		return f.EncapNSH(packet.NSHFields(a.U64))
	case flowtable.OpPushNSH:
		return f.PushNSH(packet.NSHFields(a.U64))
	case flowtable.OpDecapNSH:
		return f.DecapNSH()
	case flowtable.OpPopNSH:
		return f.PopNSH(a.U16)
	case flowtable.OpSetNSHFlags, flowtable.OpSetNSHTTL, flowtable.OpSetNSHSPI, flowtable.OpSetNSHSI,
		flowtable.OpSetNSHC1, flowtable.OpSetNSHC2, flowtable.OpSetNSHC3, flowtable.OpSetNSHC4:
		rewriteNSH(f, a)
	default:
		rewriteARPND(f, a, lowerHalf)
	}
	return packet.DropNone
}
