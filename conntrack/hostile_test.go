// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"math/rand/v2"
	"testing"
)

// An earlier engine has left a random number of used records in the shared header. No process fails because
// of it: the number is cut to the number of records.
func TestRandomNumberOfRecords(t *testing.T) {
	tab := Open(newMemory(t, 64), 1)
	random := rand.New(rand.NewPCG(1, 2))
	for _, fresh := range []uint32{65, 1 << 31, ^uint32(0), random.Uint32() | 1<<20} {
		tab.head.fresh = fresh
		tab.populateRecords()
		if n := tab.allocRecord(); n != none {
			t.Errorf("%d used of 64 records: record %d is allocated", fresh, n)
		}
		if n := tab.pages.records.Load(); n > 64 {
			t.Errorf("%d used of 64 records: %d have pages", fresh, n)
		}
	}
}
