package main

import (
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"weft/bench"
	"weft/bench/chart"
	"weft/bench/hops"
)

// picture is a file and what it says to those who do not see it.
type picture struct{ name, title, svg string }

// draw makes the pictures of a family's rows: those of a unit together, against
// the variant where that is a number, and the percentiles and histograms that
// the second figures hold.
func draw(f family, rows []*row) (list []picture, err error) {
	if f.name == "hops" {
		return drawHops(f, rows)
	}
	var units []string
	for _, r := range rows {
		if r.measured() && !slices.Contains(units, r.Unit) {
			units = append(units, r.Unit)
		}
	}
	for i, unit := range units {
		var same []*row
		for _, r := range rows {
			if r.Unit == unit {
				same = append(same, r)
			}
		}
		name := fileName(f.name)
		if i > 0 {
			name += fmt.Sprint("-", i+1)
		}
		list = append(list, picture{name + ".svg", f.title, compare(f, same)})
	}
	if p := percentiles(f, rows); p != nil {
		list = append(list, picture{fileName(f.name) + "-percentiles.svg", p.Title, p.SVG()})
	}
	if p := gaps(f, rows); p != nil {
		list = append(list, picture{fileName(f.name) + "-histogram.svg", p.Title, p.SVG()})
	}
	return list, nil
}

var notPlain = regexp.MustCompile(`[^a-z0-9]+`)

func fileName(text string) string {
	return strings.Trim(notPlain.ReplaceAllString(strings.ToLower(text), "-"), "-")
}

// compare draws rows of one unit: lines if at least three variants are numbers,
// else bars.
func compare(f family, rows []*row) string {
	numbers, peers, high := 0, peersOf(rows), 0.0
	for _, r := range rows {
		if _, ok := r.number(); ok {
			numbers++
		}
		for _, s := range r.Samples {
			high = max(high, s.Median())
		}
	}
	factor, unit := prefix(high, rows[0].Unit)
	if numbers < 3 || numbers < len(rows) {
		return bars(f, rows, peers, factor, unit).SVG()
	}
	c := &chart.Lines{Title: f.title, Note: f.note, XUnit: f.variants, YUnit: unit, XLog: true, YLog: f.log}
	for _, peer := range peers {
		line := chart.Line{Name: peer}
		for _, r := range rows {
			if s := r.Samples[peer]; len(s) > 0 {
				x, _ := r.number() // all are: counted above
				line.Points = append(line.Points, chart.Point{X: x, Y: s.Median() / factor, Min: s.Min() / factor, Max: s.Max() / factor})
			}
		}
		slices.SortFunc(line.Points, func(a, b chart.Point) int { return int(math.Copysign(1, a.X-b.X)) })
		c.Lines = append(c.Lines, line)
	}
	return c.SVG()
}

func bars(f family, rows []*row, peers []string, factor float64, unit string) *chart.Bars {
	c := &chart.Bars{Title: f.title, Note: f.note, Unit: unit, Series: peers, Log: f.log}
	for _, r := range rows {
		g := chart.Group{Label: r.variant()}
		if g.Label == "" {
			g.Label = r.Name
		}
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

// missing is why a peer has no figure, shortened to a picture's width.
func missing(r *row, peer string) string {
	if len(r.Samples[peer]) > 0 {
		return ""
	}
	why := r.Failures[peer]
	if why == "" {
		why = "not run"
	}
	const most = 60
	if text := []rune(why); len(text) > most {
		why = string(text[:most]) + "…"
	}
	return why
}

// peersOf are all peers of the rows, those of the first rows first.
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

// prefix is the factor and the name of a unit in which a figure has one to three
// digits before the point.
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

var percentile = regexp.MustCompile(`^p([0-9.]+)$`)

// percentiles draws second figures called p50, p99, ...: nil if there are none.
func percentiles(f family, rows []*row) *chart.Bars {
	high := 0.0
	for _, r := range rows {
		for _, also := range r.Also {
			for name, x := range also {
				if percentile.MatchString(name) {
					high = max(high, x.Samples.Median())
				}
			}
		}
	}
	if high == 0 {
		return nil
	}
	factor, unit := prefix(high, "s")
	peers := peersOf(rows)
	c := &chart.Bars{Title: f.title + ": latency", Note: "percentiles of each run; median, least and greatest of the runs", Unit: unit, Series: peers, Log: true}
	for _, r := range rows {
		var names []string
		for _, peer := range r.Peers {
			for name := range r.Also[peer] {
				if percentile.MatchString(name) && !slices.Contains(names, name) {
					names = append(names, name)
				}
			}
		}
		slices.SortFunc(names, func(a, b string) int { return int(math.Copysign(1, nines(a)-nines(b))) })
		for _, name := range names {
			g := chart.Group{Label: strings.TrimSpace(r.variant() + " " + name)}
			for _, peer := range r.Peers {
				if s := r.Also[peer][name].Samples; len(s) > 0 {
					g.Bars = append(g.Bars, chart.Bar{Series: slices.Index(peers, peer), Median: s.Median() / factor, Min: s.Min() / factor, Max: s.Max() / factor})
				}
			}
			c.Groups = append(c.Groups, g)
		}
	}
	return c
}

func nines(name string) float64 {
	v, _ := strconv.ParseFloat(percentile.FindStringSubmatch(name)[1], 64) // digits and points
	return v
}

// gap is how a second figure of a histogram is called: gaps below so much.
var gap = regexp.MustCompile(`^gaps below ([0-9]+) ns$`)

// gaps draws histograms: nil if there are none.
func gaps(f family, rows []*row) *chart.Lines {
	c := &chart.Lines{Title: f.title + ": histogram", Note: "each point counts gaps from half of its length on", XUnit: "µs between two passes, less than",
		YUnit: "gaps a second", XLog: true, YLog: true}
	for _, r := range rows {
		for _, peer := range r.Peers {
			line := chart.Line{Name: strings.TrimSpace(peer + " " + r.variant())}
			for name, x := range r.Also[peer] {
				if m := gap.FindStringSubmatch(name); m != nil && x.Samples.Median() > 0 {
					ns, _ := strconv.ParseFloat(m[1], 64) // digits
					line.Points = append(line.Points, chart.Point{X: ns / 1e3, Y: x.Samples.Median(), Min: x.Samples.Median(), Max: x.Samples.Max()})
				}
			}
			slices.SortFunc(line.Points, func(a, b chart.Point) int { return int(math.Copysign(1, a.X-b.X)) })
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

// drawHops draws the recordings by time and by share, and what was measured here.
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
	for _, l := range table.Measured(report) {
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
		{"hops-in-a-row", "One datagram of many, measured here", f.note, inARow},
		{"hops-alone", "One datagram alone, measured here", "the first frame of a flow waits for control; later ones find it known", alone},
		{"hops-recorded", "One datagram into VXLAN, recorded on two hosts", "function_graph: each function's own time, the tracer's included", byUnit[hops.UnitTime]},
		{"hops-cycles", "Where cycles go: a guest's vhost thread, a replica with io_uring", "perf: shares of all cycles of the machine, of the process", byUnit[hops.UnitShare]},
	} {
		if len(d.ledgers) > 0 {
			list = append(list, picture{d.name + ".svg", d.title, table.Draw(d.title, d.note, d.ledgers).SVG()})
		}
	}
	return list, nil
}
