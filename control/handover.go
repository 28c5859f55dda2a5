package control

import (
	"weft/control/counters"
	"weft/control/store"
	"weft/control/workers"
)

// The steps of a start, and of the replacement of an engine. Caller holds the change
// lock for all of them.

// load fills the tables from the state file and, if the region was kept, from it. Nothing
// else runs yet.
func (d *Pipeline) load(saved *store.State, region *counters.Region, kept bool) {
	d.counters = region
	d.loadTables(saved.Groups, saved.Meters)
	d.loadFlows(saved.Flows, kept)
	d.loadTableConfigs(saved.Tables) // a limit may be below what a table had then
}

// inherit takes up the workers of an engine that an earlier control process has started.
func (d *Pipeline) inherit(w *workers.Workers) {
	d.workers = w
	d.templates.Restore(w, d.counters.Tunnels)
}

// resume goes on with the inherited workers: their megaflows stay where the tables say
// the same.
func (d *Pipeline) resume() {
	d.sendMeters(d.workers)
	d.recoverMegaflows()
}

// abandon credits what the inherited workers counted and forgets them: their engine has
// ended.
func (d *Pipeline) abandon() {
	d.workers.MarkGone()
	d.recoverMegaflows()
	d.pullAll()
	d.counters.Fold(d.workers.Shared())
	d.megaflows = newMegaflows(d.sizes)
	d.workers = nil
}

// forgetSlots empties the region's rows of megaflows and tunnels: the next workers begin
// with none.
func (d *Pipeline) forgetSlots() {
	d.counters.Forget()
	d.templates.Reset()
}

// replace credits what the present workers counted and makes w the present ones: the
// engine has died. Megaflows keep their slots, which are free in w. It returns the
// workers from before.
func (d *Pipeline) replace(w *workers.Workers) (old *workers.Workers) {
	d.mu.Lock()
	defer d.mu.Unlock()
	old = d.workers
	d.pullAll()
	d.counters.Fold(old.Shared())
	d.workers = w
	return old
}

// fill makes w, which have nothing, the present workers and sends them meters and
// megaflows.
func (d *Pipeline) fill(w *workers.Workers) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.workers = w
	d.sendMeters(w)
	for _, m := range d.megaflows.list() {
		d.installSlot(m)
	}
	w.PublishAll()
}

// present is the workers of now, nil before the first engine.
func (d *Pipeline) present() *workers.Workers {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.workers
}

// answerUpcalls answers what the present workers tell from now on.
func (d *Pipeline) answerUpcalls() (err error) {
	d.upcalls, err = d.startUpcalls(d.workers)
	return err
}

// endUpcalls has nobody answer the workers any more. No lock but that of changes is held.
func (d *Pipeline) endUpcalls() {
	if d.upcalls != nil {
		d.upcalls.close()
		d.upcalls = nil
	}
}
