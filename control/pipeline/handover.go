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
func (d *Pipeline) Load(saved *store.State, region *counters.Region, kept bool) {
	d.counters = region
	d.loadTables(saved.Groups, saved.Meters)
	d.loadFlows(saved.Flows, kept)
	d.loadTableConfigs(saved.Tables) // a limit may be below what a table had then
}

// Inherit takes up the workers of an engine that an earlier control process has started.
func (d *Pipeline) Inherit(w *workers.Workers) {
	d.workers = w
	d.templates.Restore(w, d.counters.Tunnels)
}

// Resume goes on with the inherited workers: their megaflows stay where the tables say
// the same.
func (d *Pipeline) Resume() {
	d.sendMeters(d.workers)
	d.recoverMegaflows()
}

// Abandon credits what the inherited workers counted and forgets them: their engine has
// ended.
func (d *Pipeline) Abandon() {
	d.workers.MarkGone()
	d.recoverMegaflows()
	d.pullAll()
	d.counters.Fold(d.workers.Shared())
	d.megaflows = newMegaflows(d.sizes)
	d.workers = nil
}

// ForgetSlots empties the region's rows of megaflows and tunnels: the next workers begin
// with none.
func (d *Pipeline) ForgetSlots() {
	d.counters.Forget()
	d.templates.Reset()
}

// Replace credits what the present workers counted and makes w the present ones: the
// engine has died. Megaflows keep their slots, which are free in w. It returns the
// workers from before.
func (d *Pipeline) Replace(w *workers.Workers) (old *workers.Workers) {
	d.mu.Lock()
	defer d.mu.Unlock()
	old = d.workers
	d.pullAll()
	d.counters.Fold(old.Shared())
	d.workers = w
	return old
}

// Fill makes w, which have nothing, the present workers and sends them meters and
// megaflows.
func (d *Pipeline) Fill(w *workers.Workers) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.workers = w
	d.sendMeters(w)
	for _, m := range d.megaflows.list() {
		d.installSlot(m)
	}
	w.PublishAll()
}

// Workers is the workers of now, nil before the first engine.
func (d *Pipeline) Workers() *workers.Workers {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.workers
}

// AnswerUpcalls answers what the present workers tell from now on.
func (d *Pipeline) AnswerUpcalls() (err error) {
	d.upcalls, err = d.startUpcalls(d.workers)
	return err
}

// EndUpcalls has nobody answer the workers any more. No lock but that of changes is held.
func (d *Pipeline) EndUpcalls() {
	if d.upcalls != nil {
		d.upcalls.close()
		d.upcalls = nil
	}
}

// Hold returns the present workers, nil before the first engine. They are not replaced
// and their memory stays mapped until release, which the caller calls once.
func (d *Pipeline) Hold() (w *workers.Workers, release func()) {
	d.mu.RLock()
	return d.workers, d.mu.RUnlock
}
