package main

import (
	"log"
	"runtime"
	"sync"
	"time"

	"weft/internal/cpu"
	"weft/vhost/vhosttest"
)

// leastArrivalGap is what is noted of the time between two arrivals.
const leastArrivalGap = time.Millisecond

// gap is a time in which nothing arrived.
type gap struct{ from, to time.Time }

// generator steps the load, and notes the times in which nothing arrives.
type generator struct {
	load  *vhosttest.Load
	stop  chan struct{}
	ended chan struct{}

	mu   sync.Mutex
	gaps []gap         // since watch, each at least leastArrivalGap
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
			if now.Sub(g.last) >= leastArrivalGap {
				g.gaps = append(g.gaps, gap{g.last, now})
			}
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

// watch begins to note gaps anew.
func (g *generator) watch() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.gaps, g.own = g.gaps[:0], 0
}

// pause is the longest gap since watch that had begun by the time given, the longest
// that began later, and how long the load itself did not run. arrived is when a frame
// came last.
func (g *generator) pause(by time.Time) (first, later, own time.Duration, arrived time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, p := range append(g.gaps[:len(g.gaps):len(g.gaps)], gap{g.last, time.Now()}) {
		if p.from.Before(by) {
			first = max(first, p.to.Sub(p.from))
		} else {
			later = max(later, p.to.Sub(p.from))
		}
	}
	return first, later, g.own, g.last
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
	g.base, g.gaps, g.own = g.rest(), nil, 0
}

func (g *generator) end() {
	close(g.stop)
	<-g.ended
	g.sum = g.rest()
}

// quiet is for how long nothing comes of what a switch that lives still has.
const quiet = 50 * time.Millisecond

// rest is the totals with no frame under way.
func (g *generator) rest() vhosttest.LoadTotals {
	last := time.Now()
	t, bad := g.load.Rest(func(came int) bool {
		if came > 0 {
			last = time.Now()
		}
		return time.Since(last) >= quiet
	})
	g.bad += bad
	return t
}

// now is the totals while the load goes on.
func (g *generator) now() vhosttest.LoadTotals {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.whole()
}

// whole is the totals at a moment at which the load has seen whole passes of the
// switch: a frame that was given back to its sender, and of which its receiver has
// not looked yet, would count as lost.
func (g *generator) whole() vhosttest.LoadTotals {
	least := g.load.Totals()
	for range 1000 {
		for i := range g.load.Guests {
			_, bad := g.load.Step(i)
			g.bad += bad
		}
		if t := g.load.Totals(); t.Lost+int64(t.Repeated) <= least.Lost+int64(least.Repeated) {
			least = t
		}
	}
	return least
}
