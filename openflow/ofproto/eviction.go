// SPDX-License-Identifier: Apache-2.0

package ofproto

import (
	"cmp"
	"slices"

	"weft/openflow"
)

// Why says why a rule was removed, as in OpenFlow's flow_removed message.
type Why uint8

// OpenFlow's flow_removed has these reasons. NotRemoved is the value for a rule in a table.
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

// String returns the reason in the word that ovs-ofctl monitor shows.
func (w Why) String() string { return whyWords[w] }

// TableConfig has the limit of one table. It says what happens to an add when the table is full.
type TableConfig struct {
	// Limit is the largest number of rules in the table. If it is 0, only the limit of the whole switch
	// (Limits.Rules) applies.
	Limit int
	// If Evict is true, an add to a full table evicts another rule instead of failing. A rule may be evicted if
	// its importance is lower than the new rule's. A rule of equal importance may be evicted if it has a
	// timeout. The order of eviction is: lowest importance, then rules with a timeout, then the rule that was
	// unused for the longest time.
	Evict bool
}

// Configure sets the limits of a table. If the table has more rules, it keeps them.
func (p *Tables) Configure(table uint8, c TableConfig) { p.config[table] = c }

// Config returns the limits of a table and the number of its rules.
func (p *Tables) Config(table uint8) (c TableConfig, rules int) {
	return p.config[table], p.counts[table]
}

// makeRoom makes sure that one more rule fits into the table and into the limit of the whole switch. If a
// limit is reached, it evicts a rule if the table is configured so (TableConfig.Evict). Otherwise it returns
// an error.
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

// evict evicts the first rule in the order of eviction from the table. For TableAll, it evicts it from all
// tables with TableConfig.Evict. It returns false if the rule that m adds may not displace this rule.
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

// evictable returns the rules of the table, or of all tables, that may be evicted for some new rule. They
// are in the order of eviction.
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
