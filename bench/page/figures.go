// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"

	"weft/bench"
)

// The table of results is between these two lines of the README.
const (
	figuresBegin = "<!-- figures: written by go run ./bench/page, from bench/results -->"
	figuresEnd   = "<!-- end of figures -->"
)

// headline is a labelled row of the README's table.
type headline struct{ row, label string }

// fillFigures replaces the README's table of results, if the text has the marker
// lines.
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
	b.WriteString("| | Weft | beside | Weft is better |\n|---|---|---|---|\n")
	for _, h := range headlines {
		for _, r := range rows {
			if r.Name == h.row && len(r.Samples[r.Peers[0]]) > 0 {
				fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", h.label, bench.Figure(r.Samples[r.Peers[0]].Median(), r.Unit), beside(r), better(r))
			}
		}
	}
	return before + figuresBegin + "\n" + b.String() + figuresEnd + after, nil
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
	{"vhost-pair/64", "guest to guest, 64 bytes"},
	{"vhost-flows/10000", "guest to guest, 10,000 flows, a rule each"},
	{"conntrack-established/1000", "1,000 tracked connections"},
	{"overlay/tcp1-rules-82599", "iperf3 over the overlay, iptables' rules, a card without tunnel offloads"},
	{"overlay/tcp1", "iperf3 over the overlay, one stream, nothing else"},
	{"latency/spin-64", "round trip over the overlay, 64 bytes"},
}
