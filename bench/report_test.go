// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func aReport() *Report {
	return &Report{Version: "v1", Machine: Machine{CPU: "cpu"}, Runs: 3, Seconds: 1, Rows: []*Row{
		{Name: "vhost/64", Unit: "frames/s", Peers: []string{"weft", "ovs-dpdk", "testpmd"},
			Samples:  map[string]Sample{"weft": {4e6, 6e6, 5e6}, "ovs-dpdk": {2e6, 2e6, 2e6}},
			Before:   map[string][]int64{"weft": {60, 60, 330}, "ovs-dpdk": {60, 330, 330}},
			After:    map[string][]int64{"weft": {60, 330, 330}},
			Also:     map[string]map[string]Extra{"weft": {"busy": {Unit: "%", Samples: Sample{90, 80, 85}}}},
			Failures: map[string]string{"testpmd": "no huge pages"}},
		{Name: "latency/64", Unit: "s", Less: true, Peers: []string{"weft", "linux"},
			Samples: map[string]Sample{"weft": {20e-6}, "linux": {60e-6}}},
	}}
}

func TestReportPrints(t *testing.T) {
	var b strings.Builder
	aReport().Print(&b)
	for _, want := range [][]string{
		{"vhost/64", "weft", "5 Mframes/s", "4 Mframes/s", "6 Mframes/s", "1/1/1", "busy 85 %"},
		{"vhost/64", "ovs-dpdk", "2 Mframes/s", "1/2/0", "2.50 times (2.00 to 3.00)"},
		{"vhost/64", "testpmd", "failed", "no huge pages"},
		{"latency/64", "weft", "20 µs"},
		{"latency/64", "linux", "60 µs", "3.00 times (3.00 to 3.00)"},
	} {
		found := false
		for line := range strings.Lines(b.String()) {
			at := 0
			for _, word := range want {
				i := strings.Index(line[at:], word)
				if i < 0 {
					at = -1
					break
				}
				at += i + len(word)
			}
			found = found || at > 0
		}
		if !found {
			t.Errorf("no line has %q in this order:\n%s", want, b.String())
		}
	}
}

func TestReportIsKept(t *testing.T) {
	file := filepath.Join(t.TempDir(), "r.json")
	if err := aReport().Write(file); err != nil {
		t.Fatal(err)
	}
	got, err := ReadReport(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(aReport(), got); diff != "" {
		t.Error(diff)
	}
	os.WriteFile(file, []byte("x"), 0o644)
	if _, err := ReadReport(file); err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("a file that is no report: %v", err)
	}
}

func TestFigure(t *testing.T) {
	for _, c := range []struct {
		value float64
		unit  string
		want  string
	}{
		{12_345_678, "frames/s", "12.3 Mframes/s"},
		{1_234, "frames/s", "1.23 kframes/s"},
		{999, "cycles/frame", "999 cycles/frame"},
		{0.5, "bit/s", "0.5 bit/s"},
		{999_600, "frames/s", "1 Mframes/s"},
		{999_400, "frames/s", "999 kframes/s"},
		{0.0009996, "s", "1 ms"},
		{0, "s", "0 s"},
		{24.1e-6, "s", "24.1 µs"},
		{3e-9, "s", "3 ns"},
		{0.0123, "s", "12.3 ms"},
	} {
		if got := Figure(c.value, c.unit); got != c.want {
			t.Errorf("Figure(%g, %q) = %q, want %q", c.value, c.unit, got, c.want)
		}
	}
}
