// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"fmt"
	"strings"
	"sync/atomic"

	"weft/api"
	"weft/control/megaflows"
	"weft/control/usererr"
	"weft/control/workers"
	"weft/datapath"
	"weft/internal/clock"
	"weft/openflow"
)

// changes, saved form and statistics of groups and meters

var groupCommands = map[string]openflow.GroupCommand{
	"add": openflow.GroupAdd, "modify": openflow.GroupModify, "put": openflow.GroupPut, "delete": openflow.GroupDelete,
}

var meterCommands = map[string]openflow.MeterCommand{
	"add": openflow.MeterAdd, "modify": openflow.MeterModify, "delete": openflow.MeterDelete,
}

// ChangeGroups applies a whole change or, on an error, nothing. After it, no frame
// uses the old groups.
func (pl *Pipeline) ChangeGroups(c api.ChangeTable) (api.TableChanged, error) {
	command, ok := groupCommands[c.Op]
	if !ok {
		return api.TableChanged{}, usererr.Errorf("op %q: expected add, modify, put or delete", c.Op)
	}
	pl.change.Lock()
	defer pl.change.Unlock()
	var mods []openflow.GroupMod
	var err error
	if c.File {
		mods, err = openflow.ParseGroupMods(strings.NewReader(c.Text), command, pl.view)
	} else {
		mods = make([]openflow.GroupMod, 1)
		mods[0], err = openflow.ParseGroupMod(c.Text, command, pl.view)
	}
	if err != nil {
		return api.TableChanged{}, usererr.Mark(err)
	}
	return pl.changeTable(len(mods), func() (openflow.Changes, error) {
		return pl.tables.ApplyGroups(mods, clock.Monotonic())
	})
}

func (pl *Pipeline) ChangeMeters(c api.ChangeTable) (api.TableChanged, error) {
	command, ok := meterCommands[c.Op]
	if !ok {
		return api.TableChanged{}, usererr.Errorf("op %q: expected add, modify or delete", c.Op)
	}
	pl.change.Lock()
	defer pl.change.Unlock()
	var mods []openflow.MeterMod
	var err error
	if c.File {
		mods, err = openflow.ParseMeterMods(strings.NewReader(c.Text), command)
	} else {
		mods = make([]openflow.MeterMod, 1)
		mods[0], err = openflow.ParseMeterMod(c.Text, command)
	}
	if err != nil {
		return api.TableChanged{}, usererr.Mark(err)
	}
	return pl.changeTable(len(mods), func() (openflow.Changes, error) {
		changes, changed, err := pl.tables.ApplyMeters(mods, clock.Monotonic())
		for _, m := range changed {
			sendMeter(pl.workers, m)
		}
		return changes, err
	})
}

// changeTable applies and saves a change of groups or meters and of the flows that
// name them. The caller holds the lock of changes.
func (pl *Pipeline) changeTable(n int, apply func() (openflow.Changes, error)) (api.TableChanged, error) {
	pl.mu.Lock()
	pl.pullAll()
	changes, err := apply()
	if err != nil {
		pl.mu.Unlock()
		return api.TableChanged{}, usererr.Mark(err)
	}
	removed := pl.rules.rowsOf(changes.Removed)
	pl.mu.Unlock()

	groups, meters := pl.tableTexts()
	err = pl.store.ChangeTables(groups, meters, removed)
	pl.ports.UpdateLiveness()
	pl.revalidate(func(*megaflows.Megaflow) bool { return true })
	pl.tell(&changes)
	pl.releaseRows(removed)
	if err != nil {
		return api.TableChanged{}, fmt.Errorf("the change is in force but could not be saved: %w", err)
	}
	return api.TableChanged{Changed: n, Flows: len(changes.Removed)}, nil
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

func (pl *Pipeline) ListGroups(text string, words PortWords) ([]api.Group, error) {
	pl.change.Lock()
	defer pl.change.Unlock()
	mod, err := openflow.ParseGroupMod(text, openflow.GroupDelete, nil)
	if err != nil {
		return nil, usererr.Mark(err)
	}
	pl.mu.Lock()
	pl.pullAll()
	pl.mu.Unlock()
	list, now, flows := []api.Group{}, clock.Monotonic(), pl.tables.GroupFlows()
	groups := pl.tables.Groups(mod.Group.ID)
	pl.inTurns(len(groups), func(i int) {
		g := groups[i]
		s := pl.tables.GroupStats(g)
		shown := api.Group{ID: g.ID, Type: g.Type.String(), Line: openflow.FormatGroup(g, pl.names(words)), DurationS: Seconds(now, s.CreatedNS),
			Flows: flows[g.ID], Packets: s.Packets, Bytes: s.Bytes, Buckets: []api.BucketStats{}}
		for _, b := range s.Buckets {
			shown.Buckets = append(shown.Buckets, api.BucketStats{Packets: b.Packets, Bytes: b.Bytes})
		}
		list = append(list, shown)
	})
	return list, nil
}

func (pl *Pipeline) ListMeters(text string) ([]api.Meter, error) {
	pl.change.Lock()
	defer pl.change.Unlock()
	mod, err := openflow.ParseMeterMod(text, openflow.MeterDelete)
	if err != nil {
		return nil, usererr.Mark(err)
	}
	list, now, flows := []api.Meter{}, clock.Monotonic(), pl.tables.MeterFlows()
	meters := pl.tables.Meters(mod.Meter.ID)
	pl.inTurns(len(meters), func(i int) {
		m := meters[i]
		shown := api.Meter{ID: m.ID, Line: openflow.FormatMeter(m), Flows: flows[m.ID], DurationS: Seconds(now, m.CreatedNS)}
		for i := range m.Bands {
			var band api.MeterBand
			var packets, bytes uint64
			for _, sh := range pl.workers.Shared() {
				c := &sh.Meters[m.Bands[i].Slot]
				packets += atomic.LoadUint64(&c.Packets)
				bytes += atomic.LoadUint64(&c.Bytes)
				band.Packets += atomic.LoadUint64(&c.DroppedPackets)
				band.Bytes += atomic.LoadUint64(&c.DroppedBytes)
			}
			if i == 0 { // frames that a band drops do not reach the next band
				shown.Packets, shown.Bytes = packets, bytes
			}
			shown.Bands = append(shown.Bands, band)
		}
		list = append(list, shown)
	})
	return list, nil
}
