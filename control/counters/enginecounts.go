// SPDX-License-Identifier: Apache-2.0

package counters

import (
	"sync/atomic"

	"weft/datapath"
	"weft/internal/shm"
	"weft/packet"
	"weft/port"
)

// This file adds up counters of workers and ports, which are structs of 64-bit words only.

// AddPort adds the counters in added to those in sum. If sign is -1, it subtracts them.
func AddPort(sum *datapath.PortCounters, added *datapath.PortCounters, sign int64) {
	Add(shm.Words(sum), shm.Words(added), sign)
}

func Add(sum, added []uint64, sign int64) {
	for i := range sum {
		sum[i] += uint64(sign) * atomic.LoadUint64(&added[i])
	}
}

// Fold adds the counters that the workers of a dead engine have in shared memory to the region. The caller
// then unmaps that memory. Frames that the engine held count as dropped (DropHeldLost). The engine may
// have been delivering one of them when it died.
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
