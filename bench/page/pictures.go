// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"weft/bench"
	"weft/bench/chart"
	"weft/bench/hops"
)

// picture is an SVG file. Its title is the alternative text.
type picture struct{ name, title, svg string }

func draw(f family, rows []*row) (list []picture, err error) {
	if f.name == "hops" {
		return drawHops(f, rows)
	}
	var keys []string
	of := map[string][]*row{}
	for _, r := range rows {
		if !r.measured() {
			continue
		}
		key := r.Unit
		if numbers(rows, r) >= 3 {
			key = r.family()
		}
		if of[key] == nil {
			keys = append(keys, key)
		}
		of[key] = append(of[key], r)
	}
	for i, key := range keys {
		name := fileName(f.name) + f.suffix
		if i > 0 {
			name += fmt.Sprint("-", i+1)
		}
		p := picture{name + ".svg", f.title, ""}
		if same := of[key]; numbers(rows, same[0]) >= 3 {
			p.svg = against(f, same).SVG()
		} else {
			p.svg = bars(f, same).SVG()
		}
		list = append(list, p)
	}
	for _, r := range rows {
		if p := distribution(f, r); p != nil {
			list = append(list, picture{fileName(r.Name) + f.suffix + "-distribution.svg", p.Title, p.SVG()})
		}
	}
	if p := gaps(f, rows); p != nil {
		list = append(list, picture{fileName(f.name) + f.suffix + "-histogram.svg", p.Title, p.SVG()})
	}
	return list, nil
}

func numbers(rows []*row, r *row) (count int) {
	for _, other := range rows {
		if _, ok := other.number(); ok && other.family() == r.family() && other.Unit == r.Unit && other.measured() {
			count++
		}
	}
	return count
}

var notPlain = regexp.MustCompile(`[^a-z0-9]+`)

func fileName(text string) string {
	return strings.Trim(notPlain.ReplaceAllString(strings.ToLower(text), "-"), "-")
}

func against(f family, rows []*row) *chart.Lines {
	factor, unit := prefix(highest(rows), rows[0].Unit)
	title := f.title
	if rows[0].family() != f.name {
		title += ": " + strings.TrimPrefix(rows[0].family(), f.name+"-")
	}
	c := &chart.Lines{Title: title, Note: f.note, XUnit: f.variants, YUnit: unit, XLog: f.logX, YLog: f.log}
	peers := peersOf(rows)
	c.Colours = coloursOf(peers)
	for _, peer := range peers {
		line := chart.Line{Name: peer}
		for _, r := range rows {
			x, isNumber := r.number()
			if s := r.Samples[peer]; len(s) > 0 && isNumber {
				line.Points = append(line.Points, chart.Point{X: x, Y: s.Median() / factor, Min: s.Min() / factor, Max: s.Max() / factor})
			}
		}
		slices.SortFunc(line.Points, func(a, b chart.Point) int { return cmp.Compare(a.X, b.X) })
		c.Lines = append(c.Lines, line)
	}
	return c
}

func highest(rows []*row) (high float64) {
	for _, r := range rows {
		for _, s := range r.Samples {
			high = max(high, s.Median())
		}
	}
	return high
}

func bars(f family, rows []*row) *chart.Bars {
	factor, unit := prefix(highest(rows), rows[0].Unit)
	peers := peersOf(rows)
	c := &chart.Bars{Title: f.title, Note: f.note, Unit: unit, Series: peers, Colours: coloursOf(peers), Log: f.log}
	for _, r := range rows {
		g := chart.Group{Label: f.label(r)}
		for _, peer := range r.Peers {
			b := chart.Bar{Series: slices.Index(peers, peer), Missing: missing(r, peer)}
			if s := r.Samples[peer]; len(s) > 0 {
				b.Median, b.Min, b.Max = s.Median()/factor, s.Min()/factor, s.Max()/factor
				if q := r.Better(peer); peer != r.Peers[0] && len(q) > 0 {
					b.Note = fmt.Sprintf("(%s %.2f×)", r.Peers[0], q.Median())
				}
			}
			g.Bars = append(g.Bars, b)
		}
		c.Groups = append(c.Groups, g)
	}
	return c
}

func missing(r *row, peer string) string {
	if len(r.Samples[peer]) > 0 {
		return ""
	}
	reason := r.Failures[peer]
	if reason == "" {
		reason = "not run"
	}
	const most = 60
	if text := []rune(reason); len(text) > most {
		reason = string(text[:most]) + "…"
	}
	return reason
}

// peersOf returns all peers (Weft, Open vSwitch, ...) with a result in any of the rows, in
// the order of their first results.
func peersOf(rows []*row) (peers []string) {
	for _, r := range rows {
		for _, p := range r.Peers {
			if !slices.Contains(peers, p) {
				peers = append(peers, p)
			}
		}
	}
	return peers
}

// coloured lists the peers that get the first palette colours. Other peers get the
// following colours, in order.
var coloured = []string{"weft", "ovs-dpdk", "testpmd", "linux", "bare loop", "weft-tap", "ovs-afxdp", "weft-afxdp"}

func coloursOf(peers []string) (colours []int) {
	next := len(coloured)
	for _, p := range peers {
		at := slices.Index(coloured, p)
		if at < 0 {
			at, next = next, next+1
		}
		colours = append(colours, at)
	}
	return colours
}

func prefix(v float64, unit string) (float64, string) {
	for _, p := range []struct {
		factor float64
		name   string
	}{{1e9, "G"}, {1e6, "M"}, {1e3, "k"}} {
		if v >= p.factor && unit != "s" {
			return p.factor, p.name + unit
		}
	}
	if unit != "s" || v >= 1 || v == 0 {
		return 1, unit
	}
	switch {
	case v >= 1e-3:
		return 1e-3, "ms"
	case v >= 1e-6:
		return 1e-6, "µs"
	}
	return 1e-9, "ns"
}

var percentile = regexp.MustCompile(`^p?([0-9.]+)(?:th| %)?$`)

func distribution(f family, r *row) *chart.Lines {
	high := 0.0
	for _, also := range r.Also {
		for name, x := range also {
			if percentile.MatchString(name) {
				high = max(high, x.Samples.Median())
			}
		}
	}
	if high == 0 {
		return nil
	}
	factor, unit := prefix(high, "s")
	peers := peersOf([]*row{r})
	c := &chart.Lines{Title: f.title + ": " + f.label(r), Note: "percentiles of each run; median, least and greatest of the runs", Colours: coloursOf(peers),
		XUnit: "one in so many takes longer (100: the 99th percentile)", YUnit: unit, XLog: true, YLog: true}
	for _, peer := range peers {
		line := chart.Line{Name: peer}
		for name, x := range r.Also[peer] {
			if s := x.Samples; percentile.MatchString(name) && len(s) > 0 {
				line.Points = append(line.Points, chart.Point{X: 100 / (100 - percent(name)), Y: s.Median() / factor, Min: s.Min() / factor, Max: s.Max() / factor})
			}
		}
		slices.SortFunc(line.Points, func(a, b chart.Point) int { return cmp.Compare(a.X, b.X) })
		c.Lines = append(c.Lines, line)
	}
	return c
}

func percent(name string) float64 {
	v, _ := strconv.ParseFloat(percentile.FindStringSubmatch(name)[1], 64) // parsing cannot fail: the pattern matches only digits and points
	return v
}

func gaps(f family, rows []*row) *chart.Lines {
	c := &chart.Lines{Title: f.title + ": histogram", Note: "each point counts gaps from the length of the one before on", XUnit: "µs between two passes, less than",
		YUnit: "gaps a second", XLog: true, YLog: true}
	for _, r := range rows {
		for _, peer := range r.Peers {
			line := chart.Line{Name: peer + " " + f.label(r)}
			for name, x := range r.Also[peer] {
				if m := bench.Gaps.FindStringSubmatch(name); m != nil && x.Samples.Median() > 0 {
					ns, _ := strconv.ParseFloat(m[1], 64) // parsing cannot fail: the pattern matches only digits
					line.Points = append(line.Points, chart.Point{X: ns / 1e3, Y: x.Samples.Median(), Min: x.Samples.Median(), Max: x.Samples.Max()})
				}
			}
			slices.SortFunc(line.Points, func(a, b chart.Point) int { return cmp.Compare(a.X, b.X) })
			if len(line.Points) > 0 {
				c.Lines = append(c.Lines, line)
			}
		}
	}
	if len(c.Lines) == 0 {
		return nil
	}
	return c
}

func drawHops(f family, rows []*row) (list []picture, err error) {
	table, err := hops.NewTable()
	if err != nil {
		return nil, err
	}
	byUnit := map[string][]*hops.Ledger{}
	for _, file := range hops.Bundled {
		r, err := hops.ReadBundled(file)
		if err != nil {
			return nil, err
		}
		byUnit[r.Unit] = append(byUnit[r.Unit], table.Book(r.Name, r.Unit, r.Calls))
	}
	var alone, inARow []*hops.Ledger
	report := &bench.Report{}
	for _, r := range rows {
		report.Rows = append(report.Rows, r.Row)
	}
	for _, l := range measuredHops(table, report) {
		if strings.Contains(l.Name, "in a row") {
			inARow = append(inARow, l)
		} else {
			alone = append(alone, l)
		}
	}
	for _, d := range []struct {
		name, title, note string
		ledgers           []*hops.Ledger
	}{
		{"hops-in-a-row" + f.suffix, "One datagram of many, measured here", f.note, inARow},
		{"hops-alone" + f.suffix, "One datagram alone, measured here", "the first frame of a flow waits for control; later ones find it known", alone},
		{"hops-recorded", "One datagram into VXLAN, recorded on two hosts", "function_graph: each function's own time, the tracer's included", byUnit[hops.UnitTime]},
		{"hops-cycles", "Where cycles go: a guest's vhost thread, a replica with io_uring", "perf: shares of all cycles of the machine, of the process", byUnit[hops.UnitShare]},
	} {
		if len(d.ledgers) > 0 {
			list = append(list, picture{d.name + ".svg", d.title, drawLedgers(table, d.title, d.note, d.ledgers).SVG()})
		}
	}
	return list, nil
}
