// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"cmp"
	"slices"

	"weft/api"
	"weft/control/change"
	"weft/control/pipeline"
	"weft/control/usererr"
	"weft/openflow"
	"weft/openflow/ofproto"
)

// ruleID identifies a flow. An added flow replaces the flow with an equal ruleID.
type ruleID struct {
	table    uint8
	priority uint16
	match    openflow.PackedMatch
}

// flowSet has flows by table, priority and match. If several lines of a file have these in common,
// the last line counts.
type flowSet map[ruleID]openflow.FlowMod

// flowSetOf parses a file of flows in which every line adds a flow. "notes" describes the parts of
// flows that the parser ignored.
func (ts *Tables) flowSetOf(text string) (set flowSet, notes []string, err error) {
	mods, err := parseFlows(api.ChangeFlows{Text: text, File: true}, openflow.Add, ts.bridge.Names(pipeline.ByName))
	if err != nil {
		return nil, nil, err
	}
	notes, set = notesOf(mods), flowSet{}
	for _, m := range mods {
		if m.Command != openflow.Add {
			return nil, nil, usererr.Errorf("line %d: %s: expected flows alone, without a command before them", m.Line, openflow.FormatFlowMod(&m, ts.bridge.Names(pipeline.ByName)))
		}
		m.Flags &^= openflow.CheckOverlap | openflow.ResetCounts // these flags belong to a request, not to a flow
		m.ModifyCookie, m.Notes = true, nil
		set[ruleID{m.Table, m.Priority, m.Match}] = m
	}
	return set, notes, nil
}

// tableFlows returns all flows of the bridge. It leaves out those of weft-central, the service that
// configures the networks of many hosts.
func (ts *Tables) tableFlows(tx *change.Tx) flowSet {
	set := flowSet{}
	rules := ts.bridge.Select(tx, &openflow.FlowMod{Command: openflow.Delete, Table: openflow.TableAll})
	ts.bridge.Read(func(*ofproto.Tables) {
		for _, r := range rules {
			if r.Table != ofproto.CentralTable {
				set[ruleID{r.Table, r.Priority, r.Match}] = r.FlowMod()
			}
		}
	})
	return set
}

// replaceFlows replaces all flows of the bridge by the flows of a file, but leaves the flows of the
// service weft-central as they are. After an error nothing has changed. A flow keeps its statistics
// if only its actions or its cookie change.
func (ts *Tables) replaceFlows(text string) (changed api.FlowsChanged, err error) {
	return change.Result(ts.configuration, func(tx *change.Tx) (changed api.FlowsChanged, err error) {
		want, notes, err := ts.flowSetOf(text)
		if err != nil {
			return changed, err
		}
		changed.Notes = notes
		have := ts.tableFlows(tx)
		var mods []openflow.FlowMod
		for id, old := range have {
			if _, stays := want[id]; !stays {
				old.Command = openflow.DeleteStrict
				mods = append(mods, old)
			}
		}
		for id, m := range want {
			old, there := have[id]
			switch {
			case !there || !sameBut(&old, &m):
				mods = append(mods, m)
			case !sameFlow(&old, &m):
				m.Command = openflow.ModifyStrict
				mods = append(mods, m)
			}
		}
		if len(mods) == 0 {
			return changed, nil
		}
		slices.SortStableFunc(mods, compareMods)
		applied, err := ts.apply(tx, mods)
		changed.Flows = applied.Flows
		return changed, err
	})
}

// compareMods orders the changes of replaceFlows. Deletes come before adds, because deletes free
// table space. Then the order is by table, by descending priority, and by line.
func compareMods(a, b openflow.FlowMod) int {
	deletes := func(m openflow.FlowMod) int {
		if m.Command == openflow.DeleteStrict {
			return 0
		}
		return 1
	}
	return cmp.Or(cmp.Compare(deletes(a), deletes(b)), cmp.Compare(a.Table, b.Table), cmp.Compare(b.Priority, a.Priority), cmp.Compare(a.Line, b.Line))
}

func sameFlow(a, b *openflow.FlowMod) bool {
	return a.Match == b.Match && openflow.FormatFlowMod(a, nil) == openflow.FormatFlowMod(b, nil)
}

// sameBut reports whether two flows are equal apart from actions and cookie. A modify can then turn
// one into the other.
func sameBut(a, b *openflow.FlowMod) bool {
	x, y := *a, *b
	x.NewCookie, y.NewCookie, x.Actions, y.Actions = 0, 0, nil, nil
	return sameFlow(&x, &y)
}

// DiffFlows compares two files of flows. If Second is nil, it compares the tables with
// the file First. It returns lines for display.
func (ts *Tables) DiffFlows(c api.DiffFlows, words pipeline.PortWords) (api.FlowsDiffer, error) {
	return change.Read(ts.configuration, func(tx *change.Tx) (api.FlowsDiffer, error) {
		from, _, err := ts.flowSetOf(c.First)
		if err != nil {
			return api.FlowsDiffer{}, err
		}
		to := from
		if c.Second == nil {
			from = ts.tableFlows(tx)
		} else if to, _, err = ts.flowSetOf(*c.Second); err != nil {
			return api.FlowsDiffer{}, usererr.Errorf("second file: %v", err)
		}
		ids := make([]ruleID, 0, len(from))
		for id := range from {
			ids = append(ids, id)
		}
		for id := range to {
			if _, both := from[id]; !both {
				ids = append(ids, id)
			}
		}
		return api.FlowsDiffer{Lines: ts.diffLines(ids, from, to, words)}, nil
	})
}

func (ts *Tables) diffLines(ids []ruleID, old, new flowSet, words pipeline.PortWords) []string {
	slices.SortFunc(ids, func(a, b ruleID) int {
		return cmp.Or(cmp.Compare(a.table, b.table), cmp.Compare(b.priority, a.priority),
			a.match.Compare(b.match))
	})
	lines, names := []string{}, ts.bridge.Names(words)
	for _, id := range ids {
		old, was := old[id]
		m, is := new[id]
		if was && is && sameFlow(&old, &m) {
			continue
		}
		if was {
			lines = append(lines, "-"+openflow.FormatDiff(&old, names))
		}
		if is {
			lines = append(lines, "+"+openflow.FormatDiff(&m, names))
		}
	}
	return lines
}
