// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"cmp"
	"iter"
	"log/slog"
	"slices"
	"strings"
	"sync"

	"weft/control/change"
	"weft/control/counters"
	"weft/control/store"
	"weft/openflow"
	"weft/openflow/ofproto"
)

// Store saves the tables when a transaction commits. WriteFlows saves them at once, and may wait
// for the disk.
type Store interface {
	ChangeFlows(tx *change.Tx, save iter.Seq[store.Flow], remove []uint32)
	ReplaceGroups(tx *change.Tx, groups, meters map[store.Key]string)
	SaveTableConfigs(tx *change.Tx, texts map[store.Key]string)
	SaveTLVs(tx *change.Tx, texts map[store.Key]string)
	WriteFlows(save iter.Seq[store.Flow], remove []uint32) error
}

// book saves the OpenFlow tables of all bridges, so that they outlive the control process. The state
// file has the flows, groups, meters and settings. Shared memory, the counter region, has the
// statistics of flows. book assigns each rule a row: its index in counters.Region.Rules and in the
// state file. A rule keeps its row when a new control process starts.
//
// The configuration lock and Pipeline.mu guard a book. A method that changes rows needs both locks,
// and a method that reads them needs one of the two. A method that saves needs the transaction, or
// only the configuration lock if it waits for the disk. The lock book.writing allows one write at a
// time. It is taken after the configuration lock. TakeDeferred keeps book.writing until the end of
// the write. The write needs no other lock.
type book struct {
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

// newBook returns an empty book for the tables of the first bridge. Load must come before any other method.
func newBook(tables *ofproto.Tables, s Store, log *slog.Logger) *book {
	return &book{tables: map[uint8]*ofproto.Tables{0: tables}, store: s, log: log}
}

// AddTables adds the tables of another bridge.
func (b *book) AddTables(bridge uint8, tables *ofproto.Tables) { b.tables[bridge] = tables }

// RemoveTables makes the book forget the tables of a removed bridge.
func (b *book) RemoveTables(bridge uint8) { delete(b.tables, bridge) }

// SaveFlows saves a change of flows when the transaction commits. removed has the rows of removed
// rules. No other rule gets these rows before the call of Release.
func (b *book) SaveFlows(tx *change.Tx, changes *ofproto.Changes, removed []uint32) {
	b.writing.Lock() // waits for a write of TakeDeferred; no other one begins before tx ends
	//lint:ignore SA2001 the lock is not needed, because tx excludes further writes
	b.writing.Unlock()
	var flows iter.Seq[store.Flow]
	if list := slices.Concat(changes.Added, changes.Modified); len(list) > 0 {
		flows = b.saved(list)
	}
	b.store.ChangeFlows(tx, flows, removed)
}

// Defer records a change of flows that SaveDeferred will save. It returns the number of flows that
// are recorded so far.
func (b *book) Defer(changes *ofproto.Changes, removed []uint32) (waiting int) {
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

// SaveDeferred saves the changes that Defer has recorded. It returns the rows of removed rules,
// which the caller frees with Release.
func (b *book) SaveDeferred() (removed []uint32, err error) {
	rules, rows := b.takeDeferred()
	b.writing.Lock() // waits for earlier writes
	defer b.writing.Unlock()
	if len(rules)+len(rows) == 0 {
		return nil, nil
	}
	return rows, b.store.WriteFlows(b.saved(rules), rows)
}

// TakeDeferred returns the function "write", which saves the changes that Defer has recorded.
// "write" needs no configuration lock, so that no change waits for the disk. The caller calls it
// once, and then frees the rows in "removed". "write" is nil if an earlier write has not ended.
func (b *book) TakeDeferred() (write func() error, removed []uint32) {
	if !b.writing.TryLock() {
		return nil, nil
	}
	rules, rows := b.takeDeferred()
	flows := b.savedCopies(rules)
	return func() error {
		defer b.writing.Unlock()
		return b.store.WriteFlows(flows, rows)
	}, rows
}

// takeDeferred returns the recorded rules that still exist, and the rows of those that were removed.
func (b *book) takeDeferred() (rules []*ofproto.Rule, rows []uint32) {
	d := b.deferred
	b.deferred = deferred{}
	for r := range d.rules {
		if !r.Removed {
			rules = append(rules, r)
		}
	}
	return rules, d.rows
}

// SaveGroups saves all groups and meters when the transaction commits.
func (b *book) SaveGroups(tx *change.Tx) {
	groups, meters := map[store.Key]string{}, map[store.Key]string{}
	for bridge, tables := range b.tables {
		for _, g := range tables.Groups(openflow.GroupAny) {
			groups[store.Key{Bridge: bridge, Number: g.ID}] = openflow.FormatGroup(g, tlvNames(tables))
		}
		for _, m := range tables.Meters(openflow.MeterAll) {
			meters[store.Key{Bridge: bridge, Number: m.ID}] = openflow.FormatMeter(m)
		}
	}
	b.store.ReplaceGroups(tx, groups, meters)
}

// SaveConfigs saves the settings of all tables when the transaction commits. The tables of the given
// bridge have the settings in configs. Settings that are equal to the defaults are left out.
func (b *book) SaveConfigs(tx *change.Tx, bridge uint8, configs *[openflow.Tables]ofproto.TableConfig) {
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
	b.store.SaveTableConfigs(tx, texts)
}

// SaveTLVs saves the mappings of Geneve options of all bridges (TLV maps) when the transaction
// commits.
func (b *book) SaveTLVs(tx *change.Tx) {
	texts := map[store.Key]string{}
	for bridge, tables := range b.tables {
		for _, m := range tables.TLVs().Mappings() {
			texts[store.Key{Bridge: bridge, Number: uint32(m.Field)}] = m.String()
		}
	}
	b.store.SaveTLVs(tx, texts)
}

// tlvNames returns the names that a flow's text in the state file may use. These are the fields
// tun_metadata of the bridge's Geneve options. Ports have only numbers in the text.
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

func (b *book) copyOf(r *ofproto.Rule) savedFlow {
	return savedFlow{r.Bridge, b.Row(r), b.ages[b.Row(r)], r.FlowMod(), tlvNames(b.tables[r.Bridge])}
}

func (b *book) sortByRow(rules []*ofproto.Rule) {
	slices.SortFunc(rules, func(x, y *ofproto.Rule) int { return cmp.Compare(b.Row(x), b.Row(y)) })
}

// saved returns the rules in the form of the state file, sorted by row. The rules are read during
// the iteration, so the iteration ends before the transaction ends.
func (b *book) saved(rules []*ofproto.Rule) iter.Seq[store.Flow] {
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
func (b *book) savedCopies(rules []*ofproto.Rule) iter.Seq[store.Flow] {
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
