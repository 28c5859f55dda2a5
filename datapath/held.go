// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"sync/atomic"

	"weft/conntrack"
	"weft/flowtable"
	"weft/packet"
	"weft/port"
)

const (
	// maxHeldPerTemplate is the largest number of frames that are held for one tunnel
	// template until its next hop is resolved. Further frames are dropped as
	// DropHeldShare.
	maxHeldPerTemplate = 128
	// heldSweepNS is the interval in nanoseconds at which the worker looks for frames that have waited for the
	// control process, or for other fragments, for too long. It drops these frames.
	heldSweepNS = 100_000_000
)

// heldPool lists the free slots for held frames: frames that wait for the control process or for other
// fragments. It also counts the held frames. bySender has their number for each sender (senderOf), byTemplate
// for each tunnel template. The methods consume and drop free the slot of a frame. So does release, at the
// end of the batch in which the frame was processed again. The worker owns the pool.
type heldPool struct {
	sh    *Shared
	batch *packet.Batch
	*passTime
	lookup    *lookup
	tracks    *tracks
	captures  *captures
	fragments *fragments

	sweptNS    uint64 // time of the last search for expired frames
	free       []uint32
	bySender   [conntrack.MaxSenders]uint16
	byTemplate []uint16
	count      int
}

// init rebuilds the pool from the slots in shared memory. Frames that the worker of an earlier engine process
// held stay held until the control process drops them or they expire.
func (p *heldPool) init(w *Worker) {
	sh := w.sh
	p.sh, p.batch, p.passTime, p.lookup, p.tracks, p.captures, p.fragments = sh, &w.batch, &w.passTime, &w.lookup, &w.tracks, &w.captures, &w.fragments
	p.free = make([]uint32, 0, len(sh.Held))
	p.byTemplate = make([]uint16, len(sh.Templates))
	for slot := len(sh.Held) - 1; slot >= 0; slot-- {
		if h := &sh.Held[slot]; h.State == HeldWaiting {
			p.tally(h, 1)
		} else {
			p.free = append(p.free, uint32(slot))
		}
	}
}

func (p *heldPool) tally(h *HeldFrame, change int) {
	p.count += change
	p.bySender[senderOf(h.InPort, &h.Tunnel)] += uint16(change)
	if h.Then.Op == flowtable.OpTunnel && h.Then.U32 < uint32(len(p.byTemplate)) {
		p.byTemplate[h.Then.U32] += uint16(change)
	}
}

// senderOf returns the index of the quota to which a waiting frame counts: the quota of its input port, or of
// its VNI if the frame came through a tunnel. VNIs that are equal modulo 1,024 share one quota. t has the
// tunnel words of the frame's key.
func senderOf(inPort uint32, t *[flowtable.TunnelWords]uint64) uint32 {
	if *t != [flowtable.TunnelWords]uint64{} {
		return port.MaxPorts + uint32(t[0])%(conntrack.MaxSenders-port.MaxPorts)
	}
	return inPort % port.MaxPorts
}

// hold copies frame i into a slot, in which the frame waits, and returns the slot. A sender may have at most
// as many waiting frames as there are free slots. So one sender alone gets at most half of all slots, and two
// senders get at most a third each. If the frame waits for the next hop of a tunnel, tunnelAction is its
// tunnel action; otherwise it is zero. If the frame cannot wait, reason is the drop reason.
func (p *heldPool) hold(i int, tunnelAction flowtable.Action) (slot uint32, reason packet.DropReason) {
	f := &p.batch.Frames[i]
	length := f.Len()
	if len(p.free) == 0 || length > HeldBytes {
		return 0, packet.DropHeldFull
	}
	if int(p.bySender[senderOf(f.InPort, p.lookup.keys[i].Tunnel())]) >= len(p.free) ||
		tunnelAction.Op == flowtable.OpTunnel && p.byTemplate[tunnelAction.U32] >= maxHeldPerTemplate {
		return 0, packet.DropHeldShare
	}
	slot = p.free[len(p.free)-1]
	p.batch.Gather(f, p.sh.heldBytes(slot)) // the copy may fault, so the slot stays free until it is complete
	p.free = p.free[:len(p.free)-1]
	h := &p.sh.Held[slot]
	*h = HeldFrame{Len: uint32(length), State: HeldWaiting, InPort: f.InPort, Number: h.Number, SinceNS: p.now,
		Tunnel: *p.lookup.keys[i].Tunnel(), Then: tunnelAction, Offload: f.Offload}
	if h.Tunnel[hashWord] != 0 {
		p.sh.HeldOptions[slot].Set(p.lookup.options[i].Raw())
	}
	if f.Flags&packet.FrameHidden != 0 {
		h.L3, h.L4, h.Proto = f.L3, f.L4, f.Proto
	}
	if t := p.tracks; t.looped>>i&1 != 0 {
		h.Track = HeldTrack{Recirc: t.recircs[i]}
		if t.tracked>>i&1 != 0 {
			h.Track.Tracked, h.Track.Meta = 1, t.metas[i]
		}
	}
	p.tally(h, 1)
	return slot, packet.DropNone
}

// holdOwn copies a frame that the control process has made into a slot for waiting frames. ok is false if no
// slot is free.
func (p *heldPool) holdOwn(inPort uint32, frame []byte) (slot uint32, ok bool) {
	if len(p.free) == 0 {
		return 0, false
	}
	slot = p.free[len(p.free)-1]
	p.free = p.free[:len(p.free)-1]
	copy(p.sh.heldBytes(slot), frame)
	h := &p.sh.Held[slot]
	*h = HeldFrame{Len: uint32(len(frame)), State: HeldWaiting, InPort: inPort, Number: h.Number, SinceNS: p.now}
	p.tally(h, 1)
	return slot, true
}

// hashWord is the index of the hash of the Geneve options among the tunnel words.
const hashWord = flowtable.WTunOpts - flowtable.WTunID

func (sh *Shared) heldBytes(slot uint32) []byte {
	return sh.HeldBytes[int(slot)*HeldBytes:][:HeldBytes]
}

// waiting returns the frame held in heldSlot, or nil if the slot holds no waiting frame.
func (p *heldPool) waiting(heldSlot uint32) *HeldFrame {
	if heldSlot >= uint32(len(p.sh.Held)) || p.sh.Held[heldSlot].State != HeldWaiting {
		return nil
	}
	return &p.sh.Held[heldSlot]
}

// A reference (ref) identifies a held frame in its upcall and in the commands that answer the upcall.
// heldSlotBits is the number of its low bits that have the frame's slot. The other bits are the low bits of
// HeldFrame.Number. So if an answer arrives after the frame has expired, it does not apply to the next frame
// in the slot.
const heldSlotBits = 16

func (p *heldPool) refOf(slot uint32) uint32 { return p.sh.Held[slot].Number<<heldSlotBits | slot }

// SlotOf returns the slot of the waiting frame to which the reference ref belongs. The slot is an index of
// Shared.Held.
func SlotOf(ref uint32) uint32 { return ref & (1<<heldSlotBits - 1) }

// Waits reports whether the frame with reference ref still waits in its slot. The control process calls it.
// The worker may drop the frame as expired right after Waits has returned true.
func (sh *Shared) Waits(ref uint32) bool {
	slot := SlotOf(ref)
	if slot >= uint32(len(sh.Held)) {
		return false
	}
	h := &sh.Held[slot]
	return atomic.LoadUint32(&h.State) == HeldWaiting && atomic.LoadUint32(&h.Number)<<heldSlotBits|slot == ref
}

// answered returns the slot of reference ref, and the frame that waits there. h is nil if the frame with this
// reference no longer waits.
func (p *heldPool) answered(ref uint32) (slot uint32, h *HeldFrame) {
	slot = SlotOf(ref)
	if h = p.waiting(slot); h != nil && p.refOf(slot) != ref {
		h = nil
	}
	return slot, h
}

// release frees the slot of a waiting frame. It changes the slot's number, so that a late answer for the
// frame does not apply to the next frame in the slot.
func (p *heldPool) release(slot uint32) {
	h := &p.sh.Held[slot]
	h.State = HeldFree
	h.Number++
	delete(p.fragments.lists, slot)
	p.tally(h, -1)
	p.free = append(p.free, slot)
}

// consume frees the slot of a waiting frame that the control process has taken for itself. No drop counter
// counts the frame.
func (p *heldPool) consume(slot uint32) {
	p.captures.heldDrop(slot, packet.Consumed)
	p.release(slot)
}

// The method drop drops the frame that waits in a slot. If the frame waits for the next hop of a tunnel, the
// port of the tunnel counts the drop, because other outputs may have sent their copies of the frame.
// Otherwise the input port counts it.
func (p *heldPool) drop(slot uint32, reason packet.DropReason) {
	p.captures.heldDrop(slot, reason)
	h := &p.sh.Held[slot]
	if h.Then.Op == flowtable.OpTunnel {
		p.sh.Counters.Drops[reason]++
		p.sh.Ports[h.Then.U16%port.MaxPorts].dropTx(reason)
	} else {
		p.sh.dropFrom(h.InPort, reason)
	}
	p.release(slot)
}

// resume adds the frame that waits in a slot, with its tunnel and tracking state, to the worker's batch. The
// batch must not be full.
func (w *Worker) resume(slot uint32, h *HeldFrame) {
	b := &w.batch
	i := b.N
	bytes := w.sh.heldBytes(slot)[:h.Len]
	f, head := b.Next()
	f.InPort, f.Held, f.Flags, f.Offload = h.InPort, slot+1, packet.FrameResumed, h.Offload
	n := copy(head[:], bytes)
	if n < len(bytes) {
		b.AddSpan(f, packet.Address(bytes[n:]), uint32(len(bytes)-n))
	}
	b.Commit(f, n)
	w.words[i] = h.Tunnel
	if h.Tunnel[hashWord] != 0 {
		w.options[i].Set(w.sh.HeldOptions[slot].Raw())
	}
	if i == 0 {
		w.beginTracks()
	}
	t := &w.tracks
	t.resumedAt[i] = h.Track.Recirc
	if h.Track.Recirc != 0 {
		t.recircs[i], t.metas[i] = h.Track.Recirc, h.Track.Meta
		t.looped |= 1 << i
		t.tracked |= h.Track.Tracked & 1 << i
	}
}

// checkOffload checks the unfinished checksum or segmentation of a frame whose key was just extracted. If
// actions had pushed an MPLS or PBB header on the frame before it was held, extraction finds no IP header.
// checkOffload then restores the header offsets that are stored with the held frame.
func (w *Worker) checkOffload(f *packet.Frame) packet.DropReason {
	if f.Held != 0 && f.L3 == 0 {
		if h := &w.sh.Held[f.Held-1]; h.L3 != 0 {
			f.L3, f.L4, f.Proto = h.L3, h.L4, h.Proto
			f.Flags |= packet.FrameHidden
		}
	}
	return w.batch.CheckOffload(f)
}

// releaseResumed frees the slots in which frames of this batch have waited.
func (p *heldPool) releaseResumed() {
	for i := range p.batch.Frames[:p.batch.N] {
		if f := &p.batch.Frames[i]; f.Held != 0 {
			p.release(f.Held - 1)
			f.Held = 0
		}
	}
}

// sweep drops the frames that have waited in their slots for longer than heldTimeoutNS. It looks for them
// every heldSweepNS.
func (p *heldPool) sweep() {
	if p.count == 0 || p.now-p.sweptNS < heldSweepNS {
		return
	}
	p.sweptNS = p.now
	for slot := range p.sh.Held {
		if h := &p.sh.Held[slot]; h.State == HeldWaiting && int64(p.now-h.SinceNS) > heldTimeoutNS {
			p.drop(uint32(slot), packet.DropHeldExpired)
		}
	}
}
