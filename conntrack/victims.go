// SPDX-License-Identifier: Apache-2.0

package conntrack

import "weft/internal/cpu"

// In a full table each new connection evicts another one, mostly the oldest of the same list as before.
// This file prefetches the memory of the next connections to evict, the victims: first their records,
// then their index buckets, whose addresses depend on the records. Most buckets also miss in the TLB. The
// buckets of several victims are therefore prefetched together, so that the processor reads their page
// tables at the same time.

const (
	// victimsGroup is the number of victims (connections to evict next) whose index buckets are prefetched
	// together.
	victimsGroup = 8
	// victimsAhead is the number of evictions for which the victims (connections to evict) are found in
	// advance. A group's buckets are prefetched about five evictions before the first is needed.
	victimsAhead = 2*victimsGroup + 4
	// victimsStart is the number of evictions from a list during which each eviction also prefetches the
	// bucket of the next victim. Only later evictions find the buckets of their victims prefetched as part
	// of a group.
	victimsStart = 2 * victimsGroup
)

// victimQueue has the connections that the next evictions from one list will end. It is used only for
// prefetches, so it may be out of date. The table's lock guards the queue; the race detector does not see
// this lock, because it is in shared memory.
type victimQueue struct {
	list     *list
	last     uint32 // 1 + the number of the last victim found; 0: none
	ahead    int    // number of victims found and not yet evicted
	starting int    // number of evictions until the buckets of a group are prefetched early enough
	count    int    // number of entries in numbers
	numbers  [2 * victimsGroup]uint32
}

// prefetchVictims prefetches memory for the next evictions from eviction list l, after an eviction from it.
// level is the index of the list's links in links.in.
//
//go:norace
func (t *Table) prefetchVictims(l *list, level int) {
	v := &t.victims
	if v.list != l || v.last == 0 {
		*v = victimQueue{list: l, last: l.first, ahead: 1, starting: victimsStart}
	}
	v.ahead--
	if v.starting > 0 && l.first != 0 {
		v.starting--
		if second := t.links[l.first-1].in[level].next; second != 0 {
			t.prefetchBuckets([]uint32{second - 1})
		}
	}
	for range 2 { // two for each eviction, so that the queue fills up
		if v.last == 0 || v.ahead >= victimsAhead {
			return
		}
		if v.last = t.links[v.last-1].in[level].next; v.last == 0 {
			return
		}
		t.addVictim(v.last - 1)
	}
}

// addVictim adds connection n to the queue and prefetches its record. If n completes a
// group, addVictim prefetches the index buckets of the oldest group.
//
//go:norace
func (t *Table) addVictim(n uint32) {
	v := &t.victims
	at := v.count % len(v.numbers)
	v.numbers[at] = n
	v.count, v.ahead = at+1, v.ahead+1
	one := v.numbers[at : at+1]
	cpu.Prefetch(&t.conns[0], one)
	cpu.Prefetch(&t.links[0], one)
	cpu.Prefetch(&t.peers[0], one)
	if v.count < len(v.numbers) {
		return
	}
	if v.starting < victimsGroup { // the connections of the oldest group are not evicted yet
		t.prefetchBuckets(v.numbers[:victimsGroup])
	}
	// the race detector observes the builtin copy even here, so an assignment is used
	*(*[victimsGroup]uint32)(v.numbers[:]) = [victimsGroup]uint32(v.numbers[victimsGroup:])
	v.count = victimsGroup
}

// prefetchBuckets prefetches the index buckets of at most victimsGroup connections.
//
//go:norace
func (t *Table) prefetchBuckets(numbers []uint32) {
	var lines [victimsGroup]uint32
	for i, n := range numbers {
		lines[i%victimsGroup] = uint32(t.hashOf(n, 0)) & t.wrap
	}
	cpu.Prefetch(&t.buckets[0], lines[:len(numbers)])
}
