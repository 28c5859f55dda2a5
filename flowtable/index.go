package flowtable

// index is an open-addressing table from a hash to values, several of which may
// share one hash: the caller compares. Linear probing; entries move up when one
// before them goes, so there are no tombstones. It has twice the room that is
// ever used.
type index []indexEntry

type indexEntry struct {
	hash  uint32
	value uint32 // plus one; 0: free
}

func (x index) insert(hash, value uint32) {
	wrap := uint32(len(x) - 1)
	pos := hash & wrap
	for x[pos].value != 0 {
		pos = (pos + 1) & wrap
	}
	x[pos] = indexEntry{hash, value + 1}
}

// remove takes out the entry of exactly this hash and value, which must be there.
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
		// What stands at pos may move to the hole unless its home lies behind it.
		if home := x[pos].hash & wrap; (pos-home)&wrap >= (pos-hole)&wrap {
			x[hole] = x[pos]
			hole = pos
		}
	}
	x[hole] = indexEntry{}
}
