// SPDX-License-Identifier: Apache-2.0

package flowtable

// index is a hash table with open addressing and linear probing. It maps hashes to
// values. Several values may have the same hash; the caller compares the keys. Removal
// moves later entries into the gap, so there are no tombstones. The table is at most
// half full.
type index []indexEntry

type indexEntry struct {
	hash  uint32
	value uint32 // value plus one; 0: free
}

func (x index) insert(hash, value uint32) {
	wrap := uint32(len(x) - 1)
	pos := hash & wrap
	for x[pos].value != 0 {
		pos = (pos + 1) & wrap
	}
	x[pos] = indexEntry{hash, value + 1}
}

// remove removes the entry with this hash and value, which must exist.
func (x index) remove(hash, value uint32) {
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
