// SPDX-License-Identifier: Apache-2.0

package tracking

import (
	"maps"
	"slices"

	"weft/api"
	"weft/conntrack"
	"weft/control/usererr"
)

func timeoutsJSON(t *conntrack.Timeouts) map[string]uint32 {
	m := map[string]uint32{}
	for c, v := range t {
		m[conntrack.Class(c).String()] = v
	}
	return m
}

// Settings returns the settings, the counters and the used zones of connection
// tracking. The error is workers.ErrGone before the first engine.
func (c *Connections) Settings() (api.Conntrack, error) {
	m, release, err := c.hold()
	if err != nil {
		return api.Conntrack{}, err
	}
	defer release()
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

// Change changes all given settings of connection tracking. On an error it has changed
// none.
func (c *Connections) Change(change *api.ChangeConntrack) error {
	c.settings.Lock()
	defer c.settings.Unlock()
	m, release, err := c.hold()
	if err != nil {
		return err
	}
	defer release()
	return apply(m, change)
}

func apply(m *conntrack.Memory, c *api.ChangeConntrack) error {
	// all checks come before the first change
	if c.MaxConnections != nil && int(*c.MaxConnections) > m.Room() {
		return usererr.Errorf("maxconns %d: expected at most %d, the room of the table, which weftd --connections changes", *c.MaxConnections, m.Room())
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
	if c.ClearDefaultLimit {
		m.SetDefaultZoneLimit(0)
	}
	for _, zone := range c.ClearLimits {
		m.ClearZoneLimit(zone)
	}
	return nil
}

// setTimeouts changes the timeouts of one zone, or the default timeouts.
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

// policyFor finds a timeout policy (an entry of the connection table's timeouts) for a
// zone with timeouts t. It returns an equal policy, or the zone's own policy if no
// other zone uses it, or a free one.
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
