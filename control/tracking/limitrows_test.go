// SPDX-License-Identifier: Apache-2.0

package tracking

import (
	"testing"

	"weft/conntrack"
	"weft/control/limits"
	"weft/control/workers/workertest"
)

// A connection counts for the port on which its first frame arrived.
func TestConnectionRows(t *testing.T) {
	m := newRig(t).table()
	workertest.Connect(t, m, 5)
	m.SetZoneLimit(7, 9)
	rows := map[string]limits.Row{}
	limitRows(m, func(r limits.Row) {
		if r.Name == "connections" || r.Name == "zone_connections" {
			rows[r.Name+" "+limits.JSON([]limits.Row{r}, func(uint32) string { return "p" })[0].HolderKind] = r
		}
	})
	most := uint64(m.Limit())
	for name, want := range map[string]limits.Row{
		"connections all":       {Name: "connections", Unit: "entries", Holder: limits.All(), Used: 5, Limit: most},
		"connections port":      {Name: "connections", Unit: "entries", Holder: limits.Port(0), Used: 5, Limit: most, Guarantee: most},
		"zone_connections zone": {Name: "zone_connections", Unit: "entries", Holder: limits.Zone(7), Limit: 9},
	} {
		if rows[name] != want {
			t.Errorf("%s: %+v, expected %+v", name, rows[name], want)
		}
	}
	tunnelled := limitRow("connections", conntrack.Share{Zone: 3, Tunnel: true})
	if tunnelled.Holder != limits.Zone(3) {
		t.Errorf("%+v", tunnelled)
	}
}
