// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"runtime/debug"
	"runtime/metrics"
)

// A central keeps every object of the fleet in memory and allocates little besides short messages. With
// Go's default, the heap of a small fleet may grow only a little before the next garbage collection. So
// there would be many collections, each of which marks all objects again. A central therefore lets a
// small heap grow by gcRoom before a collection. A large heap may double, as with Go's default.
const (
	gcRoom        = 128 << 20 // bytes
	gcDefault     = 100       // percent, Go's default of GOGC
	gcLargest     = 400       // percent
	liveHeapBytes = "/gc/heap/live:bytes"
)

// gcPercent returns the value of GOGC for a heap of which the last collection has kept live bytes.
func gcPercent(live uint64) int {
	return int(max(gcDefault, min(100*gcRoom/max(live, 1), gcLargest)))
}

// gcTuner sets GOGC as the heap grows and shrinks. It does nothing if the environment sets GOGC.
type gcTuner struct{ percent int } // set last; 0: none

func (t *gcTuner) tune() {
	if os.Getenv("GOGC") != "" {
		return
	}
	sample := []metrics.Sample{{Name: liveHeapBytes}}
	metrics.Read(sample)
	if sample[0].Value.Kind() != metrics.KindUint64 {
		return // a later version of Go has no such metric
	}
	if percent := gcPercent(sample[0].Value.Uint64()); percent != t.percent {
		t.percent = percent
		debug.SetGCPercent(percent)
	}
}
