// SPDX-License-Identifier: Apache-2.0

package ofproto

import (
	"cmp"
	"slices"

	"weft/openflow"
)

// Why is the reason of a rule's removal, as in OpenFlow's flow-removed message.
type Why uint8

// Reasons of a rule's removal.
const (
	NotRemoved Why = iota
	WhyDeleted     // removed by a delete, or replaced by an add
	WhyIdle        // idle_timeout has passed
	WhyHard        // hard_timeout has passed
	WhyEvicted     // evicted for a new rule
	WhyGroup       // its group was deleted
	WhyMeter       // its meter was deleted
)

var whyWords = [...]string{"", "delete", "idle", "hard", "eviction", "group_delete", "meter_delete"}

// String returns the reason as ovs-ofctl monitor shows it.
func (w Why) String() string { return whyWords[w] }

// TableConfig has the limit of one table, and what an add at the limit does.
type TableConfig struct {
	// Limit is the largest number of rules in the table; 0: only the limit of all tables
	// (Limits.Rules) applies.
	Limit int
	// Evict lets an add at the limit remove another rule instead of failing. A rule may
	// be evicted if its importance is lower than the new rule's. A rule of equal
	// importance may be evicted if it has a timeout. The order of eviction is: lowest
	// importance, then rules with a timeout, then the rule that was unused for the
	// longest time.
	Evict bool
}

// Configure sets the limits of a table. It removes no rules.
func (p *Tables) Configure(table uint8, c TableConfig) { p.config[table] = c }

// Config returns the limits of a table and the number of its rules.
func (p *Tables) Config(table uint8) (c TableConfig, rules int) {
	return p.config[table], p.counts[table]
}

// makeRoom makes sure that one more rule fits into the table and into the limit of all tables.
// At a limit it evicts a rule, or returns an error if it may not.
func (b *bundle) makeRoom(table uint8, m *openflow.FlowMod) error {
	p, c := b.p, &b.p.config[table]
	if b.central {
		return nil
	}
	if p.common.count >= p.common.limit {
		if !c.Evict || !b.evict(openflow.TableAll, m) {
			return openflow.Errorf(openflow.ErrFlowTableFull, "table %d: expected at most %d flows in all tables", table, p.common.limit)
		}
	}
	if c.Limit > 0 && p.counts[table] >= c.Limit {
		if !c.Evict || !b.evict(table, m) {
			return openflow.Errorf(openflow.ErrFlowTableFull, "table %d: expected at most %d flows in it", table, c.Limit)
		}
	}
	return nil
}

// evict removes the next rule in the order of eviction from the table, or from all tables for
// TableAll. It returns false if no rule may be evicted for the new rule of m.
func (b *bundle) evict(table uint8, m *openflow.FlowMod) bool {
	list, sorted := b.victims[table]
	if !sorted {
		list = b.p.evictable(table)
	}
	for len(list) > 0 && list[0].Removed {
		list = list[1:]
	}
	if b.victims == nil {
		b.victims = make(map[uint8][]*Rule)
	}
	b.victims[table] = list
	if len(list) == 0 {
		return false
	}
	r := list[0]
	if r.Importance > m.Importance || r.Importance == m.Importance && !r.timed() {
		return false
	}
	b.remove(r, WhyEvicted)
	return true
}

// timed reports whether the rule has a timeout.
func (r *Rule) timed() bool { return r.IdleTimeout|r.HardTimeout != 0 }

// evictable returns the rules that may be evicted, in the order of eviction.
func (p *Tables) evictable(table uint8) []*Rule {
	var list []*Rule
	for _, r := range p.rules {
		if r != nil && (table == openflow.TableAll || r.Table == table) && r.Table != CentralTable && p.config[r.Table].Evict {
			list = append(list, r)
		}
	}
	slices.SortFunc(list, func(a, b *Rule) int {
		if a.timed() != b.timed() && a.Importance == b.Importance {
			if a.timed() {
				return -1
			}
			return 1
		}
		return cmp.Or(cmp.Compare(a.Importance, b.Importance),
			cmp.Compare(max(a.UsedNS, a.ModifiedNS), max(b.UsedNS, b.ModifiedNS)), cmp.Compare(a.Slot, b.Slot))
	})
	return list
}
