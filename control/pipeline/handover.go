package pipeline

import (
	"weft/control/counters"
	"weft/control/store"
	"weft/control/workers"
)

// The steps of a start, and of the replacement of an engine. Caller holds the change
// lock for all of them.

// Load fills the tables from the state file and, if the region was kept, from it. Nothing
// else runs yet.
func (pl *Pipeline) Load(saved *store.State, region *counters.Region, kept bool) {
	pl.counters = region
	pl.loadTables(saved.Groups, saved.Meters)
	pl.loadFlows(saved.Flows, kept)
	pl.loadTableConfigs(saved.Tables) // a limit may be below what a table had then
}

// Inherit takes up the workers of an engine that an earlier control process has started.
func (pl *Pipeline) Inherit(w *workers.Workers) {
	pl.workers = w
	pl.templates.Restore(w, pl.counters.Tunnels)
}

// Resume goes on with the inherited workers: their megaflows stay where the tables say
// the same.
func (pl *Pipeline) Resume() {
	pl.sendMeters(pl.workers)
	pl.recoverMegaflows()
}

// Abandon credits what the inherited workers counted and forgets them: their engine has
// ended.
func (pl *Pipeline) Abandon() {
	pl.workers.MarkGone()
	pl.recoverMegaflows()
	pl.pullAll()
	pl.counters.Fold(pl.workers.Shared())
	pl.megaflows = newMegaflows(pl.sizes)
	pl.workers = nil
}

// ForgetSlots empties the region's rows of megaflows and tunnels: the next workers begin
// with none.
func (pl *Pipeline) ForgetSlots() {
	pl.counters.Forget()
	pl.templates.Reset()
}

// Replace credits what the present workers counted and makes w the present ones: the
// engine has died. Megaflows keep their slots, which are free in w. It returns the
// workers from before.
func (pl *Pipeline) Replace(w *workers.Workers) (old *workers.Workers) {
	pl.mu.Lock()
	defer pl.mu.Unlock()
	old = pl.workers
	pl.pullAll()
	pl.counters.Fold(old.Shared())
	pl.workers = w
	return old
}

// Fill makes w, which have nothing, the present workers and sends them meters and
// megaflows.
func (pl *Pipeline) Fill(w *workers.Workers) {
	pl.mu.Lock()
	defer pl.mu.Unlock()
	pl.workers = w
	pl.sendMeters(w)
	for _, m := range pl.megaflows.list() {
		pl.installSlot(m)
	}
	w.PublishAll()
}

// Workers is the workers of now, nil before the first engine.
func (pl *Pipeline) Workers() *workers.Workers {
	pl.mu.RLock()
	defer pl.mu.RUnlock()
	return pl.workers
}

// AnswerUpcalls answers what the present workers tell from now on.
func (pl *Pipeline) AnswerUpcalls() (err error) {
	pl.upcalls, err = pl.startUpcalls(pl.workers)
	return err
}

// EndUpcalls has nobody answer the workers any more. No lock but that of changes is held.
func (pl *Pipeline) EndUpcalls() {
	if pl.upcalls != nil {
		pl.upcalls.close()
		pl.upcalls = nil
	}
}

// Hold returns the present workers, nil before the first engine. They are not replaced
// and their memory stays mapped until release, which the caller calls once.
func (pl *Pipeline) Hold() (w *workers.Workers, release func()) {
	pl.mu.RLock()
	return pl.workers, pl.mu.RUnlock
}
