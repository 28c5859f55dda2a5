// SPDX-License-Identifier: Apache-2.0

package cpu

import "testing"

// Prefetch neither faults nor changes memory nor allocates, even if numbers are out of range.
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
