// Package stream keeps a checked load between two guests going while something is
// done to the switch, and measures the pauses that this costs.
package stream

import (
	"log"
	"runtime"
	"sync"
	"time"

	"weft/internal/cpu"
	"weft/vhost/vhosttest"
)

// leastGap is the shortest time between two arrivals that is noted.
const leastGap = time.Millisecond

// gap is a time in which nothing arrived.
type gap struct {
	from, to time.Time
	own      time.Duration // for which the loop itself did not run in it, beyond leastGap
}

// Config says how a load is stepped.
type Config struct {
	// Core is where the loop runs, -1: on any.
	Core int
	// Rounds is how often every guest is stepped between two looks at the clock; 64 if 0.
	Rounds int
	// Rest is how long the loop sleeps after its rounds; 0: it spins.
	Rest time.Duration
}

// Stream steps a load and notes the times in which nothing arrives. Its methods are for
// several goroutines.
type Stream struct {
	config Config
	stop   chan struct{}
	ended  chan struct{}

	mu      sync.Mutex
	load    *vhosttest.Load
	gaps    []gap         // since Watch
	own     time.Duration // longest that the loop itself stood still, since Watch
	ownGap  time.Duration // the same, summed since the last arrival
	last    time.Time     // of an arrival
	bad     int
	sum     vhosttest.LoadTotals
	base    vhosttest.LoadTotals // of before Begin
	baseBad int
}

// Start starts to step a load. End ends it.
func Start(l *vhosttest.Load, c Config) *Stream {
	if c.Rounds == 0 {
		c.Rounds = 64
	}
	s := &Stream{config: c, load: l, stop: make(chan struct{}), ended: make(chan struct{}), last: time.Now()}
	go func() {
		defer close(s.ended)
		if c.Core >= 0 {
			runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
			if err := cpu.Pin(c.Core); err != nil {
				log.Print(err)
			}
		}
		s.run()
	}()
	return s
}

func (s *Stream) run() {
	replaced, nextReplace, before := int64(0), time.Now(), time.Now()
	for {
		select {
		case <-s.stop:
			return
		default:
		}
		frames := 0
		s.mu.Lock()
		for range s.config.Rounds {
			for i := range s.load.Guests {
				n, bad := s.load.Step(i)
				frames += n
				s.bad += bad
			}
		}
		now := time.Now()
		s.note(frames > 0, before, now)
		before = now
		if now.After(nextReplace) {
			s.sum = s.load.Totals()
			replaced, nextReplace = s.load.Replace(replaced), now.Add(50*time.Millisecond)
		}
		s.mu.Unlock()
		switch {
		case s.config.Rest > 0:
			time.Sleep(s.config.Rest)
		case frames == 0:
			cpu.Pause(64)
		}
	}
}

// note notes a round that ended now and began before. Lock held.
func (s *Stream) note(arrived bool, before, now time.Time) {
	stood := now.Sub(before)
	s.own = max(s.own, stood)
	if stood > leastGap {
		s.ownGap += stood - leastGap
	}
	if !arrived {
		return
	}
	if now.Sub(s.last) >= leastGap {
		s.gaps = append(s.gaps, gap{s.last, now, s.ownGap})
	}
	s.last, s.ownGap = now, 0
}

// Watch begins to note gaps anew.
func (s *Stream) Watch() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gaps, s.own = s.gaps[:0], 0
}

// Pause is the longest gap since Watch that had begun by the time given, the longest
// that began later, and how long the loop itself did not run. arrived is when a frame
// came last.
func (s *Stream) Pause(by time.Time) (first, later, own time.Duration, arrived time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range append(s.gaps[:len(s.gaps):len(s.gaps)], gap{s.last, time.Now(), 0}) {
		if p.from.Before(by) {
			first = max(first, p.to.Sub(p.from))
		} else {
			later = max(later, p.to.Sub(p.from))
		}
	}
	return first, later, s.own, s.last
}

// Longest is the longest gap since Watch, without the time for which the loop itself
// did not run in it.
func (s *Stream) Longest() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	longest := time.Duration(0)
	for _, p := range append(s.gaps[:len(s.gaps):len(s.gaps)], gap{s.last, time.Now(), s.ownGap}) {
		longest = max(longest, p.to.Sub(p.from)-p.own)
	}
	return longest
}

// Totals is the load's totals of a moment ago.
func (s *Stream) Totals() vhosttest.LoadTotals {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sum
}

// Do calls f while the load stands still, for what may not happen to its guests
// meanwhile.
func (s *Stream) Do(f func() error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return f()
}

// Still calls f while the load stands still and no frame is in flight.
func (s *Stream) Still(f func() error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rest()
	return f()
}

// Begin forgets what was counted so far: frames that came before both guests were
// there are not part of a measurement.
func (s *Stream) Begin() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.base, s.gaps, s.own = s.rest(), nil, 0
	s.baseBad, s.last, s.ownGap = s.bad, time.Now(), 0
}

// Counted are the frames between Begin and now, or End.
type Counted struct {
	vhosttest.LoadTotals     // Lost includes those of which another came again
	Bad                  int // that are not what was sent
}

// Count counts since Begin, with no frame in flight.
func (s *Stream) Count() Counted {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.since(s.rest())
}

// End ends the stream and counts since Begin.
func (s *Stream) End() Counted {
	close(s.stop)
	<-s.ended
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.since(s.rest())
}

func (s *Stream) since(t vhosttest.LoadTotals) Counted {
	t.Repeated -= s.base.Repeated
	t.Received -= s.base.Received
	t.Late -= s.base.Late
	t.Lost = max(t.Lost-s.base.Lost+int64(t.Repeated), 0)
	return Counted{t, s.bad - s.baseBad}
}

// quiet is how long nothing arrives from a living switch that holds no more frames.
const quiet = 50 * time.Millisecond

// rest is the totals with no frame in flight. Lock held.
func (s *Stream) rest() vhosttest.LoadTotals {
	last := time.Now()
	t, bad := s.load.Rest(func(came int) bool {
		if came > 0 {
			last = time.Now()
		}
		return time.Since(last) >= quiet
	})
	s.bad += bad
	return t
}

// Now is the totals while the load goes on.
func (s *Stream) Now() vhosttest.LoadTotals {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.whole()
}

// whole is the totals at a moment at which the load has seen whole passes of the
// switch: a frame that was given back to its sender, and that its receiver has not
// looked for yet, would count as lost.
func (s *Stream) whole() vhosttest.LoadTotals {
	least := s.load.Totals()
	for range 1000 {
		for i := range s.load.Guests {
			_, bad := s.load.Step(i)
			s.bad += bad
		}
		if t := s.load.Totals(); t.Lost+int64(t.Repeated) <= least.Lost+int64(least.Repeated) {
			least = t
		}
	}
	return least
}
