// SPDX-License-Identifier: Apache-2.0

package tracking

import (
	"weft/conntrack"
	"weft/control/limits"
)

// limitRows emits the rows of `weft show limits` about tracked and expected connections: in total, for
// each port, and for each zone that tunnels use. It also emits a row for each zone with a limit.
func limitRows(m *conntrack.Memory, emit func(limits.Row)) {
	c := m.Counters()
	emit(limits.Row{Name: "connections", Unit: "entries", Holder: limits.All(),
		Used: uint64(m.Count()), Limit: uint64(m.Limit()), Refused: c.RefusedLimit, Evicted: c.Evicted})
	m.Shares(func(s conntrack.Share) { emit(limitRow("connections", s)) })
	all := limits.Row{Name: "expectations", Unit: "entries", Holder: limits.All(),
		Used: uint64(m.Expectations()), Limit: conntrack.MaxExpectations}
	m.ExpectationShares(func(s conntrack.Share) {
		all.Evicted += s.Evicted
		all.Refused += s.Refused
		emit(limitRow("expectations", s))
	})
	emit(all)
	for zone := range conntrack.Zones {
		if n, set := m.ZoneLimit(uint16(zone)); set {
			evicted, refused := m.ZoneLosses(uint16(zone))
			emit(limits.Row{Name: "zone_connections", Unit: "entries", Holder: limits.Zone(uint16(zone)),
				Used: uint64(m.ZoneCount(uint16(zone))), Limit: uint64(n), Evicted: evicted, Refused: refused})
		}
	}
}

func limitRow(name string, s conntrack.Share) limits.Row {
	holder := limits.Port(s.Port)
	if s.Tunnel {
		holder = limits.Zone(s.Zone)
	}
	return limits.Row{Name: name, Unit: "entries", Holder: holder, Used: uint64(s.Used),
		Guarantee: uint64(s.Guaranteed), Limit: uint64(s.Limit), Refused: s.Refused, Evicted: s.Evicted}
}
