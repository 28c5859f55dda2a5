// SPDX-License-Identifier: Apache-2.0

package hops

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
)

const barWidth = 40

// Print writes the ledger as a table of hops and hop groups. top is the largest
// number of functions printed for a hop.
func (l *Ledger) Print(w io.Writer, top int) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s", l.Name, figure(l.Total, l.Unit))
	for _, g := range l.groups() {
		if l.Sum(g) < 0.005 {
			continue
		}
		fmt.Fprintf(&b, ", %s %s (%.1f %%)", g, figure(l.Sum(g), l.Unit), l.part(l.Sum(g)))
	}
	b.WriteString("\n")
	greatest := 0.0
	for _, e := range l.Entries {
		greatest = max(greatest, e.Value)
	}
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for _, e := range l.Entries {
		name := e.Hop
		if e.Group != "" {
			name = e.Group + ": " + name
		}
		bar := ""
		if greatest > 0 {
			bar = strings.Repeat("█", max(0, int(barWidth*e.Value/greatest+0.5)))
		}
		fmt.Fprintf(t, "  %s\t%7.2f\t%5.1f %%\t%s\n", name, e.Value, l.part(e.Value), bar)
		for _, f := range e.Functions[:min(top, len(e.Functions))] {
			fmt.Fprintf(t, "    %s\t%7.2f\t\t\n", f.Name, f.Value)
		}
	}
	t.Flush()
	if u := l.Entry(Unknown); len(u.Functions) > 0 {
		names(&b, "  unknown: ", u.Functions)
	}
	_, err := io.WriteString(w, b.String()+"\n")
	return err
}

func names(b *strings.Builder, head string, functions []FunctionSum) {
	const wide = 100
	line := head
	for i, f := range functions {
		word := fmt.Sprintf("%s %.2f", f.Name, f.Value)
		if i < len(functions)-1 {
			word += ", "
		}
		if len(line)+len(word) > wide {
			b.WriteString(strings.TrimRight(line, " ") + "\n")
			line = "    "
		}
		line += word
	}
	b.WriteString(line + "\n")
}

func (l *Ledger) part(value float64) float64 {
	if l.Total == 0 {
		return 0
	}
	return 100 * value / l.Total
}

func (l *Ledger) groups() (names []string) {
	for _, e := range l.Entries {
		if e.Group != "" && !slices.Contains(names, e.Group) {
			names = append(names, e.Group)
		}
	}
	return names
}

func figure(value float64, unit string) string {
	if unit == UnitShare {
		return fmt.Sprintf("%.2f %s", value, unit)
	}
	return fmt.Sprintf("%.1f %s", value, unit)
}
