// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"fmt"
	"io"
	"strings"
)

// Benchstat writes all runs in the format of Go's benchmarks
// (golang.org/design/14313-benchmark-format), a line each. benchstat then compares
// two results, or with -col /peer the peers of one. The regime precedes the runs, so
// that benchstat compares near with near; with -ignore regime it compares all.
func (r *Report) Benchstat(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "goos: linux\npkg: weft\ncpu: %s\n", r.Machine.CPU)
	told := map[string]bool{} // units whose better direction was written
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

// benchstatUnit returns a unit as benchstat knows it, or as one word.
func benchstatUnit(unit string) string {
	if unit == "s" {
		return "sec/op"
	}
	return oneWord(unit)
}

// oneWord replaces the blanks of a name: blanks separate the fields of a line.
func oneWord(name string) string { return strings.ReplaceAll(name, " ", "_") }
