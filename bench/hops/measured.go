package hops

import (
	"fmt"
	"strings"

	"weft/bench"
)

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

// Measured makes a ledger of each peer's row "hops/...": the figure is the time
// of a frame in seconds, the second figures named as hops are its parts, medians
// both. What the parts do not have is the unknown's.
func (t *Table) Measured(r *bench.Report) (list []*Ledger) {
	for _, row := range r.Rows {
		variant, ok := strings.CutPrefix(row.Name, "hops/")
		if !ok {
			continue
		}
		for _, peer := range row.Peers {
			if len(row.Samples[peer]) == 0 {
				continue
			}
			l := &Ledger{Name: peer + ", " + variant, Unit: UnitTime, Total: 1e6 * row.Samples[peer].Median()}
			rest := l.Total
			for _, h := range t.Hops {
				x, ok := row.Also[peer][h.Name]
				if !ok {
					continue
				}
				value := 1e6 * x.Samples.Median()
				rest -= value
				l.Entries = append(l.Entries, Entry{Hop: h.Name, Group: h.Group, Value: value})
			}
			list = append(list, l)
			if rest > l.Total/1000 {
				l.Entries = append(l.Entries, Entry{Hop: Unknown, Value: rest})
			}
		}
	}
	return list
}
