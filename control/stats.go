package control

import (
	"slices"
	"sync/atomic"

	"weft/api"
	"weft/datapath"
	"weft/internal/shm"
	"weft/packet"
)

// The counters of workers and ports are arrays of 64-bit words that the workers
// add to and control sums, word by word: what dead engines counted, from the
// counter region, and what the living one has.

// addPortCounters adds (sign 1) or takes away (sign -1) from, word by word.
func addPortCounters(to *datapath.PortCounters, from *datapath.PortCounters, sign int64) {
	addWords(shm.Words(to), shm.Words(from), sign)
}

func addWords(to, from []uint64, sign int64) {
	for i := range to {
		to[i] += uint64(sign) * atomic.LoadUint64(&from[i])
	}
}

// livePort sums the port's counters of the present engine. Caller holds mu.
func (d *Daemon) livePort(number uint32) datapath.PortCounters {
	var sum datapath.PortCounters
	if d.workers == nil {
		return sum
	}
	for _, sh := range d.workers.shared {
		addPortCounters(&sum, &sh.Ports[number], 1)
	}
	return sum
}

// foldCounters adds what the present engine counted to the counter region: it
// is dead, and its memory goes. Caller holds mu alone.
func (d *Daemon) foldCounters() {
	for i, sh := range d.workers.shared {
		for number := range sh.Ports {
			addPortCounters(&d.counters.ports[number], &sh.Ports[number], 1)
		}
		addWords(shm.Words(&d.counters.workers[i]), shm.Words(sh.Counters), 1)
	}
}

func (d *Daemon) portStats(number uint32) api.PortStats {
	d.mu.RLock()
	defer d.mu.RUnlock()
	sum := d.livePort(number)
	addPortCounters(&sum, &d.counters.ports[number], 1)
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

func (d *Daemon) workerStats() []api.Worker {
	d.mu.RLock()
	defer d.mu.RUnlock()
	var list []api.Worker
	for i, sh := range d.workers.shared {
		var c datapath.Counters
		addWords(shm.Words(&c), shm.Words(sh.Counters), 1)
		heartbeat := c.HeartbeatNS
		addWords(shm.Words(&c), shm.Words(&d.counters.workers[i]), 1)
		list = append(list, api.Worker{
			Core: d.start.Cores[i], Passes: c.Passes, IdlePasses: c.IdlePasses, PassGaps: slices.Clone(c.Gaps[:]), Sleeps: c.Sleeps, BusyNS: c.BusyNS,
			Frames: c.Frames, ExactHits: c.ExactHits, MegaflowHits: c.MegaflowHits, MasksSearched: c.MasksSearched,
			Misses: c.Misses, Commands: c.Commands, Syscalls: c.Syscalls, HeartbeatNS: heartbeat,
			CommandsRefused: c.CommandsRefused, InstallsRefused: c.InstallsRefused, Batches: c.Batches,
			Drops: dropsByName(&c.Drops),
		})
	}
	return list
}
