package main

import (
	"fmt"
	"log"
	"runtime"
	"slices"
	"sync"
	"time"

	"weft/internal/cpu"
	"weft/vhost/vhosttest"
)

// generator steps the load, and notes the longest time between two arrivals.
type generator struct {
	load  *vhosttest.Load
	stop  chan struct{}
	ended chan struct{}

	mu   sync.Mutex
	gap  time.Duration // longest since it was asked for
	last time.Time     // of an arrival
	bad  int
	sum  vhosttest.LoadTotals
	base vhosttest.LoadTotals // what was before begin
}

func startGenerator(l *vhosttest.Load, core int) *generator {
	g := &generator{load: l, stop: make(chan struct{}), ended: make(chan struct{}), last: time.Now()}
	go func() {
		defer close(g.ended)
		if core >= 0 {
			runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
			if err := cpu.Pin(core); err != nil {
				log.Print(err)
			}
		}
		g.run()
	}()
	return g
}

func (g *generator) run() {
	replaced, nextReplace := int64(0), time.Now()
	for {
		select {
		case <-g.stop:
			return
		default:
		}
		frames := 0
		g.mu.Lock()
		for range 64 {
			for i := range g.load.Guests {
				n, bad := g.load.Step(i)
				frames += n
				g.bad += bad
			}
		}
		now := time.Now()
		if frames > 0 {
			g.gap = max(g.gap, now.Sub(g.last))
			g.last = now
		}
		if now.After(nextReplace) {
			g.sum = g.load.Totals()
			replaced, nextReplace = g.load.Replace(replaced), now.Add(50*time.Millisecond)
		}
		g.mu.Unlock()
		if frames == 0 {
			cpu.Pause(64)
		}
	}
}

// longest is the longest gap since it was last asked to begin anew, and whether
// frames flow now.
func (g *generator) longest(anew bool) (gap time.Duration, flowing bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	since := time.Since(g.last)
	gap = max(g.gap, since)
	if anew {
		g.gap = 0
	}
	return gap, since < 50*time.Millisecond
}

func (g *generator) totals() vhosttest.LoadTotals {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.sum
}

// begin forgets what was counted: frames that came before both guests were there
// are no part of the soak.
func (g *generator) begin() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.base, g.gap = g.load.Totals(), 0
}

func (g *generator) end() {
	close(g.stop)
	<-g.ended
	g.sum = g.load.Totals()
}

// report prints the pauses and what was counted, and judges.
func report(g *generator, pauses map[string][]time.Duration) (ok bool) {
	ok = true
	for _, who := range []string{"engine", "control", "both"} {
		p := pauses[who]
		if len(p) == 0 {
			continue
		}
		slices.Sort(p)
		at := func(share float64) time.Duration {
			return p[min(int(share*float64(len(p))), len(p)-1)].Round(10 * time.Microsecond)
		}
		fmt.Printf("%-8s %5d kills   pause ms: median %.2f  90%% %.2f  99%% %.2f  longest %.2f\n", who, len(p), ms(at(0.5)), ms(at(0.9)), ms(at(0.99)), ms(at(1)))
		histogram(p)
		if who == "engine" && at(*within-1e-9) > *limit {
			fmt.Printf("FAILED: %.4g of the pauses are to keep %v\n", *within, *limit)
			ok = false
		}
	}
	t := g.sum
	repeated := t.Repeated - g.base.Repeated
	fmt.Printf("frames %d received, %d of them again, %d lost; %d bad; %d buffers lost or used twice\n",
		t.Received-g.base.Received, repeated, max(t.Lost-g.base.Lost+int64(repeated), 0), g.bad, t.Misused)
	if g.bad > 0 || t.Misused > 0 {
		fmt.Println("FAILED: frames differ, or descriptors were misused")
		ok = false
	}
	return ok
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

var bounds = []time.Duration{1, 2, 5, 10, 20, 30, 40, 50, 75, 100, 200, 500, 1000}

func histogram(pauses []time.Duration) {
	from := time.Duration(0)
	for _, b := range append(bounds, 1<<20) {
		to, n := b*time.Millisecond, 0
		for _, p := range pauses {
			if p >= from && p < to {
				n++
			}
		}
		if n > 0 {
			fmt.Printf("  %5.0f to %-8v %d\n", ms(from), to, n)
		}
		from = to
	}
}
