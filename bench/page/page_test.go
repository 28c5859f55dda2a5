// SPDX-License-Identifier: Apache-2.0

package main

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"weft/bench"
)

func result() *bench.Report {
	rate := func(name string, v float64) *bench.Row {
		return &bench.Row{Name: name, Unit: "frames/s", Peers: []string{"weft", "ovs-dpdk"}, Samples: map[string]bench.Sample{
			"weft": {v, v * 1.1, v * 0.9}, "ovs-dpdk": {v / 2, v / 2, v / 4}}, Before: map[string][]int64{"weft": {60, 350, 60}}, After: map[string][]int64{"weft": {60, 350, 350}}}
	}
	failed := rate("vhost-pair/64", 12e6)
	delete(failed.Samples, "ovs-dpdk")
	failed.Failures = map[string]string{"ovs-dpdk": "cannot start: | no huge pages"}
	latency := rate("iperf-overlay/tcp", 5e9)
	latency.Unit = "bit/s"
	latency.Also = map[string]map[string]bench.Extra{"weft": {
		"p50": {Unit: "s", Samples: bench.Sample{2e-5}}, "p99.9": {Unit: "s", Samples: bench.Sample{3e-4}},
		"gaps below 1024 ns": {Unit: "1/s", Samples: bench.Sample{1e6}}, "gaps below 2048 ns": {Unit: "1/s", Samples: bench.Sample{10}},
	}}
	hop := &bench.Row{Name: "hops/later frames in a row", Unit: "s", Less: true, Peers: []string{"weft", "linux"},
		Samples: map[string]bench.Sample{"weft": {3e-6}, "linux": {6e-6}},
		Also:    map[string]map[string]bench.Extra{"linux": {"NAT": {Unit: "s", Samples: bench.Sample{1e-6}}}}}
	return &bench.Report{Version: "v", When: "2026-01-02T00:00:00Z", Rows: []*bench.Row{failed, rate("flows-exact/1", 5e6), rate("flows-exact/1000", 4e6),
		rate("flows-exact/100000", 3e6), rate("flows-masks/10", 2e6), latency, hop}}
}

func TestPage(t *testing.T) {
	dir := t.TempDir()
	readme := filepath.Join(dir, "readme")
	if err := os.WriteFile(readme, []byte("before\n"+figuresBegin+"\nold\n"+figuresEnd+"\nafter\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	r := result()
	if err := r.Write(filepath.Join(dir, "b.json")); err != nil {
		t.Fatal(err)
	}
	older := result()
	older.When, older.Rows[1].Samples["weft"] = "2025-01-01T00:00:00Z", bench.Sample{1}
	slices.Reverse(older.Rows)
	if err := older.Write(filepath.Join(dir, "c.json")); err != nil {
		t.Fatal(err)
	}
	files, superseded, err := build(dir, readme)
	if err != nil {
		t.Fatal(err)
	}
	page := files[filepath.Join(dir, "README.md")]
	for _, want := range []string{"5 Mframes/s", "cannot start: \\| no huge pages", "1/1/1", "p50 20 µs", "NAT 1 µs"} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %q:\n%s", want, page)
		}
	}
	if strings.Contains(page, "c.json") {
		t.Error("the page uses the older result")
	}
	if text := files[readme]; !strings.Contains(text, "12 Mframes/s") || strings.Contains(text, "old") || !strings.HasSuffix(text, figuresEnd+"\nafter\n") {
		t.Errorf("readme: %s", text)
	}
	if len(superseded) != 1 || filepath.Base(superseded[0]) != "c.json" {
		t.Errorf("superseded: %q", superseded)
	}
	again, _, err := build(dir, readme)
	if err != nil || !maps.Equal(files, again) {
		t.Errorf("the same results make another page (%v)", err)
	}
	if err := os.Remove(superseded[0]); err != nil {
		t.Fatal(err)
	}
	again, _, err = build(dir, readme)
	if err != nil || !maps.Equal(files, again) {
		t.Errorf("without what is superseded the page is another (%v)", err)
	}
}

// Each of two processors has rows of its own.
func TestProcessorsStayApart(t *testing.T) {
	dir := t.TempDir()
	readme := filepath.Join(dir, "readme")
	if err := os.WriteFile(readme, []byte(figuresBegin+"\n"+figuresEnd), 0o644); err != nil {
		t.Fatal(err)
	}
	for file, cpu := range map[string]string{"a.json": "AMD EPYC", "b.json": "Intel(R) Xeon(R) Processor @ 2.60GHz"} {
		r := result()
		r.Machine.CPU = cpu
		r.When = "2026-01-02T00:00:0" + string(cpu[0]%10+'0') + "Z"
		r.Rows[1].Samples["weft"] = bench.Sample{float64(len(cpu)) * 1e6}
		if err := r.Write(filepath.Join(dir, file)); err != nil {
			t.Fatal(err)
		}
	}
	files, superseded, err := build(dir, readme)
	if err != nil || len(superseded) != 0 {
		t.Fatalf("superseded: %q, %v", superseded, err)
	}
	page := files[filepath.Join(dir, "README.md")]
	amd, intel := strings.Index(page, "| exact/1 | AMD EPYC | weft | 8 Mframes/s"), strings.Index(page, "| exact/1 | Intel Xeon | weft | 36 Mframes/s")
	if amd < 0 || intel < amd || strings.Count(page[amd:intel], "\n") != 2 {
		t.Errorf("the rows of both processors are at %d and %d, want neighbours:\n%s", amd, intel, page)
	}
	if n := strings.Count(files[readme], "| guest to guest, 64 bytes |"); n != 2 {
		t.Errorf("%d rows in the readme, want one of each processor:\n%s", n, files[readme])
	}
}

// The committed results page is up to date with the committed result files. After a
// new result or a change of this program, run "go run ./bench/page".
func TestPageIsCurrent(t *testing.T) {
	const root = "../.."
	files, superseded, err := build(root+"/bench/results", root+"/README.md")
	if err != nil {
		t.Fatal(err)
	}
	if len(superseded) > 0 {
		t.Errorf("newer results have all rows of %q: go run ./bench/page", superseded)
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if b, err := os.ReadFile(name); err != nil || string(b) != files[name] {
			t.Errorf("%s is not what the results say (%v): go run ./bench/page", name, err)
		}
	}
}
