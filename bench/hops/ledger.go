package hops

import (
	"cmp"
	"fmt"
	"slices"
)

// Ledger is a recording booked: each hop's sum, in the order of the way.
type Ledger struct {
	Name  string  `json:"name"`
	Unit  string  `json:"unit"`
	Total float64 `json:"total"` // what the recording says; Entries add up to it
	// Entries are the hops that took something, the unknown one last.
	Entries []Entry `json:"hops"`
}

// Entry is what a hop took.
type Entry struct {
	Hop   string  `json:"hop"`
	Group string  `json:"group,omitempty"`
	Value float64 `json:"value"`
	// Functions are the hop's with their sums, the greatest first. One that works
	// for others is booked under the hop it worked for.
	Functions []FunctionSum `json:"functions,omitempty"`
}

// FunctionSum is a function's own time within a hop.
type FunctionSum struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
}

// Book books some of a recording's calls.
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
	for _, f := range e.Functions { // in this order, so that the sum is the same each time
		e.Value += f.Value
	}
	return e
}

// Sum is what the hops of a group took together.
func (l *Ledger) Sum(group string) (sum float64) {
	for _, e := range l.Entries {
		if e.Group == group {
			sum += e.Value
		}
	}
	return sum
}

// Entry is that of a hop; the zero value if it took nothing.
func (l *Ledger) Entry(hop string) Entry {
	for _, e := range l.Entries {
		if e.Hop == hop {
			return e
		}
	}
	return Entry{}
}

// Ledgers books a recording: as one, or each outermost call by itself.
func (t *Table) Ledgers(r *Recording, each bool) (list []*Ledger) {
	if !each {
		return []*Ledger{t.Book(r.Name, r.Unit, r.Calls)}
	}
	for i, c := range r.Calls {
		list = append(list, t.Book(fmt.Sprintf("%s, %d: %s", r.Name, i+1, c.Function), r.Unit, []Call{c}))
	}
	return list
}
