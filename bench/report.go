// SPDX-License-Identifier: Apache-2.0

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

// Report has the results of one run of the benchmark suite. The files in bench/results
// have this format.
type Report struct {
	Version string  `json:"version"` // Weft's version as "git describe" prints it
	When    string  `json:"when"`    // RFC 3339
	Machine Machine `json:"machine"`
	Runs    int     `json:"runs"`    // number of runs of each switch (peer); the switches alternate
	Seconds float64 `json:"seconds"` // length of one measurement in seconds
	Rows    []*Row  `json:"rows"`
}

// Machine describes the machine on which a report was measured, because results of different
// machines cannot be compared.
type Machine struct {
	CPU    string `json:"cpu"`
	Cores  int    `json:"cores"`
	Kernel string `json:"kernel"`
	Go     string `json:"go"`
	MHz    string `json:"mhz"`
}

// Row is one experiment. Samples has the results of each compared switch, one for each run. Before and
// After have the cache regime of each run as a round-trip time in nanoseconds (see Regime). Also has
// secondary results.
type Row struct {
	Name     string                      `json:"name"` // format: family/variant
	Unit     string                      `json:"unit"`
	Less     bool                        `json:"less_is_better,omitempty"`
	Note     string                      `json:"note,omitempty"` // what the row measures, and what is simulated
	Peers    []string                    `json:"peers"`
	Samples  map[string]Sample           `json:"samples"`
	Before   map[string][]int64          `json:"regime_ns"`
	After    map[string][]int64          `json:"regime_after_ns,omitempty"` // absent in older reports
	Also     map[string]map[string]Extra `json:"also,omitempty"`
	Failures map[string]string           `json:"failures,omitempty"`
}

// Gaps matches the names of secondary results that form a histogram of pauses. The result "gaps below N
// ns" is the number of pauses per second that are shorter than N, but not shorter than the next smaller
// N.
var Gaps = regexp.MustCompile(`^gaps below ([0-9]+) ns$`)

// Extra is a secondary result of an experiment with one of the compared switches, such as a percentile.
type Extra struct {
	Unit    string `json:"unit"`
	Samples Sample `json:"samples"`
}

// Print writes the report as a table of medians, spreads and ratios. A ratio greater
// than 1 means that Weft is better than the other switch.
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
			continue // a histogram of pauses is too long for a cell
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

// Regime returns the cache regime of a run: "near" if the cores shared a cache, "far"
// if they did not, "flipped" if this changed during the run, and "" if it is unknown.
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

// Regimes returns the numbers of near, far and flipped runs of one of the compared switches, for
// example "2/1/0".
func (row *Row) Regimes(peer string) string {
	count := map[string]int{}
	for i := range row.Before[peer] {
		count[row.Regime(peer, i)]++
	}
	return fmt.Sprintf("%d/%d/%d", count["near"], count["far"], count["flipped"])
}

// Better returns, for each run, the ratio of Weft's result to that of another switch, or
// the inverse if a smaller result is better. A ratio greater than 1 thus means that Weft is
// better. Weft is the first of row.Peers.
func (row *Row) Better(peer string) Sample {
	mine, theirs := row.Samples[row.Peers[0]], row.Samples[peer]
	if row.Less {
		return theirs.Ratio(mine)
	}
	return mine.Ratio(theirs)
}

// Write writes the report as JSON.
func (r *Report) Write(file string) error {
	b, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(file, append(b, '\n'), 0o644)
}

// ReadReport reads a report from a file that Report.Write wrote.
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

// Figure formats a value with three significant digits, and its unit with an SI prefix,
// such as 12.5 Mframes/s or 24.1 µs.
func Figure(value float64, unit string) string {
	scale, prefix := 1.0, ""
	const turn = 0.9995 // rounds to 1000, which is written with the next SI prefix
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
