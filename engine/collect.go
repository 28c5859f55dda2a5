// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"runtime"
	"runtime/metrics"
)

// maxGarbage is the number of bytes that requests may allocate before the server runs
// a garbage collection. Each OpKeep request leaves the older data of its key as
// garbage. A front end can cause any number of such requests, so without the limit it
// could fill the machine's memory. A collection between two requests stops the
// workers twice for some microseconds. If the heap exceeded heapLimit, the runtime
// would collect at any time.
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
