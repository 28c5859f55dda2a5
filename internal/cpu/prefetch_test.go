// SPDX-License-Identifier: Apache-2.0

package cpu

import "testing"

// Prefetch does not fault, change memory or allocate, even if numbers are out of
// range.
func TestPrefetch(t *testing.T) {
	records := [4][3]uint64{{1}, {2}, {3}, {4}}
	was := records
	numbers := []uint32{0, 3, 1, 1<<32 - 1}
	if n := testing.AllocsPerRun(10, func() {
		Prefetch(&records[0], numbers)
		Prefetch(&records[0], numbers[:0])
		Prefetch(&records[0], nil)
	}); n != 0 || records != was {
		t.Errorf("%v allocations, records %v", n, records)
	}
}
