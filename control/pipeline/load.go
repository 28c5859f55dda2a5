// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"strings"

	"weft/control/counters"
	"weft/control/store"
	"weft/control/workers"
	"weft/datapath"
	"weft/internal/clock"
	"weft/openflow"
)

// loadFlows fills the tables from the state file, with the statistics of a kept
// counter region. No other goroutine uses the pipeline yet.
func (pl *Pipeline) loadFlows(flows []store.Flow, resumed bool) {
	now := clock.Monotonic()
	for _, f := range flows {
		mod, err := openflow.ParseFlowMod(f.Text, openflow.Add, nil)
		if err != nil || f.Slot >= counters.MaxRows {
			pl.log.Error("cannot parse a saved flow, leaving it out", "flow", f.Text, "error", err)
			continue
		}
		changes, err := pl.tables.Apply([]openflow.FlowMod{mod}, now)
		if err != nil || len(changes.Added) != 1 {
			pl.log.Error("a saved flow is refused and left out", "flow", f.Text, "error", err)
			continue
		}
		r := changes.Added[0]
		pl.rules.restore(r, f.Slot, f.Age)
		if resumed {
			pl.rules.read(r)
		} else {
			pl.rules.write(r)
		}
	}
	pl.rules.restored()
}

// tableTexts returns the saved form of groups and meters by number. The caller holds
// the lock of changes.
func (pl *Pipeline) tableTexts() (groups, meters map[uint32]string) {
	groups, meters = map[uint32]string{}, map[uint32]string{}
	for _, g := range pl.tables.Groups(openflow.GroupAny) {
		groups[g.ID] = openflow.FormatGroup(g, nil)
	}
	for _, m := range pl.tables.Meters(openflow.MeterAll) {
		meters[m.ID] = openflow.FormatMeter(m)
	}
	return groups, meters
}

// loadTables restores groups and meters at startup, before the flows that name them.
func (pl *Pipeline) loadTables(groups, meters []string) {
	for _, text := range meters {
		mod, err := openflow.ParseMeterMod(text, openflow.MeterAdd)
		if err == nil {
			_, _, err = pl.tables.ApplyMeters([]openflow.MeterMod{mod}, clock.Monotonic())
		}
		if err != nil {
			pl.log.Error("a saved meter is left out", "meter", text, "error", err)
		}
	}
	var mods []openflow.GroupMod
	for _, text := range groups {
		mod, err := openflow.ParseGroupMod(text, openflow.GroupAdd, nil)
		if err != nil {
			pl.log.Error("a saved group is left out", "group", text, "error", err)
			continue
		}
		mods = append(mods, mod)
	}
	if _, err := pl.tables.ApplyGroups(mods, clock.Monotonic()); err != nil {
		pl.log.Error("the saved groups are left out", "error", err)
	}
}

func (pl *Pipeline) sendMeters(w *workers.Workers) {
	for _, m := range pl.tables.Meters(openflow.MeterAll) {
		sendMeter(w, m)
	}
}

func sendMeter(w *workers.Workers, m *openflow.Meter) {
	for i := range m.Bands {
		b := &m.Bands[i]
		meter := datapath.NewMeter(m.Packets, b.Rate, b.Depth())
		w.Broadcast(datapath.AppendMeter(nil, b.Slot, &meter))
	}
}

// tableConfigTexts returns each table's settings as words. Default
// settings are left out.
func tableConfigTexts(configs *[openflow.Tables]openflow.TableConfig) map[uint32]string {
	texts := map[uint32]string{}
	for t, c := range configs {
		if c == (openflow.TableConfig{}) {
			continue
		}
		texts[uint32(t)] = strings.Join(c.Words(), " ")
	}
	return texts
}

func (pl *Pipeline) loadTableConfigs(texts map[uint32]string) {
	for t, text := range texts {
		var c openflow.TableConfig
		if err := c.SetWords(strings.Fields(text)); err != nil || t >= openflow.Tables {
			pl.log.Error("saved settings of a table are left out", "table", t, "settings", text, "error", err)
			continue
		}
		pl.tables.Configure(uint8(t), c)
	}
}
