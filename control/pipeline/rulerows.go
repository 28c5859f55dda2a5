// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"weft/control/counters"
	"weft/internal/clock"
	"weft/openflow"
	"weft/openflow/ofproto"
)

// Row returns the row of r: its index in counters.Region.Rules and in the state file.
func (b *book) Row(r *ofproto.Rule) uint32 { return r.Row }

// Rows returns the rows of rules.
func (b *book) Rows(rules []*ofproto.Rule) []uint32 {
	rows := make([]uint32, len(rules))
	for i, r := range rules {
		rows[i] = b.Row(r)
	}
	return rows
}

// setRow assigns a row to r.
func (b *book) setRow(r *ofproto.Rule, row uint32) {
	r.Row = row
}

// Take returns a free row and marks it as taken. It gives the row an age, which is higher than all
// earlier ages.
func (b *book) Take() uint32 {
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

// EnterAt assigns an added rule the given row. The rule takes over the statistics that an earlier
// control process has left in the row.
func (b *book) EnterAt(r *ofproto.Rule, row uint32) {
	b.setRow(r, row)
	b.read(r)
}

// restore gives rule r its saved row and age. When all rules have theirs, the caller calls restored.
func (b *book) restore(r *ofproto.Rule, row uint32, age uint64) {
	for uint32(len(b.ages)) <= row {
		b.ages = append(b.ages, 0)
	}
	b.ages[row] = age
	b.nextAge = max(b.nextAge, age)
	b.setRow(r, row)
}

func (b *book) restored() {
	b.free = b.free[:0]
	for row := len(b.ages) - 1; row >= 0; row-- {
		if b.ages[row] == 0 {
			b.free = append(b.free, uint32(row))
		}
	}
}

// Release frees the rows of removed rules. The caller makes sure that no megaflow counts for these
// rules any more.
func (b *book) Release(rows []uint32) {
	for _, row := range rows {
		b.ages[row] = 0
		b.free = append(b.free, row)
	}
}

// Enter assigns a row to each added rule. It writes the statistics of added and modified rules to
// their rows in the shared memory. It returns the rows of removed rules, which the caller frees with
// Release when no megaflow counts for these rules any more.
func (b *book) Enter(changes *ofproto.Changes) (removed []uint32) {
	removed = b.Rows(changes.Removed)
	for _, r := range changes.Added {
		b.setRow(r, b.Take())
		b.write(r)
	}
	for _, r := range changes.Modified {
		b.write(r)
	}
	return removed
}

func (b *book) write(r *ofproto.Rule) {
	b.region.Rules[b.Row(r)] = counters.Rule{
		Packets: r.Packets, Bytes: r.Bytes, CreatedNS: r.CreatedNS, ModifiedNS: r.ModifiedNS, UsedNS: r.UsedNS,
		IdleTimeout: r.IdleTimeout, HardTimeout: r.HardTimeout,
	}
}

// writeTimeouts writes the timeouts of a rule to its row in the shared memory. It leaves the
// statistics in the row as they are, because Region.Credit has already updated them.
func (b *book) writeTimeouts(r *ofproto.Rule) {
	c := &b.region.Rules[b.Row(r)]
	c.IdleTimeout, c.HardTimeout = r.IdleTimeout, r.HardTimeout
}

// Finish applies fin_timeout to flows that saw a FIN or RST. The caller holds
// Pipeline.mu for writing.
func (b *book) Finish(list []ofproto.Finished) {
	for i := range list {
		f := &list[i]
		if f.Rule.Removed || !f.ReduceTimeouts() {
			continue
		}
		b.writeTimeouts(f.Rule)
	}
}

func (b *book) read(r *ofproto.Rule) {
	c := &b.region.Rules[b.Row(r)]
	if c.CreatedNS == 0 || c.CreatedNS > clock.Monotonic() {
		b.write(r)
		return
	}
	r.CreatedNS, r.ModifiedNS, r.UsedNS = c.CreatedNS, c.ModifiedNS, c.UsedNS
	r.Packets, r.Bytes = c.Packets, c.Bytes
	was := ofproto.Finished{Rule: r, Idle: c.IdleTimeout, Hard: c.HardTimeout}
	was.ReduceTimeouts()
}

// ByRow returns all rules by row.
func (b *book) ByRow() map[uint32]*ofproto.Rule {
	rules := map[uint32]*ofproto.Rule{}
	all := openflow.FlowMod{Command: openflow.Delete, Table: openflow.TableAll}
	for _, tables := range b.tables {
		for _, r := range tables.Select(&all) {
			rules[r.Row] = r
		}
	}
	return rules
}
