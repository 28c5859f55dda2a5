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

// ReadMeasured is Measured of a file of results; one without such rows is an
// error.
func (t *Table) ReadMeasured(file string) ([]*Ledger, error) {
	report, err := bench.ReadReport(file)
	if err != nil {
		return nil, err
	}
	list := t.Measured(report)
	if len(list) == 0 {
		return nil, fmt.Errorf("%s has no rows of the family hops/", file)
	}
	return list, nil
}

// Measured makes a ledger of each peer's row "hops/...": the figure, whose median
// is the total, is the time of a frame in seconds, the second figures named as
// hops are its parts. Medians of parts would not add up, sums over the runs do:
// their shares split the median. What no part has is the unknown's.
func (t *Table) Measured(r *bench.Report) (list []*Ledger) {
	for _, row := range r.Rows {
		variant, ok := strings.CutPrefix(row.Name, "hops/")
		if !ok {
			continue
		}
		for _, peer := range row.Peers {
			sum := add(row.Samples[peer])
			if sum == 0 {
				continue
			}
			l := &Ledger{Name: peer + ", " + variant, Unit: UnitTime, Total: 1e6 * row.Samples[peer].Median()}
			rest := l.Total
			for _, h := range t.Hops {
				if part := add(row.Also[peer][h.Name].Samples); part > 0 {
					value := l.Total * part / sum
					rest -= value
					l.Entries = append(l.Entries, Entry{Hop: h.Name, Group: h.Group, Value: value})
				}
			}
			if rest > l.Total/1000 {
				l.Entries = append(l.Entries, Entry{Hop: Unknown, Value: rest})
			}
			list = append(list, l)
		}
	}
	return list
}

func add(s bench.Sample) (sum float64) {
	for _, v := range s {
		sum += v
	}
	return sum
}
