// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"sync/atomic"

	"weft/control/change"
	"weft/control/workers"
	"weft/datapath"
	"weft/internal/clock"
	"weft/openflow/xlate"
)

// SetPortMeters sets the token buckets for the queues and the policing of ports, by index in the
// workers' arrays of buckets. It sends new and changed buckets to the workers, which resets the
// buckets' counts. begins has the indices of new buckets. A bucket in it counts as new even if an
// earlier bucket had the same index and rate.
func (pl *Pipeline) SetPortMeters(_ *change.Tx, meters map[uint32]datapath.Meter, begins map[uint32]bool) {
	now := clock.Monotonic()
	begun := map[uint32]uint64{}
	for slot, m := range meters {
		if old, had := pl.portMeters[slot]; had && old == m && !begins[slot] {
			begun[slot] = pl.portMetersBegun[slot]
			continue
		}
		begun[slot] = now
		if pl.workers != nil {
			pl.workers.Broadcast(datapath.AppendMeter(nil, slot, &m))
		}
	}
	pl.portMeters, pl.portMetersBegun = meters, begun
}

// SetPortWeights sets the weights that decide the shares of ports in a worker's time, by port
// number. The other ports have weight 1. It sends the changes to the workers.
func (pl *Pipeline) SetPortWeights(_ *change.Tx, weights map[uint32]uint32) {
	if pl.workers != nil {
		for number := range pl.portWeights {
			if weights[number] == 0 {
				pl.workers.Broadcast(datapath.AppendWeight(nil, number, 1))
			}
		}
		for number, weight := range weights {
			if pl.portWeights[number] != weight {
				pl.workers.Broadcast(datapath.AppendWeight(nil, number, weight))
			}
		}
	}
	pl.portWeights = weights
}

// sendWeights sends the weights of all ports to workers, which may have the weights from an earlier
// control process.
func (pl *Pipeline) sendWeights(w *workers.Workers) {
	w.Broadcast(datapath.AppendWeight(nil, 0, 1))
	for number, weight := range pl.portWeights {
		w.Broadcast(datapath.AppendWeight(nil, number, weight))
	}
}

// QueueState is a queue of a port with its statistics.
type QueueState struct {
	xlate.Queue
	Port           uint32 // the port's number in flows
	Packets, Bytes uint64 // sent
	Dropped        uint64 // frames beyond the rate
	AgeNS          uint64 // since the queue was added or changed
}

// Queues lists the queues of the bridge's ports, by port and number.
func (b *Bridge) Queues(*change.Tx) []QueueState {
	pl := b.pl
	var list []QueueState
	now := clock.Monotonic()
	for _, info := range b.View().infos {
		for _, q := range info.Queues {
			s := QueueState{Queue: q, Port: info.No, AgeNS: now - min(now, pl.portMetersBegun[q.Slot])}
			if pl.workers != nil {
				for _, sh := range pl.workers.Shared() {
					c := &sh.Meters[q.Slot]
					dropped, droppedBytes := atomic.LoadUint64(&c.DroppedPackets), atomic.LoadUint64(&c.DroppedBytes)
					packets, bytes := atomic.LoadUint64(&c.Packets), atomic.LoadUint64(&c.Bytes)
					s.Packets += packets - min(packets, dropped)
					s.Bytes += bytes - min(bytes, droppedBytes)
					s.Dropped += dropped
				}
			}
			list = append(list, s)
		}
	}
	return list
}
