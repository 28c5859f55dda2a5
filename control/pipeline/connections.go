// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"maps"
	"slices"

	"weft/api"
	"weft/conntrack"
	"weft/control/usererr"
	"weft/control/workers"
	"weft/datapath"
	"weft/flowtable"
	"weft/internal/clock"
)

// The connection table is in memory shared with the engine. Control reads it and
// writes its settings; worker 0 ends connections for control.

// dumpChunk is the number of connections that EachConnection visits before it
// releases Pipeline.mu for a moment.
const dumpChunk = 8192

// EachConnection calls visit, with Pipeline.mu held, for each connection that filter
// selects. After every dumpChunk connections it releases Pipeline.mu, calls pause,
// and stops if pause returns false.
func (pl *Pipeline) EachConnection(filter *conntrack.Filter, visit func(*conntrack.Entry), pause func() bool) {
	for from, more := uint32(0), true; more; from += dumpChunk {
		pl.mu.RLock()
		if pl.workers == nil {
			pl.mu.RUnlock()
			return
		}
		more = pl.workers.Connections().EachIn(from, from+dumpChunk, clock.Monotonic(), func(e *conntrack.Entry) bool {
			if filter.Match(e) {
				visit(e)
			}
			return true
		})
		pl.mu.RUnlock()
		more = pause() && more
	}
}

// connections returns the connection table, whose settings the caller reads or
// changes. The caller holds Pipeline.mu.
func (pl *Pipeline) connections() (*conntrack.Memory, error) {
	if pl.workers == nil {
		return nil, workers.ErrGone
	}
	return pl.workers.Connections(), nil
}

// FlushConnections ends the connections that filter selects, and returns their number
// once they have ended. The error workers.ErrGone means that the engine died: before
// the flush, so that no connection was ended, or during the flush, so that some may
// have been.
func (pl *Pipeline) FlushConnections(filter *conntrack.Filter) (n int, err error) {
	var refs []conntrack.Ref
	pl.EachConnection(filter, func(e *conntrack.Entry) { refs = append(refs, e.Ref) }, func() bool { return true })
	pl.change.Lock() // this lock keeps the workers from being replaced during the flush
	defer pl.change.Unlock()
	pl.mu.RLock()
	w := pl.workers
	pl.mu.RUnlock()
	if w == nil || w.Gone() {
		return 0, workers.ErrGone
	}
	for some := range slices.Chunk(refs, datapath.MaxEnds) {
		if !w.Push(0, datapath.AppendEndConnections(nil, some)) {
			return 0, workers.ErrGone
		}
	}
	if err := w.WaitApplied(); err != nil {
		return 0, err
	}
	return len(refs), nil
}

// collectRecircs frees the recirc_ids that no megaflow uses. The caller holds
// Pipeline.mu.
func (pl *Pipeline) collectRecircs(list []*megaflow) {
	needed := map[uint32]bool{}
	for _, m := range list {
		needed[m.key.Recirc()] = true
		for i := range m.actions {
			if m.actions[i].Op == flowtable.OpRecirc {
				needed[m.actions[i].U32] = true
			}
		}
	}
	pl.recircs.Collect(func(id uint32) bool { return needed[id] })
}

func timeoutsJSON(t *conntrack.Timeouts) map[string]uint32 {
	m := map[string]uint32{}
	for c, v := range t {
		m[conntrack.Class(c).String()] = v
	}
	return m
}

func (pl *Pipeline) ConntrackSettings() (api.Conntrack, error) {
	pl.mu.RLock()
	defer pl.mu.RUnlock()
	m, err := pl.connections()
	if err != nil {
		return api.Conntrack{}, err
	}
	base := m.Policy(0)
	counts := m.Counters()
	s := api.Conntrack{
		Connections: m.Count(), MaxConnections: m.Limit(), DefaultLimit: m.DefaultZoneLimit(), SequenceChecks: !m.Liberal(),
		Timeouts: timeoutsJSON(&base), Zones: []api.Zone{},
		Created: counts.Created, Expired: counts.Expired, Evicted: counts.Evicted,
		RefusedLimit: counts.RefusedLimit, RefusedNAT: counts.RefusedNAT,
	}
	for n := range conntrack.Zones {
		limit, set := m.ZoneLimit(uint16(n))
		policy, count := m.ZonePolicy(uint16(n)), m.ZoneCount(uint16(n))
		if !set && policy == 0 && count == 0 {
			continue
		}
		z := api.Zone{Zone: uint16(n), Connections: count}
		if set {
			z.Limit = &limit
		}
		if policy != 0 {
			t := m.Policy(policy)
			z.Timeouts = timeoutsJSON(&t)
		}
		s.Zones = append(s.Zones, z)
	}
	return s, nil
}

func (pl *Pipeline) ChangeConntrack(c *api.ChangeConntrack) error {
	pl.mu.Lock()
	defer pl.mu.Unlock()
	m, err := pl.connections()
	if err != nil {
		return err
	}
	// All checks of the new settings come before the first setting is changed.
	if c.MaxConnections != nil && int(*c.MaxConnections) > m.Capacity() {
		return usererr.Errorf("maxconns %d: expected at most %d, the size of the table", *c.MaxConnections, m.Capacity())
	}
	if err := setTimeouts(m, c); err != nil {
		return err
	}
	if c.MaxConnections != nil {
		m.SetLimit(*c.MaxConnections)
	}
	if c.SequenceChecks != nil {
		m.SetLiberal(!*c.SequenceChecks)
	}
	if c.DefaultLimit != nil {
		m.SetDefaultZoneLimit(*c.DefaultLimit)
	}
	for _, l := range c.Limits {
		m.SetZoneLimit(l.Zone, l.Limit)
	}
	for _, zone := range c.ClearLimits {
		m.ClearZoneLimit(zone)
	}
	return nil
}

// setTimeouts changes the timeouts of one zone, or the default timeouts, which apply
// to every zone without timeouts of its own.
func setTimeouts(m *conntrack.Memory, c *api.ChangeConntrack) error {
	if len(c.Timeouts) == 0 {
		if c.TimeoutZone != nil && c.ClearTimeouts {
			m.SetZonePolicy(*c.TimeoutZone, 0)
		} else if c.ClearTimeouts {
			m.SetPolicy(0, &conntrack.DefaultTimeouts)
		}
		return nil
	}
	policy := uint8(0)
	if c.TimeoutZone != nil {
		policy = m.ZonePolicy(*c.TimeoutZone)
	}
	t := m.Policy(policy)
	for _, name := range slices.Sorted(maps.Keys(c.Timeouts)) {
		class, ok := conntrack.ParseClass(name)
		if !ok {
			return usererr.Errorf("timeout %s: expected one of %s", name, conntrack.ClassNames())
		}
		if c.Timeouts[name] == 0 || c.Timeouts[name] > conntrack.MaxTimeout {
			return usererr.Errorf("timeout %s=%d: expected seconds from 1 to %d", name, c.Timeouts[name], conntrack.MaxTimeout)
		}
		t[class] = c.Timeouts[name]
	}
	if c.TimeoutZone == nil {
		m.SetPolicy(0, &t)
		return nil
	}
	policy, ok := policyFor(m, *c.TimeoutZone, &t)
	if !ok {
		return usererr.Errorf("zone %d: expected at most %d different sets of timeouts", *c.TimeoutZone, conntrack.MaxPolicies-1)
	}
	m.SetPolicy(policy, &t)
	m.SetZonePolicy(*c.TimeoutZone, policy)
	return nil
}

// policyFor finds a timeout policy for a zone with timeouts t: a policy in use with
// the same timeouts, the zone's own policy if no other zone uses it, or a free
// policy.
func policyFor(m *conntrack.Memory, zone uint16, t *conntrack.Timeouts) (uint8, bool) {
	var users [conntrack.MaxPolicies]int
	for n := range conntrack.Zones {
		users[m.ZonePolicy(uint16(n))]++
	}
	for i := 1; i < conntrack.MaxPolicies; i++ {
		if users[i] > 0 && m.Policy(uint8(i)) == *t {
			return uint8(i), true
		}
	}
	if own := m.ZonePolicy(zone); own != 0 && users[own] == 1 {
		return own, true
	}
	for i := 1; i < conntrack.MaxPolicies; i++ {
		if users[i] == 0 {
			return uint8(i), true
		}
	}
	return 0, false
}
