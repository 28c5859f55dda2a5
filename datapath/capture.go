package datapath

import (
	"encoding/binary"
	"math/bits"

	"weft/flowtable"
	"weft/internal/shm"
	"weft/packet"
)

// Taps show control frames as they pass: those of a port, those dropped, those
// of a match with the time that the stages took. A worker without a tap tests
// one flag a batch at each of the points where a tap would look. With one it
// copies what is asked for into its capture ring; what finds the ring full is
// counted as lost, and no frame waits.
//
// Records are written as soon as a frame is seen, for actions change it, and
// stay with the worker until the end of the batch, which knows the verdict.

const (
	// MaxTaps is the number of taps of a worker.
	MaxTaps = 8
	// CaptureRingBytes is the size of a worker's capture ring; its memory is
	// taken as it is used.
	CaptureRingBytes = 4 << 20
	// maxTapped bounds the records of a batch that wait for their verdict;
	// further ones count as lost.
	maxTapped = 4 * packet.BatchSize
)

// TapKind says what a tap sees.
type TapKind uint32

// Kinds of tap.
const (
	TapNone  TapKind = iota
	TapPort          // frames received on Port and sent to it
	TapDrops         // frames dropped; of Port, or of any if that is 0
	TapTrace         // frames whose key matches
)

// Tap is what a tap sees, and how much of it.
type Tap struct {
	Kind TapKind
	Port uint32
	// Snap is the number of bytes copied of a frame; 0: all.
	Snap uint32
	// Limit is the number of frames after which the tap is blind; 0: none.
	Limit uint64
	// Key and Mask of a TapTrace; Key has no bit outside of Mask.
	Key, Mask flowtable.Key
}

// TapCounters of one tap since it was set. Worker writes, control reads.
type TapCounters struct {
	Written uint64 // frames
	Lost    uint64 // frames for which there was no room
}

const tapBytes = 4 + 4 + 4 + 8 + 2*8*flowtable.KeyWords

// AppendTap encodes CmdTap, which sets tap index and its counters to 0. A tap of
// TapNone sees nothing.
func AppendTap(buf []byte, index uint32, t *Tap) []byte {
	buf = appendHeader(buf, uint32(CmdTap), index)
	for _, v := range []uint32{uint32(t.Kind), t.Port, t.Snap} {
		buf = binary.LittleEndian.AppendUint32(buf, v)
	}
	buf = binary.LittleEndian.AppendUint64(buf, t.Limit)
	buf = appendWords(buf, t.Key[:])
	return appendWords(buf, t.Mask[:])
}

// tapped is a record that waits for its verdict.
type tapped struct {
	record captureRecord
	frame  uint8 // of the batch
}

// sight is a frame as a tap sees it.
type sight struct {
	tap, frame int
	kind       CaptureKind
	port       uint32
	skip       int // bytes of outer headers not to show
	actions    []flowtable.Action
	// headerOnly leaves out what lies in memory that has failed.
	headerOnly bool
	// bounded says that at most maxLen bytes are shown.
	bounded bool
	maxLen  uint32
}

// taps is the capture side of a worker. Worker owns.
type taps struct {
	on      bool // some tap is set
	tracing bool // some of TapTrace is
	wrote   bool // records were written and not published
	count   int  // of pending
	taps    [MaxTaps]Tap
	ring    *shm.Producer
	pending [maxTapped]tapped
	at      uint64 // clock of the batch, 0: not read yet
	marks   [Stages + 1]uint64
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
	p.on, p.tracing = false, false
	for i := range p.taps {
		p.on = p.on || p.taps[i].Kind != TapNone
		p.tracing = p.tracing || p.taps[i].Kind == TapTrace
	}
	return true
}

// mark notes the time at which a stage ended first, for tracking looks frames up
// again; 0 is before the first stage.
func (w *Worker) mark(stage int) {
	if w.taps.tracing && w.taps.marks[stage] == 0 {
		w.taps.marks[stage] = w.clock()
	}
}

// tapBegin comes before Recv.
func (w *Worker) tapBegin() {
	w.taps.at = w.clock()
	w.taps.marks = [Stages + 1]uint64{}
	w.mark(0)
}

// tapReceived sees frames as they came, before decapsulation.
func (w *Worker) tapReceived() {
	w.mark(1 + StageReceive)
	for i := range w.batch.Frames[:w.batch.N] {
		w.tapPort(i, w.batch.Port, CaptureIn, 0)
	}
}

// tapLookup does the lookups of a batch, one by one if it is to be known which
// cache answers.
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

// tapHeld sees a held frame that is executed without a lookup, as frame 0.
func (w *Worker) tapHeld(h *HeldFrame, actions []flowtable.Action) {
	w.tapBegin()
	if h.Then.Op == flowtable.OpNone { // else it was seen when it was looked up
		w.tapInner(0)
		w.tapFound(0, flowtable.NoSlot, 0, CacheControl, actions)
	}
	w.mark(1 + StageLookup)
}

// tapInner sees frames that arrive otherwise than by a queue: out of a tunnel, or
// of the held ones.
func (w *Worker) tapInner(i int) {
	f := &w.batch.Frames[i]
	if f.Held == 0 && f.InPort == w.batch.Port {
		return
	}
	for at := range w.taps.pending[:w.taps.count] {
		if p := &w.taps.pending[at]; int(p.frame) == i && p.record.kind() == CaptureIn && p.record.port() == f.InPort {
			return // looked up once more
		}
	}
	w.tapPort(i, f.InPort, CaptureIn, 0)
}

// tapFound notes what a lookup found, and shows it to traces.
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

// tapPort shows frame i, without its first skip bytes, to the taps of a port.
func (w *Worker) tapPort(i int, no uint32, kind CaptureKind, skip int) {
	for at := range w.taps.taps {
		if t := &w.taps.taps[at]; t.Kind == TapPort && t.Port == no {
			w.tapWrite(sight{tap: at, frame: i, kind: kind, port: no, skip: skip})
		}
	}
}

// tapSend sees the frames that a port is about to be given: where copying one
// fails, sending it would have.
func (w *Worker) tapSend(p *txPort, order []uint8) {
	for _, i := range order {
		w.tapPort(int(i), p.no, CaptureOut, 0)
		if over := w.overlay[i]; over.port != 0 {
			w.tapPort(int(i), uint32(over.port), CaptureOut, int(over.outer))
		}
	}
}

// tapSent notes what became of them: the port took the first of them.
func (w *Worker) tapSent(p *txPort, order []uint8, taken int) {
	for n, i := range order {
		why := w.batch.Frames[i].Drop
		if n >= taken {
			why = packet.DropTxFull
		}
		w.tapResult(p, int(i), w.overlay[i].port, why)
	}
}

// tapResult notes what became of frame i at port p, a tunnel of vxlan port over
// on it, if that is not 0.
func (w *Worker) tapResult(p *txPort, i int, over uint16, why packet.DropReason) {
	t := &w.taps
	for at := range t.pending[:t.count] {
		r := &t.pending[at]
		if int(r.frame) != i {
			continue
		}
		to := p.no
		if r.record.kind() == CaptureOut {
			if no := r.record.port(); no != p.no && no != uint32(over) || r.record.verdict() != VerdictNone {
				continue // of another output
			}
		} else if over != 0 {
			to = uint32(over) // as the flow has it
		}
		if why != packet.DropNone {
			r.record.drop(why)
		} else {
			r.record.sent(to)
		}
	}
	if why != packet.DropNone {
		w.tapDropped(i, p.no, why)
	}
}

// tapDrop sees a frame that is dropped before it reaches an output.
func (w *Worker) tapDrop(f *packet.Frame, why packet.DropReason) {
	for i := range w.batch.Frames[:w.batch.N] {
		if &w.batch.Frames[i] != f {
			continue
		}
		for at := range w.taps.pending[:w.taps.count] {
			if r := &w.taps.pending[at]; int(r.frame) == i && r.record.kind() != CaptureOut {
				r.record.drop(why)
			}
		}
		w.tapDropped(i, f.InPort, why)
		return
	}
}

// tapDropped shows a dropped frame to the taps of drops.
func (w *Worker) tapDropped(i int, no uint32, why packet.DropReason) {
	for at := range w.taps.taps {
		t := &w.taps.taps[at]
		if t.Kind != TapDrops || t.Port != 0 && t.Port != no && t.Port != w.batch.Frames[i].InPort {
			continue
		}
		r := w.tapWrite(sight{tap: at, frame: i, kind: CaptureDrop, port: no, headerOnly: why == packet.DropPortFault})
		if r != nil {
			r.drop(why)
		}
	}
}

// tapHeldDrop sees a held frame that is dropped where it lies, between batches.
func (w *Worker) tapHeldDrop(slot uint32, why packet.DropReason) {
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
		r.drop(why)
		w.taps.ring.Commit()
		w.sh.Taps[at].Written++
	}
	w.taps.ring.Publish()
}

// tapWrite writes a record, nil if there is no room for it. It waits for the end
// of the batch.
func (w *Worker) tapWrite(s sight) captureRecord {
	p, f := &w.taps, &w.batch.Frames[s.frame]
	if p.count == maxTapped {
		w.sh.Taps[s.tap].Lost++
		return nil
	}
	actions, extra := s.actions[:min(len(s.actions), maxTapActions)], 0
	if s.kind == CaptureTrace {
		extra = 8*flowtable.KeyWords + actionBytes*len(actions)
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
	if p.at == 0 {
		p.at = w.clock()
	}
	held := uint64(0)
	if f.Held != 0 {
		held = w.sh.Held[f.Held-1].SinceNS
	}
	r.fill(s.port, f.InPort, f.Len()-s.skip, p.at, held)
	r[6] = byte(w.batch.N)
	if s.kind == CaptureTrace {
		binary.LittleEndian.PutUint32(r[28:], uint32(len(actions)))
		for n, word := range w.keys[s.frame] {
			binary.LittleEndian.PutUint64(room[8*n:], word)
		}
		appendActions(room[8*flowtable.KeyWords:][:0], actions)
	}
	p.ring.Commit()
	w.sh.Taps[s.tap].Written++
	p.wrote = true
	p.pending[p.count] = tapped{record: r, frame: uint8(s.frame)}
	p.count++
	return r
}

// tapReserve reserves a record that shows up to length bytes of a frame, after
// extra bytes of its own; both nil if the tap is blind or the ring full.
func (w *Worker) tapReserve(at int, kind CaptureKind, length, extra int) (r captureRecord, room []byte) {
	t, counters := &w.taps.taps[at], &w.sh.Taps[at]
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
	r[0], r[1] = byte(at), byte(kind)
	return r, r[captureHeader:]
}

// tapGather copies the frame's bytes from skip on. skip lies in the header.
func (w *Worker) tapGather(f *packet.Frame, into []byte, skip int) {
	c := w.batch.Cursor(f)
	var outer [packet.Headroom]byte
	c.Read(outer[:min(skip, len(outer))])
	c.Read(into)
}

// tapFinish ends the batch.
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
	p.count, p.at = 0, 0
	p.marks = [Stages + 1]uint64{}
	if p.wrote {
		p.wrote = false
		p.ring.Publish()
	}
}

// tapUndecided settles a record that no output and no drop has. What waits for
// control is seen, and counted, once that has answered.
func (w *Worker) tapUndecided(r captureRecord, i int) {
	switch {
	case w.live>>i&1 == 0:
		r.setVerdict(VerdictMerged)
	case r.slot() != flowtable.NoSlot || r.cache() == CacheControl:
		r.setVerdict(VerdictNeighbour)
	default:
		r.setVerdict(VerdictMissed)
		if r.port() == w.batch.Frames[i].InPort { // else it was in a tunnel then
			w.sh.Taps[r[0]].Written--
			r[0] = VoidTap
		}
	}
}
