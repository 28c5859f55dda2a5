// SPDX-License-Identifier: Apache-2.0

package main

import (
	"math"
	"testing"

	"weft/bench"
	"weft/bench/hops"
)

func near(a, b float64) bool { return math.Abs(a-b) <= 1e-9*math.Abs(b) }

// A ledger's hops add up to the median of the samples.
func TestMeasuredHops(t *testing.T) {
	r := &bench.Report{Rows: []*bench.Row{{Name: "hops/x", Peers: []string{"a", "none"}, Samples: map[string]bench.Sample{"a": {2e-6, 4e-6, 3e-6}},
		Also: map[string]map[string]bench.Extra{"a": {"NAT": {Samples: bench.Sample{2e-6}}, "send": {Samples: bench.Sample{4e-6, 2e-6}}, "noise": {Samples: bench.Sample{9}}}}},
		{Name: "other/x", Peers: []string{"a"}, Samples: map[string]bench.Sample{"a": {1}}}}}
	table, err := hops.NewTable()
	if err != nil {
		t.Fatal(err)
	}
	list := measuredHops(table, r)
	if len(list) != 1 || !near(list[0].Total, 3) {
		t.Fatalf("%+v", list)
	}
	l := list[0]
	if !near(l.Entry("NAT").Value, 2.0/3) || !near(l.Entry("send").Value, 2) || !near(l.Entry(hops.Unknown).Value, 1.0/3) {
		t.Errorf("%+v", l.Entries)
	}
}

// Every hop has its own colour.
func TestHopsHaveColoursOfTheirOwn(t *testing.T) {
	table, err := hops.NewTable()
	if err != nil {
		t.Fatal(err)
	}
	names, colours := hopColours(table)
	of := map[int]string{}
	for i, name := range names {
		if other := of[colours[i]]; other != "" {
			t.Errorf("%s and %s have colour %d", other, name, colours[i])
		}
		of[colours[i]] = name
	}
}
