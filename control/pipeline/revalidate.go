// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"context"
	"slices"
	"time"

	"weft/control/change"
	"weft/control/loop"
	"weft/control/megaflows"
	"weft/flowtable"
	"weft/internal/clock"
	"weft/openflow/fdb"
	"weft/openflow/xlate"
)

const (
	// macPause is the shortest interval between two revalidations after addresses were
	// learned. It limits the work that an attacker can cause with many addresses.
	macPause = 20 * time.Millisecond
	// translateChunk is the number of translations, and translateTime the time of
	// translations, after which Pipeline.mu is released for a moment.
	translateChunk = 256
	translateTime  = 2 * time.Millisecond
	// After revalidateTime, a revalidation removes the megaflows of the owners whose translations are
	// costly: they take over costlyTranslation on average. It also removes megaflows without a frame
	// within the last unusedTime, because a miss costs as much as a translation, and most of them
	// will get no frame any more. So the configuration lock is held for a limited time, whatever
	// these owners send.
	revalidateTime    = 250 * time.Millisecond
	costlyTranslation = 500 * time.Microsecond
	unusedTime        = time.Second
	// mostTranslation limits the time that one translation adds to the sums that are compared with
	// revalidateTime and costlyTranslation. A longer time may include a suspension of the thread.
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
			pl.revalidateAddressesInTurns()
			// the pause is twice as long as the revalidation, which so uses at most a
			// third of a core
			if !loop.Sleep(ctx, max(macPause, 2*time.Since(began))) {
				return
			}
		}
	}
}

// revalidate repeats the translation of each megaflow for which pick returns true. It removes a megaflow if
// the result differs, or if there is no time to translate it. When revalidate returns, no worker uses a
// removed megaflow. The commit of a transaction calls it, see the method walk.
func (pl *Pipeline) revalidate(tx *change.Tx, pick func(*megaflows.Megaflow) bool) {
	pl.evict(tx, pl.stale(pl.megaflows.List(), pick))
}

// stale translates the picked megaflows of a list again. It returns those with a different
// result, and those that it has no time to translate.
func (pl *Pipeline) stale(list []*megaflows.Megaflow, pick func(*megaflows.Megaflow) bool) []*megaflows.Megaflow {
	r := newRevalidation(pl, pick)
	r.translate(list)
	r.end()
	return r.stale
}

func newRevalidation(pl *Pipeline, pick func(*megaflows.Megaflow) bool) *revalidation {
	return &revalidation{pl: pl, pick: pick, costs: map[uint32]*ownerCost{}}
}

func (r *revalidation) translate(list []*megaflows.Megaflow) {
	for len(list) > 0 {
		list = list[r.chunk(list[:min(len(list), translateChunk)]):]
	}
}

// end counts the megaflows that were removed without a translation.
func (r *revalidation) end() {
	r.pl.unused.Add(uint64(r.unused))
	if r.untranslated > 0 {
		r.pl.untranslated.Add(uint64(r.untranslated))
		r.pl.log.Warn("megaflows were removed because their translation takes long", "megaflows", r.untranslated)
	}
}

// revalidation is the state of one call of stale.
type revalidation struct {
	pl           *Pipeline
	pick         func(*megaflows.Megaflow) bool
	stale        []*megaflows.Megaflow
	spent        time.Duration         // time of all translations
	costs        map[uint32]*ownerCost // by the port whose quota a megaflow uses
	untranslated int                   // number of costly megaflows in stale that were not translated
	unused       int                   // number of unused megaflows in stale that were not translated
}

// ownerCost has the number and the total time of the translations of one port's megaflows.
type ownerCost struct {
	translations int
	spent        time.Duration
}

// hasNoTime reports whether the owner's megaflows are removed without a translation, because the time
// for translations is used up.
func (r *revalidation) hasNoTime(c *ownerCost) bool {
	return r.spent > revalidateTime && c.translations > 0 && c.spent > time.Duration(c.translations)*costlyTranslation
}

func anyMegaflow(*megaflows.Megaflow) bool { return true }

// revalidateAddressesInTurns does the work of RevalidateAddresses for changes whose effect nobody
// waits for. It translates the megaflows in parts, each in a transaction of its own, so that other
// changes and answers of the API come in between. A megaflow that is installed meanwhile is right,
// because it was translated with the new addresses.
func (pl *Pipeline) revalidateAddressesInTurns() {
	var list []*megaflows.Megaflow // those that use changed addresses
	all := false                   // any address may have changed
	pl.configuration.Do(func(*change.Tx) {
		changes := pl.macs.TakeChanges()
		if all = changes.All(); !all {
			list = pl.megaflows.Using(&changes)
		}
	})
	r := newRevalidation(pl, (*megaflows.Megaflow).Addresses)
	if !all {
		for part := range slices.Chunk(list, translateChunk) {
			r.turn(func() []*megaflows.Megaflow { return pl.megaflows.Present(part) })
		}
		r.end()
		return
	}
	var part []*megaflows.Megaflow
	for next := uint32(0); ; {
		r.turn(func() []*megaflows.Megaflow {
			part, next = pl.megaflows.Part(part, next)
			return part
		})
		if next == 0 {
			r.end()
			return
		}
	}
}

// turn runs one transaction. The transaction calls part, which returns some of the megaflows. It translates
// them again and removes those that chunk finds stale.
func (r *revalidation) turn(part func() []*megaflows.Megaflow) {
	r.pl.configuration.Do(func(tx *change.Tx) {
		r.translate(part())
		r.pl.evict(tx, r.stale)
		r.stale = r.stale[:0]
	})
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
		if r.spent > revalidateTime && pl.idleTime(m, start) > unusedTime {
			r.stale = append(r.stale, m)
			r.unused++
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
	if !slices.Equal(t.Actions, m.Actions) || !within(&t.Mask, m.Mask()) || t.MustAsk && !m.MustAsk || t.Request {
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
