// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"encoding/binary"
	"math/bits"

	"weft/conntrack"
	"weft/flowtable"
	"weft/packet"
)

// maxRounds is the largest number of repeated look-ups of one frame in one batch. A frame that needs
// more is dropped as DropLoop.
const maxRounds = 16

// tracks is the connection tracking state of the batch. Each set of frames has one bit
// per frame.
type tracks struct {
	tracker *conntrack.Tracker // tracker of the shared table; nil: no tracking
	plain   bool               // disables fusing in tests
	request conntrack.Request  // the ct action that is being executed
	order   [packet.BatchSize]uint8

	tracked   uint32 // set of frames with a valid entry in metas
	rewritten uint32 // set of frames whose header has changed since their key was extracted
	repeats   uint32 // set of frames that need another look-up
	looped    uint32 // set of frames that had another look-up
	counted   uint32 // set of frames with a valid entry in rounds
	forked    int    // nesting depth of forks; above 0, outputs send at once
	metas     [packet.BatchSize]conntrack.Meta
	recircs   [packet.BatchSize]uint32 // recirc_id of each frame's last look-up, or of its next
	resumedAt [packet.BatchSize]uint32 // recirc_id with which each resumed frame had missed
	rounds    [packet.BatchSize]uint8  // number of repeated look-ups of each frame

	forks [maxForks]fork
}

// maxForks is the largest nesting depth of forks (look-ups in the middle of an action
// list). A frame that exceeds it, or whose copy does not fit into the batch, is dropped
// as DropLoop.
const maxForks = 4

// fork has a frame and its tracking state, saved before a look-up in the middle of an action list. The
// actions after the look-up continue with the saved frame.
type fork struct {
	frame   packet.Frame
	key     flowtable.Key
	meta    conntrack.Meta
	tracked uint32
	repeats uint32 // saved tracks.repeats
	live    uint32
}

// HeldTrack is the connection tracking state of a frame that waits in a slot. The frame gets it back when the
// worker handles it again.
type HeldTrack struct {
	Recirc  uint32
	Tracked uint32 // 1: Meta is valid
	// Datagram is 1 + the number of the fragment's datagram in fragments; 0: the frame does not wait for a
	// datagram. Fresh is 1 if the fragment has not waited in a slot before.
	Datagram, Fresh uint32
	Meta            conntrack.Meta
}

func (w *Worker) beginTracks() {
	t := &w.tracks
	t.tracked, t.rewritten, t.repeats, t.looped, t.counted = 0, 0, 0, 0, 0
	w.fused.hintless, w.fused.found, w.fused.agreed.serial = 0, 0, 0
	if t.tracker != nil {
		t.tracker.Forget(^uint32(0))
	}
	w.fragments.assembled, w.fragments.uncounted = 0, 0
}

// lookAgain looks the frames in tracks.repeats up again.
func (w *Worker) lookAgain() {
	t := &w.tracks
	w.live, t.repeats, w.cursor = t.repeats, 0, 0
	for live := w.live; live != 0; live &= live - 1 {
		i := bits.TrailingZeros32(live) % packet.BatchSize
		reason := packet.DropNone
		if t.counted>>i&1 == 0 {
			t.counted |= 1 << i
			t.rounds[i] = 0
		}
		if t.rounds[i]++; t.rounds[i] > maxRounds {
			reason = packet.DropLoop
		} else if t.rewritten>>i&1 != 0 {
			reason = w.extractAgain(i)
		}
		if reason != packet.DropNone {
			w.drop(&w.batch.Frames[i], reason)
			w.live &^= 1 << i
		}
	}
	if t.tracker != nil {
		t.tracker.Forget(t.rewritten)
	}
	t.rewritten &^= w.live
	t.looped |= w.live
	w.lookUp(0)
	if w.fused.hintless != 0 {
		w.fuse()
	}
}

// extractAgain extracts the key of frame i again, after actions have changed the header. The key keeps its
// tunnel words. extractAgain also checks an unfinished offload against the changed header. It returns a
// drop reason if the frame is malformed now.
func (w *Worker) extractAgain(i int) packet.DropReason {
	f, k := &w.batch.Frames[i], &w.keys[i]
	tunnel := *k.Tunnel()
	l3, l4, proto := f.L3, f.L4, f.Proto
	reason := flowtable.Extract(&w.batch, f, k)
	switch {
	case reason != packet.DropNone || !f.Undone():
	case f.Flags&packet.FrameHidden != 0 && f.L3 == 0:
		f.L3, f.L4, f.Proto = l3, l4, proto // the worker still has to finish the offload
	default:
		f.Flags &^= packet.FrameHidden
		reason = w.batch.CheckOffload(f)
	}
	*k.Tunnel() = tunnel
	w.dirty |= 1 << i
	return reason
}

// setTracked writes recirc_id and the ct_* fields into the keys of frames that are looked up again.
func (w *Worker) setTracked() {
	t := &w.tracks
	w.dirty |= t.looped & w.live
	for set := t.looped & w.live; set != 0; set &= set - 1 {
		i := bits.TrailingZeros32(set) % packet.BatchSize
		k := &w.keys[i]
		k.SetRecirc(t.recircs[i])
		if t.tracked>>i&1 != 0 {
			setCT(k.CT(), &t.metas[i])
		} else {
			*k.CT() = [flowtable.CTWords]uint64{}
		}
	}
}

// setCT writes the ct_* fields into their words of a key, in the layout of flowtable.Key.
func setCT(words *[flowtable.CTWords]uint64, m *conntrack.Meta) {
	o := &m.Orig
	src, dst := uint64(o.SrcPort), uint64(o.DstPort)
	if o.Proto == packet.ProtoICMP || o.Proto == packet.ProtoICMPv6 {
		src, dst = dst>>8, dst&0xff // for ICMP, SrcPort is the identifier, and DstPort has type and code
	}
	words[0] = uint64(m.Mark)<<32 | uint64(m.State)<<24 | uint64(o.Proto)<<16 | uint64(m.Zone)
	words[1] = src<<48 | dst<<32
	words[2], words[3] = m.Label[0], m.Label[1]
	words[4], words[5] = o.Src[0], o.Src[1]
	words[6], words[7] = o.Dst[0], o.Dst[1]
}

// readRequest decodes the ct action at the start of an action list into tracks.request. It returns the
// number of list elements that encode this action.
func (w *Worker) readRequest(list []flowtable.Action) int {
	var c flowtable.CTRequest
	n := flowtable.ReadCT(list, &c)
	q := &w.tracks.request
	q.Zone, q.Commit, q.Force = c.Zone, c.Bits&flowtable.CTCommit != 0, c.Bits&flowtable.CTForce != 0
	q.Mark, q.MarkMask, q.Label, q.LabelMask = c.Mark, c.MarkMask, c.Label, c.LabelMask
	q.NAT = conntrack.NAT{
		Random: c.Bits&flowtable.CTRandom != 0, Hash: c.Bits&flowtable.CTHash != 0,
		Persistent: c.Bits&flowtable.CTPersistent != 0, IPv6: c.Bits&flowtable.CTIPv6 != 0,
		Lo: c.Lo, Hi: c.Hi, PortLo: c.PortLo, PortHi: c.PortHi,
	}
	q.ALG = conntrack.ALGNone
	if c.Bits&flowtable.CTFTP != 0 {
		q.ALG = conntrack.ALGFTP
	} else if c.Bits&flowtable.CTTFTP != 0 {
		q.ALG = conntrack.ALGTFTP
	}
	switch {
	case c.Bits&flowtable.CTNATSrc != 0:
		q.NAT.Kind = conntrack.NATSrc
	case c.Bits&flowtable.CTNATDst != 0:
		q.NAT.Kind = conntrack.NATDst
	case c.Bits&flowtable.CTNAT != 0:
		q.NAT.Kind = conntrack.NATBare
	}
	return n
}

// trackRun executes the ct action at the start of an action list on a run of frames (consecutive frames with
// the same megaflow). It returns the number of list elements that encode this action. mayFuse is false if
// actions of the megaflow precede the ct action. slot is the run's megaflow.
func (w *Worker) trackRun(first, end int, slot uint32, actions []flowtable.Action, mayFuse bool) int {
	n := w.readRequest(actions)
	kind, done := fuseNot, uint32(0)
	pieces := w.trackFragments(first, end)
	if mayFuse && w.fuses() {
		kind = kindOf(actions, n)
	}
	if kind != fuseNot {
		done = w.runFused(first, end, slot)
	}
	live := w.live
	pieces &= live
	w.live &^= done | pieces
	count := 0
	for i := first; i < end; i++ {
		if w.live>>i&1 != 0 {
			w.tracks.order[count%packet.BatchSize] = uint8(i)
			count++
		}
	}
	order := w.tracks.order[:count]
	if kind == fuseThen && done != 0 {
		w.live = live &^ pieces
		w.executeFused(first, end, done)
		w.readRequest(actions)
		done = 0
	}
	w.track(order)
	if kind != fuseNot {
		w.wantFused(order, slot, kind)
	}
	w.live |= done | pieces
	return n
}

// fuses reports whether the worker may replace look-ups of this batch by hints, the megaflows stored with
// connections (fuse.go). A capture that looks at every frame prevents it, because a trace must show every
// look-up.
func (w *Worker) fuses() bool {
	return w.tracks.tracker != nil && !w.tracks.plain && !w.captures.everyFrame && w.tracks.forked == 0 && w.tracks.looped == 0 && w.rxInUse != nil
}

// track executes the ct action in tracks.request on the frames in the list "order". It drops frames that the
// action refuses. If the worker has no connection table, all frames get the ct_state invalid.
func (w *Worker) track(order []uint8) {
	t := &w.tracks
	for _, i := range order {
		if t.tracked>>i&1 == 0 {
			t.metas[i%packet.BatchSize] = conntrack.Meta{}
			t.tracked |= 1 << i
		}
	}
	if t.tracker == nil {
		for _, i := range order {
			t.metas[i%packet.BatchSize] = conntrack.Meta{State: conntrack.Tracked | conntrack.Invalid, Zone: t.request.Zone}
		}
		return
	}
	t.tracker.Forget(t.rewritten)
	t.request.Tunnelled = w.tunnelled(order)
	t.tracker.Process(&w.batch, order, &t.metas, &t.request, w.now)
	for _, i := range order {
		m := &t.metas[i%packet.BatchSize]
		if m.State&(conntrack.SNAT|conntrack.DNAT) != 0 {
			t.rewritten |= 1 << i
		}
		if m.Drop != packet.DropNone {
			w.drop(&w.batch.Frames[i], m.Drop)
			w.live &^= 1 << i
		}
	}
}

// tunnelled returns the set of frames in the list "order" that came through a tunnel.
func (w *Worker) tunnelled(order []uint8) (set uint32) {
	if w.rxInUse != nil && !w.rxInUse.tunnel {
		return 0
	}
	for _, i := range order {
		if k := w.keys[i%packet.BatchSize].Tunnel(); *k != [flowtable.TunnelWords]uint64{} {
			set |= 1 << i
		}
	}
	return set
}

// recirculate looks frame i up again with recirc_id "id". If isLast is true, it only adds the frame to
// tracks.repeats, and the look-up follows together with other frames. Otherwise it makes the look-up at once,
// executes the actions found, and then restores the frame. It returns false if it has dropped the frame.
func (w *Worker) recirculate(i int, id uint32, isLast bool) bool {
	t := &w.tracks
	t.recircs[i] = id
	if isLast {
		t.repeats |= 1 << i
		return true
	}
	b := &w.batch
	f := &b.Frames[i]
	if t.forked == maxForks || !b.Fork(f, &t.forks[t.forked].frame) {
		w.drop(f, packet.DropLoop)
		return false
	}
	k := &t.forks[t.forked]
	t.forked++
	k.key, k.meta, k.tracked, k.repeats, k.live = w.keys[i], t.metas[i], t.tracked, t.repeats, w.live
	t.repeats = 1 << i
	for t.repeats != 0 {
		w.lookAgain()
		if w.live != 0 {
			w.executeFrame(i)
		}
	}
	t.forked--
	b.Join(f, &k.frame)
	w.keys[i], t.metas[i], t.tracked, t.repeats, w.live = k.key, k.meta, k.tracked, k.repeats, k.live
	w.dirty |= 1 << i // the fork may have changed the key and the header
	t.rewritten |= 1 << i
	t.looped &^= 1 << i
	if k.key.Recirc() != 0 {
		t.looped |= 1 << i
		t.recircs[i] = k.key.Recirc()
	}
	return true
}

// executeFrame executes the actions of the megaflow that the look-up has found for frame i. If it has found
// none, executeFrame asks the control process.
func (w *Worker) executeFrame(i int) {
	if slot := w.slots[i]; slot == flowtable.NoSlot {
		w.miss(i)
	} else {
		w.executeRun(i, slot)
	}
}

func (w *Worker) endConnections(body []byte) bool {
	if w.tracks.tracker == nil || len(body)%8 != 0 || len(body) > 8*MaxEnds {
		return false
	}
	for ; len(body) > 0; body = body[8:] {
		w.tracks.tracker.Flush(conntrack.Ref{Number: binary.LittleEndian.Uint32(body), Generation: binary.LittleEndian.Uint32(body[4:])})
	}
	return true
}

// setConnections sets the table of tracked connections. It also allocates the hints of its connections, which
// replace look-ups of megaflows (fuse.go).
func (w *Worker) setConnections(table *conntrack.Table) error {
	w.tracks.tracker = conntrack.NewTracker(table, w.config.Seed)
	return w.openFused(table.Capacity())
}
