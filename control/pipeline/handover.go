// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"weft/control/counters"
	"weft/control/store"
	"weft/control/workers"
)

// The steps of control's start and of the replacement of an engine. The caller holds
// the lock of changes during all steps.

// Load fills the tables from the state file, and the statistics from the counter
// region if an engine kept the region. It runs at startup, before any other goroutine
// uses the pipeline.
func (pl *Pipeline) Load(saved *store.State, region *counters.Region, kept bool) {
	pl.counters, pl.rules.region = region, region
	pl.loadTables(saved.Groups, saved.Meters)
	pl.loadFlows(saved.Flows, kept)
	pl.loadTableConfigs(saved.Tables) // table limits come last: a saved table may have more flows than its limit
}

// Inherit takes over the workers of an engine that an earlier control process has
// started.
func (pl *Pipeline) Inherit(w *workers.Workers) {
	pl.workers = w
	pl.templates.Restore(w, pl.counters.Tunnels)
}

// Resume continues with the inherited workers. Their megaflows stay if the tables
// still give the same result.
func (pl *Pipeline) Resume() {
	pl.sendMeters(pl.workers)
	pl.recoverMegaflows()
}

// Abandon adds the counts of the inherited workers to the statistics and then forgets
// the workers, because their engine has ended.
func (pl *Pipeline) Abandon() {
	pl.workers.MarkGone()
	pl.recoverMegaflows()
	pl.pullAll()
	pl.counters.Fold(pl.workers.Shared())
	pl.megaflows = newMegaflows(pl.sizes)
	pl.workers = nil
}

// ForgetSlots clears the rows of megaflows and tunnels in the counter region: the
// next workers start with empty caches.
func (pl *Pipeline) ForgetSlots() {
	pl.counters.Forget()
	pl.templates.Reset()
}

// Replace makes w the present workers after an engine has died. It adds the counts of
// the previous workers to the statistics and returns the previous workers. Megaflows
// keep their slot numbers, which are free in w.
func (pl *Pipeline) Replace(w *workers.Workers) (old *workers.Workers) {
	pl.mu.Lock()
	defer pl.mu.Unlock()
	old = pl.workers
	pl.pullAll()
	pl.counters.Fold(old.Shared())
	pl.workers = w
	return old
}

// Fill makes w, whose caches are empty, the present workers, and sends all meters and
// megaflows to w.
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

// Workers returns the present workers, or nil before the first engine.
func (pl *Pipeline) Workers() *workers.Workers {
	pl.mu.RLock()
	defer pl.mu.RUnlock()
	return pl.workers
}

// AnswerUpcalls starts to answer the upcalls of the present workers.
func (pl *Pipeline) AnswerUpcalls() (err error) {
	pl.upcalls, err = pl.startUpcalls(pl.workers)
	return err
}

// EndUpcalls stops answering upcalls. The caller holds no lock except the lock of
// changes.
func (pl *Pipeline) EndUpcalls() {
	if pl.upcalls != nil {
		pl.upcalls.close()
		pl.upcalls = nil
	}
}

// Hold returns the present workers, or nil before the first engine. Until the caller
// calls release, which it must do once, the workers are not replaced and their memory
// stays mapped.
func (pl *Pipeline) Hold() (w *workers.Workers, release func()) {
	pl.mu.RLock()
	return pl.workers, pl.mu.RUnlock
}
