// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"fmt"

	"weft/api"
	"weft/control/change"
	"weft/control/pipeline"
	"weft/control/usererr"
	"weft/internal/clock"
	"weft/openflow"
	"weft/openflow/ofproto"
)

var commands = map[string]openflow.Command{
	"add": openflow.Add, "modify": openflow.Modify, "modify-strict": openflow.ModifyStrict,
	"delete": openflow.Delete, "delete-strict": openflow.DeleteStrict,
}

// ChangeFlows applies a change of the flow tables. After an error nothing has changed. When it
// returns, no worker forwards a frame with the old flows.
func (ts *Tables) ChangeFlows(c api.ChangeFlows) (api.FlowsChanged, error) {
	if c.Op == "replace" {
		return ts.replaceFlows(c.Text)
	}
	command, ok := commands[c.Op]
	if !ok {
		return api.FlowsChanged{}, usererr.Errorf("op %q: expected add, modify, modify-strict, delete, delete-strict or replace", c.Op)
	}
	// The configuration lock is not held while the text is parsed, because the replacement of an
	// engine needs it. If ports have changed meanwhile, the text is parsed again.
	view := ts.bridge.View()
	mods, err := parseFlows(c, command, ts.bridge.Names(pipeline.ByName))
	return change.Result(ts.configuration, func(tx *change.Tx) (api.FlowsChanged, error) {
		if view != ts.bridge.View() {
			mods, err = parseFlows(c, command, ts.bridge.Names(pipeline.ByName))
		}
		if err != nil {
			return api.FlowsChanged{}, err
		}
		return ts.apply(tx, mods)
	})
}

// AddFlows adds the flows of a file in the transaction tx. A line of the file may begin with
// another command, such as modify.
func (ts *Tables) AddFlows(tx *change.Tx, text string) error {
	mods, err := parseFlows(api.ChangeFlows{Text: text, File: true}, openflow.Add, ts.bridge.Names(pipeline.ByName))
	if err == nil {
		_, err = ts.apply(tx, mods)
	}
	return err
}

// maxNotes limits the parser's notes in an answer. Further notes are left out.
const maxNotes = 10

// notesOf returns the parser's notes about parts of flows that it ignored.
func notesOf(mods []openflow.FlowMod) []string {
	var notes []string
	for i := range mods {
		for _, note := range mods[i].Notes {
			if len(notes) == maxNotes {
				return notes
			}
			if mods[i].Line > 0 {
				note = fmt.Sprintf("line %d: %s", mods[i].Line, note)
			}
			notes = append(notes, note)
		}
	}
	return notes
}

func parseFlows(c api.ChangeFlows, command openflow.Command, names openflow.Names) ([]openflow.FlowMod, error) {
	var mods []openflow.FlowMod
	var err error
	if c.File {
		mods, err = openflow.ParseFlowMods(c.Text, command, names)
	} else {
		mods = make([]openflow.FlowMod, 1)
		mods[0], err = openflow.ParseFlowMod(c.Text, command, names)
	}
	if err != nil {
		return nil, usererr.Mark(err)
	}
	return mods, nil
}

// DeleteFlows deletes the flows that match selects. If strict is true, it deletes only the flow
// with exactly this match and priority.
func (ts *Tables) DeleteFlows(match string, strict bool) (api.FlowsChanged, error) {
	return change.Result(ts.configuration, func(tx *change.Tx) (api.FlowsChanged, error) {
		var mod openflow.FlowMod
		var err error
		if strict {
			mod, err = openflow.ParseFlowMod(match, openflow.DeleteStrict, ts.bridge.Names(pipeline.ByName))
		} else {
			mod, err = openflow.ParseFilter(match, ts.bridge.Names(pipeline.ByName))
			mod.Command = openflow.Delete
		}
		if err != nil {
			return api.FlowsChanged{}, usererr.Mark(err)
		}
		return ts.apply(tx, []openflow.FlowMod{mod})
	})
}

// apply applies changes of flows in the transaction tx and describes the result.
func (ts *Tables) apply(tx *change.Tx, mods []openflow.FlowMod) (api.FlowsChanged, error) {
	changes, err := ts.bridge.Apply(tx, mods)
	if err != nil {
		return api.FlowsChanged{}, marked(err)
	}
	return api.FlowsChanged{Flows: len(changes.Added) + len(changes.Modified) + len(changes.Removed), Notes: notesOf(mods)}, nil
}

// DumpFlows describes the flows that matchText selects, with exact statistics, sorted by
// sortKeys (see ofproto.ParseSortKey). "words" chooses names or numbers for ports.
func (ts *Tables) DumpFlows(matchText string, words pipeline.PortWords, sortKeys ...string) ([]api.Flow, error) {
	var keys []ofproto.SortKey
	for _, text := range sortKeys {
		key, err := ofproto.ParseSortKey(text)
		if err != nil {
			return nil, usererr.Mark(err)
		}
		keys = append(keys, key)
	}
	return change.Read(ts.configuration, func(tx *change.Tx) ([]api.Flow, error) {
		filter, err := openflow.ParseFilter(matchText, ts.bridge.Names(pipeline.ByName))
		if err != nil {
			return nil, usererr.Mark(err)
		}
		return ts.FlowsOf(tx, &filter, keys, words), nil
	})
}

// FlowsOf describes the flows that the filter selects, with exact statistics, sorted by keys.
func (ts *Tables) FlowsOf(tx *change.Tx, filter *openflow.FlowMod, keys []ofproto.SortKey, words pipeline.PortWords) []api.Flow {
	ts.pipeline.PullCounts(tx)
	rules := ts.bridge.Select(tx, filter)
	if len(keys) > 0 {
		ts.bridge.Read(func(*ofproto.Tables) { ofproto.SortRules(rules, keys) })
	}
	now, names := clock.Monotonic(), ts.bridge.Names(words)
	flows := make([]api.Flow, len(rules))
	ts.pipeline.InTurns(tx, len(rules), func(i int) { flows[i] = DescribeFlow(rules[i], now, names) })
	return flows
}

// DescribeFlow describes a rule. Its ages are relative to now, a time in nanoseconds of
// CLOCK_MONOTONIC. The caller holds Pipeline.mu.
func DescribeFlow(r *ofproto.Rule, now uint64, names openflow.Names) api.Flow {
	return api.Flow{
		Table: r.Table, Priority: int(r.Priority), Cookie: r.Cookie,
		Match:     r.Match.Format(names),
		Actions:   openflow.FormatActions(r.Actions, names),
		DurationS: seconds(now, r.CreatedNS), IdleAgeS: seconds(now, max(r.UsedNS, r.CreatedNS)),
		IdleTimeout: r.IdleTimeout, HardTimeout: r.HardTimeout,
		Packets: r.Packets, Bytes: r.Bytes,
		Line: ofproto.FormatRule(r, now, names),
	}
}

func seconds(now, sinceNS uint64) float64 { return float64(now-min(now, sinceNS)) / 1e9 }
