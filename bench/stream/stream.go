// SPDX-License-Identifier: Apache-2.0

// Package stream runs a checked load between two guests, and measures pauses in its
// traffic.
package stream

import (
	"errors"
	"log"
	"runtime"
	"sync"
	"time"

	"weft/internal/cpu"
	"weft/vhost/vhosttest"
)

// leastGap is the shortest recorded gap.
const leastGap = time.Millisecond

// gap is a period in which no frame arrived.
type gap struct {
	from, to time.Time
	own      time.Duration // part of the gap in which the load generator's loop did not run
}

// Config configures the loop of a Stream.
type Config struct {
	// Core is the core on which the loop runs; -1 means any core.
	Core int
	// Rounds is the number of steps of every guest between two clock readings; 0
	// means 64.
	Rounds int
	// Rest is the sleep after every Rounds steps; 0 means no sleep.
	Rest time.Duration
}

// Stream runs a load between guests, and records gaps in which no frame arrives. Its
// methods are safe for concurrent use.
type Stream struct {
	config Config
	stop   chan struct{}
	ended  chan struct{}

	mu          sync.Mutex
	load        *vhosttest.Load
	gaps        []gap                // gaps since the last call of Watch
	own         time.Duration        // longest round of the loop since Watch
	ownGap      time.Duration        // time since the last frame in which the loop did not run
	lastArrival time.Time            // time of the last arrival of a frame
	bad         int                  // number of bad frames since the start
	base        vhosttest.LoadTotals // totals of the load at the last call of Begin
	baseBad     int                  // number of bad frames at the last call of Begin
}

// Start starts a goroutine that runs the load until End is called.
func Start(l *vhosttest.Load, c Config) *Stream {
	if c.Rounds == 0 {
		c.Rounds = 64
	}
	s := &Stream{config: c, load: l, stop: make(chan struct{}), ended: make(chan struct{}), lastArrival: time.Now()}
	go func() {
		defer close(s.ended)
		if c.Core >= 0 {
			runtime.LockOSThread() // without UnlockOSThread, the thread ends with its goroutine
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

// note records one round of the loop. begun is its start, now its end. arrived reports
// whether a frame has arrived. The caller holds the lock.
func (s *Stream) note(arrived bool, begun, now time.Time) {
	stood := now.Sub(begun)
	s.own = max(s.own, stood)
	if stood > leastGap {
		s.ownGap += stood - leastGap
	}
	if !arrived {
		return
	}
	if now.Sub(s.lastArrival) >= leastGap {
		s.gaps = append(s.gaps, gap{s.lastArrival, now, s.ownGap})
	}
	s.lastArrival, s.ownGap = now, 0
}

// Watch deletes the recorded gaps.
func (s *Stream) Watch() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gaps, s.own = s.gaps[:0], 0
}

// Pause divides the gaps since Watch into gaps before and after moment. earlier is the
// longest gap before, later the longest gap after it. own is the longest round of the
// loop. arrived is the time of the last frame.
func (s *Stream) Pause(moment time.Time) (earlier, later, own time.Duration, arrived time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range append(s.gaps[:len(s.gaps):len(s.gaps)], gap{s.lastArrival, time.Now(), 0}) {
		if p.from.Before(moment) {
			earlier = max(earlier, p.to.Sub(p.from))
		} else {
			later = max(later, p.to.Sub(p.from))
		}
	}
	return earlier, later, s.own, s.lastArrival
}

// Longest returns the longest gap since Watch, without the time in which the loop did
// not run.
func (s *Stream) Longest() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	longest := time.Duration(0)
	for _, p := range append(s.gaps[:len(s.gaps):len(s.gaps)], gap{s.lastArrival, time.Now(), s.ownGap}) {
		longest = max(longest, p.to.Sub(p.from)-p.own)
	}
	return longest
}

// Totals returns the totals of the load. Frames in flight may count as lost.
func (s *Stream) Totals() vhosttest.LoadTotals {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.load.Totals()
}

// Do calls f while the loop is stopped. f may use the guests. Frames may be in
// flight.
func (s *Stream) Do(f func() error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return f()
}

// ErrBusy means that frames have been in flight for longer than stalled.
var ErrBusy = errors.New("frames are in flight")

// Still is like Do, but calls f when no frame is in flight. It waits until countHeld,
// the number of frames that the switch holds, returns 0. The guests send nothing while
// f runs. If Still returns ErrBusy, it has not called f.
func (s *Stream) Still(countHeld func() int, f func() error) (err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.restThen(countHeld, func(calm bool) {
		if err = ErrBusy; calm {
			err = f()
		}
	})
	return err
}

// Counted returns the numbers of frames since Begin. It is for the function f of Do or
// Still. In Still, the numbers are exact.
func (s *Stream) Counted() Counted { return s.since(s.load.Totals()) }

// Begin starts a measurement: Count and End ignore earlier frames.
func (s *Stream) Begin() { s.BeginStill(nil) }

// BeginStill is like Begin, but waits until no frame is in flight. For this, countHeld,
// the number of frames that the switch holds, must return 0.
func (s *Stream) BeginStill(countHeld func() int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.base, s.gaps, s.own = s.rest(countHeld), nil, 0
	s.baseBad, s.lastArrival, s.ownGap = s.bad, time.Now(), 0
}

// Counted has numbers of frames since Begin.
type Counted struct {
	vhosttest.LoadTotals     // Lost includes frames that the guests sent again
	Bad                  int // number of frames with wrong contents
}

// Count waits until no frame is in flight, and returns the numbers of frames since
// Begin.
func (s *Stream) Count() Counted { return s.CountStill(nil) }

// CountStill is like Count. It also waits until countHeld, the number of frames that
// the switch holds, returns 0.
func (s *Stream) CountStill(countHeld func() int) Counted {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.since(s.rest(countHeld))
}

// End ends the stream and returns the numbers of frames since Begin.
func (s *Stream) End() Counted {
	close(s.stop)
	<-s.ended
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.since(s.rest(nil))
}

func (s *Stream) since(t vhosttest.LoadTotals) Counted {
	t.Repeated -= s.base.Repeated
	t.Received -= s.base.Received
	t.Late -= s.base.Late
	t.Lost = max(t.Lost-s.base.Lost+int64(t.Repeated), 0)
	return Counted{t, s.bad - s.baseBad}
}

const (
	// quiet is the time without an arrival after which no frame is in flight.
	quiet = 50 * time.Millisecond
	// stalled is the time limit for a switch that returns no buffers.
	stalled = 5 * time.Second
)

// rest stops sending, and waits until no frame is in flight and the switch has returned
// all buffers. It returns the totals, which are exact then. The caller holds the lock.
func (s *Stream) rest(countHeld func() int) vhosttest.LoadTotals {
	return s.restThen(countHeld, func(bool) {})
}

// restThen does the same as rest, and calls f before the guests send again. The
// argument calm of f is false if frames are still in flight.
func (s *Stream) restThen(countHeld func() int, f func(calm bool)) vhosttest.LoadTotals {
	last, returned := time.Now(), false
	t, bad := s.load.Rest(func(received int) bool {
		if received > 0 {
			last, returned = time.Now(), false
		}
		if returned {
			f(true)
			return true
		}
		still := time.Since(last)
		if still < quiet {
			return false
		}
		if s.load.Unreturned() == 0 && (countHeld == nil || countHeld() == 0) {
			returned = true // the next round receives frames that were held before countHeld
			return false
		}
		if still < stalled {
			return false
		}
		f(false)
		return true
	})
	s.bad += bad
	return t
}

// Now returns the present totals of the load.
func (s *Stream) Now() vhosttest.LoadTotals {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.whole()
}

// whole returns the totals at a moment when few frames are in flight, because a frame in
// flight counts as lost. The caller holds the lock.
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
