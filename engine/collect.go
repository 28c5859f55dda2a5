// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"runtime"
	"runtime/metrics"
)

// maxGarbage is the number of bytes that requests may allocate before the engine collects garbage.
// Front ends can cause any number of OpKeep requests, and each one makes the data of an earlier one
// garbage. A collection between two requests stops the workers for some microseconds.
const maxGarbage = 64 << 20

// collector runs the engine's garbage collections between two requests, because those of the Go runtime are
// off.
type collector struct {
	allocated [1]metrics.Sample
	collected uint64 // total number of allocated bytes at the last collection
}

func newCollector() *collector {
	return &collector{allocated: [1]metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}}
}

// collect collects garbage if requests have allocated more than maxGarbage since the last collection.
func (c *collector) collect() {
	metrics.Read(c.allocated[:])
	if n := c.allocated[0].Value.Uint64(); n-c.collected > maxGarbage {
		runtime.GC()
		c.collected = n
	}
}
