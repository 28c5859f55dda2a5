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
	// cutCostNS is the cost of a segment that a large frame is cut into, if the
	// segment has less than smallSegment bytes of payload. Larger segments are free.
	cutCostNS    = 70
	smallSegment = 256
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
	debtors   int    // number of queues with debt
	repaidNS  uint64 // clock of the last payment
	contended bool   // queues without debt had frames in the last pass, or may have some soon
	skipped   int    // number of queues not visited in this pass because of their debt
	others    int    // number of this pass's frames that came from queues without debt and cost nothing extra
	passNS    uint64 // clock of the last pass
	awayNS    uint64 // time for which contended stays set without frames of others
	cuts      uint64 // running count of small segments that large frames stood for
}

// costs are the running counts that a batch is charged by, read before and after it.
type costs struct{ masks, misses, cuts, nat uint64 }

func (w *Worker) costs() costs {
	c := w.sh.Counters
	nat := uint64(0)
	if w.tracks.tracker != nil {
		nat = w.tracks.tracker.NATTries()
	}
	return costs{c.MasksSearched, c.Misses, w.fair.cuts, nat}
}

// noteCuts counts the small segments that f may have to be cut into.
func (w *Worker) noteCuts(f *packet.Frame) {
	if f.Offload.GSO != packet.GSONone && f.Offload.Size < smallSegment {
		w.fair.cuts += uint64(f.SegmentCount())
	}
}

// charge adds the cost of a batch of n frames to the debt of q. before are the counts
// from before the batch.
func (w *Worker) charge(q *rxQueue, n int, before costs) {
	c := w.costs()
	masks, misses := c.masks-before.masks, c.misses-before.misses
	free := freeMasks * uint64(n)
	cost := missCostNS*misses + cutCostNS*(c.cuts-before.cuts) + conntrack.NATTryNS*(c.nat-before.nat)
	if masks > free {
		cost += maskCostNS * (masks - free)
	}
	if q.debtNS == 0 {
		if cost == 0 {
			w.fair.others += n
			return
		}
		w.fair.debtors++
	}
	q.debtNS = min(q.debtNS+cost, maxDebtNS)
}

// skipDebtor reports whether q has too much debt to be visited in this pass.
func (w *Worker) skipDebtor(q *rxQueue) bool {
	if q.debtNS <= slackNS || !w.fair.contended || q.tunnel {
		return false
	}
	w.fair.skipped++
	return true
}

// waitForOthers updates contended: it is set while queues without debt have frames,
// and afterwards for as long as they had frames, up to maxAwayNS.
func (f *fairness) waitForOthers(now uint64) {
	took := now - f.passNS // duration of the pass before this one
	f.passNS = now
	if f.contended = f.others > 0; f.contended {
		f.awayNS = min(f.awayNS+took, maxAwayNS)
		return
	}
	f.awayNS -= min(f.awayNS, took)
	f.contended = f.awayNS > 0
}

// payDebts ends a pass: it updates contended and reduces the debts by the share of
// the time that has passed.
func (w *Worker) payDebts() {
	f := &w.fair
	f.waitForOthers(w.now)
	f.others, f.skipped = 0, 0
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
