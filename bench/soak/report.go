package main

import (
	"fmt"
	"slices"
	"time"
)

// pause is what one kill cost.
type pause struct {
	time.Duration
	own      time.Duration // for which the load did not run
	stall    time.Duration // for which the worker did not, at most: a power of two
	replaced time.Duration // from control's notice of the engine's death to the last port
	workers  time.Duration // of that, until the workers ran
}

// report prints the pauses and what was counted, and judges: every frame lost
// must be one that the switch says it dropped.
func report(g *generator, pauses map[string][]pause, drops map[string]uint64) (ok bool) {
	ok = true
	for _, who := range []string{"engine", "control", "both"} {
		p := pauses[who]
		if len(p) == 0 {
			continue
		}
		slices.SortFunc(p, func(a, b pause) int { return int(a.Duration - b.Duration) })
		at := func(share float64) time.Duration {
			return p[min(int(share*float64(len(p))), len(p)-1)].Duration.Round(10 * time.Microsecond)
		}
		fmt.Printf("%-8s %5d kills   pause ms: median %.2f  90%% %.2f  99%% %.2f  longest %.2f\n", who, len(p), ms(at(0.5)), ms(at(0.9)), ms(at(0.99)), ms(at(1)))
		histogram(p)
		explain(p)
		if who == "engine" && at(*within-1e-9) > *limit {
			fmt.Printf("FAILED: %.4g of the pauses are to keep %v\n", *within, *limit)
			ok = false
		}
	}
	t := g.sum
	repeated := t.Repeated - g.base.Repeated
	lost, dropped := max(t.Lost-g.base.Lost+int64(repeated), 0), uint64(0)
	for _, n := range drops {
		dropped += n
	}
	fmt.Printf("frames %d received, %d of them again, %d out of order, %d lost; %d bad; %d buffers lost or used twice\n",
		t.Received-g.base.Received, repeated, t.Late-g.base.Late, lost, g.bad, t.Misused)
	fmt.Printf("the switch says it dropped %d %v\n", dropped, drops)
	if g.bad > 0 || t.Misused > 0 {
		fmt.Println("FAILED: frames differ, or descriptors were misused")
		ok = false
	}
	if lost > int64(dropped) {
		fmt.Printf("FAILED: %d frames are lost of which nobody knows\n", lost-int64(dropped))
		ok = false
	}
	return ok
}

// explain takes the longest pauses apart, and those beyond the limit.
func explain(pauses []pause) {
	for i, p := range pauses {
		if i >= len(pauses)-longestShown || p.Duration > *limit {
			fmt.Printf("  %.2f: engine replaced in %.0f, its workers in %.0f of them; the load did not run for up to %.2f, the worker for less than %.2f\n",
				ms(p.Duration), ms(p.replaced), ms(p.workers), ms(p.own), ms(p.stall))
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
