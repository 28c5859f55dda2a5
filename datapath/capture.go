// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"encoding/binary"
	"math/bits"

	"weft/flowtable"
	"weft/internal/shm"
	"weft/packet"
)

// This file has taps, which copy frames to the control process. A tap selects the
// frames of a port, dropped frames, or frames that match a key. A worker with a tap
// writes a record for each selected frame to its capture ring. If the ring is full, the
// record is lost; no frame waits.
//
// The worker writes the record when the frame reaches the tap, because later actions
// change the frame. It publishes the record at the end of the batch, when the frame's
// verdict (sent, dropped, held or merged) is known.

const (
	// MaxTaps is the largest number of taps of a worker.
	MaxTaps = 8
	// CaptureRingBytes is the size of a worker's capture ring. The kernel allocates
	// its pages when they are first used.
	CaptureRingBytes = 4 << 20
	// maxTapped is the largest number of records of one batch. Further records count
	// as lost.
	maxTapped = 4 * packet.BatchSize
)

// TapKind is the kind of frames that a tap captures.
type TapKind uint32

// Kinds of tap.
const (
	TapNone  TapKind = iota
	TapPort          // frames received on Port and sent to it
	TapDrops         // frames dropped on Port, or on any port if Port is 0
	TapTrace         // frames whose key is equal to Key in the bits of Mask
)

// Tap selects the frames that a tap captures, and how many bytes of each.
type Tap struct {
	Kind TapKind
	Port uint32
	// Snap is the largest number of bytes copied from a frame; 0: all bytes.
	Snap uint32
	// Limit is the number of frames after which the tap stops; 0: no limit.
	Limit uint64
	// Key and Mask select the frames of a TapTrace. Bits of Key outside of Mask must
	// be 0.
	Key, Mask flowtable.Key
}

// TapCounters are the counters of one tap since the tap was set. The worker writes
// them, the control process reads them.
type TapCounters struct {
	Written uint64 // frames written to the ring
	Lost    uint64 // frames for which the ring had no room
}

const tapBytes = 4 + 4 + 4 + 8 + 2*8*flowtable.KeyWords

// AppendTap encodes CmdTap, which replaces the tap with this index and clears its
// counters. A tap of kind TapNone captures no frames.
func AppendTap(buf []byte, index uint32, t *Tap) []byte {
	buf = appendHeader(buf, uint32(CmdTap), index)
	for _, v := range []uint32{uint32(t.Kind), t.Port, t.Snap} {
		buf = binary.LittleEndian.AppendUint32(buf, v)
	}
	buf = binary.LittleEndian.AppendUint64(buf, t.Limit)
	buf = appendWords(buf, t.Key[:])
	return appendWords(buf, t.Mask[:])
}

// tapped is a record of the current batch that is not published yet.
type tapped struct {
	record captureRecord
	frame  uint8 // index of the frame in the batch
}

// sight is one view of a frame by a tap.
type sight struct {
	tap, frame int
	kind       CaptureKind
	port       uint32
	skip       int // length in bytes of the outer headers to leave out
	actions    []flowtable.Action
	// headerOnly leaves out the frame's spans, because they are in memory that has
	// faulted.
	headerOnly bool
	// bounded limits the number of captured bytes to maxLen.
	bounded bool
	maxLen  uint32
	// keyed adds the frame's key to the record.
	keyed bool
}

// taps is the state of a worker's taps. The worker owns it.
type taps struct {
	// everyFrame is true if some tap looks at every frame. controller is true if there
	// is a tap of ControllerPort. Such a tap does not slow down frames of flows without
	// a controller action.
	everyFrame, controller bool
	tracing                bool // some tap is of kind TapTrace
	wrote                  bool // records were written but not published
	count                  int  // number of records in pending
	taps                   [MaxTaps]Tap
	ring                   *shm.Producer
	pending                [maxTapped]tapped
	clockNS                uint64 // clock of the batch; 0: not read yet
	marks                  [Stages + 1]uint64
}

// setTap executes CmdTap.
func (w *Worker) setTap(index uint32, body []byte) bool {
	if index >= MaxTaps || len(body) != tapBytes {
		return false
	}
	p, le := &w.taps, binary.LittleEndian
	t := &p.taps[index]
	*t = Tap{Kind: TapKind(le.Uint32(body)), Port: le.Uint32(body[4:]), Snap: le.Uint32(body[8:]), Limit: le.Uint64(body[12:])}
	readWords(body[20:], t.Key[:])
	readWords(body[20+8*flowtable.KeyWords:], t.Mask[:])
	if t.Kind > TapTrace {
		t.Kind = TapNone
	}
	w.sh.Taps[index] = TapCounters{}
	p.everyFrame, p.tracing, p.controller = false, false, false
	for i := range p.taps {
		controller := p.taps[i].Kind == TapPort && p.taps[i].Port == ControllerPort
		p.controller = p.controller || controller
		p.everyFrame = p.everyFrame || p.taps[i].Kind != TapNone && !controller
		p.tracing = p.tracing || p.taps[i].Kind == TapTrace
	}
	return true
}

// mark records the time at which a stage of the pass has ended. If a batch repeats a
// stage, only the first end counts.
func (w *Worker) mark(stage int) {
	if w.taps.tracing && w.taps.marks[stage] == 0 {
		w.taps.marks[stage] = w.clock()
	}
}

// tapBegin records the time at which a batch begins, before Recv.
func (w *Worker) tapBegin() {
	w.taps.clockNS = w.clock()
	w.taps.marks = [Stages + 1]uint64{}
	w.mark(0)
}

// tapReceived captures the received frames of a batch before decapsulation.
func (w *Worker) tapReceived() {
	w.mark(1 + StageReceive)
	for i := range w.batch.Frames[:w.batch.N] {
		w.tapPort(i, w.batch.Port, CaptureIn, 0)
	}
}

// tapLookup looks up the frames of a batch. If a tap traces frames, it looks them up
// one by one, to record which cache found each of them.
func (w *Worker) tapLookup() {
	w.mark(1 + StageParse)
	if !w.taps.tracing {
		w.cache.Lookup(&w.keys, w.live, &w.slots, &w.lookups)
	}
	for live := w.live; live != 0; live &= live - 1 {
		i := bits.TrailingZeros32(live)
		was, cache := w.lookups, CacheNone
		if w.taps.tracing {
			w.cache.Lookup(&w.keys, 1<<i, &w.slots, &w.lookups)
			switch {
			case w.lookups.ExactHits > was.ExactHits:
				cache = CacheExact
			case w.lookups.MegaflowHits > was.MegaflowHits:
				cache = CacheMegaflow
			}
		}
		w.tapInner(i)
		var actions []flowtable.Action
		if slot := w.slots[i]; slot != flowtable.NoSlot {
			actions = w.cache.Actions(slot)
		}
		w.tapFound(i, w.slots[i], uint32(w.lookups.MasksSearched-was.MasksSearched), cache, actions)
	}
	w.mark(1 + StageLookup)
}

// tapHeld captures frame 0, a held frame whose actions are executed without a
// look-up.
func (w *Worker) tapHeld(h *HeldFrame, actions []flowtable.Action) {
	w.tapBegin()
	// the frame was already captured at its look-up, before it waited for a neighbour
	if h.Then.Op == flowtable.OpNone {
		w.tapInner(0)
		w.tapFound(0, flowtable.NoSlot, 0, CacheControl, actions)
	}
	w.mark(1 + StageLookup)
}

// tapInner captures a decapsulated or held frame before its look-up.
func (w *Worker) tapInner(i int) {
	f := &w.batch.Frames[i]
	if f.Held == 0 && f.InPort == w.batch.Port {
		return
	}
	for at := range w.taps.pending[:w.taps.count] {
		if p := &w.taps.pending[at]; int(p.frame) == i && p.record.kind() == CaptureIn && p.record.port() == f.InPort {
			return // the frame was captured before an earlier look-up
		}
	}
	w.tapPort(i, f.InPort, CaptureIn, 0)
}

// tapFound writes the result of a look-up into the capture records of frame i. For each
// tap (a capture or live trace) that traces the frame, it also writes a record of its
// own.
func (w *Worker) tapFound(i int, slot, masks uint32, cache CaptureCache, actions []flowtable.Action) {
	p := &w.taps
	for at := range p.taps {
		if t := &p.taps[at]; t.Kind == TapTrace && matches(&w.keys[i], t) {
			w.tapWrite(sight{tap: at, frame: i, kind: CaptureTrace, port: w.batch.Frames[i].InPort, actions: actions})
		}
	}
	for at := range p.pending[:p.count] {
		if r := &p.pending[at]; int(r.frame) == i {
			r.record.setLookup(slot, masks, cache)
		}
	}
}

func matches(k *flowtable.Key, t *Tap) bool {
	for i := range k {
		if k[i]&t.Mask[i] != t.Key[i] {
			return false
		}
	}
	return true
}

// tapPort captures frame i for the taps of a port. The record lacks the first skip
// bytes of the frame.
func (w *Worker) tapPort(i int, number uint32, kind CaptureKind, skip int) {
	for at := range w.taps.taps {
		if t := &w.taps.taps[at]; t.Kind == TapPort && t.Port == number {
			w.tapWrite(sight{tap: at, frame: i, kind: kind, port: number, skip: skip})
		}
	}
}

// tapSend captures frames that are about to be sent to port p.
func (w *Worker) tapSend(p *txPort, order []uint8) {
	for _, i := range order {
		w.tapPort(int(i), p.port, CaptureOut, 0)
		if over := w.overlay[i]; over.port != 0 {
			w.tapPort(int(i), uint32(over.port), CaptureOut, int(over.outer))
		}
	}
}

// tapSent records the result of sending frames to port p. The port has accepted the
// first accepted frames of the list order.
func (w *Worker) tapSent(p *txPort, order []uint8, accepted int) {
	for n, i := range order {
		reason := w.batch.Frames[i].Drop
		if n >= accepted {
			reason = packet.DropTxFull
		}
		w.tapResult(p, int(i), w.overlay[i].port, reason)
	}
}

// tapResult records the result of sending frame i to port p: success, or a drop reason.
// tunnelPort is the number of the frame's tunnel port; 0: none.
func (w *Worker) tapResult(p *txPort, i int, tunnelPort uint16, reason packet.DropReason) {
	t := &w.taps
	for at := range t.pending[:t.count] {
		r := &t.pending[at]
		if int(r.frame) != i {
			continue
		}
		to := p.port
		if r.record.kind() == CaptureOut {
			if no := r.record.port(); no != p.port && no != uint32(tunnelPort) || r.record.verdict() != VerdictNone {
				continue
			}
		} else if tunnelPort != 0 {
			to = uint32(tunnelPort)
		}
		if reason != packet.DropNone {
			r.record.drop(reason)
		} else {
			r.record.sent(to)
		}
	}
	if reason != packet.DropNone {
		w.tapDropped(i, p.port, reason)
	}
}

// tapDrop captures a frame that is dropped before it reaches an output, and writes
// the drop reason into the frame's records.
func (w *Worker) tapDrop(f *packet.Frame, reason packet.DropReason) {
	for i := range w.batch.Frames[:w.batch.N] {
		if &w.batch.Frames[i] != f {
			continue
		}
		for at := range w.taps.pending[:w.taps.count] {
			if r := &w.taps.pending[at]; int(r.frame) == i && r.record.kind() != CaptureOut {
				r.record.drop(reason)
			}
		}
		w.tapDropped(i, f.InPort, reason)
		return
	}
}

// tapDropped captures a dropped frame for the taps of kind TapDrops.
func (w *Worker) tapDropped(i int, number uint32, reason packet.DropReason) {
	for at := range w.taps.taps {
		t := &w.taps.taps[at]
		if t.Kind != TapDrops || t.Port != 0 && t.Port != number && t.Port != w.batch.Frames[i].InPort {
			continue
		}
		r := w.tapWrite(sight{tap: at, frame: i, kind: CaptureDrop, port: number, headerOnly: reason == packet.DropPortFault})
		if r != nil {
			r.drop(reason)
		}
	}
}

// tapHeldDrop captures a held frame that is dropped from its slot between two
// batches.
func (w *Worker) tapHeldDrop(slot uint32, reason packet.DropReason) {
	h := &w.sh.Held[slot]
	for at := range w.taps.taps {
		t := &w.taps.taps[at]
		drops := t.Kind == TapDrops && (t.Port == 0 || t.Port == h.InPort)
		seen := t.Kind == TapPort && t.Port == h.InPort && h.Then.Op == flowtable.OpNone
		if !drops && !seen {
			continue
		}
		kind := CaptureDrop
		if seen {
			kind = CaptureIn
		}
		bytes := w.heldBytes(slot)[:h.Len]
		r, room := w.tapReserve(at, kind, len(bytes), 0)
		if r == nil {
			continue
		}
		copy(room, bytes)
		r.fill(h.InPort, h.InPort, len(bytes), w.now, h.SinceNS)
		r.drop(reason)
		w.taps.ring.Commit()
		w.sh.Taps[at].Written++
	}
	w.taps.ring.Publish()
}

// tapWrite writes the record of a captured frame s and returns the record, or nil if
// the tap has no room. The record is published at the end of the batch.
func (w *Worker) tapWrite(s sight) captureRecord {
	p, f := &w.taps, &w.batch.Frames[s.frame]
	if p.count == maxTapped {
		w.sh.Taps[s.tap].Lost++
		return nil
	}
	actions, extra := s.actions[:min(len(s.actions), maxTapActions)], 0
	if s.kind == CaptureTrace {
		extra = 8*flowtable.KeyWords + actionBytes*len(actions)
	} else if s.keyed {
		extra = 8 * flowtable.KeyWords
	}
	shown := f.Len() - s.skip
	if s.headerOnly {
		shown = len(f.Header())
	}
	if s.bounded {
		shown = min(shown, int(s.maxLen))
	}
	r, room := w.tapReserve(s.tap, s.kind, shown, extra)
	if r == nil {
		return nil
	}
	w.tapGather(f, room[extra:], s.skip)
	if p.clockNS == 0 {
		p.clockNS = w.clock()
	}
	held := uint64(0)
	if f.Held != 0 {
		held = w.sh.Held[f.Held-1].SinceNS
	}
	r.fill(s.port, f.InPort, f.Len()-s.skip, p.clockNS, held)
	r[6] = byte(w.batch.N)
	if extra != 0 {
		r[7] = captureKeyed
		for n, word := range w.keys[s.frame] {
			binary.LittleEndian.PutUint64(room[8*n:], word)
		}
	}
	if s.kind == CaptureTrace {
		binary.LittleEndian.PutUint32(r[28:], uint32(len(actions)))
		appendActions(room[8*flowtable.KeyWords:][:0], actions)
	}
	p.ring.Commit()
	w.sh.Taps[s.tap].Written++
	p.wrote = true
	p.pending[p.count] = tapped{record: r, frame: uint8(s.frame)}
	p.count++
	return r
}

// tapReserve reserves ring space for a record with length bytes of the frame and
// extra bytes before them. It returns nil if the tap has reached its limit or the
// ring is full.
func (w *Worker) tapReserve(tap int, kind CaptureKind, length, extra int) (r captureRecord, room []byte) {
	t, counters := &w.taps.taps[tap], &w.sh.Taps[tap]
	if t.Limit != 0 && counters.Written >= t.Limit {
		return nil, nil
	}
	if t.Snap != 0 {
		length = min(length, int(t.Snap))
	}
	r = w.taps.ring.Reserve(captureHeader + extra + length)
	if r == nil {
		counters.Lost++
		return nil, nil
	}
	clear(r[:captureHeader])
	r[0], r[1] = byte(tap), byte(kind)
	return r, r[captureHeader:]
}

// tapGather copies the bytes of frame f from offset skip on to dst.
func (w *Worker) tapGather(f *packet.Frame, dst []byte, skip int) {
	c := w.batch.Cursor(f)
	var outer [packet.Headroom]byte
	c.Read(outer[:min(skip, len(outer))])
	c.Read(dst)
}

// tapFinish completes the records of the batch with verdicts and stage times, and
// publishes them.
func (w *Worker) tapFinish() {
	p := &w.taps
	w.mark(1 + StageSend)
	for at := range p.pending[:p.count] {
		r := p.pending[at].record
		if r.verdict() == VerdictNone {
			w.tapUndecided(r, int(p.pending[at].frame))
		}
		for stage := range Stages {
			if from, to := p.marks[stage], p.marks[stage+1]; from != 0 && to > from {
				binary.LittleEndian.PutUint32(r[captureStageAt+4*stage:], uint32(min(to-from, 1<<32-1)))
			}
		}
		p.pending[at] = tapped{}
	}
	p.count, p.clockNS = 0, 0
	p.marks = [Stages + 1]uint64{}
	if p.wrote {
		p.wrote = false
		p.ring.Publish()
	}
}

// tapUndecided sets the verdict of a frame that was neither sent nor dropped. If the
// frame missed, it voids the record (readers skip it), because the frame is captured
// again when it is retried.
func (w *Worker) tapUndecided(r captureRecord, i int) {
	switch {
	case w.live>>i&1 == 0:
		r.setVerdict(VerdictMerged)
	case r.slot() != flowtable.NoSlot || r.cache() == CacheControl:
		r.setVerdict(VerdictNeighbour)
	default:
		r.setVerdict(VerdictMissed)
		if r.port() == w.batch.Frames[i].InPort {
			w.sh.Taps[r[0]].Written--
			r[0] = VoidTap
		}
	}
}
