// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"iter"
	"log/slog"
	"maps"
	"slices"
	"testing"

	"weft/control/change"
	"weft/control/counters"
	"weft/control/store"
	"weft/openflow"
	"weft/openflow/ofproto"
)

// disk is a Store in memory.
type disk map[uint32]store.Flow

func (d disk) ChangeFlows(tx *change.Tx, save iter.Seq[store.Flow], remove []uint32) {
	tx.At(change.Save, new(int), func() error { return d.WriteFlows(save, remove) })
}

func (d disk) WriteFlows(save iter.Seq[store.Flow], remove []uint32) error {
	for _, row := range remove {
		delete(d, row)
	}
	if save != nil {
		for f := range save {
			d[f.Slot] = f
		}
	}
	return nil
}

func (disk) ReplaceGroups(_ *change.Tx, _, _ map[store.Key]string) {}
func (disk) SaveTLVs(*change.Tx, map[store.Key]string)             {}
func (disk) SaveTableConfigs(*change.Tx, map[store.Key]string)     {}

func (d disk) flows() []store.Flow {
	return slices.SortedFunc(maps.Values(d), func(a, b store.Flow) int { return int(a.Slot) - int(b.Slot) })
}

func loadedBook(t *testing.T, d disk, region *counters.Region, kept bool) *book {
	t.Helper()
	b := newBook(ofproto.NewTables(ofproto.Limits{Rules: 100}), d, slog.New(slog.DiscardHandler))
	b.Load(&store.State{Flows: d.flows()}, region, kept)
	return b
}

func newRegion(t *testing.T) *counters.Region {
	t.Helper()
	region, err := counters.New(16)
	if err != nil {
		t.Fatal(err)
	}
	return region
}

func (b *book) apply(t *testing.T, command openflow.Command, text string) (ofproto.Changes, []uint32) {
	t.Helper()
	mod, err := openflow.ParseFlowMod(text, command, nil)
	if err != nil {
		t.Fatal(err)
	}
	changes, err := b.tables[0].Apply([]openflow.FlowMod{mod}, 1)
	if err != nil {
		t.Fatal(err)
	}
	return changes, b.Enter(&changes)
}

// A rule keeps its row and its statistics across restarts. New rules use free rows
// between other rules.
func TestRowsSurviveARestart(t *testing.T) {
	d, region := disk{}, newRegion(t)
	b := loadedBook(t, d, region, false)
	for _, text := range []string{"priority=1,actions=drop", "priority=2,actions=drop", "priority=3,actions=drop"} {
		changes, removed := b.apply(t, openflow.Add, text)
		new(change.Configuration).Do(func(tx *change.Tx) { b.SaveFlows(tx, &changes, removed) })
	}
	region.Rules[2].Packets = 7
	changes, removed := b.apply(t, openflow.DeleteStrict, "priority=2")
	new(change.Configuration).Do(func(tx *change.Tx) { b.SaveFlows(tx, &changes, removed) })
	if !slices.Equal(removed, []uint32{1}) {
		t.Fatalf("removed rows %v; want row 1", removed)
	}
	b = loadedBook(t, d, region, true)
	rules := b.ByRow()
	if len(rules) != 2 || rules[0].Priority != 1 || rules[2].Priority != 3 || rules[2].Packets != 7 {
		t.Errorf("rules by row: %+v", rules)
	}
	if changes, _ := b.apply(t, openflow.Add, "priority=4,actions=drop"); b.Row(changes.Added[0]) != 1 {
		t.Errorf("the next rule has row %d, want the free row 1", b.Row(changes.Added[0]))
	}
}

// The row of a removed rule stays taken until Release.
func TestRowsAreReleased(t *testing.T) {
	b := loadedBook(t, disk{}, newRegion(t), false)
	b.apply(t, openflow.Add, "priority=1,actions=drop")
	_, removed := b.apply(t, openflow.DeleteStrict, "priority=1")
	for want := range uint32(2) {
		changes, _ := b.apply(t, openflow.Add, "priority=2,actions=drop")
		if row := b.Row(changes.Added[0]); row != 1-want {
			t.Errorf("row %d, want %d", row, 1-want)
		}
		b.apply(t, openflow.DeleteStrict, "priority=2")
		b.Release(removed)
	}
}

// SaveDeferred saves each noted rule that still exists once. It removes noted rules
// that no longer exist from the state file.
func TestDeferredChanges(t *testing.T) {
	d := disk{}
	b := loadedBook(t, d, newRegion(t), false)
	for _, text := range []string{"priority=1,actions=drop", "priority=2,actions=drop"} {
		changes, removed := b.apply(t, openflow.Add, text)
		b.Defer(&changes, removed)
	}
	changes, removed := b.apply(t, openflow.DeleteStrict, "priority=1")
	if n := b.Defer(&changes, removed); n != 3 || len(d) != 0 {
		t.Errorf("%d changes wait, %d flows saved; want 3 and 0", n, len(d))
	}
	rows, err := b.SaveDeferred()
	if err != nil || !slices.Equal(rows, []uint32{0}) || len(d) != 1 || d[1].Slot != 1 {
		t.Errorf("rows %v, saved %v, %v", rows, d, err)
	}
	if rows, err := b.SaveDeferred(); err != nil || len(rows) != 0 || len(d) != 1 {
		t.Errorf("again: rows %v, saved %v, %v", rows, d, err)
	}
}
