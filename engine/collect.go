package engine

import (
	"runtime"
	"runtime/metrics"
)

// maxGarbage is the number of bytes that requests may allocate before the server
// collects: a front end that has control keep its session again and again must not fill
// the machine's memory. A collection between two requests costs the workers two stops
// of some microseconds; beyond heapLimit it would come at any time.
const maxGarbage = 64 << 20

// collector has the server collect its garbage. The server's goroutine owns it.
type collector struct {
	allocated [1]metrics.Sample
	collected uint64 // bytes that were allocated before the last collection
}

func newCollector() *collector {
	return &collector{allocated: [1]metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}}
}

// collect is called after each request.
func (c *collector) collect() {
	metrics.Read(c.allocated[:])
	if n := c.allocated[0].Value.Uint64(); n-c.collected > maxGarbage {
		runtime.GC()
		c.collected = n
	}
}
