// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"context"
	"iter"
	"slices"
	"time"

	"weft/control/change"
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
	// translateChunk is the number of translations, and translateTime the time of
	// translations, after which Pipeline.mu is released for a moment.
	translateChunk = 256
	translateTime  = 2 * time.Millisecond
	// After revalidateTime, a revalidation removes the megaflows of the owners whose
	// translations are costly: they take over costlyTranslation on average. The
	// configuration lock is so held for a limited time, whatever these owners send.
	revalidateTime    = 250 * time.Millisecond
	costlyTranslation = 500 * time.Microsecond
	// mostTranslation is the time that one translation counts at most, because the machine
	// may suspend the thread in it.
	mostTranslation = 4 * costlyTranslation
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
			pl.configuration.Do(func(tx *change.Tx) { pl.RevalidateAddresses() })
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
	pl.evict(pl.stale(pl.megaflows.List(), pick))
}

// stale translates the picked megaflows of a list again. It returns those with a different
// result, and those that it has no time to translate.
func (pl *Pipeline) stale(list []*megaflows.Megaflow, pick func(*megaflows.Megaflow) bool) []*megaflows.Megaflow {
	r := revalidation{pl: pl, pick: pick, costs: map[uint32]*ownerCost{}}
	for len(list) > 0 {
		list = list[r.chunk(list[:min(len(list), translateChunk)]):]
	}
	if r.untranslated > 0 {
		pl.untranslated.Add(uint64(r.untranslated))
		pl.log.Warn("megaflows were removed because their translation takes long", "megaflows", r.untranslated)
	}
	return r.stale
}

// revalidation is the state of one call of stale.
type revalidation struct {
	pl           *Pipeline
	pick         func(*megaflows.Megaflow) bool
	stale        []*megaflows.Megaflow
	spent        time.Duration         // time of all translations
	costs        map[uint32]*ownerCost // by owner
	untranslated int                   // number of megaflows that are stale for lack of time
}

// ownerCost has the number of translations for an owner, and their time.
type ownerCost struct {
	translations int
	spent        time.Duration
}

// hasNoTime reports whether the owner's megaflows are to be removed untranslated.
func (r *revalidation) hasNoTime(c *ownerCost) bool {
	return r.spent > revalidateTime && c.translations > 0 && c.spent > time.Duration(c.translations)*costlyTranslation
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
	pl.evict(pl.stale(pl.megaflows.Using(&changes), func(*megaflows.Megaflow) bool { return true }))
}

// chunk handles the first megaflows of a list, as many as translateTime allows, and returns
// their number.
func (r *revalidation) chunk(list []*megaflows.Megaflow) int {
	// The lock is taken for writing, because revalidation adds counts to the old rules.
	pl := r.pl
	pl.mu.Lock()
	defer pl.mu.Unlock()
	env, began := pl.env(), clock.Monotonic()
	start := began
	for i, m := range list {
		if !r.pick(m) {
			continue
		}
		c := r.costs[m.Owner]
		if c == nil {
			c = new(ownerCost)
			r.costs[m.Owner] = c
		}
		if r.hasNoTime(c) {
			r.stale = append(r.stale, m)
			r.untranslated++
			continue
		}
		if !r.holds(m, env) {
			r.stale = append(r.stale, m)
		}
		now := clock.Monotonic()
		cost := min(time.Duration(now-began), mostTranslation)
		c.translations, c.spent, r.spent = c.translations+1, c.spent+cost, r.spent+cost
		if began = now; time.Duration(now-start) > translateTime {
			return i + 1
		}
	}
	return len(list)
}

// holds translates a megaflow again and takes over its effects. It returns false if the
// result differs. The caller holds Pipeline.mu.
func (r *revalidation) holds(m *megaflows.Megaflow, env *env) bool {
	pl := r.pl
	if m.Teaches != nil && pl.moved(m.Teaches.Learns) {
		return false
	}
	key := m.Key()
	t := xlate.Translate(pl.tables, &key, env)
	pl.megaflows.Reuse(m, t.Addresses)
	if !slices.Equal(t.Actions, m.Actions) || !within(&t.Mask, m.Mask()) || t.MustAsk && !m.MustAsk {
		return false
	}
	if !m.CountsAs(&t) {
		pl.pull(m)
		pl.setRules(m, &t)
		pl.counters.Assign(m.Slot, m.RuleRows)
		return true
	}
	m.SetEffects(&t)
	return true
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
	pl.configuration.Do(func(tx *change.Tx) {
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
		pl.visitTables(func(tables *ofproto.Tables) { expired = append(expired, tables.Expire(now)...) })
		rows := pl.rules.Rows(expired)
		aged := pl.macs.Expire(now) > 0
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
	})
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
