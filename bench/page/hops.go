// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"

	"weft/bench"
	"weft/bench/chart"
	"weft/bench/hops"
)

// measuredHops returns a ledger (times by hop) for each peer of the rows "hops/...". A
// sample is the time of a frame in seconds. The medians of hops do not add up to the
// median total. Each hop therefore gets a proportional share of the median total.
func measuredHops(t *hops.Table, r *bench.Report) (list []*hops.Ledger) {
	for _, row := range r.Rows {
		variant, ok := strings.CutPrefix(row.Name, "hops/")
		if !ok {
			continue
		}
		for _, peer := range row.Peers {
			sum := sumOf(row.Samples[peer])
			if sum == 0 {
				continue
			}
			l := &hops.Ledger{Name: peer + ", " + variant, Unit: hops.UnitTime, Total: 1e6 * row.Samples[peer].Median()}
			rest := l.Total
			for _, h := range t.Hops {
				if part := sumOf(row.Also[peer][h.Name].Samples); part > 0 {
					value := l.Total * part / sum
					rest -= value
					l.Entries = append(l.Entries, hops.Entry{Hop: h.Name, Group: h.Group, Value: value})
				}
			}
			if rest > l.Total/1000 {
				l.Entries = append(l.Entries, hops.Entry{Hop: hops.Unknown, Value: rest})
			}
			list = append(list, l)
		}
	}
	return list
}

func sumOf(s bench.Sample) (sum float64) {
	for _, v := range s {
		sum += v
	}
	return sum
}

func drawLedgers(t *hops.Table, title, note string, ledgers []*hops.Ledger) *chart.Stack {
	c := &chart.Stack{Title: title, Note: note, Unit: ledgers[0].Unit}
	c.Names, c.Colours = hopColours(t)
	for _, l := range ledgers {
		bar := chart.StackBar{Label: l.Name}
		for _, e := range l.Entries {
			bar.Parts = append(bar.Parts, chart.Part{Name: e.Hop, Value: e.Value})
		}
		c.Bars = append(c.Bars, bar)
	}
	return c
}

// hopColours returns the palette index of each hop, equal in all pictures.
func hopColours(t *hops.Table) (names []string, colours []int) {
	next := map[string]int{"netfilter": chart.Reds, "Weft": chart.Blues}
	for _, h := range t.Hops {
		names, colours = append(names, h.Name), append(colours, next[h.Group])
		next[h.Group]++
	}
	return append(names, hops.Unknown), append(colours, chart.Reds-1)
}
