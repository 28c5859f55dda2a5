// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"runtime"
	"runtime/metrics"
)

// maxGarbage is the number of bytes that requests may allocate before the server runs
// a garbage collection. So a front end that has control keep its session again and
// again cannot fill the machine's memory. A collection between two requests stops the
// workers twice for some microseconds; beyond heapLimit the runtime would collect at
// any time.
const maxGarbage = 64 << 20

// collector runs the server's garbage collections. The server's goroutine owns it.
type collector struct {
	allocated [1]metrics.Sample
	collected uint64 // number of bytes allocated before the last collection
}

func newCollector() *collector {
	return &collector{allocated: [1]metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}}
}

// collect runs a collection if requests have allocated more than maxGarbage since the
// last one. The server calls it after each request.
func (c *collector) collect() {
	metrics.Read(c.allocated[:])
	if n := c.allocated[0].Value.Uint64(); n-c.collected > maxGarbage {
		runtime.GC()
		c.collected = n
	}
}
