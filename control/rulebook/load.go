// SPDX-License-Identifier: Apache-2.0

package rulebook

import (
	"strings"

	"weft/control/counters"
	"weft/control/store"
	"weft/internal/clock"
	"weft/openflow"
)

// Load fills the tables from the state file, and the statistics from the counter region
// if an earlier control process has left one. No other goroutine uses the tables yet.
func (b *Book) Load(saved *store.State, region *counters.Region, resumed bool) {
	b.region = region
	b.loadTables(saved.Groups, saved.Meters)
	b.loadFlows(saved.Flows, resumed)
	b.loadConfigs(saved.Tables) // last, because saved tables may exceed their limits
}

// loadFlows restores the flows. If the counter region is that of an earlier control
// process (resumed), it also restores their statistics.
func (b *Book) loadFlows(flows []store.Flow, resumed bool) {
	now := clock.Monotonic()
	for _, f := range flows {
		mod, err := openflow.ParseFlowMod(f.Text, openflow.Add, nil)
		if err != nil || f.Slot >= counters.MaxRows {
			b.log.Error("cannot parse a saved flow, leaving it out", "flow", f.Text, "error", err)
			continue
		}
		changes, err := b.tables.Apply([]openflow.FlowMod{mod}, now)
		if err != nil || len(changes.Added) != 1 {
			b.log.Error("a saved flow is refused and left out", "flow", f.Text, "error", err)
			continue
		}
		r := changes.Added[0]
		b.restore(r, f.Slot, f.Age)
		if resumed {
			b.read(r)
		} else {
			b.write(r)
		}
	}
	b.restored()
}

// loadTables restores groups and meters, before the flows that name them.
func (b *Book) loadTables(groups, meters []string) {
	for _, text := range meters {
		mod, err := openflow.ParseMeterMod(text, openflow.MeterAdd)
		if err == nil {
			_, _, err = b.tables.ApplyMeters([]openflow.MeterMod{mod}, clock.Monotonic())
		}
		if err != nil {
			b.log.Error("a saved meter is left out", "meter", text, "error", err)
		}
	}
	var mods []openflow.GroupMod
	for _, text := range groups {
		mod, err := openflow.ParseGroupMod(text, openflow.GroupAdd, nil)
		if err != nil {
			b.log.Error("a saved group is left out", "group", text, "error", err)
			continue
		}
		mods = append(mods, mod)
	}
	if _, err := b.tables.ApplyGroups(mods, clock.Monotonic()); err != nil {
		b.log.Error("the saved groups are left out", "error", err)
	}
}

// loadConfigs restores the settings of tables.
func (b *Book) loadConfigs(texts map[uint32]string) {
	for t, text := range texts {
		var c openflow.TableConfig
		if err := c.SetWords(strings.Fields(text)); err != nil || t >= openflow.Tables {
			b.log.Error("saved settings of a table are left out", "table", t, "settings", text, "error", err)
			continue
		}
		b.tables.Configure(uint8(t), c)
	}
}
