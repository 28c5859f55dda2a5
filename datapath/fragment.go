// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"math/bits"

	"weft/conntrack"
	"weft/flowtable"
	"weft/packet"
)

// The fragments of an IP datagram are tracked together, but forwarded as separate fragments. A
// fragment that reaches a ct action is held until its datagram is complete. Then all fragments of the
// datagram are looked up again, in order, and pass the ct action one after the other. The first
// fragment, which has the transport header, determines the result for all.
//
// Tracking needs the unchanged fragment, so fragments are held only if ct is the first action (except
// for samples). All fragments of a datagram must come from one port, and from queues of one worker.

// fragments has the fragmented datagrams of a worker: those that are incomplete, and complete ones that are
// not forwarded yet. Sets of frames have one bit for each frame of the batch.
type fragments struct {
	conntrack.Fragments
	whole     []uint32 // numbers of complete datagrams that are not forwarded yet
	slots     []uint32 // held slots of one datagram, only while a function uses them
	sweptNS   uint64   // time of the last search for expired datagrams
	assembled uint32   // set of frames of the batch that belong to a complete datagram
	// set of assembled frames that their megaflow must not count, because it counted them when they
	// arrived
	uncounted uint32
	datagram  [packet.BatchSize]uint32               // datagram number of each frame in assembled
	first     [conntrack.MaxDatagrams]conntrack.Meta // tracking result of each datagram's first fragment
	tracked   [conntrack.MaxDatagrams]bool           // whether that result is valid
	// Action lists that the control process has sent for single frames (CmdExecute, CmdInject). current is
	// the list of the frame that is being executed. lists has the lists of held fragments, by held slot.
	current []flowtable.Action
	lists   map[uint32][]flowtable.Action
}

// trackFragments handles the fragments among the live frames from index "first" to end-1. It tracks a
// fragment if its datagram is complete, and holds it otherwise. It returns the set of all fragments.
func (w *Worker) trackFragments(first, end int) (set uint32) {
	for i := first; i < end; i++ {
		if w.live>>i&1 == 0 || w.batch.Frames[i].Flags&packet.FrameFragment == 0 {
			continue
		}
		set |= 1 << i
		if w.fragments.assembled>>i&1 != 0 {
			w.trackAssembled(i)
		} else {
			w.live &^= 1 << i
			w.collect(i)
		}
	}
	return set
}

// collect adds the fragment in frame i to its datagram and holds the frame until the datagram is complete.
func (w *Worker) collect(i int) {
	f, r := &w.batch.Frames[i], &w.fragments
	fr, ok := conntrack.FragmentOf(f, w.tracks.request.Zone)
	if !ok {
		w.drop(f, packet.DropBadFragment)
		return
	}
	fr.Sender = senderOf(f.InPort, w.keys[i].Tunnel())
	slot, reason := w.held.hold(i, flowtable.Action{})
	if reason != packet.DropNone {
		w.drop(f, reason)
		return
	}
	if r.current != nil {
		if r.lists == nil {
			r.lists = map[uint32][]flowtable.Action{}
		}
		r.lists[slot] = append([]flowtable.Action(nil), r.current...)
	}
	number, verdict := r.Add(&fr, slot, w.now)
	h := &w.sh.Held[slot]
	h.Track.Datagram = uint32(number) + 1
	// A frame that was held after a miss is dropped if it misses again. A fragment that was held without a miss
	// may still cause an upcall in its next look-up.
	h.Track.Fresh = 1
	if f.Flags&packet.FrameResumed != 0 {
		h.Track.Fresh = 0
	}
	switch verdict {
	case conntrack.FragmentCompletes:
		r.whole = append(r.whole, uint32(number))
	case conntrack.FragmentTwice, conntrack.FragmentNoRoom:
		h.Track.Datagram = 0
		w.held.drop(slot, packet.DropBadFragment)
	case conntrack.FragmentBad:
		h.Track.Datagram = 0
		w.held.drop(slot, packet.DropBadFragment)
		w.dropDatagram(number, packet.DropBadFragment)
		r.Empty(number)
	}
}

// dropDatagram drops all waiting fragments of the datagram with this number.
func (w *Worker) dropDatagram(number int, reason packet.DropReason) {
	r := &w.fragments
	r.slots = r.Slots(number, r.slots[:0])
	for _, slot := range r.slots {
		if h := w.held.waiting(slot); h != nil && h.Track.Datagram == uint32(number)+1 {
			w.held.drop(slot, reason)
		}
	}
}

// trackAssembled executes the ct action in tracks.request on frame i, a fragment of a complete datagram. The
// result of the datagram's first fragment holds for the later ones.
func (w *Worker) trackAssembled(i int) {
	f, r, t := &w.batch.Frames[i], &w.fragments, &w.tracks
	n := r.datagram[i]
	m := &t.metas[i]
	if t.tracked>>i&1 == 0 {
		*m = conntrack.Meta{}
		t.tracked |= 1 << i
	}
	switch {
	case t.tracker == nil:
		*m = conntrack.Meta{State: conntrack.Tracked | conntrack.Invalid, Zone: t.request.Zone}
	case f.L4 != 0:
		total, own := r.Total(int(n))
		t.request.Tunnelled = w.tunnelled([]uint8{uint8(i)})
		t.tracker.TrackFirst(&w.batch, uint8(i), total-own, &t.metas, &t.request, w.now)
		r.first[n], r.tracked[n] = *m, true
	case r.tracked[n]:
		*m = r.first[n]
		if m.Drop == packet.DropNone {
			t.tracker.TrackLater(&w.batch, f, m)
		}
	default: // the first fragment has not reached this ct action
		*m = conntrack.Meta{State: conntrack.Tracked | conntrack.Invalid, Zone: t.request.Zone}
	}
	if m.State&(conntrack.SNAT|conntrack.DNAT) != 0 {
		t.rewritten |= 1 << i
	}
	if m.Drop != packet.DropNone {
		w.drop(f, m.Drop)
		w.live &^= 1 << i
	}
}

// sendWhole looks up the fragments of all complete datagrams again and executes their actions. It removes
// each datagram as soon as its fragments are sent. If a memory fault of an output interrupts sendWhole, the
// next pass of the worker's loop continues with the other datagrams.
func (w *Worker) sendWhole() {
	r := &w.fragments
	for len(r.whole) > 0 {
		number := r.whole[0]
		r.tracked[number] = false
		r.slots = r.Slots(int(number), r.slots[:0])
		for _, slot := range r.slots {
			h := w.held.waiting(slot)
			if h == nil || h.Track.Datagram != number+1 {
				continue // the fragment was dropped meanwhile
			}
			if actions, ok := r.lists[slot]; ok {
				w.runResumed()
				w.runGiven(slot, h, number, actions)
				continue
			}
			w.resume(slot, h)
			i := w.batch.N - 1
			r.datagram[i] = number
			r.assembled |= 1 << i
			r.uncounted |= 1 << i
			if h.Track.Fresh != 0 {
				w.batch.Frames[i].Flags &^= packet.FrameResumed
			}
			if w.batch.Full() {
				w.runResumed()
			}
		}
		w.runResumed()
		r.whole = append(r.whole[:0], r.whole[1:]...)
		r.Free(int(number))
	}
}

// trackGiven executes a ct action at the start of a list from the control process, if the only frame of
// the batch is a fragment. It returns the number of list elements that it has executed. For other
// frames and other lists it does nothing and returns 0.
func (w *Worker) trackGiven(actions []flowtable.Action) (count int) {
	if len(actions) == 0 || actions[0].Op != flowtable.OpCT || w.batch.Frames[0].Flags&packet.FrameFragment == 0 {
		return 0
	}
	count = w.readRequest(actions)
	w.fragments.current = actions
	w.trackFragments(0, 1)
	w.fragments.current = nil
	return count
}

// runGiven executes actions from the control process on a fragment that has waited in a slot until its
// datagram was complete.
func (w *Worker) runGiven(slot uint32, h *HeldFrame, number uint32, actions []flowtable.Action) {
	w.resume(slot, h)
	w.fragments.datagram[0], w.fragments.assembled = number, 1
	w.performHeld(h, actions)
}

// sweepFragments drops the fragments of incomplete datagrams that have waited too long. It looks for them
// every heldSweepNS.
func (w *Worker) sweepFragments() {
	r := &w.fragments
	if r.Count == 0 || w.now-r.sweptNS < heldSweepNS {
		return
	}
	r.sweptNS = w.now
	for n := r.Expired(0, w.now); n >= 0; n = r.Expired(n+1, w.now) {
		w.dropDatagram(n, packet.DropHeldExpired)
		r.Free(n)
	}
}

// uncount subtracts held fragments from the counts of a run (consecutive frames with the same megaflow). The
// megaflow counted these fragments when they arrived, before they were held.
func (w *Worker) uncount(first, end int, packets, bytes *uint64) {
	r := &w.fragments
	for set := r.uncounted & w.live & (allOf(end) &^ allOf(first)); set != 0; set &= set - 1 {
		i := bits.TrailingZeros32(set) % packet.BatchSize
		*packets--
		*bytes -= uint64(w.batch.Frames[i].Len())
		r.uncounted &^= 1 << i
	}
}
