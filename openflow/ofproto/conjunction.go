// SPDX-License-Identifier: Apache-2.0

package ofproto

import (
	"cmp"
	"slices"

	"weft/openflow"
)

// conjunctive finds a rule that matches through a conjunction: each part of the conjunction has a matching
// rule (ovs-actions(7)). hardRule is the best rule that matches without a conjunction. softRules are the
// matching rules that have conjunction actions. If conjunctive finds a rule of a conjunction, id is the
// conjunction's ID. Otherwise it returns hardRule and 0.
func (c *classifier) conjunctive(f *openflow.Flow, v Visitor, hardRule *Rule, softRules []*Rule) (foundRule *Rule, id uint32) {
	slices.SortStableFunc(softRules, func(a, b *Rule) int { return cmp.Compare(b.Priority, a.Priority) })
	for len(softRules) > 0 && (hardRule == nil || softRules[0].Priority > hardRule.Priority) {
		n := 1
		for n < len(softRules) && softRules[n].Priority == softRules[0].Priority {
			n++
		}
		for _, id := range complete(softRules[:n]) {
			g := *f
			openflow.WholeField(openflow.FConjID).Put(&g, openflow.Value64(uint64(id)), openflow.Ones(32))
			if r := c.search(&g, v, nil); r != nil {
				return r, id
			}
		}
		softRules = softRules[n:]
	}
	return hardRule, 0
}

// complete returns the IDs of those conjunctions that have a rule in "rules" for each of their parts. The
// IDs are in ascending order.
func complete(rules []*Rule) (ids []uint32) {
	type key struct {
		id    uint32
		parts uint8
	}
	parts := map[key]uint64{}
	for _, r := range rules {
		for i := range r.Actions {
			if r.Actions[i].Kind != openflow.ActConjunction {
				continue
			}
			c := r.Actions[i].Conjunction()
			k := key{c.ID, c.Parts}
			parts[k] |= 1 << (c.Part - 1)
			if parts[k] == 1<<c.Parts-1 {
				ids = append(ids, c.ID)
			}
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}
