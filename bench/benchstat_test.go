// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"strings"
	"testing"
)

// Names in a benchmark line contain no blanks.
func TestBenchstat(t *testing.T) {
	r := aReport()
	r.Rows = append(r.Rows, &Row{Name: "idle/two guests", Unit: "% of a core", Less: true, Peers: []string{"weft", "bare loop"},
		Samples: map[string]Sample{"weft": {1}, "bare loop": {100}}})
	var b strings.Builder
	if err := r.Benchstat(&b); err != nil {
		t.Fatal(err)
	}
	const want = `goos: linux
pkg: weft
cpu: cpu
Unit frames/s better=higher
regime: near
BenchmarkVhost/64/peer=weft 1 4e+06 frames/s
regime: flipped
BenchmarkVhost/64/peer=weft 1 6e+06 frames/s
regime: far
BenchmarkVhost/64/peer=weft 1 5e+06 frames/s
regime: near
BenchmarkVhost/64/peer=ovs-dpdk 1 2e+06 frames/s
regime: far
BenchmarkVhost/64/peer=ovs-dpdk 1 2e+06 frames/s
BenchmarkVhost/64/peer=ovs-dpdk 1 2e+06 frames/s
Unit sec/op better=lower
regime: 
BenchmarkLatency/64/peer=weft 1 2e-05 sec/op
BenchmarkLatency/64/peer=linux 1 6e-05 sec/op
Unit %_of_a_core better=lower
BenchmarkIdle/two_guests/peer=weft 1 1 %_of_a_core
BenchmarkIdle/two_guests/peer=bare_loop 1 100 %_of_a_core
`
	if b.String() != want {
		t.Errorf("got\n%s\nwant\n%s", b.String(), want)
	}
}
