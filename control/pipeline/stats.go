// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"slices"

	"weft/api"
	"weft/control/counters"
	"weft/datapath"
	"weft/internal/shm"
	"weft/packet"
)

// Statistics of a port or a worker are a sum: of dead engines, which the counter
// region has, and of the present engine.

// livePort sums a port's counters over the present workers. The caller holds
// Pipeline.mu.
func (pl *Pipeline) livePort(number uint32) datapath.PortCounters {
	var sum datapath.PortCounters
	if pl.workers == nil {
		return sum
	}
	for _, sh := range pl.workers.Shared() {
		counters.AddPort(&sum, &sh.Ports[number], 1)
	}
	return sum
}

func (pl *Pipeline) PortStats(number uint32) api.PortStats {
	pl.mu.RLock()
	defer pl.mu.RUnlock()
	sum := pl.livePort(number)
	counters.AddPort(&sum, &pl.counters.Ports[number], 1)
	return api.PortStats{
		RxPackets: sum.RxPackets, RxBytes: sum.RxBytes, TxPackets: sum.TxPackets, TxBytes: sum.TxBytes,
		RxDrops: dropsByName(&sum.RxDrops), TxDrops: sum.TxDrops,
	}
}

func dropsByName(counts *[packet.DropReasons]uint64) map[string]uint64 {
	drops := map[string]uint64{}
	for reason, n := range counts {
		if n != 0 {
			drops[packet.DropReason(reason).String()] = n
		}
	}
	return drops
}

func (pl *Pipeline) WorkerStats() []api.Worker {
	pl.mu.RLock()
	defer pl.mu.RUnlock()
	var list []api.Worker
	for i, sh := range pl.workers.Shared() {
		var c datapath.Counters
		counters.Add(shm.Words(&c), shm.Words(sh.Counters), 1)
		heartbeat := c.HeartbeatNS
		counters.Add(shm.Words(&c), shm.Words(&pl.counters.Workers[i]), 1)
		list = append(list, api.Worker{
			Core: pl.cores[i], Passes: c.Passes, IdlePasses: c.IdlePasses, PassGaps: slices.Clone(c.Gaps[:]), Sleeps: c.Sleeps, BusyNS: c.BusyNS,
			Frames: c.Frames, ExactHits: c.ExactHits, MegaflowHits: c.MegaflowHits, MasksSearched: c.MasksSearched,
			Misses: c.Misses, Commands: c.Commands, Syscalls: c.Syscalls, HeartbeatNS: heartbeat,
			CommandsRefused: c.CommandsRefused, InstallsRefused: c.InstallsRefused, Batches: c.Batches,
			Drops: dropsByName(&c.Drops),
		})
	}
	return list
}

// ResetPort clears the statistics of a port number for a new port.
func (pl *Pipeline) ResetPort(number uint32) {
	pl.mu.Lock()
	defer pl.mu.Unlock()
	pl.declared.seen[number].Store(false)
	live := pl.livePort(number)
	base := &pl.counters.Ports[number]
	*base = datapath.PortCounters{}
	counters.AddPort(base, &live, -1)
}
