// SPDX-License-Identifier: Apache-2.0

// Package slowtable looks flows up in a table of rules by linear search, conjunctions included.
// The tests of ofproto and xlate compare their look-ups with it.
package slowtable

import (
	"slices"

	"weft/openflow"
)

// Table is the rules of one flow table, of type R, in any order.
type Table[R any] struct{ rules []row[R] }

type row[R any] struct {
	rule     R
	priority uint16
	match    openflow.PackedMatch
	actions  []openflow.Action
}

// Add adds a rule. The table keeps the slice actions.
func (t *Table[R]) Add(rule R, priority uint16, match openflow.PackedMatch, actions []openflow.Action) {
	t.rules = append(t.rules, row[R]{rule, priority, match, actions})
}

// Lookup returns the rule that the flow f hits. Of matching rules with equal priority, the one
// added first wins. ok is false if no rule matches.
func (t *Table[R]) Lookup(f *openflow.Flow) (rule R, ok bool) {
	best := t.best(f)
	var priorities []uint16
	for i := range t.rules {
		if r := &t.rules[i]; r.isPart() && (best == nil || r.priority > best.priority) {
			priorities = append(priorities, r.priority)
		}
	}
	slices.Sort(priorities)
	for _, priority := range slices.Backward(priorities) {
		if r := t.conjunction(f, priority); r != nil {
			return r.rule, true
		}
	}
	if best == nil {
		return rule, false
	}
	return best.rule, true
}

// isPart reports whether the rule is a part of conjunctions.
func (r *row[R]) isPart() bool {
	return slices.ContainsFunc(r.actions, func(a openflow.Action) bool { return a.Kind == openflow.ActConjunction })
}

// best returns the matching rule of the highest priority that is no part of conjunctions, or nil.
func (t *Table[R]) best(f *openflow.Flow) (best *row[R]) {
	for i := range t.rules {
		if r := &t.rules[i]; !r.isPart() && r.match.Covers(f) && (best == nil || r.priority > best.priority) {
			best = r
		}
	}
	return best
}

// conjunction returns the rule of the first conjunction that matches: each of its dimensions
// has a matching rule of the given priority.
func (t *Table[R]) conjunction(f *openflow.Flow, priority uint16) *row[R] {
	parts := map[openflow.Conjunction]bool{}
	for i := range t.rules {
		r := &t.rules[i]
		if r.priority != priority || !r.match.Covers(f) {
			continue
		}
		for k := range r.actions {
			if a := &r.actions[k]; a.Kind == openflow.ActConjunction {
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
		if r := t.best(&g); r != nil {
			return r
		}
	}
	return nil
}
