// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"context"
	"iter"
	"slices"
	"time"

	"weft/control/loop"
	"weft/flowtable"
	"weft/internal/clock"
	"weft/openflow"
)

const (
	// sweepInterval is the time between two sweeps, which update statistics and apply
	// timeouts and ageing.
	sweepInterval = time.Second
	// megaflowIdle is how long a megaflow stays without a hit while its port uses at
	// most half of its quota. leastIdle is how long it stays if the port uses all of
	// its quota. See megaflows.stays.
	megaflowIdle = 10 * time.Second
	leastIdle    = time.Second
	// macPause is the minimum time between two revalidations because of learned
	// addresses. It bounds the cost of a guest that invents addresses.
	macPause = 20 * time.Millisecond
	// translateChunk is the number of megaflows that a revalidation translates before
	// it releases Pipeline.mu for a moment.
	translateChunk = 256
)

// maintain runs the sweep every sweepInterval, and revalidates megaflows after
// addresses were learned, until ctx ends.
func (pl *Pipeline) maintain(ctx context.Context) {
	tick := time.NewTicker(sweepInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			pl.sweep()
		case <-pl.macsStale:
			began := time.Now()
			pl.change.Lock()
			pl.revalidateAddresses()
			pl.change.Unlock()
			// The pause is at least twice as long as the revalidation took, so that
			// revalidations use at most a third of a core.
			if !loop.Sleep(ctx, max(macPause, 2*time.Since(began))) {
				return
			}
		}
	}
}

// revalidate repeats the translation of each megaflow for which the function pick
// returns true, and removes the megaflows whose translation has changed. When it
// returns, no worker uses the removed megaflows. The other megaflows keep their
// statistics. The caller holds the lock of changes but not Pipeline.mu.
func (pl *Pipeline) revalidate(pick func(*megaflow) bool) {
	var stale []*megaflow
	list := pl.megaflows.list()
	for chunk := range slices.Chunk(list, translateChunk) {
		stale = append(stale, pl.revalidateChunk(chunk, pick)...)
	}
	pl.evict(stale)
}

// revalidateAddresses revalidates the megaflows that depend on addresses which have
// changed since its last call. See the function revalidate.
func (pl *Pipeline) revalidateAddresses() {
	changes := pl.macs.takeChanges()
	if changes.All() {
		pl.revalidate(func(m *megaflow) bool { return len(m.uses) > 0 })
		return
	}
	var stale []*megaflow
	for chunk := range slices.Chunk(pl.megaflows.using(&changes), translateChunk) {
		stale = append(stale, pl.revalidateChunk(chunk, func(*megaflow) bool { return true })...)
	}
	pl.evict(stale)
}

func (pl *Pipeline) revalidateChunk(chunk []*megaflow, pick func(*megaflow) bool) (stale []*megaflow) {
	// The lock is taken for writing, because revalidation adds earlier counts to the
	// statistics of the old rules.
	pl.mu.Lock()
	defer pl.mu.Unlock()
	env := pl.env()
	for _, m := range chunk {
		if !pick(m) {
			continue
		}
		if m.teaches != nil && pl.macs.moved(&m.teaches.learn) {
			stale = append(stale, m)
			continue
		}
		t := pl.tables.Translate(&m.key, env)
		pl.megaflows.reuse(m, t.Addresses)
		if !slices.Equal(t.Actions, m.actions) || !within(&t.Mask, m.mask()) || t.Question.Valid() && !m.asks {
			stale = append(stale, m)
			continue
		}
		if !slices.Equal(t.Rules, m.rules) || !slices.Equal(t.Groups, m.groups) {
			pl.pull(m)
			pl.setRules(m, &t)
			pl.counters.Assign(m.slot, m.ruleRows)
			continue
		}
		m.setEffects(&t)
	}
	return stale
}

// within reports whether every bit of a is in b. A megaflow with mask b is correct
// for a translation that read only the bits of a.
func within(a, b *flowtable.Key) bool {
	for i := range a {
		if a[i]&^b[i] != 0 {
			return false
		}
	}
	return true
}

// idleTime returns how long a megaflow without a hit stays. used is the number of
// entries in use, and limit is the number of all entries. The time is shorter if more
// entries are in use, so that active megaflows find room.
func idleTime(used, limit int) time.Duration {
	free, half := max(limit-used, 0), max(limit/2, 1)
	if free >= half {
		return megaflowIdle
	}
	return leastIdle + (megaflowIdle-leastIdle)*time.Duration(free)/time.Duration(half)
}

// sweep updates statistics, and removes idle megaflows, flows whose timeout has
// passed, aged addresses and unused tunnel templates.
func (pl *Pipeline) sweep() {
	pl.change.Lock()
	defer pl.change.Unlock()
	now := clock.Monotonic()
	var idle []*megaflow
	pl.mu.Lock()
	list := pl.megaflows.list()
	stays := pl.megaflows.stays()
	for _, m := range list {
		pl.pull(m)
		if now-min(now, m.usedNS) > uint64(stays[m.owner]) || m.asks && now-min(now, m.madeNS) > uint64(askAgain) {
			idle = append(idle, m)
		}
	}
	expired := pl.tables.Expire(now)
	rows := pl.rules.rowsOf(expired)
	aged := pl.macs.expire(now)
	pl.templates.MarkUsed(templatesOf(list))
	pl.collectRecircs(list)
	pl.mu.Unlock()

	pl.evict(idle)
	if len(expired) > 0 {
		if err := pl.store.ChangeFlows(nil, rows); err != nil {
			pl.log.Error("cannot remove expired flows from the state file", "error", err)
		}
		var tables openflow.TableSet
		changedTables(&openflow.Changes{Removed: expired}, &tables)
		pl.revalidate(func(m *megaflow) bool { return m.tables.Meets(&tables) })
		pl.tell(&openflow.Changes{Removed: expired})
		pl.releaseRows(rows)
	}
	if aged {
		pl.revalidateAddresses()
	}
}

// templatesOf returns the indexes of the tunnel templates to which megaflows send.
func templatesOf(list []*megaflow) iter.Seq[uint32] {
	return func(yield func(uint32) bool) {
		for _, m := range list {
			for i := range m.actions {
				if a := &m.actions[i]; a.Op == flowtable.OpTunnel && !yield(a.U32) {
					return
				}
			}
		}
	}
}
