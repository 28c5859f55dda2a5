// SPDX-License-Identifier: Apache-2.0

package flowtable

import "weft/internal/cpu"

// GrowingIndex is a hash table like Index that grows. When its table is half full, it gets a table of
// twice the size. Few values thus occupy few pages, however large the limit is. Each Insert copies only
// a few entries to the larger table, because a worker cannot pause for thousands of cache misses. Until
// all are copied, a value is in one of the two tables, or in both.
type GrowingIndex struct {
	table Index
	// old is the smaller table while its entries are copied; nil at other times. A removed
	// value leaves a tombstone in it. If entries moved into the gap instead, one could pass from
	// the part that is not copied yet into the copied part.
	old    Index
	copied uint32 // number of positions of the smaller table that were copied
	used   int    // number of values
	// room returns the memory for a table, as the parameter of NewGrowingIndex does.
	room func(entries int) Index
}

const (
	// smallestIndex is the number of entries of a new GrowingIndex, which fill one page.
	smallestIndex = 512
	// copyStep is the number of positions of the smaller table that an Insert copies. All positions must be
	// copied before the larger table is half full. The smaller table has two positions for each of its
	// values. As many values again fit into the larger table, each with one Insert. Even 2 would therefore
	// be enough.
	copyStep = 8
	// tombstone marks an entry of GrowingIndex.old whose value was removed: it is then the entry's value.
	tombstone = ^uint32(0)
)

// NewGrowingIndex returns an empty index. It calls room for each table, with the number of entries: a power
// of two, larger at each call. room returns an empty table, or nil if the index must not grow further.
func NewGrowingIndex(room func(entries int) Index) GrowingIndex {
	return GrowingIndex{table: room(smallestIndex), room: room}
}

// Find returns the first value with this hash for which the function matches returns true.
func (x *GrowingIndex) Find(hash uint32, matches func(value uint32) bool) (value uint32, found bool) {
	if value, found = x.table.Find(hash, matches); found || x.old == nil {
		return value, found
	}
	return x.old.Find(hash, func(value uint32) bool { return value != tombstone-1 && matches(value) })
}

// Prefetch prefetches the cache lines at which Find will begin its searches for hashes. It does so for the
// first 32 of them.
func (x *GrowingIndex) Prefetch(hashes []uint32) { x.table.Prefetch(hashes) }

// Insert adds a value with its hash. The index may have at most half as many values as its largest table has
// entries.
func (x *GrowingIndex) Insert(hash, value uint32) {
	switch {
	case x.old != nil:
		x.copySome()
	case 2*(x.used+1) > len(x.table):
		if next := x.room(2 * len(x.table)); next != nil {
			x.old, x.table, x.copied = x.table, next, 0
			x.copySome()
		}
	}
	x.used++
	x.table.Insert(hash, value)
}

// copySome copies the entries in the next copyStep positions of the smaller table to the larger one.
func (x *GrowingIndex) copySome() {
	end := min(x.copied+copyStep, uint32(len(x.old)))
	if next := x.old[end&uint32(len(x.old)-1):]; len(next) >= copyStep {
		var homes [copyStep]uint32
		for i := range homes {
			homes[i] = next[i].hash & uint32(len(x.table)-1)
		}
		cpu.Prefetch(&x.table[0], homes[:])
	}
	for ; x.copied < end; x.copied++ {
		if e := x.old[x.copied]; e.value != 0 && e.value != tombstone {
			x.table.Insert(e.hash, e.value-1)
		}
	}
	if end == uint32(len(x.old)) {
		x.old = nil
	}
}

// Remove removes the entry with this hash and value, which must exist.
func (x *GrowingIndex) Remove(hash, value uint32) {
	x.used--
	x.table.Remove(hash, value) // without effect if the entry is only in the smaller table
	if x.old == nil {
		return
	}
	wrap := uint32(len(x.old) - 1)
	for pos := hash & wrap; x.old[pos].value != 0; pos = (pos + 1) & wrap {
		if x.old[pos].value == value+1 {
			x.old[pos].value = tombstone
			return
		}
	}
}
