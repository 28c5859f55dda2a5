// SPDX-License-Identifier: Apache-2.0

// Package rulebook keeps the OpenFlow tables across restarts of control. Flows, groups,
// meters and settings are on the disk. Statistics of flows are in the counter region
// (shared memory that outlives control). The package assigns each rule a row: its index
// in counters.Region.Rules and in the state file. A rule keeps its row across restarts
// of control.
//
// The configuration lock and Pipeline.mu guard a Book. Methods that change rows need both
// locks, methods that read them need one of the two. Methods that save need only the
// configuration lock, because they may wait for the disk. The lock Book.writing allows one
// write at a time. It is taken after the configuration lock. TakeDeferred holds Book.writing
// until the end of the write. The write needs no other lock.
package rulebook

import (
	"cmp"
	"iter"
	"log/slog"
	"slices"
	"strings"
	"sync"

	"weft/control/counters"
	"weft/control/store"
	"weft/openflow"
	"weft/openflow/ofproto"
)

// Store saves the tables. Its methods may wait for the disk.
type Store interface {
	ChangeFlows(save iter.Seq[store.Flow], remove []uint32) error
	ChangeTables(groups, meters map[store.Key]string, save iter.Seq[store.Flow], remove []uint32) error
	SaveTableConfigs(texts map[store.Key]string) error
	SaveTLVs(texts map[store.Key]string) error
}

// Book has the rows of the rules of all bridges.
type Book struct {
	tables map[uint8]*ofproto.Tables // by number of the bridge
	store  Store
	log    *slog.Logger

	region  *counters.Region
	ages    []uint64 // index: row; 0: the row is free
	free    []uint32
	nextAge uint64

	deferred deferred
	writing  sync.Mutex
}

// deferred has the changes of flows that are not saved yet.
type deferred struct {
	rules map[*ofproto.Rule]struct{} // added and modified rules
	rows  []uint32                   // rows of removed rules
}

// New returns an empty book for the tables of the first bridge. Load must come before any other method.
func New(tables *ofproto.Tables, s Store, log *slog.Logger) *Book {
	return &Book{tables: map[uint8]*ofproto.Tables{0: tables}, store: s, log: log}
}

// AddTables adds the tables of another bridge.
func (b *Book) AddTables(bridge uint8, tables *ofproto.Tables) { b.tables[bridge] = tables }

// RemoveTables removes the tables of a bridge without rules.
func (b *Book) RemoveTables(bridge uint8) { delete(b.tables, bridge) }

// SaveFlows saves a change of flows. removed has the rows of removed rules, which stay
// taken until Release.
func (b *Book) SaveFlows(changes *ofproto.Changes, removed []uint32) error {
	return b.writeFlows(b.saved(slices.Concat(changes.Added, changes.Modified)), removed)
}

// RemoveFlows removes the flows in these rows from the state file.
func (b *Book) RemoveFlows(rows []uint32) error { return b.writeFlows(nil, rows) }

func (b *Book) writeFlows(flows iter.Seq[store.Flow], removed []uint32) error {
	b.writing.Lock()
	defer b.writing.Unlock()
	return b.store.ChangeFlows(flows, removed)
}

// Defer notes a change of flows that SaveDeferred will save. It returns the number of
// flows that are noted so far.
func (b *Book) Defer(changes *ofproto.Changes, removed []uint32) (waiting int) {
	d := &b.deferred
	if d.rules == nil {
		d.rules = map[*ofproto.Rule]struct{}{}
	}
	for _, list := range [][]*ofproto.Rule{changes.Added, changes.Modified} {
		for _, r := range list {
			d.rules[r] = struct{}{}
		}
	}
	d.rows = append(d.rows, removed...)
	return len(d.rules) + len(d.rows)
}

// SaveDeferred saves the changes that Defer has noted. It returns the rows of removed
// rules, which the caller passes to Release.
func (b *Book) SaveDeferred() (removed []uint32, err error) {
	rules, rows := b.takeDeferred()
	b.writing.Lock() // waits for earlier writes
	defer b.writing.Unlock()
	if len(rules)+len(rows) == 0 {
		return nil, nil
	}
	return rows, b.store.ChangeFlows(b.saved(rules), rows)
}

// TakeDeferred returns the function write, which saves the changes that Defer has
// noted. write needs no configuration lock, so that no change waits for the disk. The
// caller calls write once, and then releases the rows in removed. write is nil if an
// earlier write has not ended.
func (b *Book) TakeDeferred() (write func() error, removed []uint32) {
	if !b.writing.TryLock() {
		return nil, nil
	}
	rules, rows := b.takeDeferred()
	flows := b.savedCopies(rules)
	return func() error {
		defer b.writing.Unlock()
		return b.store.ChangeFlows(flows, rows)
	}, rows
}

// takeDeferred returns the noted rules that still exist, and the rows of the noted
// rules that were removed.
func (b *Book) takeDeferred() (rules []*ofproto.Rule, rows []uint32) {
	d := b.deferred
	b.deferred = deferred{}
	for r := range d.rules {
		if !r.Removed {
			rules = append(rules, r)
		}
	}
	return rules, d.rows
}

// SaveTables saves all groups and meters, and a change of flows as SaveFlows does, in one
// transaction.
func (b *Book) SaveTables(changes *ofproto.Changes, removed []uint32) error {
	groups, meters := map[store.Key]string{}, map[store.Key]string{}
	for bridge, tables := range b.tables {
		for _, g := range tables.Groups(openflow.GroupAny) {
			groups[store.Key{Bridge: bridge, Number: g.ID}] = openflow.FormatGroup(g, tlvNames(tables))
		}
		for _, m := range tables.Meters(openflow.MeterAll) {
			meters[store.Key{Bridge: bridge, Number: m.ID}] = openflow.FormatMeter(m)
		}
	}
	b.writing.Lock()
	defer b.writing.Unlock()
	return b.store.ChangeTables(groups, meters, b.saved(slices.Concat(changes.Added, changes.Modified)), removed)
}

// SaveConfigs saves the settings of all tables: for one bridge those in configs. Default
// settings are left out.
func (b *Book) SaveConfigs(bridge uint8, configs *[openflow.Tables]ofproto.TableConfig) error {
	texts := map[store.Key]string{}
	for number, tables := range b.tables {
		for t := range configs {
			c := configs[t]
			if number != bridge {
				c, _ = tables.Config(uint8(t))
			}
			if c != (ofproto.TableConfig{}) {
				texts[store.Key{Bridge: number, Number: uint32(t)}] = strings.Join(c.Words(), " ")
			}
		}
	}
	return b.store.SaveTableConfigs(texts)
}

// SaveTLVs saves the TLV maps of all bridges.
func (b *Book) SaveTLVs() error {
	texts := map[store.Key]string{}
	for bridge, tables := range b.tables {
		for _, m := range tables.TLVs().Mappings() {
			texts[store.Key{Bridge: bridge, Number: uint32(m.Field)}] = m.String()
		}
	}
	return b.store.SaveTLVs(texts)
}

// tlvNames returns the names for texts in the state file: ports have numbers, and the TLV map
// is the bridge's.
func tlvNames(tables *ofproto.Tables) openflow.Names {
	if tables == nil {
		return nil
	}
	return openflow.WithTLVs(nil, tables.TLVs())
}

// savedFlow is a copy of a rule for the state file.
type savedFlow struct {
	bridge uint8
	row    uint32
	age    uint64
	mod    openflow.FlowMod
	names  openflow.Names
}

func (f *savedFlow) saved() store.Flow {
	return store.Flow{Bridge: f.bridge, Slot: f.row, Age: f.age, Text: openflow.FormatFlowMod(&f.mod, f.names)}
}

func (b *Book) copyOf(r *ofproto.Rule) savedFlow {
	return savedFlow{r.Bridge, b.Row(r), b.ages[b.Row(r)], r.FlowMod(), tlvNames(b.tables[r.Bridge])}
}

func (b *Book) sortByRow(rules []*ofproto.Rule) {
	slices.SortFunc(rules, func(x, y *ofproto.Rule) int { return cmp.Compare(b.Row(x), b.Row(y)) })
}

// saved returns the rules in the form of the state file, sorted by row. The caller
// holds the configuration lock until the end of the iteration.
func (b *Book) saved(rules []*ofproto.Rule) iter.Seq[store.Flow] {
	b.sortByRow(rules)
	return func(yield func(store.Flow) bool) {
		for _, r := range rules {
			if f := b.copyOf(r); !yield(f.saved()) {
				return
			}
		}
	}
}

// savedCopies is like saved, but the caller may iterate without the configuration lock,
// because savedCopies has copied the rules.
func (b *Book) savedCopies(rules []*ofproto.Rule) iter.Seq[store.Flow] {
	b.sortByRow(rules)
	list := make([]savedFlow, len(rules))
	for i, r := range rules {
		list[i] = b.copyOf(r)
	}
	return func(yield func(store.Flow) bool) {
		for i := range list {
			if !yield(list[i].saved()) {
				return
			}
		}
	}
}
