// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"encoding/binary"
	"math/bits"
	"math/rand/v2"

	"weft/flowtable"
	"weft/internal/shm"
	"weft/packet"
)

// This file has captures, which copy frames to the control process. A Capture selects the frames of a
// port, dropped frames, or frames that match a key. A worker with a Capture writes a record for each
// selected frame to its capture ring. If the ring is full, it skips the record and counts it as lost.
//
// The worker writes the record when the frame reaches one of the points in capturepoints.go,
// because later actions change the frame. It publishes the record at the end of the batch, when
// the frame's verdict (sent, dropped, held or merged) is known.

const (
	// MaxCaptures is the largest number of captures of a worker. The worker refuses CmdCapture for further
	// ones.
	MaxCaptures = 8
	// CaptureRingBytes is the size of a worker's capture ring. The kernel allocates
	// its pages when they are first used.
	CaptureRingBytes = 4 << 20
	// maxCaptured is the largest number of records of one batch. Further records count
	// as lost.
	maxCaptured = 4 * packet.BatchSize
)

// CaptureKind says which frames a Capture selects.
type CaptureKind uint32

// Kinds of capture.
const (
	CaptureNone  CaptureKind = iota
	CapturePort              // frames received on Port, and frames sent to it
	CaptureDrops             // frames dropped on Port, or on any port if Port is 0
	CaptureTrace             // frames whose key is equal to Key in the bits of Mask
)

// Capture says which frames a worker copies to the control process, and how many bytes of each.
type Capture struct {
	Kind CaptureKind
	Port uint32
	// Snap is the largest number of bytes copied from a frame; 0: all bytes.
	Snap uint32
	// Limit is the number of written records after which the capture stops; 0: no limit.
	Limit uint64
	// Key and Mask belong to a capture of kind CaptureTrace. It selects the frames whose flow key equals Key in
	// all bits of Mask. Bits of Key outside of Mask must be 0.
	Key, Mask flowtable.Key
}

// CaptureCounters are the counters of one capture since the capture was set. The worker writes
// them, the control process reads them.
type CaptureCounters struct {
	Written uint64 // records written to the ring
	Lost    uint64 // records that did not fit into the ring, or exceeded maxCaptured
}

const captureBytes = 4 + 4 + 4 + 8 + 2*8*flowtable.KeyWords

// AppendCapture appends an encoded CmdCapture, which replaces the capture with this index and clears its
// counters. A capture of kind CaptureNone captures no frames.
func AppendCapture(buf []byte, index uint32, t *Capture) []byte {
	buf = appendHeader(buf, uint32(CmdCapture), index)
	for _, v := range []uint32{uint32(t.Kind), t.Port, t.Snap} {
		buf = binary.LittleEndian.AppendUint32(buf, v)
	}
	buf = binary.LittleEndian.AppendUint64(buf, t.Limit)
	buf = appendWords(buf, t.Key[:])
	return appendWords(buf, t.Mask[:])
}

// pendingRecord is a record of the current batch. It is in the ring, but published only at the end of the
// batch, so that later stages can complete it.
type pendingRecord struct {
	record captureRecord
	frame  uint8 // index of the frame in the batch
}

// sight has the arguments of writeRecord: the selected frame, the Capture that has selected it, and what the
// record contains.
type sight struct {
	capture, frame int // indexes of the Capture and of the frame in the batch
	kind           CapturedKind
	port           uint32
	skip           int // length in bytes of the outer headers to leave out
	actions        []flowtable.Action
	// headerOnly leaves out all bytes of the frame behind its header buffer, because the guest memory in which
	// they are can no longer be read.
	headerOnly bool
	// bounded limits the number of captured bytes to maxLen.
	bounded bool
	maxLen  uint32
	// keyed adds the frame's flow key to the record.
	keyed  bool
	sample sampleSight
}

// captures has the captures of a worker and the records of the current batch. Its methods read the frames and
// the state of other stages. They change no state of other stages, except that lookUp fills the fields slots
// and lookups.
type captures struct {
	sh    *Shared
	cache *flowtable.Cache
	batch *packet.Batch
	*passTime
	*reception
	*lookup
	*outputs
	fragments *fragments

	// everyFrame is true if some capture must look at every frame. controller is true if there is a capture of
	// ControllerPort, and sampling if there is one of SamplePort. Captures of these two ports look only at
	// frames with the action OpController or OpSample, so they do not set everyFrame and do not slow down other
	// frames.
	everyFrame, controller, sampling bool
	tracing                          bool // some capture is of kind CaptureTrace
	wrote                            bool // records were written but not published
	count                            int  // number of records in pending
	list                             [MaxCaptures]Capture
	ring                             *shm.Producer
	pending                          [maxCaptured]pendingRecord
	clockNS                          uint64             // time at which the batch began; 0: not read yet
	marks                            [stages + 1]uint64 // begin of the batch, end of each stage; 0: none
	controllerDue                    uint64             // virtual time of the token bucket of toController, see port.TakeToken
	sampleDue                        uint64             // virtual time of the token bucket of the method sample
	dice                             rand.PCG           // chooses the frames to sample
}

// init stores references to the parts of worker w that the captures read.
func (c *captures) init(w *Worker) {
	c.sh, c.cache, c.batch, c.passTime, c.reception = w.sh, w.cache, &w.batch, &w.passTime, &w.reception
	c.lookup, c.outputs, c.fragments = &w.lookup, &w.outputs, &w.fragments
	c.ring = shm.NewProducer(w.sh.Captures, -1)
	c.dice.Seed(w.config.Seed, uint64(w.config.Core))
}

// set executes CmdCapture. It returns false for an invalid command.
func (c *captures) set(index uint32, body []byte) bool {
	if index >= MaxCaptures || len(body) != captureBytes {
		return false
	}
	le := binary.LittleEndian
	t := &c.list[index]
	*t = Capture{Kind: CaptureKind(le.Uint32(body)), Port: le.Uint32(body[4:]), Snap: le.Uint32(body[8:]), Limit: le.Uint64(body[12:])}
	readWords(body[20:], t.Key[:])
	readWords(body[20+8*flowtable.KeyWords:], t.Mask[:])
	if t.Kind > CaptureTrace {
		t.Kind = CaptureNone
	}
	c.sh.CaptureCounters[index] = CaptureCounters{}
	c.everyFrame, c.tracing, c.controller, c.sampling = false, false, false, false
	for i := range c.list {
		controller := c.list[i].Kind == CapturePort && c.list[i].Port == ControllerPort
		sampling := c.list[i].Kind == CapturePort && c.list[i].Port == SamplePort
		c.controller, c.sampling = c.controller || controller, c.sampling || sampling
		c.everyFrame = c.everyFrame || c.list[i].Kind != CaptureNone && !controller && !sampling
		c.tracing = c.tracing || c.list[i].Kind == CaptureTrace
	}
	return true
}

// markStage records that a stage of the batch has just ended, if some capture traces frames. stage is an
// index of captures.marks. If a batch repeats a stage, only its first end counts.
func (c *captures) markStage(stage int) {
	if c.tracing && c.marks[stage] == 0 {
		c.marks[stage] = c.clock()
	}
}

// beginCapture records the time at which a batch begins, before Recv.
func (c *captures) beginCapture() {
	c.clockNS = c.clock()
	c.marks = [stages + 1]uint64{}
	c.markStage(0)
}

// recordReceived captures the frames of a batch as the queue has received them, before decapsulation.
func (c *captures) recordReceived() {
	c.markStage(1 + stageReceive)
	for i := range c.batch.Frames[:c.batch.N] {
		c.recordAtPort(i, c.batch.Port, CapturedIn, 0)
	}
}

// The method lookUp looks up the frames of a batch, as Worker.lookUp does without captures, and captures
// them. If a capture traces frames, it looks them up one by one, to record which cache has found each of
// them.
func (c *captures) lookUp() {
	c.markStage(1 + stageParse)
	if !c.tracing {
		c.cache.Lookup(&c.keys, c.live, &c.slots, &c.lookups)
	}
	for live := c.live; live != 0; live &= live - 1 {
		i := bits.TrailingZeros32(live)
		was, cache := c.lookups, CacheNone
		if c.tracing {
			c.cache.Lookup(&c.keys, 1<<i, &c.slots, &c.lookups)
			switch {
			case c.lookups.ExactHits > was.ExactHits:
				cache = CacheExact
			case c.lookups.MegaflowHits > was.MegaflowHits:
				cache = CacheMegaflow
			}
		}
		c.recordInner(i)
		var actions []flowtable.Action
		if slot := c.slots[i]; slot != flowtable.NoSlot {
			actions = c.cache.Actions(slot)
		}
		c.recordFound(i, c.slots[i], uint32(c.lookups.MasksSearched-was.MasksSearched), cache, actions)
	}
	c.markStage(1 + stageLookup)
}

// recordHeld captures the only frame of the batch, which has waited in a slot. Its actions are executed
// without a look-up.
func (c *captures) recordHeld(h *HeldFrame, actions []flowtable.Action) {
	c.beginCapture()
	// A frame that has waited for the next hop of a tunnel was already captured at its look-up.
	if h.Then.Op == flowtable.OpNone {
		c.recordInner(0)
		c.recordFound(0, flowtable.NoSlot, 0, CacheControl, actions)
	}
	c.markStage(1 + stageLookup)
}

// recordInner captures a decapsulated frame, or a frame that has waited in a slot, before its look-up. It
// does so for the captures of the frame's input port. Other frames were captured by recordReceived.
func (c *captures) recordInner(i int) {
	f := &c.batch.Frames[i]
	if f.Held == 0 && f.InPort == c.batch.Port {
		return
	}
	for at := range c.pending[:c.count] {
		if p := &c.pending[at]; int(p.frame) == i && p.record.kind() == CapturedIn && p.record.port() == f.InPort {
			return // the frame was captured before an earlier look-up
		}
	}
	c.recordAtPort(i, f.InPort, CapturedIn, 0)
}

// recordFound writes the result of a look-up into the existing records of frame i. For each capture of kind
// CaptureTrace that selects the frame, it also writes a new record of kind CapturedTrace.
func (c *captures) recordFound(i int, slot, masks uint32, cache CaptureCache, actions []flowtable.Action) {
	for at := range c.list {
		if t := &c.list[at]; t.Kind == CaptureTrace && matches(&c.keys[i], t) {
			c.writeRecord(sight{capture: at, frame: i, kind: CapturedTrace, port: c.batch.Frames[i].InPort, actions: actions})
		}
	}
	for at := range c.pending[:c.count] {
		if r := &c.pending[at]; int(r.frame) == i {
			r.record.setLookup(slot, masks, cache)
		}
	}
}

func matches(k *flowtable.Key, t *Capture) bool {
	for i := range k {
		if k[i]&t.Mask[i] != t.Key[i] {
			return false
		}
	}
	return true
}

// recordAtPort captures frame i for the captures of the port with this number. The record lacks the first
// bytes of the frame: skip is their number.
func (c *captures) recordAtPort(i int, number uint32, kind CapturedKind, skip int) {
	for at := range c.list {
		if t := &c.list[at]; t.Kind == CapturePort && t.Port == number {
			c.writeRecord(sight{capture: at, frame: i, kind: kind, port: number, skip: skip})
		}
	}
}

// recordSend captures frames that are about to be sent to port p. A frame with a tunnel header is also
// captured without the header, for the captures of the tunnel's port.
func (c *captures) recordSend(p *txPort, order []uint8) {
	for _, i := range order {
		c.recordAtPort(int(i), p.port, CapturedOut, 0)
		if over := c.overlay[i]; over.port != 0 {
			c.recordAtPort(int(i), uint32(over.port), CapturedOut, int(over.outer))
		}
	}
}

// recordSent writes the result of sending frames to port p into their records. "accepted" is the number of
// frames at the start of the list "order" that the port has accepted.
func (c *captures) recordSent(p *txPort, order []uint8, accepted int) {
	for n, i := range order {
		reason := c.batch.Frames[i].Drop
		if n >= accepted {
			reason = packet.DropTxFull
		}
		c.recordResult(p, int(i), c.overlay[i].port, reason)
	}
}

// recordResult writes the result of sending frame i to port p into the frame's records: success, or a drop
// reason. tunnelPort is the port of the tunnel whose header the frame has; 0: none.
func (c *captures) recordResult(p *txPort, i int, tunnelPort uint16, reason packet.DropReason) {
	for at := range c.pending[:c.count] {
		r := &c.pending[at]
		if int(r.frame) != i {
			continue
		}
		to := p.port
		if r.record.kind() == CapturedOut {
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
		c.recordDropped(i, p.port, reason)
	}
}

// recordDrop captures a frame that is dropped before it reaches an output, and writes
// the drop reason into the frame's records.
func (c *captures) recordDrop(f *packet.Frame, reason packet.DropReason) {
	for i := range c.batch.Frames[:c.batch.N] {
		if &c.batch.Frames[i] != f {
			continue
		}
		for at := range c.pending[:c.count] {
			if r := &c.pending[at]; int(r.frame) == i && r.record.kind() != CapturedOut {
				r.record.drop(reason)
			}
		}
		c.recordDropped(i, f.InPort, reason)
		return
	}
}

// recordDropped captures the dropped frame i for the captures of kind CaptureDrops. number is the port that
// counts the drop.
func (c *captures) recordDropped(i int, number uint32, reason packet.DropReason) {
	for at := range c.list {
		t := &c.list[at]
		if t.Kind != CaptureDrops || t.Port != 0 && t.Port != number && t.Port != c.batch.Frames[i].InPort {
			continue
		}
		r := c.writeRecord(sight{capture: at, frame: i, kind: CapturedDrop, port: number, headerOnly: reason == packet.DropPortFault})
		if r != nil {
			r.drop(reason)
		}
	}
}

// recordHeldDrop captures a frame that waits in a slot and is in no batch. The frame is being dropped, or the
// control process has taken it (reason Consumed).
func (c *captures) recordHeldDrop(slot uint32, reason packet.DropReason) {
	h := &c.sh.Held[slot]
	for at := range c.list {
		t := &c.list[at]
		drops := t.Kind == CaptureDrops && reason != packet.Consumed && (t.Port == 0 || t.Port == h.InPort)
		seen := t.Kind == CapturePort && t.Port == h.InPort && h.Then.Op == flowtable.OpNone
		if !drops && !seen {
			continue
		}
		kind := CapturedDrop
		if seen {
			kind = CapturedIn
		}
		bytes := c.sh.heldBytes(slot)[:h.Len]
		r, room := c.reserveRecord(at, kind, len(bytes), 0)
		if r == nil {
			continue
		}
		copy(room, bytes)
		r.fill(h.InPort, h.InPort, len(bytes), c.now, h.SinceNS)
		if reason == packet.Consumed {
			r.sent(ControllerPort)
		} else {
			r.drop(reason)
		}
		c.ring.Commit()
		c.sh.CaptureCounters[at].Written++
	}
	c.ring.Publish()
}

// writeRecord writes the record that s describes and returns it. It returns nil if there is no room for the
// record, or the capture has reached its limit. The record is published at the end of the batch.
func (c *captures) writeRecord(s sight) captureRecord {
	f := &c.batch.Frames[s.frame]
	if c.count == maxCaptured {
		c.sh.CaptureCounters[s.capture].Lost++
		return nil
	}
	actions, extra := s.actions[:min(len(s.actions), maxCapturedActions)], 0
	if s.kind == CapturedTrace {
		extra = 8*flowtable.KeyWords + actionBytes*len(actions)
	} else if s.keyed {
		extra = 8 * flowtable.KeyWords
	}
	if s.sample.action != nil {
		extra += sampledBytes
	}
	shown := f.Len() - s.skip
	if s.headerOnly {
		shown = len(f.Header())
	}
	if s.bounded {
		shown = min(shown, int(s.maxLen))
	}
	r, room := c.reserveRecord(s.capture, s.kind, shown, extra)
	if r == nil {
		return nil
	}
	c.gatherRecord(f, room[extra:], s.skip)
	if c.clockNS == 0 {
		c.clockNS = c.clock()
	}
	held := uint64(0)
	if f.Held != 0 {
		held = c.sh.Held[f.Held-1].SinceNS
	}
	r.fill(s.port, f.InPort, f.Len()-s.skip, c.clockNS, held)
	r[6] = byte(c.batch.N)
	if extra != 0 {
		r[7] = captureKeyed
		for n, word := range c.keys[s.frame] {
			binary.LittleEndian.PutUint64(room[8*n:], word)
		}
	}
	if s.kind == CapturedTrace {
		binary.LittleEndian.PutUint32(r[28:], uint32(len(actions)))
		appendActions(room[8*flowtable.KeyWords:][:0], actions)
	}
	if s.sample.action != nil {
		r[7] |= captureSampled
		s.sample.put(room[8*flowtable.KeyWords:])
	}
	c.ring.Commit()
	c.sh.CaptureCounters[s.capture].Written++
	c.wrote = true
	c.pending[c.count] = pendingRecord{record: r, frame: uint8(s.frame)}
	c.count++
	return r
}

// reserveRecord reserves ring space for a record with length bytes of the frame and
// extra bytes before them. It returns nil if the capture has reached its limit or the
// ring is full.
func (c *captures) reserveRecord(capture int, kind CapturedKind, length, extra int) (r captureRecord, room []byte) {
	t, counters := &c.list[capture], &c.sh.CaptureCounters[capture]
	if t.Limit != 0 && counters.Written >= t.Limit {
		return nil, nil
	}
	if t.Snap != 0 {
		length = min(length, int(t.Snap))
	}
	r = c.ring.Reserve(captureHeader + extra + length)
	if r == nil {
		counters.Lost++
		return nil, nil
	}
	clear(r[:captureHeader])
	r[0], r[1] = byte(capture), byte(kind)
	return r, r[captureHeader:]
}

// gatherRecord copies bytes of frame f to dst, as many as fit, beginning at offset skip.
func (c *captures) gatherRecord(f *packet.Frame, dst []byte, skip int) {
	from := c.batch.Cursor(f)
	var outer [packet.Headroom]byte
	from.Read(outer[:min(skip, len(outer))])
	from.Read(dst)
}

// finishCapture completes the records of the batch with verdicts and stage times, and publishes them to the
// control process.
func (c *captures) finishCapture() {
	c.markStage(1 + stageSend)
	for at := range c.pending[:c.count] {
		r := c.pending[at].record
		if r.verdict() == VerdictNone {
			c.settleRecord(r, int(c.pending[at].frame))
		}
		for stage := range stages {
			if from, to := c.marks[stage], c.marks[stage+1]; from != 0 && to > from {
				binary.LittleEndian.PutUint32(r[captureStageAt+4*stage:], uint32(min(to-from, 1<<32-1)))
			}
		}
		c.pending[at] = pendingRecord{}
	}
	c.count, c.clockNS = 0, 0
	c.marks = [stages + 1]uint64{}
	if c.wrote {
		c.wrote = false
		c.ring.Publish()
	}
}

// settleRecord sets the verdict of frame i, which was neither sent nor dropped. If the frame matched no
// megaflow, it waits for the control process and is captured again after the answer. settleRecord therefore
// withdraws the frame's record at its input port (VoidCapture).
func (c *captures) settleRecord(r captureRecord, i int) {
	switch {
	case c.live>>i&1 == 0:
		r.setVerdict(VerdictMerged)
	case r.slot() != flowtable.NoSlot || r.cache() == CacheControl:
		r.setVerdict(VerdictNeighbour)
	default:
		r.setVerdict(VerdictMissed)
		if r.port() == c.batch.Frames[i].InPort {
			c.sh.CaptureCounters[r[0]].Written--
			r[0] = VoidCapture
		}
	}
}
