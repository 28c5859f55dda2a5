// SPDX-License-Identifier: Apache-2.0

// Package statistics has the counters of ports and workers. A counter is a sum of two
// parts: the counts of dead engines, which are in the counter region, and the counts in
// the present engine's shared memory.
//
// Statistics.mu guards the counters of dead engines against ResetPort. It is taken
// after Pipeline.mu. Pipeline.Hold holds Pipeline.mu for reading, so that no engine is
// replaced. No other lock is taken under Statistics.mu. Methods of Statistics are safe
// for concurrent use.
package statistics

import (
	"slices"
	"sync"
	"sync/atomic"

	"weft/api"
	"weft/control/counters"
	"weft/control/limits"
	"weft/control/pipeline"
	"weft/control/workers"
	"weft/datapath"
	"weft/internal/shm"
	"weft/packet"
)

// Statistics reads the counters of a pipeline's engines.
type Statistics struct {
	pipeline *pipeline.Pipeline
	cores    []int // core of each worker, by the worker's index
	mu       sync.Mutex
}

// New returns the statistics of the engines of pipeline pl. coreList lists the cores of
// the workers.
func New(pl *pipeline.Pipeline, coreList []int) *Statistics {
	return &Statistics{pipeline: pl, cores: coreList}
}

// hold returns the workers of the present engine, or nil before the first engine. Until the
// caller calls release, no engine is replaced, and nobody else changes the counters of dead
// engines.
func (s *Statistics) hold() (w *workers.Workers, release func()) {
	w, free := s.pipeline.Hold()
	s.mu.Lock()
	return w, func() {
		s.mu.Unlock()
		free()
	}
}

// livePort sums the counters that the present engine's workers w have for a port. w may be nil.
func livePort(w *workers.Workers, number uint32) datapath.PortCounters {
	var sum datapath.PortCounters
	if w == nil {
		return sum
	}
	for _, sh := range w.Shared() {
		counters.AddPort(&sum, &sh.Ports[number], 1)
	}
	return sum
}

// workerNS returns the time in ns that the workers w have spent on a port's frames. w may be
// nil.
func workerNS(w *workers.Workers, number uint32) (sum uint64) {
	if w == nil {
		return 0
	}
	for _, sh := range w.Shared() {
		sum += atomic.LoadUint64(&sh.SpentNS[number])
	}
	return sum
}

// Port returns the statistics of the port with this number in the data path, since the port was
// added.
func (s *Statistics) Port(number uint32) api.PortStats {
	w, release := s.hold()
	defer release()
	sum := livePort(w, number)
	counters.AddPort(&sum, &s.pipeline.Region().Ports[number], 1)
	return api.PortStats{
		RxPackets: sum.RxPackets, RxBytes: sum.RxBytes, TxPackets: sum.TxPackets, TxBytes: sum.TxBytes,
		RxDrops: dropsByName(&sum.RxDrops), TxDrops: sum.TxDrops,
		TxDropReasons: dropsByName(&sum.TxReasons), WorkerNS: workerNS(w, number),
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

// Workers returns the statistics of all workers since the start of the switch, over all
// engines.
func (s *Statistics) Workers() []api.Worker {
	w, release := s.hold()
	defer release()
	var list []api.Worker
	for i, sh := range w.Shared() {
		var c datapath.Counters
		counters.Add(shm.Words(&c), shm.Words(sh.Counters), 1)
		heartbeat, parked := c.HeartbeatNS, c.ParkedQueues // no counters: their present values apply, not a sum over engines
		counters.Add(shm.Words(&c), shm.Words(&s.pipeline.Region().Workers[i]), 1)
		list = append(list, api.Worker{
			Core: s.cores[i], Passes: c.Passes, IdlePasses: c.IdlePasses, PassGaps: slices.Clone(c.Gaps[:]), Sleeps: c.Sleeps, BusyNS: c.BusyNS,
			Frames: c.Frames, ExactHits: c.ExactHits, MegaflowHits: c.MegaflowHits, MasksSearched: c.MasksSearched,
			Misses: c.Misses, Commands: c.Commands, Syscalls: c.Syscalls, HeartbeatNS: heartbeat,
			CommandsRefused: c.CommandsRefused, InstallsRefused: c.InstallsRefused, Batches: c.Batches, ParkedQueues: parked, OffloadedFrames: c.OffloadedFrames,
			Drops: dropsByName(&c.Drops),
		})
	}
	return list
}

// ResetPort sets the statistics of a port number to 0 when a new port gets the number. It cannot clear the
// workers' counters, so it stores their negative values as the counts of dead engines.
func (s *Statistics) ResetPort(number uint32) {
	w, release := s.hold()
	defer release()
	live := livePort(w, number)
	base := &s.pipeline.Region().Ports[number]
	*base = datapath.PortCounters{}
	counters.AddPort(base, &live, -1)
}

// LimitRows emits the rows of `weft show limits` about held frames and incomplete datagrams, for each port
// and in total, and about refused samples. The numbers are approximate, because workers continue
// meanwhile.
func (s *Statistics) LimitRows(emit func(limits.Row)) {
	ports := s.pipeline.View().Ports()
	w, release := s.hold()
	defer release()
	if w == nil {
		return
	}
	held, slots, all := map[uint32]uint64{}, uint64(0), uint64(0)
	parts := newFragmentRows(len(w.Shared()))
	for worker, sh := range w.Shared() {
		slots += uint64(len(sh.Held))
		for i := range sh.Held {
			h := &sh.Held[i]
			if atomic.LoadUint32(&h.State) == datapath.HeldWaiting {
				held[atomic.LoadUint32(&h.InPort)]++
				all++
				parts.add(worker, h)
			}
		}
	}
	var refused uint64
	for i := range ports {
		no := ports[i].At()
		live, old := livePort(w, no), &s.pipeline.Region().Ports[no]
		n := live.RxDrops[packet.DropHeldShare] + live.RxDrops[packet.DropHeldFull] +
			old.RxDrops[packet.DropHeldShare] + old.RxDrops[packet.DropHeldFull]
		refused += n
		parts.emit(emit, no, live.RxDrops[packet.DropBadFragment]+old.RxDrops[packet.DropBadFragment])
		if held[no] == 0 && n == 0 {
			continue
		}
		// A port may hold at most half of the slots that other ports do not use.
		free := slots - min(all, slots)
		emit(limits.Row{Name: "held_frames", Unit: "frames", Holder: limits.Port(no),
			Used: held[no], Limit: held[no] + (free-min(held[no], free)+1)/2, Refused: n})
	}
	emit(limits.Row{Name: "held_frames", Unit: "frames", Holder: limits.All(), Used: all, Limit: slots, Refused: refused})
	parts.emitAll(emit)
	unsampled := uint64(0)
	for i, sh := range w.Shared() {
		unsampled += atomic.LoadUint64(&sh.Counters.SamplesRefused) + s.pipeline.Region().Workers[i].SamplesRefused
	}
	emit(limits.Row{Name: "samples", Unit: "frames", Holder: limits.All(), Refused: unsampled})
}
