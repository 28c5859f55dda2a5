// SPDX-License-Identifier: Apache-2.0

package main

import (
	"math"
	"testing"
)

// A small heap grows by gcLargest percent, a larger one by gcRoom, and one beyond gcRoom by its own size.
func TestGCPercent(t *testing.T) {
	for live, want := range map[uint64]int{
		0: 400, 4 << 20: 400, 32 << 20: 400, 64 << 20: 200, 128 << 20: 100, 4 << 30: 100, math.MaxUint64: 100,
	} {
		if got := gcPercent(live); got != want {
			t.Errorf("%d bytes: %d, expected %d", live, got, want)
		}
	}
}
