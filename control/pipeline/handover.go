// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"weft/control/change"
	"weft/control/counters"
	"weft/control/store"
	"weft/control/underlay"
	"weft/control/workers"
	"weft/datapath"
	"weft/openflow"
	"weft/openflow/ofproto"
)

// This file has the steps of the pipeline when the control process starts, and when a new engine
// process replaces another.

// Load fills the tables from the state file. resumed is true if the shared memory "region" has the
// statistics of an earlier control process, which Load then restores. No other goroutine uses the
// pipeline yet.
func (pl *Pipeline) Load(_ *change.Tx, saved *store.State, region *counters.Region, resumed bool) {
	pl.counters = region
	pl.rules.Load(saved, region, resumed)
}

// Inherit takes over the workers that served an earlier control process.
func (pl *Pipeline) Inherit(_ *change.Tx, w *workers.Workers) {
	pl.workers = w
	pl.templates.Restore(w, pl.counters.Tunnels)
}

// Resume continues with the workers of an earlier control process. It keeps those of their megaflows
// for which a look-up in the present tables has the same result, and removes the others.
func (pl *Pipeline) Resume(tx *change.Tx) {
	pl.sendMeters(pl.workers)
	pl.sendWeights(pl.workers)
	pl.recoverMegaflows(tx)
}

// Recover prepares the replacement of the engine that served an earlier control process. It keeps
// the megaflows for which a look-up in the present tables has the same result. The next workers get
// them. The caller has called MarkGone, so that the old workers get no command. Their engine may
// still forward frames. Replace later adds the counts of these frames.
func (pl *Pipeline) Recover(tx *change.Tx) { pl.recoverMegaflows(tx) }

// ForgetSlots clears the counts of megaflows and the tunnel headers in the shared memory, because
// the next workers start without megaflows.
func (pl *Pipeline) ForgetSlots() {
	pl.counters.Forget()
	pl.templates.Reset()
}

// Replace makes w the present workers, and returns the previous ones. It adds the counts of the
// previous workers to the statistics. Each megaflow keeps its index in the workers' caches.
func (pl *Pipeline) Replace(_ *change.Tx, w *workers.Workers) (old *workers.Workers) {
	pl.mu.Lock()
	defer pl.mu.Unlock()
	old = pl.workers
	pl.pullAll()
	pl.counters.Fold(old.Shared())
	pl.workers = w
	return old
}

// Fill makes w the present workers. It sends them all meters, weights of ports and megaflows.
func (pl *Pipeline) Fill(_ *change.Tx, w *workers.Workers) {
	pl.mu.Lock()
	defer pl.mu.Unlock()
	pl.workers = w
	pl.sendMeters(w)
	pl.sendWeights(w)
	for _, m := range pl.megaflows.List() {
		key := m.Key()
		pl.begin(m)
		var room [workers.CommandRoom]byte
		w.QueueAll(datapath.AppendInstall(room[:0], m.Slot, &key, m.Mask(), m.Actions))
	}
	w.PublishAll()
}

// Workers returns the present workers, or nil before the first engine.
func (pl *Pipeline) Workers() *workers.Workers {
	pl.mu.RLock()
	defer pl.mu.RUnlock()
	return pl.workers
}

// Region returns the shared memory with the statistics, which outlives the control process. It
// returns nil before Load.
func (pl *Pipeline) Region() *counters.Region { return pl.counters }

// AnswerUpcalls starts the goroutines that answer the upcalls of the present workers. If a worker
// has stopped using a port because of an error, it reports this in an upcall. A new goroutine then
// calls "fault", which may wait for the engine.
func (pl *Pipeline) AnswerUpcalls(fault func(port uint32, reason string)) (err error) {
	w := pl.workers
	pl.upcalls, err = serveUpcalls(w, upcallSetup{
		Miss: func(worker int, misses []datapath.Upcall, costs []uint64) []uint64 {
			return pl.answerFirst(w, worker, misses, costs, answerTime)
		},
		Other: func(worker int, up datapath.Upcall) {
			switch up.Op {
			case datapath.UpNeighbour:
				pl.templates.Wait(up.Template, underlay.HeldFrame{Worker: worker, Ref: up.Arg})
			case datapath.UpFault:
				go fault(up.Arg, up.Reason)
			}
		},
		Log: pl.log,
	})
	return err
}

// EndUpcalls stops answering upcalls, and waits for the answers that are in progress. The caller
// holds no lock except the configuration lock.
func (pl *Pipeline) EndUpcalls(*change.Tx) {
	if pl.upcalls != nil {
		pl.upcalls.Close()
		pl.upcalls = nil
	}
}

// Hold returns the present workers, or nil before the first engine. They are neither replaced nor
// unmapped until the caller calls the function "release", exactly once.
func (pl *Pipeline) Hold() (w *workers.Workers, release func()) {
	pl.mu.RLock()
	return pl.workers, pl.mu.RUnlock
}

func (pl *Pipeline) sendMeters(w *workers.Workers) {
	for slot, m := range pl.portMeters {
		w.Broadcast(datapath.AppendMeter(nil, slot, &m))
	}
	pl.visitTables(func(tables *ofproto.Tables) {
		for _, m := range tables.Meters(openflow.MeterAll) {
			sendMeter(w, m)
		}
	})
}

func sendMeter(w *workers.Workers, m *openflow.Meter) {
	for i := range m.Bands {
		b := &m.Bands[i]
		meter := datapath.NewMeter(m.Packets, b.Rate, b.Depth())
		w.Broadcast(datapath.AppendMeter(nil, b.Slot, &meter))
	}
}
