// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"cmp"
	"errors"
	"fmt"
	"iter"
	"runtime"
	"runtime/debug"
	"slices"
	"time"

	"weft/api"
	"weft/control/counters"
	"weft/control/store"
	"weft/control/usererr"
	"weft/internal/clock"
	"weft/openflow"
)

// ruleBook allocates the slots of rules in the counter region and in the state file.
// A rule keeps its slot from its addition to its deletion, across restarts of
// control. ruleBook is guarded like Pipeline.rules.
type ruleBook struct {
	ages    []uint64 // index: slot
	free    []uint32
	nextAge uint64
}

// take returns a slot for a new rule and stores the rule's age.
func (b *ruleBook) take() uint32 {
	b.nextAge++
	if n := len(b.free); n > 0 {
		place := b.free[n-1]
		b.free = b.free[:n-1]
		b.ages[place] = b.nextAge
		return place
	}
	b.ages = append(b.ages, b.nextAge)
	return uint32(len(b.ages) - 1)
}

// restore marks a saved slot as taken.
func (b *ruleBook) restore(place uint32, age uint64) {
	for uint32(len(b.ages)) <= place {
		b.ages = append(b.ages, 0)
	}
	b.ages[place] = age
	b.nextAge = max(b.nextAge, age)
}

// restored frees all slots that no saved rule has.
func (b *ruleBook) restored() {
	b.free = b.free[:0]
	for place := len(b.ages) - 1; place >= 0; place-- {
		if b.ages[place] == 0 {
			b.free = append(b.free, uint32(place))
		}
	}
}

func (b *ruleBook) release(places []uint32) {
	for _, p := range places {
		b.ages[p] = 0
		b.free = append(b.free, p)
	}
}

// setPlace records place as r's slot in the counter region. The caller holds
// Pipeline.mu for writing.
func (pl *Pipeline) setPlace(r *openflow.Rule, place uint32) {
	for uint32(len(pl.places)) <= r.Slot {
		pl.places = append(pl.places, 0)
	}
	pl.places[r.Slot] = place
}

// loadFlows fills the tables from the state file, and the rules' statistics from the
// counter region if an engine kept the region. It runs at startup, before any other
// goroutine uses the pipeline.
func (pl *Pipeline) loadFlows(flows []store.Flow, kept bool) {
	now := clock.Monotonic()
	for _, f := range flows {
		mod, err := openflow.ParseFlowMod(f.Text, openflow.Add, nil)
		if err != nil || f.Slot >= counters.MaxPlaces {
			pl.log.Error("cannot parse a saved flow, leaving it out", "flow", f.Text, "error", err)
			continue
		}
		changes, err := pl.tables.Apply([]openflow.FlowMod{mod}, now)
		if err != nil || len(changes.Added) != 1 {
			pl.log.Error("a saved flow is refused and left out", "flow", f.Text, "error", err)
			continue
		}
		r := changes.Added[0]
		pl.rules.restore(f.Slot, f.Age)
		pl.setPlace(r, f.Slot)
		if kept {
			pl.restoreCounts(r, f.Slot)
		} else {
			pl.note(r, f.Slot)
		}
	}
	pl.rules.restored()
}

// restoreCounts sets the statistics of r to the statistics that the counter region
// has in slot place. If the slot has none, restoreCounts writes the statistics of r
// to the slot.
func (pl *Pipeline) restoreCounts(r *openflow.Rule, place uint32) {
	counts := &pl.counters.Rules[place]
	if counts.CreatedNS == 0 || counts.CreatedNS > clock.Monotonic() {
		pl.note(r, place)
		return
	}
	r.CreatedNS, r.ModifiedNS, r.UsedNS = counts.CreatedNS, counts.ModifiedNS, counts.UsedNS
	r.Packets, r.Bytes = counts.Packets, counts.Bytes
	was := openflow.Finished{Rule: r, Idle: counts.IdleTimeout, Hard: counts.HardTimeout}
	was.ReduceTimeouts()
}

// note writes r's statistics to the counter region.
func (pl *Pipeline) note(r *openflow.Rule, place uint32) {
	pl.counters.Rules[place] = counters.Rule{
		Packets: r.Packets, Bytes: r.Bytes, CreatedNS: r.CreatedNS, ModifiedNS: r.ModifiedNS, UsedNS: r.UsedNS,
		IdleTimeout: r.IdleTimeout, HardTimeout: r.HardTimeout,
	}
}

var commands = map[string]openflow.Command{
	"add": openflow.Add, "modify": openflow.Modify, "modify-strict": openflow.ModifyStrict,
	"delete": openflow.Delete, "delete-strict": openflow.DeleteStrict,
}

const (
	// largeChange is the number of flows that makes a change large. After a large
	// change control returns unused memory to the system. The text, lists and state
	// file pages of a large change take several times the memory that stays in use.
	// Returning memory costs one garbage collection.
	largeChange = 10_000
	// largeChangePause is the time after a large change before memory is returned, so
	// that the request has ended.
	largeChangePause = time.Second
)

// returnMemory returns unused memory to the system. It runs two garbage collections,
// because only the second one empties pools.
func returnMemory() {
	runtime.GC()
	debug.FreeOSMemory()
}

// ChangeFlows parses a change of the flow tables and applies it; on an error nothing
// has changed. When it returns, no frame uses the old rules any more.
func (pl *Pipeline) ChangeFlows(c api.ChangeFlows) (api.FlowsChanged, error) {
	if c.Op == "replace" {
		return pl.replaceFlows(c.Text)
	}
	command, ok := commands[c.Op]
	if !ok {
		return api.FlowsChanged{}, usererr.Errorf("op %q: expected add, modify, modify-strict, delete, delete-strict or replace", c.Op)
	}
	// The text is parsed without the lock of changes, because the replacement of an
	// engine needs this lock. It is parsed again if ports have changed meanwhile.
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

// maxNotes is the number of notes in the answer to a change of flows. Further notes
// are left out; they most likely repeat the first notes.
const maxNotes = 10

// notesOf returns notes about the parts of flows that parsing ignored.
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

// apply changes the tables, saves the changed flows and revalidates the megaflows.
// The caller holds the lock of changes.
func (pl *Pipeline) apply(mods []openflow.FlowMod) (int, error) {
	pl.mu.Lock()
	pl.pullAll() // adds the counts up to now to the statistics of the old rules
	changes, err := pl.tables.Apply(mods, clock.Monotonic())
	if err != nil {
		pl.mu.Unlock()
		return 0, usererr.Mark(err)
	}
	removed := pl.enter(&changes)
	pl.mu.Unlock()

	err = pl.store.ChangeFlows(pl.savedFlows(slices.Concat(changes.Added, changes.Modified)), removed)
	var tables openflow.TableSet
	changedTables(&changes, &tables)
	pl.revalidate(func(m *megaflow) bool { return m.tables.Meets(&tables) })
	pl.tell(&changes)
	pl.releasePlaces(removed)
	if len(mods) >= largeChange {
		time.AfterFunc(largeChangePause, returnMemory)
	}
	if err != nil {
		return 0, errors.New("the change is in force but could not be saved: " + err.Error())
	}
	return len(changes.Added) + len(changes.Modified) + len(changes.Removed), nil
}

// enter allocates slots for the added rules, and writes the statistics of added and
// modified rules to the counter region. It returns the slots of removed rules, which
// the caller releases. The caller holds Pipeline.mu for writing.
func (pl *Pipeline) enter(changes *openflow.Changes) (removed []uint32) {
	removed = pl.removePlaces(changes.Removed)
	for _, r := range changes.Added {
		pl.setPlace(r, pl.rules.take())
		pl.note(r, pl.places[r.Slot])
	}
	for _, r := range changes.Modified {
		pl.note(r, pl.places[r.Slot])
	}
	return removed
}

// savedFlows returns the saved form of rules, sorted by slot. The caller holds the
// lock of changes, so the saved fields of a rule do not change.
func (pl *Pipeline) savedFlows(rules []*openflow.Rule) iter.Seq[store.Flow] {
	slices.SortFunc(rules, func(a, b *openflow.Rule) int { return cmp.Compare(pl.places[a.Slot], pl.places[b.Slot]) })
	return func(yield func(store.Flow) bool) {
		for _, r := range rules {
			place := pl.places[r.Slot]
			mod := r.FlowMod()
			if !yield(store.Flow{Slot: place, Age: pl.rules.ages[place], Text: openflow.FormatFlowMod(&mod, nil)}) {
				return
			}
		}
	}
}

// removePlaces returns the slots of removed rules. The slots stay taken until
// releasePlaces, because megaflows may still count for the rules.
func (pl *Pipeline) removePlaces(removed []*openflow.Rule) []uint32 {
	var places []uint32
	for _, r := range removed {
		places = append(places, pl.places[r.Slot])
	}
	return places
}

func (pl *Pipeline) releasePlaces(places []uint32) {
	pl.mu.Lock()
	defer pl.mu.Unlock()
	pl.rules.release(places)
}

// DumpFlows returns the flows that match selects, with exact statistics, sorted by
// openflow.SortKeys if any are given.
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

// describeChunk is the number of flows described before Pipeline.mu is released for a
// moment, so that first frames do not wait for a long list.
const describeChunk = 256

// inTurns calls each(0) to each(n-1) with Pipeline.mu held for reading, and releases
// the lock every describeChunk calls. The caller holds the lock of changes but not
// Pipeline.mu.
func (pl *Pipeline) inTurns(n int, each func(i int)) {
	for from := 0; from < n; from += describeChunk {
		pl.mu.RLock()
		for i := from; i < min(from+describeChunk, n); i++ {
			each(i)
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
	now, list := clock.Monotonic(), pl.megaflows.list()
	flows := make([]api.Megaflow, len(list))
	pl.inTurns(len(list), func(i int) { flows[i] = pl.describeMegaflow(list[i], now, words) })
	return flows
}

// describeMegaflow describes m with its statistics. The caller holds Pipeline.mu.
func (pl *Pipeline) describeMegaflow(m *megaflow, now uint64, words PortWords) api.Megaflow {
	names := pl.names(words)
	packets, bytes, usedNS := pl.workers.Statistics(m.slot, m.generation)
	match := openflow.MatchOf(&m.key, m.mask())
	f := api.Megaflow{
		Slot: m.slot, Packets: packets, Bytes: bytes,
		Match:   openflow.FormatMatch(&match, names),
		Actions: openflow.FormatDatapathActions(m.actions, names),
	}
	if usedNS != 0 {
		used := Seconds(now, usedNS)
		f.UsedS = &used
	}
	return f
}
