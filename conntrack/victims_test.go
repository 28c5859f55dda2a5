// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"slices"
	"testing"

	"weft/packet"
)

// In a full table, the queue of victims has the connections that the next evictions will end, in the order
// of their list. It fills up again after victims have ended for another reason. Evictions from another
// list begin a new queue.
func TestVictimsAreFoundAhead(t *testing.T) {
	const records = 256
	r := newRig(t, records)
	next := 0
	begin := func(n int) {
		for range n {
			if next++; r.begin(next, 1, false) != packet.DropNone {
				t.Fatalf("connection %d is refused", next)
			}
		}
	}
	begin(records + 3*victimsAhead)
	for round := range 100 {
		begin(1)
		v := &r.tr.victims
		var left []uint32 // the connections of the list from the next victim on
		for n := v.list.first; n != 0; n = r.tr.links[n-1].in[inMember].next {
			left = append(left, n-1)
		}
		from := slices.Index(left, v.numbers[0])
		if v.count < victimsGroup || from < 0 || !slices.Equal(left[from:from+v.count], v.numbers[:v.count]) ||
			from+v.count != victimsAhead+1 || v.last != v.numbers[v.count-1]+1 || v.starting != 0 {
			t.Fatalf("round %d: victims %v (%d ahead), list %v", round, v.numbers[:v.count], v.ahead, left[:2*victimsAhead])
		}
	}
	for _, n := range r.tr.victims.numbers[:r.tr.victims.count] { // all victims that were found end for another reason
		r.tr.end(n, r.tr.conns[n].generation(), endFlushed)
	}
	begin(4 * records)
	check(t, r.tr.Table)
	v := &r.tr.victims
	if v.count < victimsGroup || v.ahead != victimsAhead {
		t.Errorf("%d victims, %d ahead", v.count, v.ahead)
	}
	// evictions from another list begin a new queue
	was := v.list
	for range records / 2 {
		next++
		r.fromPort(3).begin(next, 2, false)
		if v.list != was {
			break
		}
	}
	if v.list == was || v.starting != victimsStart-1 || v.ahead != 2 {
		t.Errorf("another list: %t, %d ahead, starting %d", v.list != was, v.ahead, v.starting)
	}
}
