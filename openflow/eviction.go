package openflow

import (
	"cmp"
	"fmt"
	"slices"
)

// Why says why a rule has left its table, in the words of OpenFlow's
// flow-removed message.
type Why uint8

// Reasons.
const (
	NotRemoved Why = iota
	WhyDeleted     // by a delete, or replaced by an add
	WhyIdle        // idle_timeout
	WhyHard        // hard_timeout
	WhyEvicted     // made room
	WhyGroup       // its group was deleted
	WhyMeter       // its meter was deleted
)

var whyWords = [...]string{"", "delete", "idle", "hard", "eviction", "group_delete", "meter_delete"}

// String is the word that ovs-ofctl monitor shows.
func (w Why) String() string { return whyWords[w] }

// TableConfig bounds one table.
type TableConfig struct {
	// Limit is the number of rules the table takes; 0: as many as the pipeline.
	Limit int
	// Evict lets an add at the limit, the table's or the pipeline's, remove a
	// rule instead of failing: of those whose importance is below that of the new
	// one, or equal if they have a timeout, the one of least importance, with a
	// timeout rather than without, used longest ago. Without such a rule the add
	// fails.
	Evict bool
}

// Configure bounds a table from now on. It removes nothing.
func (p *Pipeline) Configure(table uint8, c TableConfig) { p.config[table] = c }

// Config returns what bounds a table, and how many rules it has.
func (p *Pipeline) Config(table uint8) (c TableConfig, rules int) {
	return p.config[table], p.counts[table]
}

// makeRoom lets one more rule into the table, or says why it cannot.
func (b *bundle) makeRoom(table uint8, m *FlowMod) error {
	p, c := b.p, &b.p.config[table]
	if p.count >= p.limit {
		if !c.Evict || !b.evict(TableAll, m) {
			return fmt.Errorf("table %d: expected at most %d flows in all tables", table, p.limit)
		}
	}
	if c.Limit > 0 && p.counts[table] >= c.Limit {
		if !c.Evict || !b.evict(table, m) {
			return fmt.Errorf("table %d: expected at most %d flows in it", table, c.Limit)
		}
	}
	return nil
}

// evict removes the rule that is first to go; it reports false if none may.
func (b *bundle) evict(table uint8, m *FlowMod) bool {
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

// timed tells whether the rule goes by itself one day.
func (r *Rule) timed() bool { return r.IdleTimeout|r.HardTimeout != 0 }

// evictable lists rules of tables that evict, the first to go first.
func (p *Pipeline) evictable(table uint8) []*Rule {
	var list []*Rule
	for _, r := range p.rules {
		if r != nil && (table == TableAll || r.Table == table) && p.config[r.Table].Evict {
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
