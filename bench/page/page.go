// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"weft/bench"
)

// family is a section of the results page. A row belongs to it if the row's name, up to the
// slash, is the section's name, or begins with that name and a hyphen.
type family struct{ name, title, note string }

func write(rows []*row) string {
	var b strings.Builder
	b.WriteString(head)
	b.WriteString(sources(rows))
	for _, f := range familiesOf(rows) {
		var own []*row
		for _, r := range rows {
			if f.contains(r) {
				own = append(own, r)
			}
		}
		fmt.Fprintf(&b, "\n## %s\n\n%s\n\n", f.title, sentence(f.note))
		f.table(&b, own)
	}
	return b.String()
}

const head = `# Results

` + "`go run ./bench/page`" + ` writes this page from the JSON files beside it. Do not edit it.

Each JSON file is the output of ` + "`make bench BENCHARGS=\"-out FILE ...\"`" + `. It has every run, the
machine, and the round-trip time of a cache line between the two cores before and after each
run. Runs alternate between the peers.

**Near, far, flipped.** The two cores of a shared host share a cache at times (near) and at
times not (far), and this changes every few minutes. Two processes are up to four times slower
far than near. So compare peers within a row only, and look at the column near/far/flipped: it
counts the runs near, the runs far, and the runs during which the cores changed. The median
includes all runs.

**Processors.** Processors differ more than switches. The kernel's segmentation and tracking take
half the time on one processor that they take on another. So each row names its processor, the
rows of two processors stand below each other, and no ratio mixes them.

**Also.** The medians of a row's other results. The JSON files have each run of them, and the
histograms of pauses.

**Weft is better.** The median, over the runs, of Weft's figure divided by the peer's. If less is
better, the ratio is inverted, so more than 1 is always in Weft's favour.

Each row shows its newest result of each processor. The history of this folder has older ones.
` + "`make benchstat OLD=FILE NEW=FILE`" + ` compares two results row by row and says which differences
are within the spread of the runs.

`

func sources(rows []*row) string {
	var b strings.Builder
	b.WriteString("| result | Weft | when | machine |\n|---|---|---|---|\n")
	seen := map[string]bool{}
	for _, r := range rows {
		if seen[r.file] {
			continue
		}
		seen[r.file] = true
		m := r.report.Machine
		fmt.Fprintf(&b, "| [%s](%s) | %s | %s | %s, %d cores, Linux %s, %s |\n", r.file, r.file, r.report.Version, r.report.When, m.CPU, m.Cores, m.Kernel, m.Go)
	}
	return b.String()
}

func (f *family) contains(r *row) bool {
	return r.family() == f.name || strings.HasPrefix(r.family(), f.name+"-")
}

func (f *family) label(r *row) string {
	if r.family() != f.name {
		return strings.TrimPrefix(r.Name, f.name+"-")
	}
	if r.variant() == "" {
		return r.Name
	}
	return r.variant()
}

// familiesOf returns the sections of the page: the predefined families that have rows, then one
// for each other family of the rows.
func familiesOf(rows []*row) (list []family) {
	for _, f := range families {
		if slices.ContainsFunc(rows, f.contains) {
			list = append(list, f)
		}
	}
	for _, r := range rows {
		if !slices.ContainsFunc(list, func(f family) bool { return f.contains(r) }) {
			list = append(list, family{name: r.family(), title: r.family()})
		}
	}
	return list
}

func sentence(text string) string {
	if text == "" {
		return ""
	}
	runes := []rune(text)
	return strings.ToUpper(string(runes[:1])) + string(runes[1:]) + "."
}

func (f *family) table(b *strings.Builder, rows []*row) {
	b.WriteString("| | processor | peer | median | min to max | runs | near/far/flipped | Weft is better | also |\n|---|---|---|---|---|---|---|---|---|\n")
	for _, r := range rows {
		label, processor := f.label(r), r.processor()
		for _, peer := range r.Peers {
			s := r.Samples[peer]
			if len(s) == 0 {
				fmt.Fprintf(b, "| %s | %s | %s | — | | 0 | | | %s |\n", label, processor, peer, cell(missing(r, peer)))
			} else {
				better := ""
				if q := r.Better(peer); peer != r.Peers[0] && len(q) > 0 {
					better = fmt.Sprintf("%.2f× (%.2f to %.2f)", q.Median(), q.Min(), q.Max())
				}
				fmt.Fprintf(b, "| %s | %s | %s | %s | %s to %s | %d | %s | %s | %s |\n", label, processor, peer, bench.Figure(s.Median(), r.Unit),
					bench.Figure(s.Min(), r.Unit), bench.Figure(s.Max(), r.Unit), len(s), r.Regimes(peer), better, cell(secondary(r, peer)))
			}
			label, processor = "", ""
		}
	}
	f.notes(b, rows)
}

// secondary returns the text of the last column: secondary results and failures.
// Histograms of pauses are too long for it.
func secondary(r *row, peer string) string {
	var words []string
	for _, name := range slices.Sorted(maps.Keys(r.Also[peer])) {
		if bench.Gaps.MatchString(name) {
			continue
		}
		x := r.Also[peer][name]
		words = append(words, name+" "+bench.Figure(x.Samples.Median(), x.Unit))
	}
	if f := r.Failures[peer]; f != "" {
		words = append(words, "a run failed: "+f)
	}
	return strings.Join(words, ", ")
}

// missing returns the reason why one of the compared switches has no result in a row.
func missing(r *row, peer string) string {
	reason := cmp.Or(r.Failures[peer], "not run")
	const most = 60
	if text := []rune(reason); len(text) > most {
		reason = string(text[:most]) + "…"
	}
	return reason
}

func cell(text string) string { return strings.NewReplacer("|", "\\|", "\n", " ").Replace(text) }

// notes writes the notes of the rows in this section of the results page, each note once.
func (f *family) notes(b *strings.Builder, rows []*row) {
	first, written := true, map[string]bool{}
	for _, r := range rows {
		note := f.label(r) + r.Note
		if r.Note == "" || written[note] {
			continue
		}
		written[note] = true
		if first {
			b.WriteString("\n")
		}
		first = false
		fmt.Fprintf(b, "- **%s**: %s\n", f.label(r), r.Note)
	}
}
