package counters

import (
	"sync/atomic"

	"weft/datapath"
	"weft/internal/shm"
)

// The counters of workers and ports are arrays of 64-bit words that the workers add to
// and control sums, word by word.

// AddPort adds (sign 1) or takes away (sign -1) from, word by word.
func AddPort(to *datapath.PortCounters, from *datapath.PortCounters, sign int64) {
	Add(shm.Words(to), shm.Words(from), sign)
}

func Add(to, from []uint64, sign int64) {
	for i := range to {
		to[i] += uint64(sign) * atomic.LoadUint64(&from[i])
	}
}

// Fold adds what an engine counted: it is dead, and its memory goes.
func (c *Region) Fold(shared []*datapath.Shared) {
	for i, sh := range shared {
		for number := range sh.Ports {
			AddPort(&c.Ports[number], &sh.Ports[number], 1)
		}
		Add(shm.Words(&c.Workers[i]), shm.Words(sh.Counters), 1)
	}
}
