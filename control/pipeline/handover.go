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

// This file has the pipeline's steps in the start of control and in the replacement of
// an engine.

// Load fills the tables from the state file, and the statistics from the counter region
// if an earlier control process has left one. No other goroutine uses the pipeline yet.
func (pl *Pipeline) Load(_ *change.Tx, saved *store.State, region *counters.Region, resumed bool) {
	pl.counters = region
	pl.rules.Load(saved, region, resumed)
}

// Inherit takes over the workers of an earlier control process.
func (pl *Pipeline) Inherit(_ *change.Tx, w *workers.Workers) {
	pl.workers = w
	pl.templates.Restore(w, pl.counters.Tunnels)
}

// Resume continues with the inherited workers. It keeps the megaflows that the present
// tables would make again.
func (pl *Pipeline) Resume(tx *change.Tx) {
	pl.sendMeters(pl.workers)
	pl.sendWeights(pl.workers)
	pl.recoverMegaflows(tx)
}

// Recover keeps the megaflows of the inherited workers that the present tables would make again, for
// the next workers. The caller has called MarkGone, so that the inherited workers get no command.
// Their engine may still forward. Replace later adds the frames that it counts until its end.
func (pl *Pipeline) Recover(tx *change.Tx) { pl.recoverMegaflows(tx) }

// ForgetSlots clears the counter region's rows of megaflows and tunnels, because the
// next workers start empty.
func (pl *Pipeline) ForgetSlots() {
	pl.counters.Forget()
	pl.templates.Reset()
}

// Replace makes w the present workers, and returns the previous workers. It adds the
// counts of the previous workers to the statistics. Megaflows keep their slots.
func (pl *Pipeline) Replace(_ *change.Tx, w *workers.Workers) (old *workers.Workers) {
	pl.mu.Lock()
	defer pl.mu.Unlock()
	old = pl.workers
	pl.pullAll()
	pl.counters.Fold(old.Shared())
	pl.workers = w
	return old
}

// Fill makes w the present workers, and sends them all meters, weights and megaflows.
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

// Region returns the counter region (shared memory that outlives control), or nil before Load.
func (pl *Pipeline) Region() *counters.Region { return pl.counters }

// AnswerUpcalls starts the goroutines that answer the upcalls of the present workers. When a worker
// reports that it has stopped using a port because of an error, a new goroutine calls fault, which
// may wait for the engine.
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

// EndUpcalls stops answering upcalls, and waits for calls that are answering now. The caller holds no
// lock but the configuration lock.
func (pl *Pipeline) EndUpcalls(*change.Tx) {
	if pl.upcalls != nil {
		pl.upcalls.Close()
		pl.upcalls = nil
	}
}

// Hold returns the present workers, or nil before the first engine. They are neither replaced nor
// unmapped until the caller calls release. The caller calls release exactly once.
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
