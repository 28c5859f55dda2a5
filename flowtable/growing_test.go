// SPDX-License-Identifier: Apache-2.0

package flowtable

import (
	"math/rand"
	"testing"
)

// growingModel has a GrowingIndex, and a map from each value in it to the value's hash.
type growingModel struct {
	*testing.T
	x      GrowingIndex
	hashes map[uint32]uint32
	values []uint32
}

func (m *growingModel) insert(hash, value uint32) {
	m.x.Insert(hash, value)
	m.hashes[value] = hash
	m.values = append(m.values, value)
}

// remove removes m.values[i] from the index and from the map.
func (m *growingModel) remove(i int) {
	value := m.values[i]
	m.x.Remove(m.hashes[value], value)
	delete(m.hashes, value)
	m.values[i] = m.values[len(m.values)-1]
	m.values = m.values[:len(m.values)-1]
}

func (m *growingModel) contains(hash, value uint32) bool {
	_, found := m.x.Find(hash, func(v uint32) bool { return v == value })
	return found
}

// check looks random values up: with their hashes, which must find them, and with the hashes of other values,
// which must not.
func (m *growingModel) check(rng *rand.Rand) {
	for range min(64, len(m.values)) {
		value, other := m.values[rng.Intn(len(m.values))], m.values[rng.Intn(len(m.values))]
		hash := m.hashes[value]
		if !m.contains(hash, value) {
			m.Fatalf("value %d with hash %#x is not found", value, hash)
		}
		if m.hashes[other] != hash && m.contains(m.hashes[other], value) {
			m.Fatalf("value %d is found with hash %#x of value %d", value, m.hashes[other], other)
		}
		if absent := value + 1<<20; m.contains(hash, absent) {
			m.Fatalf("value %d, which was never inserted, is found", absent)
		}
	}
}

// A GrowingIndex finds the values that were inserted and not removed, before, during and after its growth,
// also those with equal hashes. It does not grow beyond the largest table that it may have.
func TestGrowingIndex(t *testing.T) {
	const largest = 8 * smallestIndex
	for seed := range int64(8) {
		rng := rand.New(rand.NewSource(seed))
		m := &growingModel{T: t, hashes: map[uint32]uint32{}}
		m.x = NewGrowingIndex(func(entries int) Index {
			if entries > largest {
				return nil
			}
			return NewIndexOf(entries)
		})
		spread := uint32(1)<<(8+2*seed) + 1 // small: values have equal hashes
		for next := uint32(0); len(m.values) < largest/2; next++ {
			m.insert(rng.Uint32()%spread*0x9e3779b1, next)
			if rng.Intn(4) == 0 {
				i := rng.Intn(len(m.values))
				value, hash := m.values[i], m.hashes[m.values[i]]
				m.remove(i)
				if m.contains(hash, value) {
					t.Fatalf("removed value %d is found", value)
				}
				if rng.Intn(2) == 0 {
					m.insert(rng.Uint32(), value)
				}
			}
			if m.x.old != nil || next%61 == 0 {
				m.check(rng)
			}
		}
		if len(m.x.table) != largest || m.x.used != len(m.values) || m.x.old != nil {
			t.Errorf("seed %d: table of %d, %d values counted, of which %d are right; growth ended: %v",
				seed, len(m.x.table), m.x.used, len(m.values), m.x.old == nil)
		}
		for len(m.values) > 0 {
			m.remove(0)
		}
		for _, e := range m.x.table {
			if e.value != 0 {
				t.Fatal("an entry is left after all values were removed")
			}
		}
	}
}

// A machine with more memory gets a larger cache. A cache with more than leastDefault megaflows takes at most
// a tenth of the memory.
func TestDefaultMegaflows(t *testing.T) {
	const gib = 1 << 30
	for _, c := range []struct {
		memory  uint64
		workers int
		want    int
	}{{0, 1, leastDefault}, {2 * gib, 1, leastDefault}, {8 * gib, 1, 1 << 19}, {24 * gib, 1, 1 << 20}, {48 * gib, 1, mostDefault}, {16 * gib, 8, leastDefault}, {1 << 50, 64, mostDefault}} {
		if n := DefaultMegaflows(c.memory, c.workers); n != c.want {
			t.Errorf("%d GiB, %d workers: %d megaflows, want %d", c.memory/gib, c.workers, n, c.want)
		}
	}
}
