// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"slices"
	"strings"

	"weft/bench"
)

// The table of results in the project's README is between these two lines.
const (
	figuresBegin = "<!-- figures: written by go run ./bench/page, from bench/results -->"
	figuresEnd   = "<!-- end of figures -->"
)

// headline is a line of the README's table: the benchmark row with the name in "row", and its
// label. If a processor has no result of that row, the table shows the row named in "older"
// with olderLabel. "older" may be "".
type headline struct{ row, label, older, olderLabel string }

// fillFigures replaces the table of results in the README's text. Without the marker lines, it
// returns the text unchanged.
func fillFigures(text string, rows []*row) (string, error) {
	before, rest, found := strings.Cut(text, figuresBegin)
	if !found {
		return text, nil
	}
	_, after, found := strings.Cut(rest, figuresEnd)
	if !found {
		return "", fmt.Errorf("%q is missing", figuresEnd)
	}
	var b strings.Builder
	b.WriteString("| | processor | Weft | beside | Weft is better |\n|---|---|---|---|---|\n")
	for _, h := range headlines {
		for _, processor := range slices.Sorted(slices.Values(processorsOf(rows))) {
			r, label := find(rows, h.row, processor), h.label
			if r == nil {
				r, label = find(rows, h.older, processor), h.olderLabel
			}
			if r != nil {
				fmt.Fprintf(&b, "| %s | %s | %s | %s | %s |\n", label, processor, bench.Figure(r.Samples[r.Peers[0]].Median(), r.Unit), beside(r), better(r))
			}
		}
	}
	return before + figuresBegin + "\n" + b.String() + figuresEnd + after, nil
}

// find returns the row that has this name, was measured on this processor and has a result of Weft. It
// returns nil if there is none.
func find(rows []*row, name, processor string) *row {
	at := slices.IndexFunc(rows, func(r *row) bool {
		return r.Name == name && r.processor() == processor && len(r.Samples[r.Peers[0]]) > 0
	})
	if at < 0 {
		return nil
	}
	return rows[at]
}

func beside(r *row) string {
	var words []string
	for _, p := range r.Peers[1:] {
		if s := r.Samples[p]; len(s) > 0 {
			words = append(words, p+" "+bench.Figure(s.Median(), r.Unit))
		}
	}
	return strings.Join(words, ", ")
}

func better(r *row) string {
	var words []string
	for _, p := range r.Peers[1:] {
		if q := r.Better(p); len(q) > 0 {
			words = append(words, fmt.Sprintf("%.2f×", q.Median()))
		}
	}
	return strings.Join(words, ", ")
}

var headlines = []headline{
	{row: "vhost-pair/64", label: "guest to guest, 64 bytes"},
	{row: "vhost-flows/10000", label: "guest to guest, 10,000 flows, a rule each"},
	{row: "conntrack-established/1000", label: "1,000 tracked connections"},
	{row: "overlay/tcp1-rules-82599-gro", label: "iperf3 over the overlay, iptables' rules, a card without segmentation in tunnels",
		older: "overlay/tcp1-rules-82599", olderLabel: "iperf3 over the overlay, iptables' rules, a card without any segmentation"},
	{row: "overlay/tcp1", label: "iperf3 over the overlay, one stream, nothing else"},
	{row: "overlay/tcp4", label: "iperf3 over the overlay, four streams, nothing else"},
	{row: "vhost-wake/64", label: "first frame after a pause, 99th percentile"},
	{row: "latency/spin-64", label: "round trip over the overlay, 64 bytes"},
}
