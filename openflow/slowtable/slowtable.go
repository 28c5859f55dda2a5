// SPDX-License-Identifier: Apache-2.0

// Package slowtable is a slow and simple flow table: it looks flows up by linear search, conjunctions
// included. The tests of ofproto and xlate compare their look-ups with it.
package slowtable

import (
	"slices"

	"weft/openflow"
)

// Table is a flow table. R is the type of the caller's rules, which Lookup returns. The zero Table is empty.
type Table[R any] struct{ rules []row[R] }

type row[R any] struct {
	rule     R
	priority uint16
	match    openflow.PackedMatch
	actions  []openflow.Action
}

// Add adds a rule. The table keeps the slice "actions", which the caller must not change.
func (t *Table[R]) Add(rule R, priority uint16, match openflow.PackedMatch, actions []openflow.Action) {
	t.rules = append(t.rules, row[R]{rule, priority, match, actions})
}

// Lookup returns the matching rule of the highest priority for the flow f. If several have this priority, it
// returns the one that was added first. ok is false if no rule matches.
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

// isPart reports whether the rule has conjunction actions. Such a rule never matches alone.
func (r *row[R]) isPart() bool {
	return slices.ContainsFunc(r.actions, func(a openflow.Action) bool { return a.Kind == openflow.ActConjunction })
}

// best returns the matching rule of the highest priority, or nil. It ignores rules with conjunction actions.
func (t *Table[R]) best(f *openflow.Flow) (best *row[R]) {
	for i := range t.rules {
		if r := &t.rules[i]; !r.isPart() && r.match.Covers(f) && (best == nil || r.priority > best.priority) {
			best = r
		}
	}
	return best
}

// conjunction returns the rule that matches with the conj_id of a matching conjunction, or nil. A conjunction
// matches if each of its parts has a matching rule of this priority. Lower ids are tried first.
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
