// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"math/bits"

	"weft/conntrack"
	"weft/flowtable"
	"weft/packet"
)

// The fragments of a datagram are tracked together and forwarded as separate
// fragments. A fragment that reaches a ct action is held until its datagram is
// complete. Then all fragments of the datagram are looked up again, in order, and
// pass the ct action together. The first fragment, which has the transport header,
// determines the result.
//
// Tracking needs the unchanged fragment, so fragments are held only if ct is the
// first action. All fragments of a datagram must come from one port, and from queues
// of one worker.

// fragments holds the incomplete and the complete datagrams of a worker.
type fragments struct {
	conntrack.Fragments
	whole     []uint32 // numbers of complete datagrams that are not forwarded yet
	slots     []uint32 // scratch: held slots of one datagram
	sweptNS   uint64
	assembled uint32 // frames of the batch that belong to a complete datagram
	// set of assembled frames that were counted for their megaflow on arrival, before
	// they waited for their datagram
	uncounted uint32
	datagram  [packet.BatchSize]uint32 // datagram number of each frame in assembled
	first     [conntrack.MaxDatagrams]conntrack.Meta
	tracked   [conntrack.MaxDatagrams]bool // whether the same element of the field first is valid
	// Action lists from the control process. current is the list of the current frame.
	// lists has the lists of held fragments, by held slot.
	current []flowtable.Action
	lists   map[uint32][]flowtable.Action
}

// trackFragments handles the fragments of a run: it holds them, or tracks them if their
// datagram is complete. It returns the set of these fragments.
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

// collect holds fragment i until its datagram is complete.
func (w *Worker) collect(i int) {
	f, r := &w.batch.Frames[i], &w.fragments
	fr, ok := conntrack.FragmentOf(f, w.tracks.request.Zone)
	if !ok {
		w.drop(f, packet.DropBadFragment)
		return
	}
	fr.Sender = senderOf(f.InPort, w.keys[i].Tunnel())
	slot, reason := w.hold(i, flowtable.Action{})
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
	// The fragment counts as a new frame again, so its next look-up may cause an
	// upcall.
	h.Track.Fresh = 1
	if f.Flags&packet.FrameResumed != 0 {
		h.Track.Fresh = 0
	}
	switch verdict {
	case conntrack.FragmentCompletes:
		r.whole = append(r.whole, uint32(number))
	case conntrack.FragmentTwice, conntrack.FragmentNoRoom:
		h.Track.Datagram = 0
		w.dropHeld(slot, packet.DropBadFragment)
	case conntrack.FragmentBad:
		h.Track.Datagram = 0
		w.dropHeld(slot, packet.DropBadFragment)
		w.dropDatagram(number, packet.DropBadFragment)
		r.Empty(number)
	}
}

// dropDatagram drops all held fragments of a datagram.
func (w *Worker) dropDatagram(number int, reason packet.DropReason) {
	r := &w.fragments
	r.slots = r.Slots(number, r.slots[:0])
	for _, slot := range r.slots {
		if h := w.waiting(slot); h != nil && h.Track.Datagram == uint32(number)+1 {
			w.dropHeld(slot, reason)
		}
	}
}

// trackAssembled tracks frame i, a fragment of a complete datagram.
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

// sendWhole looks up the fragments of complete datagrams and executes their actions. It
// removes each datagram as soon as it is finished, because a memory fault of an output
// may interrupt sendWhole.
func (w *Worker) sendWhole() {
	r := &w.fragments
	for len(r.whole) > 0 {
		number := r.whole[0]
		r.tracked[number] = false
		r.slots = r.Slots(int(number), r.slots[:0])
		for _, slot := range r.slots {
			h := w.waiting(slot)
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

// trackGiven executes a ct action at the start of a list from the control process, on
// the only frame of the batch. It returns the number of list elements that it has
// executed. For a frame that is no fragment it returns 0.
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

// runGiven executes actions from the control process on a held fragment whose
// datagram is complete.
func (w *Worker) runGiven(slot uint32, h *HeldFrame, number uint32, actions []flowtable.Action) {
	w.resume(slot, h)
	w.fragments.datagram[0], w.fragments.assembled = number, 1
	w.performHeld(h, actions)
}

// sweepFragments drops datagrams whose fragments have waited too long.
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

// uncount corrects a run's counts for frames that were counted before they were held.
func (w *Worker) uncount(first, end int, packets, bytes *uint64) {
	r := &w.fragments
	for set := r.uncounted & w.live & (allOf(end) &^ allOf(first)); set != 0; set &= set - 1 {
		i := bits.TrailingZeros32(set) % packet.BatchSize
		*packets--
		*bytes -= uint64(w.batch.Frames[i].Len())
		r.uncounted &^= 1 << i
	}
}
