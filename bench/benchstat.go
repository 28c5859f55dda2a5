// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"fmt"
	"io"
	"strings"
)

// Benchstat writes each run as a line of Go's benchmark format
// (golang.org/design/14313-benchmark-format). The program benchstat compares two reports, or with "-col
// /peer" the switches of one report. It compares only runs of the same cache regime (see Regime),
// unless "-ignore regime" is given.
func (r *Report) Benchstat(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "goos: linux\npkg: weft\ncpu: %s\n", r.Machine.CPU)
	told := map[string]bool{} // units whose "Unit" line is already written
	regime := ""
	for _, row := range r.Rows {
		unit := benchstatUnit(row.Unit)
		if !told[unit] {
			told[unit] = true
			better := "higher"
			if row.Less {
				better = "lower"
			}
			fmt.Fprintf(&b, "Unit %s better=%s\n", unit, better)
		}
		for _, peer := range row.Peers {
			for i, figure := range row.Samples[peer] {
				if now := row.Regime(peer, i); now != regime {
					regime = now
					fmt.Fprintf(&b, "regime: %s\n", regime)
				}
				fmt.Fprintf(&b, "Benchmark%s%s/peer=%s 1 %g %s\n", strings.ToUpper(row.Name[:1]), oneWord(row.Name[1:]), oneWord(peer), figure, unit)
			}
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// benchstatUnit returns benchstat's name of a unit. A unit that benchstat does not
// know becomes one word.
func benchstatUnit(unit string) string {
	if unit == "s" {
		return "sec/op"
	}
	return oneWord(unit)
}

// oneWord replaces blanks, because they separate the fields of a benchmark line.
func oneWord(name string) string { return strings.ReplaceAll(name, " ", "_") }
