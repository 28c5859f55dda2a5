// SPDX-License-Identifier: Apache-2.0

package hops

import (
	"cmp"
	"fmt"
	"slices"
)

// Ledger has the time of a recording by hop, in the order of the path.
type Ledger struct {
	Name  string  `json:"name"`
	Unit  string  `json:"unit"`
	Total float64 `json:"total"` // the recording's own total; Entries add up to it
	// Entries has the hops with time, the unknown one last.
	Entries []Entry `json:"hops"`
}

// Entry is the time of a hop.
type Entry struct {
	Hop   string  `json:"hop"`
	Group string  `json:"group,omitempty"`
	Value float64 `json:"value"`
	// Functions has the hop's functions with their sums, greatest first. A helper
	// function is booked to the hop of its caller.
	Functions []FunctionSum `json:"functions,omitempty"`
}

// FunctionSum is a function's own time in a hop.
type FunctionSum struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
}

// Book makes a ledger of calls.
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
	for _, f := range e.Functions { // a fixed order gives the same sum each time
		e.Value += f.Value
	}
	return e
}

// Sum returns the time of a group's hops.
func (l *Ledger) Sum(group string) (sum float64) {
	for _, e := range l.Entries {
		if e.Group == group {
			sum += e.Value
		}
	}
	return sum
}

// Entry returns the entry of a hop, the zero value if it has no time.
func (l *Ledger) Entry(hop string) Entry {
	for _, e := range l.Entries {
		if e.Hop == hop {
			return e
		}
	}
	return Entry{}
}

// Ledgers makes one ledger of a recording, or with each, one for each outermost call.
func (t *Table) Ledgers(r *Recording, each bool) (list []*Ledger) {
	if !each {
		return []*Ledger{t.Book(r.Name, r.Unit, r.Calls)}
	}
	for i, c := range r.Calls {
		list = append(list, t.Book(fmt.Sprintf("%s, %d: %s", r.Name, i+1, c.Function), r.Unit, []Call{c}))
	}
	return list
}
