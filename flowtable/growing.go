// SPDX-License-Identifier: Apache-2.0

package flowtable

import "weft/internal/cpu"

// GrowingIndex is an Index that doubles when it is half full. So a few values occupy few pages,
// whatever the limit is. It copies the entries to the larger table in small steps, a step for
// each Insert, because a worker cannot pause for thousands of cache misses. Meanwhile each
// value is in one of two tables, or in both.
type GrowingIndex struct {
	table Index
	// old is the smaller table while its entries are copied; nil: no growth. A removed value
	// leaves a tombstone, because a moved entry could come behind copied.
	old    Index
	copied uint32 // number of positions of old that were copied
	used   int    // number of values
	// room returns an empty table of 2^n entries, or nil.
	room func(entries int) Index
}

const (
	// smallestIndex is the number of entries of a new GrowingIndex: a page.
	smallestIndex = 512
	// copyStep is the number of positions that an Insert copies. The old table has twice as many
	// positions as values, and the new one takes as many values again before it grows. 2 would
	// be enough.
	copyStep = 8
	// tombstone is the indexEntry.value of a removed value in GrowingIndex.old.
	tombstone = ^uint32(0)
)

// NewGrowingIndex returns an empty index. room returns an empty table with the given number of
// entries, a power of two, or nil if the index may not have as many; then the index stays as it
// is. The index calls room with increasing numbers.
func NewGrowingIndex(room func(entries int) Index) GrowingIndex {
	return GrowingIndex{table: room(smallestIndex), room: room}
}

// Find returns the first value with this hash for which matches returns true.
func (x *GrowingIndex) Find(hash uint32, matches func(value uint32) bool) (value uint32, found bool) {
	if value, found = x.table.Find(hash, matches); found || x.old == nil {
		return value, found
	}
	return x.old.Find(hash, func(value uint32) bool { return value != tombstone-1 && matches(value) })
}

// Prefetch prefetches the cache lines at which Find begins to search for the first 32 of the
// hashes.
func (x *GrowingIndex) Prefetch(hashes []uint32) { x.table.Prefetch(hashes) }

// Insert adds a value. The caller inserts at most half as many values as the largest table of
// the index has entries.
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

// copySome copies the next entries of the old table.
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
	x.table.Remove(hash, value) // without effect if the entry is only in old
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
