// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"slices"
	"time"

	"weft/bench/stream"
)

// pause is the effect of one kill. Its Duration is the longest gap between frames.
type pause struct {
	time.Duration
	later    time.Duration // longest gap between frames that the kill did not cause
	own      time.Duration // part of the pause in which the load generator itself did not run
	stall    time.Duration // upper bound of the longest time between two polls of the worker
	replaced time.Duration // time from the engine's death until the last port worked again
	workers  time.Duration // time from the engine's death until the new workers ran
	worker   time.Duration // time in which the new worker waited for a core
	control  time.Duration // time in which a thread of control waited for a core
	lost     int64         // number of lost frames, including dropped ones
	repeated uint64        // number of frames that arrived twice
}

func (p *pause) String() string {
	return fmt.Sprintf("%6.2f ms: engine replaced in %.0f, its workers in %.0f of them; waited for a core: the new worker %.2f, control %.2f; the load did not run for up to %.2f; longest gap later %.2f, between two passes less than %.2f; %d frames lost, %d again",
		ms(p.Duration), ms(p.replaced), ms(p.workers), ms(p.worker), ms(p.control), ms(p.own), ms(p.later), ms(p.stall), p.lost, p.repeated)
}

// report prints the pauses and counters. It returns true if the pauses are within the
// limit and no frame is damaged or lost without a drop counter.
func report(t stream.Counted, pauses map[string][]pause, drops map[string]uint64) (ok bool) {
	ok = true
	for _, who := range []string{"engine", "control", "both"} {
		p := pauses[who]
		if len(p) == 0 {
			continue
		}
		slices.SortFunc(p, func(a, b pause) int { return int(a.Duration - b.Duration) })
		table(who, p)
		histogram(p)
		explain(p)
		if who == "engine" && share(p, *within-1e-9) > *limit {
			fmt.Printf("FAILED: less than %.4g of the pauses are within %v\n", *within, *limit)
			ok = false
		}
	}
	dropped := uint64(0)
	for _, n := range drops {
		dropped += n
	}
	fmt.Printf("frames %d received, %d of them again, %d out of order, %d lost; %d bad; %d buffers lost or used twice\n",
		t.Received, t.Repeated, t.Late, t.Lost, t.Bad, t.Misused)
	fmt.Printf("the switch counted %d dropped frames %v\n", dropped, drops)
	if t.Bad > 0 || t.Misused > 0 {
		fmt.Println("FAILED: frames were changed, or descriptors were misused")
		ok = false
	}
	if t.Lost > int64(dropped) {
		fmt.Printf("FAILED: the switch did not count %d lost frames\n", t.Lost-int64(dropped))
		ok = false
	}
	return ok
}

func table(processes string, p []pause) {
	fmt.Printf("%-8s %5d kills, ms %28s %9s %9s %9s\n", processes, len(p), "median", "90%", "99%", "longest")
	for _, row := range []struct {
		name  string
		value func(pause) time.Duration
	}{
		{"pause", func(p pause) time.Duration { return p.Duration }},
		{"new worker waited for its core", func(p pause) time.Duration { return p.worker }},
		{"control waited for a core", func(p pause) time.Duration { return p.control }},
		{"the load did not run", func(p pause) time.Duration { return p.own }},
		{"gap later on", func(p pause) time.Duration { return p.later }},
	} {
		sorted := slices.Clone(p)
		slices.SortFunc(sorted, func(a, b pause) int { return int(row.value(a) - row.value(b)) })
		fmt.Printf("  %-40s", row.name)
		for _, q := range []float64{0.5, 0.9, 0.99, 1} {
			fmt.Printf(" %9.2f", ms(row.value(sorted[index(len(p), q)])))
		}
		fmt.Println()
	}
}

func index(n int, share float64) int { return min(int(share*float64(n)), n-1) }

func share(p []pause, fraction float64) time.Duration { return p[index(len(p), fraction)].Duration }

func explain(pauses []pause) {
	for i, p := range pauses {
		if i >= len(pauses)-longestShown || p.Duration > *limit {
			fmt.Println(" ", &p)
		}
	}
}

const longestShown = 3

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

var bounds = []time.Duration{1, 2, 5, 10, 20, 30, 40, 50, 75, 100, 200, 500, 1000}

func histogram(pauses []pause) {
	from := time.Duration(0)
	for _, b := range append(bounds, 1<<20) {
		to, n := b*time.Millisecond, 0
		for _, p := range pauses {
			if p.Duration >= from && p.Duration < to {
				n++
			}
		}
		if n > 0 {
			fmt.Printf("  %5.0f to %-8v %d\n", ms(from), to, n)
		}
		from = to
	}
}
