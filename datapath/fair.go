// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"weft/conntrack"
	"weft/packet"
)

// Some frames cost a worker much more than others. A frame that tries all masks and
// misses costs about fifty times as much as a frame of a known flow, and a sender can
// make all its frames miss (tuple-space explosion, CVE-2019-25076). Other expensive
// frames are large ones that must be cut into a thousand segments, and frames whose
// search for a translation finds no free one.
//
// Each receive queue is therefore charged for the extra cost of its frames. While
// other queues have frames, a queue with too much debt is not visited: its frames
// wait at their sender, or are lost there. Debts decrease with time, at a rate of one
// part in slowShare of the time for all queues together. Expensive frames therefore
// take at most this part of a busy worker. While no other queue has frames, debts
// have no effect.
//
// A worker that was busy with other queues counts as busy for some time afterwards.
// Guests lose their cores to other processes, most of all to the control process,
// which answers misses. If the worker sent more misses during such a gap, the control
// process would need the guests' cores even longer.
//
// Uplinks are exempt, because many senders share one queue of an uplink.

const (
	// maskCostNS is the approximate cost of trying a mask. missCostNS is the
	// approximate cost of sending a frame to the control process and back
	// (BenchmarkUnderAttack). Errors in both matter little, because only the
	// proportion of these costs to real time counts.
	maskCostNS = 15
	missCostNS = 3000
	// cutCostNS is the approximate cost of each segment that a large frame is cut
	// into. Each cutBytesPerNS bytes of payload, which are summed and copied, cost
	// another nanosecond.
	cutCostNS     = 70
	cutBytesPerNS = 4
	// smallSegment is a size of payload in bytes. Segments of at least this size
	// cause no debt, because every usual path carries them. They count only against
	// maxCutNS.
	smallSegment = 1024
	// maxCutNS limits the cost of the large frames that are cut in one visit while
	// other queues have frames. It thus limits the time for which the other queues
	// wait. A full batch of frames of 64 KiB costs seven times as much
	// by these numbers, and took 280 to 580 µs where a limited visit took 27 to 31
	// (BenchmarkLargeFrames).
	maxCutNS = 100_000
	// freeMasks is the number of masks that a frame may try without charge if the
	// exact-match cache does not know it.
	freeMasks = 8
	// slackNS is the debt up to which a queue is still visited: the cost of some
	// hundred misses.
	slackNS = 500_000
	// maxDebtNS limits the debt of a queue, and so the time for which the queue is
	// not visited. Cost beyond it is not charged.
	maxDebtNS = 2_000_000
	// slowShare limits the time for expensive frames to one part in slowShare of a
	// busy worker's time.
	slowShare = 16
	// maxAwayNS is the longest time for which a worker still counts as busy after the
	// other queues have run empty.
	maxAwayNS = 1_000_000
)

// fairness holds the debts and charges of all queues of a worker; see rxQueue.debtNS.
type fairness struct {
	debtors  int      // number of queues with debt
	repaidNS uint64   // clock of the last payment of debts
	others   presence // presence of frames in the queues without debt
	uncut    presence // presence of frames in the queues without debt and without large frames to cut
	skipped  int      // number of queues not visited in this pass because of their debt
	passNS   uint64   // clock of the last pass
	smallNS  uint64   // total cost of the small segments in the large frames received so far
	cutNS    uint64   // total cost of all segments that large frames were cut into so far
}

// presence records whether any queue of one group of queues has frames for the
// worker.
type presence struct {
	waits  bool   // a queue of the group had frames in the last pass, or within awayNS
	frames int    // number of the group's frames in this pass
	awayNS uint64 // time for which the field waits stays true if no more frames come
}

// costs are running totals. The difference before and after a batch is charged to the
// batch's queue.
type costs struct{ masks, misses, smallNS, cutNS, nat uint64 }

func (w *Worker) costs() costs {
	c := w.sh.Counters
	nat := uint64(0)
	if w.tracks.tracker != nil {
		nat = w.tracks.tracker.NATTries()
	}
	return costs{c.MasksSearched, c.Misses, w.fair.smallNS, w.fair.cutNS, nat}
}

// cutCost returns the approximate cost in nanoseconds of cutting bytes of payload
// into segments.
func cutCost(segments, bytes int) uint64 {
	return cutCostNS*uint64(segments) + uint64(bytes)/cutBytesPerNS
}

// noteCuts adds the cost of the small segments into which frame f may have to be cut.
func (w *Worker) noteCuts(f *packet.Frame) {
	if f.Offload.GSO != packet.GSONone && f.Offload.Size < smallSegment {
		w.fair.smallNS += cutCost(f.SegmentCount(), f.Len())
	}
}

// limitVisit limits the number of frames that the next visit of q takes, if large
// frames of q were cut and other queues have frames. The remaining frames wait at
// their sender.
func (w *Worker) limitVisit(q *rxQueue) {
	if q.most != 0 && w.fair.uncut.waits {
		w.batch.Reserve(packet.BatchSize - int(q.most))
	}
}

// mostOf returns the number of frames that the next visit may take so that cutting
// large frames costs at most maxCutNS; 0: no limit. It is computed from the last
// visit, in which n frames were taken and cutting cost cutNS.
func mostOf(n int, cutNS uint64) uint8 {
	if cutNS == 0 {
		return 0
	}
	return uint8(min(max(uint64(n)*maxCutNS/cutNS, 1), packet.BatchSize))
}

// charge adds the cost of a batch of n frames to the debt of queue q. before are the
// running totals before the batch.
func (w *Worker) charge(q *rxQueue, n int, before costs) {
	c := w.costs()
	masks, misses := c.masks-before.masks, c.misses-before.misses
	free := freeMasks * uint64(n)
	q.most = mostOf(n, c.cutNS-before.cutNS)
	cost := missCostNS*misses + c.smallNS - before.smallNS + conntrack.NATTryNS*(c.nat-before.nat)
	if masks > free {
		cost += maskCostNS * (masks - free)
	}
	if q.debtNS == 0 {
		if cost == 0 {
			w.fair.others.frames += n
			if q.most == 0 {
				w.fair.uncut.frames += n
			}
			return
		}
		w.fair.debtors++
	}
	q.debtNS = min(q.debtNS+cost, maxDebtNS)
}

// skipDebtor reports whether q has too much debt to be visited in this pass.
func (w *Worker) skipDebtor(q *rxQueue) bool {
	if q.debtNS <= slackNS || !w.fair.others.waits || q.tunnel {
		return false
	}
	w.fair.skipped++
	return true
}

// endPass updates the field waits at the end of a pass. waits is true as long as the
// group's queues have frames. After their last frame it stays true for as long as
// they had frames before, but at most for maxAwayNS. The argument took is the
// duration of the previous pass.
func (p *presence) endPass(took uint64) {
	p.waits = p.frames > 0
	p.frames = 0
	if p.waits {
		p.awayNS = min(p.awayNS+took, maxAwayNS)
		return
	}
	p.awayNS -= min(p.awayNS, took)
	p.waits = p.awayNS > 0
}

// payDebts ends a pass: it updates which groups of queues have frames, and reduces
// the debts by the share of the time that has passed.
func (w *Worker) payDebts() {
	f := &w.fair
	took := w.now - f.passNS
	f.passNS, f.skipped = w.now, 0
	f.others.endPass(took)
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
	for at := 0; at < w.queues.count; at++ {
		q := w.queues.at(at)
		q.debtNS -= min(q.debtNS, part)
		if q.debtNS > 0 {
			f.debtors++
		}
	}
}
