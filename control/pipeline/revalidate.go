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
	// sweepInterval is the time between two sweeps, which credit statistics and apply
	// timeouts and ageing.
	sweepInterval = time.Second
	// megaflowIdle is how long a megaflow stays without a hit while its port uses at
	// most half of its quota, and leastIdle when it uses all. See megaflows.stays.
	megaflowIdle = 10 * time.Second
	leastIdle    = time.Second
	// macPause is the minimum time between two revalidations because of learned
	// addresses. It bounds the cost of a guest that makes addresses up.
	macPause = 20 * time.Millisecond
	// translateChunk is the number of megaflows translated before Pipeline.mu is
	// released for a moment.
	translateChunk = 256
)

// maintain sweeps at intervals, and revalidates after addresses were learned, until
// ctx ends.
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
			pl.revalidate(usesMACs)
			pl.change.Unlock()
			// Idle for at least twice the time that the revalidation took.
			if !loop.Sleep(ctx, max(macPause, 2*time.Since(began))) {
				return
			}
		}
	}
}

// revalidate translates again every megaflow that pick selects. It removes those
// whose result has changed; when it returns, no worker uses them. The others keep
// their statistics. The caller holds the lock of changes and not Pipeline.mu.
func (pl *Pipeline) revalidate(pick func(*megaflow) bool) {
	var stale []*megaflow
	list := pl.megaflows.list()
	for chunk := range slices.Chunk(list, translateChunk) {
		stale = append(stale, pl.revalidateChunk(chunk, pick)...)
	}
	pl.evict(stale)
}

func (pl *Pipeline) revalidateChunk(chunk []*megaflow, pick func(*megaflow) bool) (stale []*megaflow) {
	// For writing, because earlier counts must be credited to the old rules.
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
		if !slices.Equal(t.Actions, m.actions) || !within(&t.Mask, m.mask()) {
			stale = append(stale, m)
			continue
		}
		if !slices.Equal(t.Rules, m.rules) || !slices.Equal(t.Groups, m.groups) {
			pl.pull(m)
			pl.setRules(m, &t)
			pl.counters.Assign(m.slot, m.places)
			continue
		}
		m.setEffects(&t)
	}
	return stale
}

// within reports whether a has no bit that b lacks. A megaflow with mask b is then
// correct for a translation that looked at a.
func within(a, b *flowtable.Key) bool {
	for i := range a {
		if a[i]&^b[i] != 0 {
			return false
		}
	}
	return true
}

// idleTime returns how long a megaflow stays without a hit while used of limit are in
// use. The time decreases with the load, so that active megaflows find room.
func idleTime(used, limit int) time.Duration {
	free, half := max(limit-used, 0), max(limit/2, 1)
	if free >= half {
		return megaflowIdle
	}
	return leastIdle + (megaflowIdle-leastIdle)*time.Duration(free)/time.Duration(half)
}

// sweep credits statistics, and removes idle or timed-out megaflows, rules, learned
// addresses and templates.
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
		if now-min(now, m.usedNS) > uint64(stays[m.owner]) {
			idle = append(idle, m)
		}
	}
	expired := pl.tables.Expire(now)
	places := pl.removePlaces(expired)
	aged := pl.macs.expire(now)
	pl.templates.MarkUsed(templatesOf(list))
	pl.collectRecircs(list)
	pl.mu.Unlock()

	pl.evict(idle)
	if len(expired) > 0 {
		if err := pl.store.ChangeFlows(nil, places); err != nil {
			pl.log.Error("expired flows cannot be removed from the state", "error", err)
		}
		var tables openflow.TableSet
		changedTables(&openflow.Changes{Removed: expired}, &tables)
		pl.revalidate(func(m *megaflow) bool { return m.tables.Meets(&tables) || aged && m.usedMACs })
		pl.tell(&openflow.Changes{Removed: expired})
		pl.releasePlaces(places)
	} else if aged {
		pl.revalidate(func(m *megaflow) bool { return m.usedMACs })
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
