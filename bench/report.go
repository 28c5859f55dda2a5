package bench

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"regexp"
	"slices"
	"strings"
	"text/tabwriter"
)

// Report is what a run of the suite found, as it is kept in bench/results.
type Report struct {
	Version string  `json:"version"` // of Weft, as git describes it
	When    string  `json:"when"`    // RFC 3339
	Machine Machine `json:"machine"`
	Runs    int     `json:"runs"`    // of each peer, alternating
	Seconds float64 `json:"seconds"` // of one measurement
	Rows    []*Row  `json:"rows"`
}

// Machine describes where the figures come from.
type Machine struct {
	CPU    string `json:"cpu"`
	Cores  int    `json:"cores"`
	Kernel string `json:"kernel"`
	Go     string `json:"go"`
	MHz    string `json:"mhz"`
}

// Row is one experiment: a sample of each peer. A peer's regimes (nanoseconds of
// a cache line's round trip before and after a run, see Regime) and second figures
// go with its sample, run by run.
type Row struct {
	Name     string                      `json:"name"` // family/variant
	Unit     string                      `json:"unit"`
	Less     bool                        `json:"less_is_better,omitempty"`
	Peers    []string                    `json:"peers"`
	Samples  map[string]Sample           `json:"samples"`
	Before   map[string][]int64          `json:"regime_ns"`
	After    map[string][]int64          `json:"regime_after_ns,omitempty"` // not of older results
	Also     map[string]map[string]Extra `json:"also,omitempty"`
	Failures map[string]string           `json:"failures,omitempty"`
}

// Gaps is what second figures are called that make a histogram: how many gaps a second
// were below so many ns, and not below the next smaller number.
var Gaps = regexp.MustCompile(`^gaps below ([0-9]+) ns$`)

// Extra is a second figure of a peer's runs: a percentile, seconds of CPU.
type Extra struct {
	Unit    string `json:"unit"`
	Samples Sample `json:"samples"`
}

// Print writes the table for people: median, spread, and how Weft compares with
// each peer, run by run, so that more than 1 is always in Weft's favour.
func (r *Report) Print(w io.Writer) {
	fmt.Fprintf(w, "weft %s  %s  %d cores  Linux %s  %s  %d alternating runs of %g s\n\n",
		r.Version, r.Machine.CPU, r.Machine.Cores, r.Machine.Kernel, r.Machine.Go, r.Runs, r.Seconds)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "EXPERIMENT\tPEER\tMEDIAN\tMIN\tMAX\tNEAR/FAR/FLIPPED\tWEFT IS BETTER\tALSO")
	for _, row := range r.Rows {
		for _, peer := range row.Peers {
			row.print(t, peer)
		}
	}
	t.Flush()
}

func (row *Row) print(w io.Writer, peer string) {
	s := row.Samples[peer]
	if len(s) == 0 {
		fmt.Fprintf(w, "%s\t%s\tfailed\t\t\t\t\t%s\n", row.Name, peer, row.Failures[peer])
		return
	}
	ratio := ""
	if q := row.Better(peer); peer != row.Peers[0] && len(q) > 0 {
		ratio = fmt.Sprintf("%.2f times (%.2f to %.2f)", q.Median(), q.Min(), q.Max())
	}
	var also []string
	for _, name := range slices.Sorted(maps.Keys(row.Also[peer])) {
		if Gaps.MatchString(name) {
			continue // a histogram's, which is drawn
		}
		x := row.Also[peer][name]
		also = append(also, name+" "+Figure(x.Samples.Median(), x.Unit))
	}
	if f := row.Failures[peer]; f != "" {
		also = append(also, "a run failed: "+f)
	}
	fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", row.Name, peer, Figure(s.Median(), row.Unit), Figure(s.Min(), row.Unit),
		Figure(s.Max(), row.Unit), row.Regimes(peer), ratio, strings.Join(also, ", "))
}

// Regime of a peer's run: near or far, before and after it, or flipped; "" if nobody
// looked. All runs are in the median.
func (row *Row) Regime(peer string, run int) string {
	before, after := row.Before[peer], row.After[peer]
	if run >= len(before) {
		return ""
	}
	name := func(ns int64) string {
		if ns < nearBelow.Nanoseconds() {
			return "near"
		}
		return "far"
	}
	if run < len(after) && name(before[run]) != name(after[run]) {
		return "flipped"
	}
	return name(before[run])
}

// Regimes counts a peer's runs by their regime: near/far/flipped.
func (row *Row) Regimes(peer string) string {
	count := map[string]int{}
	for i := range row.Before[peer] {
		count[row.Regime(peer, i)]++
	}
	return fmt.Sprintf("%d/%d/%d", count["near"], count["far"], count["flipped"])
}

// Better is how many times better than the peer the row's first peer (Weft) did,
// run by run; empty if one of them has no runs.
func (row *Row) Better(peer string) Sample {
	mine, theirs := row.Samples[row.Peers[0]], row.Samples[peer]
	if row.Less {
		return theirs.Ratio(mine)
	}
	return mine.Ratio(theirs)
}

// Write keeps the report as JSON.
func (r *Report) Write(file string) error {
	b, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(file, append(b, '\n'), 0o644)
}

// ReadReport reads what Write wrote.
func ReadReport(file string) (*Report, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	r := new(Report)
	if err := json.Unmarshal(b, r); err != nil {
		return nil, fmt.Errorf("%s: not a report of the suite: %w", file, err)
	}
	return r, nil
}

// Figure writes a value in its unit with three digits and a prefix: 12.5 Mframes/s,
// 24.1 µs.
func Figure(value float64, unit string) string {
	scale, prefix := 1.0, ""
	const turn = 0.9995 // of a prefix, what three digits round up to it
	switch size := math.Abs(value); {
	case size >= turn*1e9:
		scale, prefix = 1e9, "G"
	case size >= turn*1e6:
		scale, prefix = 1e6, "M"
	case size >= turn*1e3:
		scale, prefix = 1e3, "k"
	case size >= turn || size == 0:
	case unit != "s":
	case size >= turn*1e-3:
		scale, prefix = 1e-3, "m"
	case size >= turn*1e-6:
		scale, prefix = 1e-6, "µ"
	default:
		scale, prefix = 1e-9, "n"
	}
	return fmt.Sprintf("%.3g %s%s", value/scale, prefix, unit)
}
