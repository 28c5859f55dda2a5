package main

import (
	"log"
	"runtime"
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
	own  time.Duration // longest that this loop itself stood still
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
	replaced, nextReplace, before := int64(0), time.Now(), time.Now()
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
		g.own, before = max(g.own, now.Sub(before)), now
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

// longest is the longest gap since it was last asked to begin anew, how much of
// it the load itself did not run, and whether frames flow now.
func (g *generator) longest(anew bool) (gap, own time.Duration, flowing bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	since := time.Since(g.last)
	gap, own = max(g.gap, since), g.own
	if anew {
		g.gap, g.own = 0, 0
	}
	return gap, own, since < 20*time.Millisecond
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
	g.base, g.gap, g.own = g.load.Totals(), 0, 0
}

func (g *generator) end() {
	close(g.stop)
	<-g.ended
	g.sum = g.load.Totals()
}
