// SPDX-License-Identifier: Apache-2.0

package counters

import (
	"sync/atomic"

	"weft/datapath"
	"weft/internal/shm"
	"weft/packet"
	"weft/port"
)

// The counters of workers and ports are arrays of 64-bit words. The workers increase
// the words, and control sums them word by word.

// AddPort adds the second port's counters to the first port's counters, word by word.
// If sign is -1, it subtracts them.
func AddPort(to *datapath.PortCounters, from *datapath.PortCounters, sign int64) {
	Add(shm.Words(to), shm.Words(from), sign)
}

func Add(to, from []uint64, sign int64) {
	for i := range to {
		to[i] += uint64(sign) * atomic.LoadUint64(&from[i])
	}
}

// Fold adds the counters of a dead engine to the region. It counts the frames that the
// engine still held as DropHeldLost. If the engine died while a worker held or resumed
// a frame, the frame may also be delivered. The caller then unmaps the engine's memory.
func (c *Region) Fold(shared []*datapath.Shared) {
	for i, sh := range shared {
		for slot := range sh.Held {
			if h := &sh.Held[slot]; h.State == datapath.HeldWaiting {
				c.Ports[h.InPort%port.MaxPorts].RxDrops[packet.DropHeldLost]++
				c.Workers[i].Drops[packet.DropHeldLost]++
			}
		}
		for number := range sh.Ports {
			AddPort(&c.Ports[number], &sh.Ports[number], 1)
		}
		Add(shm.Words(&c.Workers[i]), shm.Words(sh.Counters), 1)
	}
}
