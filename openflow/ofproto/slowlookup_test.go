// SPDX-License-Identifier: Apache-2.0

package ofproto

import (
	"slices"

	"weft/openflow"
)

// The slow twin of the classifier: a linear search for rules.

// rulesOf returns the rules of a pipeline by slot.
func rulesOf(p *Pipeline) (rules []*Rule) {
	for slot := uint32(0); len(rules) < p.Len(); slot++ {
		if r := p.Rule(slot); r != nil {
			rules = append(rules, r)
		}
	}
	return rules
}

// isPart reports whether a rule is a part of conjunctions.
func isPart(r *Rule) bool {
	return slices.ContainsFunc(r.Actions, func(a openflow.Action) bool { return a.Kind == openflow.ActConjunction })
}

func slowLookup(p *Pipeline, table uint8, f *openflow.Flow) *Rule {
	rules := rulesOf(p)
	bestRule := func(f *openflow.Flow) (best *Rule) {
		for _, r := range rules {
			if r.Table == table && !isPart(r) && r.Match.Covers(f) && (best == nil || r.Priority > best.Priority) {
				best = r
			}
		}
		return best
	}
	best := bestRule(f)
	var priorities []uint16
	for _, r := range rules {
		if isPart(r) && (best == nil || r.Priority > best.Priority) {
			priorities = append(priorities, r.Priority)
		}
	}
	slices.Sort(priorities)
	for _, priority := range slices.Backward(priorities) {
		if r := slowConjunction(p, table, f, priority, bestRule); r != nil {
			return r
		}
	}
	return best
}

// slowConjunction returns the rule of the first conjunction that matches: each of its
// dimensions has a matching rule of the given priority.
func slowConjunction(p *Pipeline, table uint8, f *openflow.Flow, priority uint16, bestRule func(*openflow.Flow) *Rule) *Rule {
	parts := map[openflow.Conjunction]bool{}
	for _, r := range rulesOf(p) {
		if r.Table != table || r.Priority != priority || !r.Match.Covers(f) {
			continue
		}
		for i := range r.Actions {
			if a := &r.Actions[i]; a.Kind == openflow.ActConjunction {
				parts[a.Conjunction()] = true
			}
		}
	}
	var ids []uint32
	for c := range parts {
		all := true
		for k := range c.Parts {
			all = all && parts[openflow.Conjunction{ID: c.ID, Part: k + 1, Parts: c.Parts}]
		}
		if all {
			ids = append(ids, c.ID)
		}
	}
	slices.Sort(ids)
	for _, id := range ids {
		g := *f
		openflow.WholeField(openflow.FConjID).Put(&g, openflow.Value64(uint64(id)), openflow.Ones(32))
		if r := bestRule(&g); r != nil {
			return r
		}
	}
	return nil
}
