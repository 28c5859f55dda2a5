// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"weft/conntrack"
	"weft/packet"
)

// A frame that tries all masks and misses costs some fifty times as much as a frame
// of a known flow, and a sender can make every frame such a one (tuple-space
// explosion, CVE-2019-25076). Other expensive frames are large ones that must be cut
// into a thousand segments, and frames for whose address no translation is free.
//
// So each receive queue is charged for what its frames cost beyond the ordinary.
// While other queues have frames, a queue with too much debt is not visited: its
// frames wait, or are lost, at their sender, and the other queues go on. Debts are
// paid off with time, at a rate of one part in slowShare for all queues together.
// Expensive frames therefore take at most that part of a busy worker. Debts do not
// matter while no other queue has frames.
//
// A worker that was busy with other queues counts as busy for a while after. Guests
// lose their cores to other processes, most of all to the control process that answers
// misses. If such a gap let the worker send control more misses, control would keep the
// guests away for longer.
//
// Uplinks are exempt: many senders share one queue there.

const (
	// maskCostNS is the approximate cost of a mask tried, missCostNS of a frame sent
	// to control and back (BenchmarkUnderAttack). Only their proportion to real time
	// matters.
	maskCostNS = 15
	missCostNS = 3000
	// cutCostNS is the approximate cost of a segment that a large frame is cut into.
	// Each cutBytesPerNS bytes of its payload, which are summed and copied, cost
	// another nanosecond.
	cutCostNS     = 70
	cutBytesPerNS = 4
	// smallSegment is the payload from which segments are free of debt: every path
	// of today carries them. Such segments count only against maxCutNS.
	smallSegment = 1024
	// maxCutNS bounds the cost of the large frames that one visit cuts while other
	// queues have frames, and so the time for which those wait. A batch of 32 frames
	// of 64 KiB costs seven times as much.
	maxCutNS = 100_000
	// freeMasks is the number of masks that a frame unknown to the exact-match cache
	// may try without charge.
	freeMasks = 8
	// slackNS is the debt up to which a queue is visited: some hundred misses at
	// once.
	slackNS = 500_000
	// maxDebtNS bounds the debt of a queue, and so the time for which it is not
	// visited. Cost beyond it is forgiven.
	maxDebtNS = 2_000_000
	// slowShare is the divisor of time for expensive frames: they get one part in
	// slowShare.
	slowShare = 16
	// maxAwayNS bounds the time for which the worker still counts as busy after other
	// queues ran empty.
	maxAwayNS = 1_000_000
)

// fairness is the account of a worker's queues.
type fairness struct {
	debtors  int      // number of queues with debt
	repaidNS uint64   // clock of the last payment of debts
	others   presence // queues without debt
	uncut    presence // queues without debt whose frames are not cut
	skipped  int      // number of queues not visited in this pass because of their debt
	passNS   uint64   // clock of the last pass
	smallNS  uint64   // running cost of the small segments that large frames stood for
	cutNS    uint64   // running cost of all segments that large frames were cut into
}

// presence records whether queues of one kind have frames for the worker.
type presence struct {
	waits  bool   // the queues had frames in the last pass, or may have some soon
	frames int    // number of their frames in this pass
	awayNS uint64 // time for which waits stays set without frames
}

// costs are the running counts that a batch is charged by, read before and after it.
type costs struct{ masks, misses, smallNS, cutNS, nat uint64 }

func (w *Worker) costs() costs {
	c := w.sh.Counters
	nat := uint64(0)
	if w.tracks.tracker != nil {
		nat = w.tracks.tracker.NATTries()
	}
	return costs{c.MasksSearched, c.Misses, w.fair.smallNS, w.fair.cutNS, nat}
}

// cutCost returns the approximate cost of cutting bytes of payload into segments.
func cutCost(segments, bytes int) uint64 {
	return cutCostNS*uint64(segments) + uint64(bytes)/cutBytesPerNS
}

// noteCuts counts the small segments that f may have to be cut into.
func (w *Worker) noteCuts(f *packet.Frame) {
	if f.Offload.GSO != packet.GSONone && f.Offload.Size < smallSegment {
		w.fair.smallNS += cutCost(f.SegmentCount(), f.Len())
	}
}

// limitVisit reserves part of the batch if the large frames of q must be cut and other
// queues have frames. The frames that find no room wait at their sender.
func (w *Worker) limitVisit(q *rxQueue) {
	if q.most != 0 && w.fair.uncut.waits {
		w.batch.Reserve(packet.BatchSize - int(q.most))
	}
}

// mostOf returns the number of frames that the next visit may take, 0 for no limit: the
// large frames of a visit of n frames cost cutNS.
func mostOf(n int, cutNS uint64) uint8 {
	if cutNS == 0 {
		return 0
	}
	return uint8(min(max(uint64(n)*maxCutNS/cutNS, 1), packet.BatchSize))
}

// charge adds the cost of a batch of n frames to the debt of q. before are the counts
// from before the batch.
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

// endPass updates waits: it is set while the queues have frames, and afterwards for as
// long as they had frames, up to maxAwayNS. took is the duration of the pass before this
// one.
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

// payDebts ends a pass: it updates who waits and reduces the debts by the share of
// the time that has passed.
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
