// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"cmp"
	"iter"
	"slices"

	"weft/control/counters"
	"weft/control/store"
	"weft/internal/clock"
	"weft/openflow"
)

// ruleBook gives each rule a row, its index in counters.Region.Rules and in the state
// file. A rule keeps its row across restarts of control.
//
// The lock of changes and Pipeline.mu guard a ruleBook: writers hold both, readers
// one.
type ruleBook struct {
	region  *counters.Region
	rows    []uint32 // index: Rule.Slot
	ages    []uint64 // index: row; 0: the row is free
	free    []uint32
	nextAge uint64
}

func (b *ruleBook) row(r *openflow.Rule) uint32 { return b.rows[r.Slot] }

func (b *ruleBook) rowsOf(rules []*openflow.Rule) []uint32 {
	rows := make([]uint32, len(rules))
	for i, r := range rules {
		rows[i] = b.row(r)
	}
	return rows
}

// setRow assigns a row to r.
func (b *ruleBook) setRow(r *openflow.Rule, row uint32) {
	for uint32(len(b.rows)) <= r.Slot {
		b.rows = append(b.rows, 0)
	}
	b.rows[r.Slot] = row
}

func (b *ruleBook) take() uint32 {
	b.nextAge++
	if n := len(b.free); n > 0 {
		row := b.free[n-1]
		b.free = b.free[:n-1]
		b.ages[row] = b.nextAge
		return row
	}
	b.ages = append(b.ages, b.nextAge)
	return uint32(len(b.ages) - 1)
}

// restore gives r its saved row and age. The caller finally calls restored.
func (b *ruleBook) restore(r *openflow.Rule, row uint32, age uint64) {
	for uint32(len(b.ages)) <= row {
		b.ages = append(b.ages, 0)
	}
	b.ages[row] = age
	b.nextAge = max(b.nextAge, age)
	b.setRow(r, row)
}

func (b *ruleBook) restored() {
	b.free = b.free[:0]
	for row := len(b.ages) - 1; row >= 0; row-- {
		if b.ages[row] == 0 {
			b.free = append(b.free, uint32(row))
		}
	}
}

// release frees the rows of removed rules. No megaflow counts for them any more.
func (b *ruleBook) release(rows []uint32) {
	for _, row := range rows {
		b.ages[row] = 0
		b.free = append(b.free, row)
	}
}

// enter gives rows to added rules, and writes statistics of added and modified rules
// to the region. It returns the rows of removed rules, which the caller releases
// after revalidation.
func (b *ruleBook) enter(changes *openflow.Changes) (removed []uint32) {
	removed = b.rowsOf(changes.Removed)
	for _, r := range changes.Added {
		b.setRow(r, b.take())
		b.write(r)
	}
	for _, r := range changes.Modified {
		b.write(r)
	}
	return removed
}

func (b *ruleBook) write(r *openflow.Rule) {
	b.region.Rules[b.row(r)] = counters.Rule{
		Packets: r.Packets, Bytes: r.Bytes, CreatedNS: r.CreatedNS, ModifiedNS: r.ModifiedNS, UsedNS: r.UsedNS,
		IdleTimeout: r.IdleTimeout, HardTimeout: r.HardTimeout,
	}
}

// writeTimeouts writes no statistics, because Region.Credit has changed the row's.
func (b *ruleBook) writeTimeouts(r *openflow.Rule) {
	c := &b.region.Rules[b.row(r)]
	c.IdleTimeout, c.HardTimeout = r.IdleTimeout, r.HardTimeout
}

// finish applies fin_timeout to flows that saw a FIN or RST. The caller holds
// Pipeline.mu for writing.
func (b *ruleBook) finish(list []openflow.Finished) {
	for i := range list {
		f := &list[i]
		if f.Rule.Removed || !f.ReduceTimeouts() {
			continue
		}
		b.writeTimeouts(f.Rule)
	}
}

func (b *ruleBook) read(r *openflow.Rule) {
	c := &b.region.Rules[b.row(r)]
	if c.CreatedNS == 0 || c.CreatedNS > clock.Monotonic() {
		b.write(r)
		return
	}
	r.CreatedNS, r.ModifiedNS, r.UsedNS = c.CreatedNS, c.ModifiedNS, c.UsedNS
	r.Packets, r.Bytes = c.Packets, c.Bytes
	was := openflow.Finished{Rule: r, Idle: c.IdleTimeout, Hard: c.HardTimeout}
	was.ReduceTimeouts()
}

// savedFlow is a copy of a rule for the state file.
type savedFlow struct {
	row uint32
	age uint64
	mod openflow.FlowMod
}

func (f *savedFlow) saved() store.Flow {
	return store.Flow{Slot: f.row, Age: f.age, Text: openflow.FormatFlowMod(&f.mod, nil)}
}

func (b *ruleBook) copyOf(r *openflow.Rule) savedFlow {
	return savedFlow{b.row(r), b.ages[b.row(r)], r.FlowMod()}
}

func (b *ruleBook) sortByRow(rules []*openflow.Rule) {
	slices.SortFunc(rules, func(x, y *openflow.Rule) int { return cmp.Compare(b.row(x), b.row(y)) })
}

// saved returns the rules in saved form, sorted by row. The caller holds the lock of
// changes until the end of the iteration.
func (b *ruleBook) saved(rules []*openflow.Rule) iter.Seq[store.Flow] {
	b.sortByRow(rules)
	return func(yield func(store.Flow) bool) {
		for _, r := range rules {
			if f := b.copyOf(r); !yield(f.saved()) {
				return
			}
		}
	}
}

// savedCopies is saved for an iteration without the lock of changes.
func (b *ruleBook) savedCopies(rules []*openflow.Rule) iter.Seq[store.Flow] {
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

func (b *ruleBook) byRow(tables *openflow.Pipeline) map[uint32]*openflow.Rule {
	rules := map[uint32]*openflow.Rule{}
	for slot, row := range b.rows {
		if r := tables.Rule(uint32(slot)); r != nil {
			rules[row] = r
		}
	}
	return rules
}
