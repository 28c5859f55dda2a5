// SPDX-License-Identifier: Apache-2.0

package shm

import "testing"

// Exactly one call of Private gets the reserved memory.
func TestReserve(t *testing.T) {
	Reserve[uint64](1000)
	if takeReserved(7999) != nil {
		t.Fatal("another size was reserved too")
	}
	first := Private[uint32](2000)
	if len(first) != 2000 || len(reserved.blocks) != 0 {
		t.Fatalf("%d elements, %d blocks left", len(first), len(reserved.blocks))
	}
	for i := range first {
		if first[i] != 0 {
			t.Fatal("not zeroed")
		}
		first[i] = 1
	}
	if second := Private[uint32](2000); second[0] != 0 {
		t.Fatal("taken twice")
	}
}
