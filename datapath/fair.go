// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"weft/conntrack"
	"weft/packet"
)

// Some frames take much more of a worker's time than others. A look-up that tries all masks of the
// megaflows and finds nothing, with the upcall that follows, costs about fifty times as much as a
// frame of a known flow. A sender can make all its frames miss (tuple-space explosion,
// CVE-2019-25076). Cutting large frames into small segments and searching for a free NAT port are
// also expensive.
//
// The worker keeps a debt for each receive queue: the extra cost of the queue's frames
// in nanoseconds. While other queues have frames, a queue with too much debt is not
// polled. Debts decrease at 1/slowShare of real time, divided among the queues with
// debt. Expensive frames therefore take at most 1/slowShare of a busy worker's time.
// While no other queue has frames, debts have no effect.
//
// A worker counts as busy for up to maxAwayNS after the queues without debt have become empty,
// because guests pause when the host schedules other processes.
//
// Uplinks have no debt, because many senders share one queue of an uplink.

const (
	// maskCostNS is the approximate cost in nanoseconds of trying one mask. missCostNS is the approximate cost
	// of a miss for the worker: the message to the control process, and the commands that answer it.
	// BenchmarkUnderAttack measures both.
	maskCostNS = 15
	missCostNS = 3000
	// Cutting a large frame into segments costs about cutCostNS for each segment, plus
	// 1 ns for every cutBytesPerNS bytes of payload.
	cutCostNS     = 70
	cutBytesPerNS = 4
	// smallSegment is the payload size in bytes below which a segment counts as small. The cutting of a frame
	// adds to its queue's debt (extra cost) only if the segments are small.
	smallSegment = 1024
	// maxCutNS is the longest time in nanoseconds that one batch of a queue may take while other queues have
	// frames. If cutting its large frames, or the whole batch (account.go), takes longer, the worker takes fewer
	// frames from the queue at once. Without the limit, one batch took up to 580 µs (BenchmarkLargeFrames).
	maxCutNS = 100_000
	// freeMasks is the number of masks that a frame may try before the search adds to
	// the debt (extra cost) of its queue.
	freeMasks = 8
	// slackNS is the debt (extra cost in nanoseconds) up to which a queue is still
	// polled. It is the cost of 167 misses.
	slackNS = 500_000
	// maxDebtNS is the largest debt (extra cost in nanoseconds) of a queue. Costs
	// beyond it are ignored.
	maxDebtNS = 2_000_000
	// Expensive frames get at most one part in slowShare of a busy worker's time.
	slowShare = 16
	// maxAwayNS is a time in nanoseconds. A queue with debt (extra cost of its frames) waits while queues
	// without debt have frames, and for at most this time after they have become empty.
	maxAwayNS = 1_000_000
)

// fairness has the worker's totals for the debts of its receive queues (rxQueue.debtNS,
// the extra cost of expensive frames).
type fairness struct {
	debtors  int      // number of queues with debt (extra cost of their frames)
	repaidNS uint64   // time of the last reduction of debts (extra costs of queues)
	debtless presence // whether queues without debt have frames
	uncut    presence // whether queues with neither debt nor a limit of their batches have frames
	skipped  int      // number of queues that this pass has skipped because of a debt, see also account.go
	passNS   uint64   // time at which the previous pass began
	smallNS  uint64   // total cost of received large frames with small segments
	cutNS    uint64   // total cost of cutting large frames
}

// presence records whether any queue of a group of receive queues has frames.
type presence struct {
	waits  bool   // the group had frames in the last pass, or awayNS has not run out since
	frames int    // number of frames received in this pass
	awayNS uint64 // time in nanoseconds for which waits stays true without frames
}

// costs are running totals of the work for the frames of all receive queues: masks tried, misses,
// nanoseconds of cutting (see fairness), and NAT ports tried.
type costs struct{ masks, misses, smallNS, cutNS, nat uint64 }

// read sets c to the worker's totals. It fills c in place instead of returning a value: a copy of
// words that were just written stalls the processor (no store forwarding).
func (c *costs) read(w *Worker) {
	total := w.sh.Counters
	c.masks, c.misses, c.smallNS, c.cutNS = total.MasksSearched, total.Misses, w.fair.smallNS, w.fair.cutNS
	if c.nat = 0; w.tracks.tracker != nil {
		c.nat = w.tracks.tracker.NATTries()
	}
}

// cutCost returns the estimated cost in nanoseconds of cutting a frame into this number of segments, which
// have this number of bytes together.
func cutCost(segments, bytes int) uint64 {
	return cutCostNS*uint64(segments) + uint64(bytes)/cutBytesPerNS
}

// noteCuts adds the estimated cost of cutting frame f to fairness.smallNS if its segments are small
// (smallSegment).
func (w *Worker) noteCuts(f *packet.Frame) {
	if f.Offload.GSO != packet.GSONone && f.Offload.Size < smallSegment {
		w.fair.smallNS += cutCost(f.SegmentCount(), f.Len())
	}
}

// limitVisit limits the number of frames in the next batch of queue q if a full batch would delay other
// queues. It does so if the queue's last batch had large frames that were cut, or took too long (maxCutNS).
// The limit also applies while other queues are empty, up to measuredForNS after the last frame of another
// port. Otherwise long batches would delay each frame of a port that has few frames.
func (w *Worker) limitVisit(q *rxQueue) {
	most := packet.BatchSize
	if q.limit != 0 && (w.fair.uncut.waits || w.accounting.measured) {
		most = int(q.limit)
	}
	if q.slow != 0 && w.accounting.measured {
		most = min(most, int(q.slow))
	}
	if most < packet.BatchSize {
		w.batch.Reserve(packet.BatchSize - most)
	}
}

// mostOf returns the number of frames of the largest batch that costs at most maxCutNS; 0: no limit. It
// assumes that frames cost as much as in the last batch, whose n frames cost costNS.
func mostOf(n int, costNS uint64) uint8 {
	if costNS == 0 {
		return 0
	}
	return uint8(min(max(uint64(n)*maxCutNS/costNS, 1), packet.BatchSize))
}

// charge adds the extra cost of the last batch to the debt of queue q. The batch had n
// frames. totals has the running totals before the batch.
func (w *Worker) charge(q *rxQueue, n int, totals *costs) {
	var c costs
	c.read(w)
	masks, misses := c.masks-totals.masks, c.misses-totals.misses
	free := freeMasks * uint64(n)
	q.limit = mostOf(n, c.cutNS-totals.cutNS)
	cost := missCostNS*misses + c.smallNS - totals.smallNS + conntrack.NATTryNS*(c.nat-totals.nat)
	if masks > free {
		cost += maskCostNS * (masks - free)
	}
	if q.debtNS == 0 {
		if cost == 0 {
			w.fair.debtless.frames += n
			if q.limit == 0 {
				w.fair.uncut.frames += n
			}
			return
		}
		w.fair.debtors++
	}
	q.debtNS = min(q.debtNS+cost, maxDebtNS)
}

// skipDebtor reports whether this pass of the worker's loop does not poll queue q because its debt (extra
// cost of its frames) is too high.
func (w *Worker) skipDebtor(q *rxQueue) bool {
	return q.debtNS > slackNS && w.fair.debtless.waits && !q.tunnel
}

// endPass updates p at the end of a pass of the worker's loop. durationNS is the time from the beginning of
// the previous pass to that of this one.
func (p *presence) endPass(durationNS uint64) {
	p.waits = p.frames > 0
	p.frames = 0
	if p.waits {
		p.awayNS = min(p.awayNS+durationNS, maxAwayNS)
		return
	}
	p.awayNS -= min(p.awayNS, durationNS)
	p.waits = p.awayNS > 0
}

// payDebts reduces the debts (extra costs) of all queues once in each pass of the worker's loop, in
// proportion to the time since the last pass.
func (w *Worker) payDebts() {
	f := &w.fair
	took := w.now - f.passNS
	f.passNS, f.skipped = w.now, 0
	f.debtless.endPass(took)
	f.uncut.endPass(took)
	if f.debtors == 0 {
		f.repaidNS = w.now
		return
	}
	part := (w.now - f.repaidNS) / slowShare / uint64(f.debtors)
	if part == 0 {
		return
	}
	f.repaidNS = w.now
	f.debtors = 0
	for at := 0; at < w.queues.awake; at++ { // parked queues have no debt
		q := w.queues.queue(at)
		q.debtNS -= min(q.debtNS, part)
		if q.debtNS > 0 {
			f.debtors++
		}
	}
}
