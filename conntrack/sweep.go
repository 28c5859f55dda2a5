// SPDX-License-Identifier: Apache-2.0

package conntrack

// This file ends expired connections. A frame that meets an expired connection ends it at once. The sweep
// ends all others: it goes round all records, a few at a time. Its position is called the
// hand.

const (
	// sweepPeriodNS is the time for one round of the sweep, if the worker does not
	// sleep.
	sweepPeriodNS = 8_000_000_000
	// sweepGapNS is the time between two steps of the sweep.
	sweepGapNS = 200_000
	// sweepMost is the largest number of records that one step of the sweep examines. A
	// step takes at most some tenths of a millisecond.
	sweepMost = 1024
)

// Sweep ends the expired connections among the next few records. One worker calls it once in each turn of
// its loop. now is CLOCK_MONOTONIC in nanoseconds. remaining is true while the table has connections. The
// worker must then call Sweep again, even if it is idle.
func (t *Table) Sweep(now uint64) (remaining bool) {
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
	t.requestPages()
	t.sweepExpectations(now)
	n := min(uint64(h.fresh)*min(gap, sweepPeriodNS)/sweepPeriodNS+1, sweepMost)
	for range n {
		if h.hand >= h.fresh {
			h.hand = 0
		}
		c := &t.conns[h.hand]
		if g := c.generation(); g&1 != 0 && c.expired(now) {
			t.end(h.hand, g, endExpired)
		}
		h.hand++
	}
	return true
}
