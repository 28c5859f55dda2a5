package conntrack

// Expiry. What is looked up is checked on the way; the rest is found by a hand
// that goes round the records, a few at a time.

const (
	// sweepPeriodNS is how long one round takes, on a worker that is not asleep.
	sweepPeriodNS = 8_000_000_000
	// sweepGapNS is how often the hand moves.
	sweepGapNS = 200_000
	// sweepMost bounds the records looked at in one pass: at most some tenths of a
	// millisecond, if all have expired.
	sweepMost = 1024
)

// Sweep ends connections whose time has run out, among the next few. One worker
// calls it, once a pass. more tells that it should be called again soon, though
// there be nothing else to do.
func (t *Table) Sweep(now uint64) (more bool) {
	h := t.head
	if h.count == 0 {
		h.sweptNS = now
		return false
	}
	gap := now - h.sweptNS
	if gap < sweepGapNS {
		return true
	}
	h.sweptNS = now
	t.ahead()
	t.sweepExpectations(now)
	n := min(uint64(h.fresh)*min(gap, sweepPeriodNS)/sweepPeriodNS+1, sweepMost)
	for range n {
		if h.hand >= h.fresh {
			h.hand = 0
		}
		c := &t.conns[h.hand]
		if g := c.generation(); g&1 != 0 && c.expired(now) {
			t.end(h.hand, g, EndExpired)
		}
		h.hand++
	}
	return true
}
