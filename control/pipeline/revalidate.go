// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"context"
	"iter"
	"slices"
	"time"

	"weft/control/loop"
	"weft/control/megaflows"
	"weft/flowtable"
	"weft/internal/clock"
	"weft/openflow/fdb"
	"weft/openflow/ofproto"
	"weft/openflow/xlate"
)

const (
	// sweepInterval is the interval of sweeps, which update statistics and apply
	// timeouts.
	sweepInterval = time.Second
	// macPause is the shortest interval between two revalidations after addresses were
	// learned. It limits the work that an attacker can cause with many addresses.
	macPause = 20 * time.Millisecond
	// askAgain is the lifetime of a megaflow whose translation lacked an address or room in
	// a quota (Megaflow.Brief). Afterwards, a frame asks again.
	askAgain = 5 * time.Second
	// translateChunk is the number of translations after which Pipeline.mu is released
	// for a moment.
	translateChunk = 256
)

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
			pl.RevalidateAddresses()
			pl.change.Unlock()
			// the pause is twice as long as the revalidation, which so uses at most a
			// third of a core
			if !loop.Sleep(ctx, max(macPause, 2*time.Since(began))) {
				return
			}
		}
	}
}

// revalidate translates the megaflows for which pick returns true again, and removes a
// megaflow if the result differs. When revalidate returns, no worker uses a removed
// megaflow. The caller holds the configuration lock but not Pipeline.mu.
func (pl *Pipeline) revalidate(pick func(*megaflows.Megaflow) bool) {
	var stale []*megaflows.Megaflow
	list := pl.megaflows.List()
	for chunk := range slices.Chunk(list, translateChunk) {
		stale = append(stale, pl.revalidateChunk(chunk, pick)...)
	}
	pl.evict(stale)
}

// RevalidateAddresses removes the megaflows that are wrong because addresses have
// changed since its last call. When it returns, no frame uses them. After a network was
// added or removed, the caller calls PortsChanged instead. The caller holds the configuration
// lock.
func (pl *Pipeline) RevalidateAddresses() {
	changes := pl.macs.TakeChanges()
	if changes.All() {
		pl.revalidate(func(m *megaflows.Megaflow) bool { return m.Addresses() })
		return
	}
	var stale []*megaflows.Megaflow
	for chunk := range slices.Chunk(pl.megaflows.Using(&changes), translateChunk) {
		stale = append(stale, pl.revalidateChunk(chunk, func(*megaflows.Megaflow) bool { return true })...)
	}
	pl.evict(stale)
}

func (pl *Pipeline) revalidateChunk(chunk []*megaflows.Megaflow, pick func(*megaflows.Megaflow) bool) (stale []*megaflows.Megaflow) {
	// The lock is taken for writing, because revalidation adds counts to the old rules.
	pl.mu.Lock()
	defer pl.mu.Unlock()
	env := pl.env()
	for _, m := range chunk {
		if !pick(m) {
			continue
		}
		if m.Teaches != nil && pl.moved(m.Teaches.Learns) {
			stale = append(stale, m)
			continue
		}
		key := m.Key()
		t := xlate.Translate(pl.tables, &key, env)
		pl.megaflows.Reuse(m, t.Addresses)
		if !slices.Equal(t.Actions, m.Actions) || !within(&t.Mask, m.Mask()) || t.MustAsk && !m.MustAsk {
			stale = append(stale, m)
			continue
		}
		if !m.CountsAs(&t) {
			pl.pull(m)
			pl.setRules(m, &t)
			pl.counters.Assign(m.Slot, m.RuleRows)
			continue
		}
		m.SetEffects(&t)
	}
	return stale
}

// moved reports whether an address is behind another port or remote now.
func (pl *Pipeline) moved(list []fdb.Learn) bool {
	return slices.ContainsFunc(list, func(l fdb.Learn) bool { return pl.macs.Moved(&l) })
}

func within(a, b *flowtable.Key) bool {
	for i := range a {
		if a[i]&^b[i] != 0 {
			return false
		}
	}
	return true
}

// sweep updates statistics, and removes expired megaflows, flows, addresses and
// tunnel templates.
func (pl *Pipeline) sweep() {
	pl.change.Lock()
	defer pl.change.Unlock()
	now := clock.Monotonic()
	var idle []*megaflows.Megaflow
	pl.mu.Lock()
	list := pl.megaflows.List()
	stays := pl.megaflows.Stays()
	for _, m := range list {
		pl.pull(m)
		if now-min(now, m.UsedNS) > uint64(stays[m.Owner]) || m.Brief && now-min(now, m.MadeNS) > uint64(askAgain) {
			idle = append(idle, m)
		}
	}
	var expired []*ofproto.Rule
	pl.visitTables(func(tables *ofproto.Pipeline) { expired = append(expired, tables.Expire(now)...) })
	rows := pl.rules.Rows(expired)
	aged := pl.macs.Expire(now)
	pl.templates.MarkUsed(templatesOf(list))
	pl.recircs.Collect(recircsOf(list))
	pl.options.Collect(optionsOf(list))
	pl.mu.Unlock()

	pl.evict(idle)
	if len(expired) > 0 {
		if err := pl.rules.RemoveFlows(rows); err != nil {
			pl.log.Error("cannot remove expired flows from the state file", "error", err)
		}
		var tables xlate.TableSet
		changedTables(&ofproto.Changes{Removed: expired}, &tables)
		pl.revalidate(func(m *megaflows.Megaflow) bool { return m.Tables.Meets(&tables) })
		pl.tell(&ofproto.Changes{Removed: expired})
		pl.releaseRows(rows)
	}
	if aged {
		pl.RevalidateAddresses()
	}
}

// templatesOf returns the tunnel templates that megaflows use.
func templatesOf(list []*megaflows.Megaflow) iter.Seq[uint32] {
	return func(yield func(uint32) bool) {
		for _, m := range list {
			for i := range m.Actions {
				if a := &m.Actions[i]; a.Op == flowtable.OpTunnel && !yield(a.U32) {
					return
				}
			}
		}
	}
}

// optionsOf returns the function used, which reports whether a megaflow of the list matches
// the Geneve options with a hash.
func optionsOf(list []*megaflows.Megaflow) (used func(hash uint64) bool) {
	hashes := map[uint64]bool{}
	for _, m := range list {
		key := m.Key()
		if hash := key[flowtable.WTunOpts]; hash != 0 {
			hashes[hash] = true
		}
	}
	return func(hash uint64) bool { return hashes[hash] }
}

// recircsOf returns the function used, which reports whether a megaflow of the list
// uses a recirc_id.
func recircsOf(list []*megaflows.Megaflow) (used func(id uint32) bool) {
	ids := map[uint32]bool{}
	for _, m := range list {
		ids[m.Recirc()] = true
		for i := range m.Actions {
			if m.Actions[i].Op == flowtable.OpRecirc {
				ids[m.Actions[i].U32] = true
			}
		}
	}
	return func(id uint32) bool { return ids[id] }
}
