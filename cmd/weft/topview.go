// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"weft/api"
)

// topView is the contents of the screen of "weft top" at one time. Rates are per second, averaged over
// the last interval.
type topView struct {
	IntervalS float64     `json:"interval_s"`
	Version   string      `json:"version"`
	EnginePID int         `json:"engine_pid"`
	Restarts  uint64      `json:"engine_restarts"`
	UptimeS   float64     `json:"uptime_s"`
	Flows     int         `json:"flows"`
	Megaflows int         `json:"megaflows"`
	MACs      int         `json:"macs"`
	Workers   []topWorker `json:"workers"`
	Ports     []topPort   `json:"ports"` // the port that takes the most time of workers is first
	Drops     []topDrop   `json:"drops"` // the most frequent reason is first
	Hottest   []api.Hot   `json:"hottest"`
}

// topWorker is the row of one worker. Busy is the fraction of the time in which it has handled frames.
// Exact, Megaflow and Miss are fractions of its look-ups: found in the exact-match cache, found as a
// megaflow, and not found.
type topWorker struct {
	Core        int     `json:"core"`
	Busy        float64 `json:"busy"`
	FramesPerS  float64 `json:"frames_per_s"`
	NSPerFrame  float64 `json:"ns_per_frame"` // busy time per frame, in nanoseconds
	PerBatch    float64 `json:"frames_per_batch"`
	Exact       float64 `json:"exact"`
	Megaflow    float64 `json:"megaflow"`
	Miss        float64 `json:"miss"`
	Masks       float64 `json:"masks_per_search"`
	DropsPerS   float64 `json:"drops_per_s"`
	SleepsPerS  float64 `json:"sleeps_per_s"`
	SyscallsPer float64 `json:"syscalls_per_s"`
}

type topPort struct {
	Name      string  `json:"name"`
	Type      string  `json:"type"`
	State     string  `json:"state"`
	Worker    float64 `json:"worker"` // time that workers spend on the port, 1 for all time of one worker
	Weight    int     `json:"weight"` // weight of the port's share in a busy worker's time; 0: the port has none
	RxPerS    float64 `json:"rx_packets_per_s"`
	RxBits    float64 `json:"rx_bits_per_s"`
	TxPerS    float64 `json:"tx_packets_per_s"`
	TxBits    float64 `json:"tx_bits_per_s"`
	DropsPerS float64 `json:"drops_per_s"`
}

type topDrop struct {
	Reason string  `json:"reason"`
	PerS   float64 `json:"per_s"`
	Total  uint64  `json:"total"`
}

func grown(old, new uint64) float64 {
	if new < old {
		return float64(new)
	}
	return float64(new - old)
}

func ratio(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return a / b
}

func topOf(earlier, later *api.Show, hot []api.Hot, seconds float64) *topView {
	v := &topView{
		IntervalS: seconds, Version: later.Version, EnginePID: later.EnginePID, Restarts: later.Restarts, UptimeS: later.UptimeS,
		Flows: later.Flows, Megaflows: later.Megaflows, MACs: later.MACs, Hottest: hot,
		Workers: []topWorker{}, Ports: []topPort{}, Drops: []topDrop{},
	}
	drops, totals := map[string]float64{}, map[string]uint64{}
	for i := range later.Workers {
		now := &later.Workers[i]
		was := &api.Worker{}
		if i < len(earlier.Workers) {
			was = &earlier.Workers[i]
		}
		w := workerOf(was, now, seconds)
		for reason, n := range now.Drops {
			d := grown(was.Drops[reason], n)
			drops[reason] += d
			totals[reason] += n
			w.DropsPerS += d / seconds
		}
		v.Workers = append(v.Workers, w)
	}
	for reason, n := range drops {
		v.Drops = append(v.Drops, topDrop{Reason: reason, PerS: n / seconds, Total: totals[reason]})
	}
	slices.SortFunc(v.Drops, func(a, b topDrop) int {
		return cmp.Or(cmp.Compare(b.PerS, a.PerS), cmp.Compare(b.Total, a.Total), cmp.Compare(a.Reason, b.Reason))
	})
	old := map[uint32]*api.Port{}
	for i := range earlier.Ports {
		old[earlier.Ports[i].Number] = &earlier.Ports[i]
	}
	for i := range later.Ports {
		v.Ports = append(v.Ports, portOf(old[later.Ports[i].Number], &later.Ports[i], seconds))
	}
	slices.SortStableFunc(v.Ports, func(a, b topPort) int {
		return cmp.Or(cmp.Compare(b.Worker, a.Worker), cmp.Compare(b.RxPerS+b.TxPerS, a.RxPerS+a.TxPerS))
	})
	return v
}

func workerOf(old, new *api.Worker, seconds float64) topWorker {
	frames := grown(old.Frames, new.Frames)
	exact, megaflow, miss := grown(old.ExactHits, new.ExactHits), grown(old.MegaflowHits, new.MegaflowHits), grown(old.Misses, new.Misses)
	busy := grown(old.BusyNS, new.BusyNS)
	return topWorker{
		Core: new.Core, Busy: min(busy/1e9/seconds, 1), FramesPerS: frames / seconds,
		NSPerFrame: ratio(busy, frames), PerBatch: ratio(frames, grown(old.Batches, new.Batches)),
		Exact: ratio(exact, exact+megaflow+miss), Megaflow: ratio(megaflow, exact+megaflow+miss), Miss: ratio(miss, exact+megaflow+miss),
		Masks:      ratio(grown(old.MasksSearched, new.MasksSearched), megaflow+miss),
		SleepsPerS: grown(old.Sleeps, new.Sleeps) / seconds, SyscallsPer: grown(old.Syscalls, new.Syscalls) / seconds,
	}
}

func portOf(old, new *api.Port, seconds float64) topPort {
	if old == nil || old.Name != new.Name {
		old = &api.Port{}
	}
	a, b := &old.Stats, &new.Stats
	weight, _ := strconv.Atoi(new.Options["weight"])
	return topPort{
		Name: new.Name, Type: new.Type, State: new.State, Worker: grown(a.WorkerNS, b.WorkerNS) / 1e9 / seconds, Weight: weight,
		RxPerS: grown(a.RxPackets, b.RxPackets) / seconds, RxBits: 8 * grown(a.RxBytes, b.RxBytes) / seconds,
		TxPerS: grown(a.TxPackets, b.TxPackets) / seconds, TxBits: 8 * grown(a.TxBytes, b.TxBytes) / seconds,
		DropsPerS: (grown(total(a.RxDrops), total(b.RxDrops)) + grown(a.TxDrops, b.TxDrops)) / seconds,
	}
}

// lines returns the lines of a screen of this size. It shortens the lists until they fit. The list of ports
// gets at most half of the rows below the workers.
func (v *topView) lines(width, height int) []string {
	engine := "no engine"
	if v.EnginePID != 0 {
		engine = fmt.Sprintf("engine %d", v.EnginePID)
	}
	out := []string{
		fmt.Sprintf("weft %s, up %.0fs, %s, restarts %d, flows %d, megaflows %d, addresses %d",
			v.Version, v.UptimeS, engine, v.Restarts, v.Flows, v.Megaflows, v.MACs),
		"",
		"WORKER CORE   BUSY FRAMES/S NS/FRAME FRAMES/BATCH  EXACT MEGAFL.   MISS DROPS/S",
	}
	rows := max(height, 16) - len(out) - 8 // 8 further rows are for headings and blank lines
	for i, w := range v.Workers[:min(len(v.Workers), max(rows/3, 1))] {
		out = append(out, fmt.Sprintf("%6d %4d %s %8s %8.0f %12.1f %s %s %s %7s", i, w.Core, percent(w.Busy), short(w.FramesPerS),
			w.NSPerFrame, w.PerBatch, percent(w.Exact), " "+percent(w.Megaflow), percent(w.Miss), short(w.DropsPerS)))
		rows--
	}
	out = append(out, "", "PORT             STATE   WORKER    RX/S RX-BIT/S     TX/S TX-BIT/S  DROPS/S")
	weighted := slices.ContainsFunc(v.Ports, func(p topPort) bool { return p.Weight > 1 })
	if weighted {
		out[len(out)-1] += " WEIGHT"
	}
	ports := v.Ports[:min(len(v.Ports), max(rows/2, 1))]
	for _, p := range ports {
		line := fmt.Sprintf("%-16.16s %-7.7s %s %7s %8s %8s %8s %8s", p.Name, p.State, percent(p.Worker), short(p.RxPerS), short(p.RxBits),
			short(p.TxPerS), short(p.TxBits), short(p.DropsPerS))
		if weighted {
			line += fmt.Sprintf(" %6d", max(p.Weight, 1))
		}
		out = append(out, line)
	}
	rows -= len(ports)
	out = append(out, "", "DROPS/S   "+v.dropText(), "", "FRAMES/S    BIT/S HOTTEST FLOWS")
	for _, h := range v.Hottest[:min(len(v.Hottest), max(rows, 1))] {
		out = append(out, fmt.Sprintf("%8s %8s %s actions:%s", short(h.PacketsPerS), short(8*h.BytesPerS), orAny(h.Match), h.Actions))
	}
	for i, line := range out {
		out[i] = cut(line, width)
	}
	return out[:min(len(out), height)]
}

func (v *topView) dropText() string {
	var words []string
	for _, d := range v.Drops {
		if d.PerS > 0 {
			words = append(words, d.Reason+" "+short(d.PerS))
		}
	}
	if len(words) == 0 {
		return "none"
	}
	return strings.Join(words, ", ")
}

func percent(share float64) string { return fmt.Sprintf("%5.1f%%", 100*share) }

func short(v float64) string {
	for _, unit := range []string{"", "k", "M", "G", "T"} {
		switch {
		case v < 10 && unit != "":
			return fmt.Sprintf("%.2f%s", v, unit)
		case v < 100 && unit != "":
			return fmt.Sprintf("%.1f%s", v, unit)
		case v < 999.5:
			return fmt.Sprintf("%.0f%s", v, unit)
		}
		v /= 1000
	}
	return fmt.Sprintf("%.0fP", v)
}

func cut(line string, width int) string {
	runes := []rune(line)
	if len(runes) <= width {
		return line
	}
	return string(runes[:width])
}

func orAny(match string) string {
	if match == "" {
		return "any frame"
	}
	return match
}
