// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"math/rand/v2"
	"testing"
)

// GapBucket agrees with a linear search for the first limit above the gap.
func TestGapBuckets(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for i := range 200_000 {
		ns := uint64(i)
		if i >= 100_000 {
			ns = r.Uint64() >> r.IntN(64)
		}
		want := 0
		for want < GapBuckets-1 && ns >= GapLimit(want) {
			want++
		}
		got := GapBucket(ns)
		if got != want && GapLimit(got) != GapLimit(want) { // the first buckets have equal limits
			t.Fatalf("%d ns: bucket %d below %d ns, want %d below %d ns", ns, got, GapLimit(got), want, GapLimit(want))
		}
	}
	if GapLimit(2*16) != 49152 || GapLimit(2*16+1) != 65536 {
		t.Errorf("limits %d, %d", GapLimit(2*16), GapLimit(2*16+1))
	}
}
