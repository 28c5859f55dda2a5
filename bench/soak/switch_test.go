// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"
	"time"

	"weft/datapath"
)

// stall returns the limit of the highest bucket that has grown.
func TestStall(t *testing.T) {
	before, now := make([]uint64, datapath.GapBuckets), make([]uint64, datapath.GapBuckets)
	count := func(gaps []uint64, ns time.Duration) { gaps[datapath.GapBucket(uint64(ns))]++ }
	for range 2 {
		count(before, 20*time.Millisecond)
		count(now, 20*time.Millisecond)
	}
	count(now, 5*time.Millisecond)
	if got := stall(before, now); got < 5*time.Millisecond || got > 8*time.Millisecond {
		t.Errorf("stall %v", got)
	}
	if got := stall(nil, now); got < 20*time.Millisecond || got > 30*time.Millisecond {
		t.Errorf("of a new engine: %v", got)
	}
}
