// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"weft/control/counters"
	"weft/control/store"
	"weft/internal/clock"
	"weft/openflow"
	"weft/openflow/ofproto"
)

// Load fills the tables from the state file. resumed is true if the shared memory "region" has the
// statistics of an earlier control process, which Load then restores. No other goroutine uses the
// tables yet.
func (b *book) Load(saved *store.State, region *counters.Region, resumed bool) {
	b.region = region
	b.loadTLVs(saved.TLVs)
	b.loadMeters(saved.Meters)
	b.loadGroups(saved.Groups)
	b.loadFlows(saved.Flows, resumed)
	b.loadConfigs(saved.Tables) // last, because saved tables may exceed their limits
}

// loadFlows restores the flows. If resumed is true, it also restores their statistics from the
// shared memory of an earlier control process.
func (b *book) loadFlows(flows []store.Flow, resumed bool) {
	now := clock.Monotonic()
	for list := range b.parseFlows(flows) {
		for i := range list {
			b.loadFlow(&list[i], now, resumed)
		}
	}
	b.restored()
}

// parsedFlow is a saved flow and the result of its parser.
type parsedFlow struct {
	*store.Flow
	mod [1]openflow.FlowMod
	err error
}

const (
	// parsedAtOnce is the number of flows that one parsedFlow list has, and parsedAhead the
	// number of lists that wait for loadFlows. Half of the time to load a million flows is
	// parsing, for which another core is free while the engine does not run yet.
	parsedAtOnce = 512
	parsedAhead  = 4
)

// parseFlows parses flows, in their order, on a goroutine of its own. The caller receives all
// lists. It may change tables meanwhile, but not their TLV maps.
func (b *book) parseFlows(flows []store.Flow) <-chan []parsedFlow {
	lists := make(chan []parsedFlow, parsedAhead)
	go func() {
		defer close(lists)
		for chunk := range slices.Chunk(flows, parsedAtOnce) {
			list := make([]parsedFlow, len(chunk))
			for i := range chunk {
				p := &list[i]
				p.Flow = &chunk[i]
				p.mod[0], p.err = openflow.ParseFlowMod(p.Text, openflow.Add, tlvNames(b.tables[p.Bridge]))
			}
			lists <- list
		}
	}()
	return lists
}

// loadFlow restores one flow.
func (b *book) loadFlow(f *parsedFlow, now uint64, resumed bool) {
	if f.err != nil || f.Slot >= counters.MaxRows {
		b.log.Error("cannot parse a saved flow, leaving it out", "flow", f.Text, "error", f.err)
		return
	}
	tables := b.tables[f.Bridge]
	if tables == nil {
		b.log.Error("a saved flow of an unknown bridge is left out", "flow", f.Text, "bridge", f.Bridge)
		return
	}
	changes, err := tables.Apply(f.mod[:], now)
	if err != nil || len(changes.Added) != 1 {
		b.log.Error("a saved flow is refused and left out", "flow", f.Text, "error", err)
		return
	}
	r := changes.Added[0]
	b.restore(r, f.Slot, f.Age)
	if resumed {
		b.read(r)
	} else {
		b.write(r)
	}
	f.Text = "" // the garbage collector may free the text while other flows are loaded
}

// sortedKeys returns the keys of texts in order, without those of unknown bridges.
func (b *book) sortedKeys(texts map[store.Key]string) []store.Key {
	keys := slices.DeleteFunc(slices.Collect(maps.Keys(texts)), func(k store.Key) bool { return b.tables[k.Bridge] == nil })
	slices.SortFunc(keys, func(x, y store.Key) int {
		return cmp.Or(cmp.Compare(x.Bridge, y.Bridge), cmp.Compare(x.Number, y.Number))
	})
	return keys
}

// loadTLVs restores the mappings of Geneve options to fields (TLV maps). It comes before the groups
// and flows, which may use the fields.
func (b *book) loadTLVs(texts map[store.Key]string) {
	for _, key := range b.sortedKeys(texts) {
		list, err := openflow.ParseTLVMappings(texts[key])
		if err == nil {
			err = b.tables[key.Bridge].ChangeTLVs(&openflow.TLVMod{Command: openflow.TLVAdd, Mappings: list})
		}
		if err != nil {
			b.log.Error("a saved mapping of a tunnel option is left out", "mapping", texts[key], "error", err)
		}
	}
}

// loadMeters restores meters, before the flows that name them.
func (b *book) loadMeters(texts map[store.Key]string) {
	for _, key := range b.sortedKeys(texts) {
		mod, err := openflow.ParseMeterMod(texts[key], openflow.MeterAdd)
		if err == nil {
			_, _, err = b.tables[key.Bridge].ApplyMeters([]openflow.MeterMod{mod}, clock.Monotonic())
		}
		if err != nil {
			b.log.Error("a saved meter is left out", "meter", texts[key], "error", err)
		}
	}
}

// loadGroups restores groups, before the flows that name them.
func (b *book) loadGroups(texts map[store.Key]string) {
	mods := map[uint8][]openflow.GroupMod{}
	for _, key := range b.sortedKeys(texts) {
		mod, err := openflow.ParseGroupMod(texts[key], openflow.GroupAdd, tlvNames(b.tables[key.Bridge]))
		if err != nil {
			b.log.Error("a saved group is left out", "group", texts[key], "error", err)
			continue
		}
		mods[key.Bridge] = append(mods[key.Bridge], mod)
	}
	for bridge, list := range mods {
		if _, err := b.tables[bridge].ApplyGroups(list, clock.Monotonic()); err != nil {
			b.log.Error("the saved groups are left out", "bridge", bridge, "error", err)
		}
	}
}

// loadConfigs restores the settings of tables.
func (b *book) loadConfigs(texts map[store.Key]string) {
	for _, key := range b.sortedKeys(texts) {
		var c ofproto.TableConfig
		if err := c.SetWords(strings.Fields(texts[key])); err != nil || key.Number >= openflow.Tables {
			b.log.Error("saved settings of a table are left out", "table", key.Number, "settings", texts[key], "error", err)
			continue
		}
		b.tables[key.Bridge].Configure(uint8(key.Number), c)
	}
}
