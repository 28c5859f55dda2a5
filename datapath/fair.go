package datapath

import (
	"weft/conntrack"
	"weft/packet"
)

// A frame that goes through all masks and misses costs some fifty times what one
// of a known flow does, and a sender can make every frame such a one (tuple-space
// explosion, CVE-2019-25076), or a large one that has to be cut into a thousand, or one
// for which no translation of its address is free. So
// each receive queue is charged for what its frames cost beyond the ordinary. While
// other queues have frames, one that owes too much is not visited: its frames wait,
// or are lost, where they come from, and the others go on. Debts are paid off with
// time, all together slowShare of it: what was spent on such frames is at most that
// part of a busy worker. With nothing else to do, debts do not matter.
//
// A worker that was busy with others counts as busy for a while after: guests lose
// their cores, most of all to the control process that answers misses, and if that
// had more of them taken, it would keep the guests away.
//
// Uplinks are exempt: behind them are many senders, and one queue.

const (
	// maskCostNS and missCostNS are what a mask tried and a frame sent to control
	// and back cost, about (BenchmarkUnderAttack); only their proportion to real
	// time matters.
	maskCostNS = 15
	missCostNS = 3000
	// cutCostNS is what a segment costs that a large frame is cut into, where it has
	// less than smallSegment bytes of payload. Ordinary ones are free.
	cutCostNS    = 70
	smallSegment = 256
	// freeMasks are the masks a frame that the exact-match cache does not know may
	// try for nothing.
	freeMasks = 8
	// slackNS is what a queue may owe before it is left out: some hundred misses
	// at once.
	slackNS = 500_000
	// maxDebtNS bounds what a queue is left out for.
	maxDebtNS = 2_000_000
	// slowShare: one part in this of the time goes to frames that cost too much.
	slowShare = 16
	// maxAwayNS bounds for how long others are waited for.
	maxAwayNS = 1_000_000
)

// fairness is the account of a worker's queues.
type fairness struct {
	debtors   int    // queues that owe something
	repaidNS  uint64 // clock of the last payment
	contended bool   // queues without debt had frames in the last pass, or may have soon
	leftOut   int    // queues that were not visited in this pass
	others    int    // frames of this pass that came from queues without debt, and cost nothing
	settledNS uint64 // clock of the last pass
	awayNS    uint64 // for how long others are still waited for
	cuts      uint64 // small segments that large frames stood for, so far
}

// costs is what a batch is charged by, read before and after.
type costs struct{ masks, misses, cuts, nat uint64 }

func (w *Worker) costs() costs {
	c := w.sh.Counters
	nat := uint64(0)
	if w.tracks.tracker != nil {
		nat = w.tracks.tracker.NATTries()
	}
	return costs{c.MasksSearched, c.Misses, w.fair.cuts, nat}
}

// noteCuts notes what f, if it is large, may have to be cut into.
func (w *Worker) noteCuts(f *packet.Frame) {
	if f.Offload.GSO != packet.GSONone && f.Offload.Size < smallSegment {
		w.fair.cuts += uint64(f.SegmentCount())
	}
}

// charge puts what a batch of n frames of q has cost on its account.
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

// leaveOut tells whether q is not to be visited in this pass.
func (w *Worker) leaveOut(q *rxQueue) bool {
	if q.debtNS <= slackNS || !w.fair.contended || q.tunnel {
		return false
	}
	w.fair.leftOut++
	return true
}

// waitForOthers notes whether others than debtors have frames, or had until now for
// at least as long as they have been away.
func (f *fairness) waitForOthers(now uint64) {
	took := now - f.settledNS // by the pass before this one
	f.settledNS = now
	if f.contended = f.others > 0; f.contended {
		f.awayNS = min(f.awayNS+took, maxAwayNS)
		return
	}
	f.awayNS -= min(f.awayNS, took)
	f.contended = f.awayNS > 0
}

// settleDebts ends a pass: it notes whether there was anything else to do, and pays
// debts off for the time that has passed.
func (w *Worker) settleDebts() {
	f := &w.fair
	f.waitForOthers(w.now)
	f.others, f.leftOut = 0, 0
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
