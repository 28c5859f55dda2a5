// SPDX-License-Identifier: Apache-2.0

package flowtable

import "weft/internal/cpu"

// Index is a hash table with open addressing and linear probing. It maps hashes to
// values. Several values may have the same hash; the caller compares the keys. Removal
// moves later entries into the gap, so there are no tombstones. The caller keeps the table at
// most half full.
type Index []indexEntry

type indexEntry struct {
	hash  uint32
	value uint32 // 1 + the value; 0: free entry
}

// NewIndexOf allocates an empty table with this number of entries, a power of two.
func NewIndexOf(entries int) Index { return make(Index, entries) }

// Find returns the first value with this hash for which the function matches returns true.
func (x Index) Find(hash uint32, matches func(value uint32) bool) (value uint32, found bool) {
	wrap := uint32(len(x) - 1)
	for pos := hash & wrap; x[pos].value != 0; pos = (pos + 1) & wrap {
		if e := x[pos]; e.hash == hash && matches(e.value-1) {
			return e.value - 1, true
		}
	}
	return 0, false
}

// Prefetch prefetches the cache lines at which Find will begin its searches for hashes. It does so for the
// first 32 of them.
func (x Index) Prefetch(hashes []uint32) {
	var homes [32]uint32
	n := copy(homes[:], hashes)
	for i := range homes[:n] {
		homes[i] &= uint32(len(x) - 1)
	}
	cpu.Prefetch(&x[0], homes[:n])
}

// Insert adds a value with its hash. The table must be less than half full.
func (x Index) Insert(hash, value uint32) {
	wrap := uint32(len(x) - 1)
	pos := hash & wrap
	for x[pos].value != 0 {
		pos = (pos + 1) & wrap
	}
	x[pos] = indexEntry{hash, value + 1}
}

// Remove removes the entry with this hash and value. It does nothing if there is none.
func (x Index) Remove(hash, value uint32) {
	wrap := uint32(len(x) - 1)
	hole := hash & wrap
	for x[hole].value != value+1 {
		if x[hole].value == 0 {
			return
		}
		hole = (hole + 1) & wrap
	}
	for pos := (hole + 1) & wrap; x[pos].value != 0; pos = (pos + 1) & wrap {
		// An entry may not move in front of its home position.
		if home := x[pos].hash & wrap; (pos-home)&wrap >= (pos-hole)&wrap {
			x[hole] = x[pos]
			hole = pos
		}
	}
	x[hole] = indexEntry{}
}
