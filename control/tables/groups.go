// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"strings"

	"weft/api"
	"weft/control/change"
	"weft/control/pipeline"
	"weft/control/usererr"
	"weft/internal/clock"
	"weft/openflow"
	"weft/openflow/ofproto"
)

var groupCommands = map[string]openflow.GroupCommand{
	"add": openflow.GroupAdd, "modify": openflow.GroupModify, "put": openflow.GroupPut, "delete": openflow.GroupDelete,
}

var meterCommands = map[string]openflow.MeterCommand{
	"add": openflow.MeterAdd, "modify": openflow.MeterModify, "delete": openflow.MeterDelete,
}

// ChangeGroups applies a change of groups. After an error nothing has changed. When it returns, no
// worker forwards a frame with the old groups.
func (ts *Tables) ChangeGroups(c api.ChangeTable) (api.TableChanged, error) {
	return change.Result(ts.configuration, func(tx *change.Tx) (api.TableChanged, error) { return ts.ChangeGroupsIn(tx, c) })
}

// ChangeGroupsIn changes groups like ChangeGroups, as one of several changes in the transaction
// tx.
func (ts *Tables) ChangeGroupsIn(tx *change.Tx, c api.ChangeTable) (api.TableChanged, error) {
	command, ok := groupCommands[c.Op]
	if !ok {
		return api.TableChanged{}, usererr.Errorf("op %q: expected add, modify, put or delete", c.Op)
	}
	view := ts.bridge.Names(pipeline.ByName)
	var mods []openflow.GroupMod
	var err error
	if c.File {
		mods, err = openflow.ParseGroupMods(strings.NewReader(c.Text), command, view)
	} else {
		mods = make([]openflow.GroupMod, 1)
		mods[0], err = openflow.ParseGroupMod(c.Text, command, view)
	}
	if err != nil {
		return api.TableChanged{}, usererr.Mark(err)
	}
	return tableChanged(len(mods))(ts.bridge.ApplyGroups(tx, mods))
}

// ChangeMeters applies a change of meters. After an error nothing has changed.
func (ts *Tables) ChangeMeters(c api.ChangeTable) (api.TableChanged, error) {
	return change.Result(ts.configuration, func(tx *change.Tx) (api.TableChanged, error) { return ts.ChangeMetersIn(tx, c) })
}

// ChangeMetersIn changes meters like ChangeMeters, as one of several changes in the transaction
// tx.
func (ts *Tables) ChangeMetersIn(tx *change.Tx, c api.ChangeTable) (api.TableChanged, error) {
	command, ok := meterCommands[c.Op]
	if !ok {
		return api.TableChanged{}, usererr.Errorf("op %q: expected add, modify or delete", c.Op)
	}
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
	return tableChanged(len(mods))(ts.bridge.ApplyMeters(tx, mods))
}

// tableChanged returns a function that describes the result of n changes of groups or meters. The
// field Flows of the description counts the flows that the change has removed.
func tableChanged(n int) func(ofproto.Changes, error) (api.TableChanged, error) {
	return func(changes ofproto.Changes, err error) (api.TableChanged, error) {
		if err != nil {
			return api.TableChanged{}, marked(err)
		}
		return api.TableChanged{Changed: n, Flows: len(changes.Removed)}, nil
	}
}

// ListGroups describes the group that text selects, or all groups if it selects none. "words"
// chooses names or numbers for ports.
func (ts *Tables) ListGroups(text string, words pipeline.PortWords) ([]api.Group, error) {
	return change.Read(ts.configuration, func(tx *change.Tx) ([]api.Group, error) {
		mod, err := openflow.ParseGroupMod(text, openflow.GroupDelete, nil)
		if err != nil {
			return nil, usererr.Mark(err)
		}
		list, now, names := []api.Group{}, clock.Monotonic(), ts.bridge.Names(words)
		for _, g := range ts.bridge.Groups(tx, mod.Group.ID) {
			shown := api.Group{ID: g.ID, Type: g.Type.String(), Line: openflow.FormatGroup(g.Group, names), DurationS: seconds(now, g.Stats.CreatedNS),
				Flows: g.Flows, Packets: g.Stats.Packets, Bytes: g.Stats.Bytes, Buckets: []api.BucketStats{}}
			for _, b := range g.Stats.Buckets {
				shown.Buckets = append(shown.Buckets, api.BucketStats{Packets: b.Packets, Bytes: b.Bytes})
			}
			list = append(list, shown)
		}
		return list, nil
	})
}

// ListMeters describes the meter that text selects, or all meters if it selects none.
func (ts *Tables) ListMeters(text string) ([]api.Meter, error) {
	return change.Read(ts.configuration, func(tx *change.Tx) ([]api.Meter, error) {
		mod, err := openflow.ParseMeterMod(text, openflow.MeterDelete)
		if err != nil {
			return nil, usererr.Mark(err)
		}
		list := []api.Meter{}
		for _, m := range ts.bridge.Meters(tx, mod.Meter.ID) {
			shown := api.Meter{ID: m.ID, Line: openflow.FormatMeter(m.Meter), Flows: m.Flows, DurationS: float64(m.AgeNS) / 1e9,
				Packets: m.Packets, Bytes: m.Bytes}
			for _, d := range m.Dropped {
				shown.Bands = append(shown.Bands, api.MeterBand{Packets: d.Packets, Bytes: d.Bytes})
			}
			list = append(list, shown)
		}
		return list, nil
	})
}
