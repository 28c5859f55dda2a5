// SPDX-License-Identifier: Apache-2.0

package conntrack

// Expiry. A look-up checks the expiry of the connection that it finds. The sweep
// finds the other expired connections: a hand moves round the records, a few at a
// time.

const (
	// sweepPeriodNS is the time for one round, on a worker that does not sleep.
	sweepPeriodNS = 8_000_000_000
	// sweepGapNS is the time between two moves of the hand.
	sweepGapNS = 200_000
	// sweepMost bounds the records checked in one pass. A pass takes some tenths of a
	// millisecond if all of them have expired.
	sweepMost = 1024
)

// Sweep ends the expired connections among the next few records. One worker calls it,
// once a pass. more is true while the table has connections: the worker should then
// call Sweep again soon even if it has no other work.
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
	t.requestPages()
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
