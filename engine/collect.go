// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"runtime"
	"runtime/metrics"
)

// maxGarbage is the number of bytes that requests may allocate before the server runs
// a garbage collection. The limit keeps a front end from filling the machine's memory
// by making control keep its session again and again. A collection between two
// requests stops the workers twice for some microseconds. If the heap exceeded
// heapLimit, the runtime would collect at any time.
const maxGarbage = 64 << 20

// collector runs the engine's garbage collections. The server's goroutine owns it.
type collector struct {
	allocated [1]metrics.Sample
	collected uint64 // number of bytes that had been allocated at the last collection
}

func newCollector() *collector {
	return &collector{allocated: [1]metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}}
}

// collect runs a garbage collection if requests have allocated more than maxGarbage
// since the last collection. The server calls collect after each request.
func (c *collector) collect() {
	metrics.Read(c.allocated[:])
	if n := c.allocated[0].Value.Uint64(); n-c.collected > maxGarbage {
		runtime.GC()
		c.collected = n
	}
}
