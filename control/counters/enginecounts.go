// SPDX-License-Identifier: Apache-2.0

package counters

import (
	"sync/atomic"

	"weft/datapath"
	"weft/internal/shm"
	"weft/packet"
	"weft/port"
)

// Counters of workers and ports are arrays of 64-bit words.

// AddPort adds the second port's counters to the first's, or subtracts them if sign
// is -1.
func AddPort(sum *datapath.PortCounters, added *datapath.PortCounters, sign int64) {
	Add(shm.Words(sum), shm.Words(added), sign)
}

func Add(sum, added []uint64, sign int64) {
	for i := range sum {
		sum[i] += uint64(sign) * atomic.LoadUint64(&added[i])
	}
}

// Fold adds a dead engine's counters to the region, before the caller unmaps them.
// Frames that the engine held count as DropHeldLost. A frame that was being resumed
// may be delivered as well.
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
