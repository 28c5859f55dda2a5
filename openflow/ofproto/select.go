// SPDX-License-Identifier: Apache-2.0

package ofproto

import (
	"cmp"
	"slices"

	"weft/openflow"
)

// Select returns the rules that a filter of ParseFilter selects. They are sorted by table, then by priority,
// the highest first, and then by age, the oldest first.
func (p *Tables) Select(filter *openflow.FlowMod) []*Rule {
	rules := p.selectRules(filter)
	slices.SortStableFunc(rules, func(a, b *Rule) int {
		return cmp.Or(cmp.Compare(a.Table, b.Table), cmp.Compare(b.Priority, a.Priority),
			cmp.Compare(a.CreatedNS, b.CreatedNS), cmp.Compare(a.Slot, b.Slot))
	})
	return rules
}

// selectRules returns the rules that m, which is a modify, a delete or a filter, selects.
func (p *Tables) selectRules(m *openflow.FlowMod) []*Rule {
	var found []*Rule
	if m.Command == openflow.ModifyStrict || m.Command == openflow.DeleteStrict {
		for t := range p.tables {
			if m.Table != openflow.TableAll && m.Table != uint8(t) {
				continue
			}
			if r := p.tables[t].find(m.Match, m.Priority); r != nil && selects(m, r) {
				found = append(found, r)
			}
		}
		return found
	}
	within := m.Match.Unpack()
	for _, r := range p.rules {
		if r != nil && selects(m, r) && r.Match.Within(&within) {
			found = append(found, r)
		}
	}
	return found
}

func outputsTo(actions []openflow.Action, port uint32) bool {
	for i := range actions {
		if actions[i].Kind == openflow.ActOutput && actions[i].Port == port || actions[i].Kind == openflow.ActController && port == openflow.PortController || outputsTo(actions[i].Sub, port) {
			return true
		}
	}
	return false
}

// scanSlots limits the number of slots that one call of Scan visits, so that the caller does not hold its
// lock for long.
const scanSlots = 4096

// Scan calls the function visit for the rules that the filter selects. It starts at the slot startSlot and
// returns the slot at which the caller continues. remaining is false if there are no more rules. One call
// visits at most scanSlots slots, and calls visit at most limit times.
func (p *Tables) Scan(filter *openflow.FlowMod, startSlot uint32, limit int, visit func(*Rule)) (next uint32, remaining bool) {
	within := filter.Match.Unpack()
	end := min(uint64(len(p.rules)), uint64(startSlot)+scanSlots)
	for at := uint64(startSlot); at < end; at++ {
		r := p.rules[at]
		if r == nil || !selects(filter, r) || !r.Match.Within(&within) {
			continue
		}
		visit(r)
		if limit--; limit == 0 {
			return uint32(at + 1), at+1 < uint64(len(p.rules))
		}
	}
	return uint32(end), end < uint64(len(p.rules))
}

// selects reports whether the filter selects the rule by table, cookie, out_port and out_group. It does not
// compare the matches.
func selects(m *openflow.FlowMod, r *Rule) bool {
	return (m.Table == openflow.TableAll || m.Table == r.Table) && (r.Cookie^m.Cookie)&m.CookieMask == 0 &&
		(!m.ByOutPort || outputsTo(r.Actions, m.OutPort)) &&
		(!m.ByOutGroup || refersTo(r.Actions, openflow.ActGroup, func(id uint32) bool { return id == m.OutGroup }))
}

// Selector is a filter of rules in a form that compares many rules quickly.
type Selector struct {
	filter openflow.FlowMod
	words  []selectorWord
}

// selectorWord is a word of the filter's match whose mask is not 0.
type selectorWord struct {
	word        int
	value, mask uint64
}

// NewSelector returns the Selector of a filter. The caller may change the filter afterwards.
func NewSelector(filter *openflow.FlowMod) *Selector {
	s := &Selector{filter: *filter}
	within := filter.Match.Unpack()
	for i, mask := range within.Mask {
		if mask != 0 {
			s.words = append(s.words, selectorWord{i, within.Value[i] & mask, mask})
		}
	}
	return s
}

// Selects reports whether the filter selects rule r. The argument unpackedMatch is r.Match.Unpack(). The
// caller unpacks it once for several Selectors.
func (s *Selector) Selects(r *Rule, unpackedMatch *openflow.Match) bool {
	if s.filter.Table != openflow.TableAll && s.filter.Table != r.Table {
		return false
	}
	for _, w := range s.words {
		if w.mask&^unpackedMatch.Mask[w.word] != 0 || (unpackedMatch.Value[w.word]^w.value)&w.mask != 0 {
			return false
		}
	}
	return selects(&s.filter, r)
}
