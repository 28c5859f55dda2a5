// SPDX-License-Identifier: Apache-2.0

package hops

import (
	"cmp"
	"fmt"
	"slices"
)

// Ledger divides the time of a recording among hops. The hops are in the order of a
// frame's path.
type Ledger struct {
	Name  string  `json:"name"`
	Unit  string  `json:"unit"`
	Total float64 `json:"total"` // total time of the recording, the sum of all Entries
	// Entries has the hops whose time is not zero. The hop "unknown" is last.
	Entries []Entry `json:"hops"`
}

// Entry is the time of one hop in a ledger, in the ledger's unit.
type Entry struct {
	Hop   string  `json:"hop"`
	Group string  `json:"group,omitempty"`
	Value float64 `json:"value"`
	// Functions has the hop's functions with their times, the largest first. Helper
	// functions belong to the hop of their caller.
	Functions []FunctionSum `json:"functions,omitempty"`
}

// FunctionSum is the time of one function, without its callees.
type FunctionSum struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
}

// Book returns a ledger (times by hop) of the calls. It assigns the time of each
// function to exactly one hop.
func (t *Table) Book(name, unit string, calls []Call) *Ledger {
	l := &Ledger{Name: name, Unit: unit}
	sums := map[string]map[string]float64{}
	for _, c := range calls {
		l.Total += c.Total
		for _, own := range c.Own {
			f, hop := own.Path[len(own.Path)-1], Unknown
			h, unknown := t.Assign(own.Path)
			if h != nil {
				hop = h.Name
			} else {
				f = unknown
			}
			if sums[hop] == nil {
				sums[hop] = map[string]float64{}
			}
			sums[hop][f.String()] += own.Value
		}
	}
	for _, h := range append(slices.Clone(t.Hops), &Hop{Name: Unknown}) {
		if functions := sums[h.Name]; functions != nil {
			l.Entries = append(l.Entries, entry(h, functions))
		}
	}
	return l
}

func entry(h *Hop, functions map[string]float64) Entry {
	e := Entry{Hop: h.Name, Group: h.Group}
	for name, value := range functions {
		e.Functions = append(e.Functions, FunctionSum{name, value})
	}
	slices.SortFunc(e.Functions, func(a, b FunctionSum) int {
		return cmp.Or(cmp.Compare(b.Value, a.Value), cmp.Compare(a.Name, b.Name))
	})
	for _, f := range e.Functions { // the order is fixed, so that each run has the same rounding errors
		e.Value += f.Value
	}
	return e
}

// Sum returns the total time of the hops in a group.
func (l *Ledger) Sum(group string) (sum float64) {
	for _, e := range l.Entries {
		if e.Group == group {
			sum += e.Value
		}
	}
	return sum
}

// Entry returns the entry of the named hop, or the zero Entry if the hop has no time.
func (l *Ledger) Entry(hop string) Entry {
	for _, e := range l.Entries {
		if e.Hop == hop {
			return e
		}
	}
	return Entry{}
}

// Ledgers returns one ledger of the whole recording. If everyCall is true, it returns
// one ledger for each outermost call.
func (t *Table) Ledgers(r *Recording, everyCall bool) (list []*Ledger) {
	if !everyCall {
		return []*Ledger{t.Book(r.Name, r.Unit, r.Calls)}
	}
	for i, c := range r.Calls {
		list = append(list, t.Book(fmt.Sprintf("%s, %d: %s", r.Name, i+1, c.Function), r.Unit, []Call{c}))
	}
	return list
}
