// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"unicode/utf8"

	"weft/api"
	"weft/cmd/exit"
)

func TestTopRates(t *testing.T) {
	before := &api.Show{
		Workers: []api.Worker{{Core: 3, Frames: 1000, BusyNS: 1e9, ExactHits: 10, Batches: 100, Drops: map[string]uint64{"flow-drop": 5}}},
		Ports: []api.Port{{Number: 1, Name: "a", Stats: api.PortStats{RxPackets: 7}}, {Number: 2, Name: "b", Stats: api.PortStats{RxPackets: 100, RxBytes: 1000}},
			{Number: 3, Name: "slow", Stats: api.PortStats{RxPackets: 9, WorkerNS: 1e9}}},
	}
	after := &api.Show{
		Workers: []api.Worker{{Core: 3, Frames: 3000, BusyNS: 2e9, ExactHits: 610, MegaflowHits: 300, Misses: 100, MasksSearched: 800, Batches: 300,
			Drops: map[string]uint64{"flow-drop": 25, "tx-full": 4}}},
		Ports: []api.Port{{Number: 1, Name: "new", Stats: api.PortStats{RxPackets: 8}}, {Number: 2, Name: "b", Stats: api.PortStats{RxPackets: 300, RxBytes: 2000, TxDrops: 2}},
			{Number: 3, Name: "slow", Options: map[string]string{"weight": "3"}, Stats: api.PortStats{RxPackets: 10, WorkerNS: 2e9}}},
	}
	v := topOf(before, after, nil, 2)
	w := v.Workers[0]
	if w.Busy != 0.5 || w.FramesPerS != 1000 || w.NSPerFrame != 5e5 || w.PerBatch != 10 || w.Exact != 0.6 || w.Megaflow != 0.3 || w.Miss != 0.1 ||
		w.Masks != 2 || w.DropsPerS != 12 {
		t.Errorf("%+v", w)
	}
	if len(v.Drops) != 2 || v.Drops[0] != (topDrop{"flow-drop", 10, 25}) || v.Drops[1] != (topDrop{"tx-full", 2, 4}) {
		t.Errorf("%+v", v.Drops)
	}
	if v.Ports[0].Name != "slow" || v.Ports[0].Worker != 0.5 {
		t.Errorf("the port with the most worker time does not come first: %+v", v.Ports)
	}
	if text := strings.Join(v.lines(100, 40), "\n"); !strings.Contains(text, "DROPS/S WEIGHT\n") || !strings.Contains(text, "     3\n") {
		t.Errorf("the weight is not shown:\n%s", text)
	}
	if v.Ports[1].Name != "b" || v.Ports[1].RxPerS != 100 || v.Ports[1].RxBits != 4000 || v.Ports[1].DropsPerS != 1 || v.Ports[2].RxPerS != 4 {
		t.Errorf("%+v", v.Ports)
	}
	// If a worker's counters are lower than before, a new engine has started them at 0. The view then shows their
	// whole values.
	if v := topOf(after, before, nil, 1); v.Workers[0].FramesPerS != 1000 || v.Workers[0].Busy != 1 {
		t.Errorf("%+v", v.Workers)
	}
}

// The output of weft top fits a screen of any size, and shows a part of every list.
func TestTopFits(t *testing.T) {
	v := &topView{Version: strings.Repeat("v", 90)}
	for i := range 70 {
		v.Workers = append(v.Workers, topWorker{Core: i, Busy: 1, FramesPerS: 14880952, NSPerFrame: 123456, PerBatch: 32, Exact: 1, Megaflow: 1, Miss: 1, DropsPerS: 14880952})
		v.Ports = append(v.Ports, topPort{Name: "a-port-of-a-long-name", State: "waiting", RxPerS: 14880952, RxBits: 99e9, TxPerS: 14880952, TxBits: 99e9, DropsPerS: 14880952})
		v.Drops = append(v.Drops, topDrop{Reason: "no-tunnel-port", PerS: 1e6})
		v.Hottest = append(v.Hottest, api.Hot{PacketsPerS: 1e7, BytesPerS: 1e9, Megaflow: api.Megaflow{Match: strings.Repeat("µ", 200), Actions: "drop"}})
	}
	for _, size := range [][2]int{{80, 24}, {40, 10}, {200, 60}} {
		lines := v.lines(size[0], size[1])
		if len(lines) > size[1] {
			t.Errorf("%d lines on %d", len(lines), size[1])
		}
		for _, line := range lines {
			if utf8.RuneCountInString(line) > size[0] {
				t.Errorf("%d characters on %d: %s", utf8.RuneCountInString(line), size[0], line)
			}
		}
		text := strings.Join(lines, "\n")
		for _, word := range []string{"WORKER", "a-port", "DROPS/S   no-tunnel-port", "µ"} {
			if size[1] >= 24 && !strings.Contains(text, word) {
				t.Errorf("no %q in %dx%d:\n%s", word, size[0], size[1], text)
			}
		}
	}
	rows := v.lines(80, 40)
	for i, row := range rows {
		if strings.HasPrefix(row, "PORT ") && len(rows[i+1]) != len(row) {
			t.Errorf("columns do not meet:\n%s\n%s", row, rows[i+1])
		}
	}
	if len(rows[3]) != len(rows[2]) {
		t.Errorf("columns do not meet:\n%s\n%s", rows[2], rows[3])
	}
	// An empty view says that there is no engine, and "none" in place of its lists.
	if text := strings.Join((&topView{}).lines(80, 24), "\n"); !strings.Contains(text, "no engine") || !strings.Contains(text, "none") {
		t.Errorf("empty:\n%s", text)
	}
}

func TestShortNumbers(t *testing.T) {
	for v, want := range map[float64]string{0: "0", 7.4: "7", 999: "999", 999.7: "1.00k", 1234: "1.23k", 14.88e6: "14.9M", 123e9: "123G", 5e18: "5000P"} {
		if got := short(v); got != want {
			t.Errorf("%v: %q, want %q", v, got, want)
		}
	}
}

func TestTopOnce(t *testing.T) {
	frames := uint64(0)
	socket := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/hottest" {
			if r.URL.RawQuery != "interval_ms=200&n=40" {
				t.Errorf("asked %s", r.URL)
			}
			fmt.Fprint(w, `[{"match":"udp","actions":"vm2","packets_per_s":12000}]`)
			return
		}
		frames += 1000
		_ = json.NewEncoder(w).Encode(api.Show{Version: "x", Workers: []api.Worker{{Frames: frames}}, Ports: []api.Port{{Name: "vm1", State: "up"}}})
	})
	t.Setenv("WEFT_SOCKET", socket)
	out, errs, code := weft("", "top", "--once", "--interval", "200ms")
	for _, word := range []string{"weft x", "vm1", "12.0k", "udp actions:vm2"} {
		if code != 0 || !strings.Contains(out, word) || strings.Contains(out, "\x1b") {
			t.Errorf("%d %s: no %q in\n%s", code, errs, word, out)
		}
	}
	out, _, _ = weft("", "top", "--once", "--json", "--interval", "200ms")
	var v topView
	if err := json.Unmarshal([]byte(out), &v); err != nil || len(v.Hottest) != 1 || v.Workers[0].FramesPerS == 0 {
		t.Errorf("%v\n%s", err, out)
	}
	if _, errs, code := weft("", "top", "--interval", "1ms"); code != exit.Input || !strings.Contains(errs, "--interval") {
		t.Errorf("%d %s", code, errs)
	}
}

// If the output is not a terminal, "weft top" prints each interval in full, and does not move a cursor.
func TestTopIntoAFile(t *testing.T) {
	match := strings.Repeat("µ", 200)
	looks := 0
	t.Setenv("WEFT_SOCKET", serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/hottest" {
			_ = json.NewEncoder(w).Encode([]api.Hot{{Megaflow: api.Megaflow{Match: match, Actions: "drop"}}})
			return
		}
		if looks++; looks > 3 { // the error ends top
			w.WriteHeader(http.StatusInternalServerError)
		}
		_ = json.NewEncoder(w).Encode(api.Show{Version: "x"})
	}))
	out, _, code := weft("", "top", "--interval", "100ms")
	if code != exit.Failed || strings.Count(out, match+" actions:drop\n\n") != 2 || strings.Contains(out, "\x1b") {
		t.Errorf("%d\n%q", code, out)
	}
}
