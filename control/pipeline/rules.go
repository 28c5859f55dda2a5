// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"time"

	"weft/api"
	"weft/control/counters"
	"weft/control/megaflows"
	"weft/control/store"
	"weft/control/usererr"
	"weft/internal/clock"
	"weft/openflow"
)

// loadFlows fills the tables from the state file, with the statistics of a kept
// counter region. No other goroutine uses the pipeline yet.
func (pl *Pipeline) loadFlows(flows []store.Flow, kept bool) {
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
		if kept {
			pl.rules.read(r)
		} else {
			pl.rules.write(r)
		}
	}
	pl.rules.restored()
}

var commands = map[string]openflow.Command{
	"add": openflow.Add, "modify": openflow.Modify, "modify-strict": openflow.ModifyStrict,
	"delete": openflow.Delete, "delete-strict": openflow.DeleteStrict,
}

const (
	// After a change of largeChange flows, control returns memory to the system.
	// Parsing takes several times the memory that stays in use.
	largeChange = 10_000
	// pause before memory is returned, so that the request has ended
	largeChangePause = time.Second
)

// The second garbage collection empties the pools.
func returnMemory() {
	runtime.GC()
	debug.FreeOSMemory()
}

// ChangeFlows applies a change of the flow tables, or nothing on an error. After it,
// no frame uses the old rules.
func (pl *Pipeline) ChangeFlows(c api.ChangeFlows) (api.FlowsChanged, error) {
	if c.Op == "replace" {
		return pl.replaceFlows(c.Text)
	}
	command, ok := commands[c.Op]
	if !ok {
		return api.FlowsChanged{}, usererr.Errorf("op %q: expected add, modify, modify-strict, delete, delete-strict or replace", c.Op)
	}
	// The lock of changes is not held during parsing, because an engine's replacement
	// needs it. If ports have changed, the text is parsed again.
	view := pl.View()
	mods, err := parseFlows(c, command, view)
	pl.change.Lock()
	defer pl.change.Unlock()
	if view != pl.view {
		mods, err = parseFlows(c, command, pl.view)
	}
	if err != nil {
		return api.FlowsChanged{}, err
	}
	n, err := pl.apply(mods)
	return api.FlowsChanged{Flows: n, Notes: notesOf(mods)}, err
}

// maxNotes limits the notes in an answer. Further notes are left out.
const maxNotes = 10

// notesOf returns notes about ignored parts of flows.
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

// DeleteFlows deletes the flows that match selects.
func (pl *Pipeline) DeleteFlows(match string, strict bool) (api.FlowsChanged, error) {
	pl.change.Lock()
	defer pl.change.Unlock()
	var mod openflow.FlowMod
	var err error
	if strict {
		mod, err = openflow.ParseFlowMod(match, openflow.DeleteStrict, pl.view)
	} else {
		mod, err = openflow.ParseFilter(match, pl.view)
		mod.Command = openflow.Delete
	}
	if err != nil {
		return api.FlowsChanged{}, usererr.Mark(err)
	}
	mods := []openflow.FlowMod{mod}
	n, err := pl.apply(mods)
	return api.FlowsChanged{Flows: n, Notes: notesOf(mods)}, err
}

// apply changes the tables, saves the flows and revalidates. The caller holds the
// lock of changes.
func (pl *Pipeline) apply(mods []openflow.FlowMod) (int, error) {
	pl.saveChanges()
	pl.mu.Lock()
	pl.pullAll() // earlier counts belong to the old rules
	changes, err := pl.tables.Apply(mods, clock.Monotonic())
	if err != nil {
		pl.mu.Unlock()
		return 0, usererr.Mark(err)
	}
	removed := pl.rules.enter(&changes)
	pl.mu.Unlock()

	err = pl.finishFlows(&changes, removed, len(mods))
	if err != nil {
		return 0, errUnsaved(err)
	}
	return len(changes.Added) + len(changes.Modified) + len(changes.Removed), nil
}

// releaseRows frees the rows of removed rules after revalidation. The caller holds
// the lock of changes.
func (pl *Pipeline) releaseRows(rows []uint32) {
	pl.mu.Lock()
	defer pl.mu.Unlock()
	pl.rules.release(rows)
}

// DumpFlows returns the selected flows with exact statistics, sorted by
// openflow.SortKeys if given.
func (pl *Pipeline) DumpFlows(match string, words PortWords, sort ...string) ([]api.Flow, error) {
	var keys []openflow.SortKey
	for _, text := range sort {
		key, err := openflow.ParseSortKey(text)
		if err != nil {
			return nil, usererr.Mark(err)
		}
		keys = append(keys, key)
	}
	pl.change.Lock()
	defer pl.change.Unlock()
	filter, err := openflow.ParseFilter(match, pl.view)
	if err != nil {
		return nil, usererr.Mark(err)
	}
	return pl.FlowsOf(&filter, keys, words), nil
}

// FlowsOf describes the flows that filter selects. The caller holds the lock of
// changes but not Pipeline.mu.
func (pl *Pipeline) FlowsOf(filter *openflow.FlowMod, keys []openflow.SortKey, words PortWords) []api.Flow {
	pl.mu.Lock()
	pl.pullAll()
	pl.mu.Unlock()
	rules := pl.tables.Select(filter)
	if len(keys) > 0 {
		pl.mu.RLock()
		openflow.SortRules(rules, keys)
		pl.mu.RUnlock()
	}
	now := clock.Monotonic()
	flows := make([]api.Flow, len(rules))
	pl.inTurns(len(rules), func(i int) { flows[i] = pl.flowOf(rules[i], now, words) })
	return flows
}

// describeChunk is the number of flows before Pipeline.mu is released for a moment.
const describeChunk = 256

// inTurns calls f(0) to f(n-1) under Pipeline.mu, which it releases every
// describeChunk calls. The caller holds the lock of changes but not Pipeline.mu.
func (pl *Pipeline) inTurns(n int, f func(i int)) {
	for from := 0; from < n; from += describeChunk {
		pl.mu.RLock()
		for i := from; i < min(from+describeChunk, n); i++ {
			f(i)
		}
		pl.mu.RUnlock()
	}
}

// flowOf describes a rule for the API. The caller holds Pipeline.mu.
func (pl *Pipeline) flowOf(r *openflow.Rule, now uint64, words PortWords) api.Flow {
	names := pl.names(words)
	return api.Flow{
		Table: r.Table, Priority: int(r.Priority), Cookie: r.Cookie,
		Match:     r.Match.Format(names),
		Actions:   openflow.FormatActions(r.Actions, names),
		DurationS: Seconds(now, r.CreatedNS), IdleAgeS: Seconds(now, max(r.UsedNS, r.CreatedNS)),
		IdleTimeout: r.IdleTimeout, HardTimeout: r.HardTimeout,
		Packets: r.Packets, Bytes: r.Bytes,
		Line: openflow.FormatRule(r, now, names),
	}
}

func Seconds(now, then uint64) float64 { return float64(now-min(now, then)) / 1e9 }

// DumpMegaflows describes all megaflows in the workers' caches.
func (pl *Pipeline) DumpMegaflows(words PortWords) []api.Megaflow {
	pl.change.Lock()
	defer pl.change.Unlock()
	now, list := clock.Monotonic(), pl.megaflows.List()
	flows := make([]api.Megaflow, len(list))
	pl.inTurns(len(list), func(i int) { flows[i] = pl.describeMegaflow(list[i], now, words) })
	return flows
}

// describeMegaflow describes m with its statistics. The caller holds Pipeline.mu.
func (pl *Pipeline) describeMegaflow(m *megaflows.Megaflow, now uint64, words PortWords) api.Megaflow {
	names := pl.names(words)
	packets, bytes, usedNS := pl.workers.Statistics(m.Slot, m.Generation)
	match := openflow.MatchOf(&m.Key, m.Mask())
	f := api.Megaflow{
		Slot: m.Slot, Packets: packets, Bytes: bytes,
		Match:   openflow.FormatMatch(&match, names),
		Actions: openflow.FormatDatapathActions(m.Actions, names),
	}
	if usedNS != 0 {
		used := Seconds(now, usedNS)
		f.UsedS = &used
	}
	return f
}
