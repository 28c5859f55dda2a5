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
	// macPause is the shortest time between two updates of megaflows because of learned addresses. It
	// limits the work that an attacker can cause with many addresses.
	macPause = 20 * time.Millisecond
	// Pipeline.mu is released for a moment after translateChunk look-ups, or after translateTime.
	translateChunk = 256
	translateTime  = 2 * time.Millisecond
	// An update of megaflows looks up each affected megaflow again, under the configuration lock.
	// After revalidateTime it removes some megaflows without a look-up, so that the lock is held for
	// a limited time. It removes those of ports whose look-ups take more than costlyTranslation on
	// average. It also removes those that got no frame within the last unusedTime, because most of
	// them will get no frame any more, and a miss costs as much as a look-up.
	revalidateTime    = 250 * time.Millisecond
	costlyTranslation = 500 * time.Microsecond
	unusedTime        = time.Second
	// mostTranslation limits the time that is recorded for one look-up. A longer time may include a
	// suspension of the thread.
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
			// The pause is twice as long as the update of the megaflows, so the updates use at most a
			// third of a core.
			if !loop.Sleep(ctx, max(macPause, 2*time.Since(began))) {
				return
			}
		}
	}
}

// revalidate looks up each megaflow for which "pick" returns true in the tables again. It removes a
// megaflow if the result differs, or if there is no time for the look-up. When revalidate returns,
// no worker uses a removed megaflow.
func (pl *Pipeline) revalidate(tx *change.Tx, pick func(*megaflows.Megaflow) bool) {
	pl.evict(tx, pl.stale(pl.megaflows.List(), pick))
}

// stale looks up those megaflows of a list for which "pick" returns true again. It returns the ones
// with a different result, and the ones for which there was no time.
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

// end adds the megaflows that were removed without a look-up to the counters, and logs the costly
// ones.
func (r *revalidation) end() {
	r.pl.unused.Add(uint64(r.unused))
	if r.untranslated > 0 {
		r.pl.untranslated.Add(uint64(r.untranslated))
		r.pl.log.Warn("megaflows were removed because their translation takes long", "megaflows", r.untranslated)
	}
}

// revalidation is the state of one update of the megaflows.
type revalidation struct {
	pl           *Pipeline
	pick         func(*megaflows.Megaflow) bool
	stale        []*megaflows.Megaflow
	spent        time.Duration         // time of all translations
	costs        map[uint32]*ownerCost // by the port whose quota a megaflow uses
	untranslated int                   // number of costly megaflows in stale that were not translated
	unused       int                   // number of unused megaflows in stale that were not translated
}

// ownerCost has the number and the total time of the look-ups for one port's megaflows.
type ownerCost struct {
	translations int
	spent        time.Duration
}

// hasNoTime reports whether the megaflows of a port are removed without a look-up: the time for
// look-ups is used up, and those for this port are costly.
func (r *revalidation) hasNoTime(c *ownerCost) bool {
	return r.spent > revalidateTime && c.translations > 0 && c.spent > time.Duration(c.translations)*costlyTranslation
}

func anyMegaflow(*megaflows.Megaflow) bool { return true }

// revalidateAddressesInTurns does the work of RevalidateAddresses for changes whose effect nobody
// waits for. It updates the megaflows in parts. Each part is a transaction, so other changes and
// requests of the API come in between. A megaflow that is installed meanwhile needs no update,
// because its look-up used the new addresses.
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

// turn updates some of the megaflows in one transaction. The function "part" returns them.
func (r *revalidation) turn(part func() []*megaflows.Megaflow) {
	r.pl.configuration.Do(func(tx *change.Tx) {
		r.translate(part())
		r.pl.evict(tx, r.stale)
		r.stale = r.stale[:0]
	})
}

// chunk looks up the first megaflows of a list again, as many as translateTime allows. It returns
// their number.
func (r *revalidation) chunk(list []*megaflows.Megaflow) int {
	// The lock is taken for writing, because an update adds counts to the statistics of rules.
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

// holds looks up a megaflow in the tables again. It returns false if the result differs. Otherwise
// it stores what else has changed, such as the rules that the megaflow's frames count for. The
// caller holds Pipeline.mu.
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

// moved reports whether one of the addresses is on another port or tunnel remote now.
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
