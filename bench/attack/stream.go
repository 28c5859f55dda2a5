// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"log"
	"runtime"
	"sync"
	"time"

	"weft/internal/cpu"
	"weft/vhost/vhosttest"
)

// leastGap is the shortest time without a frame that is recorded as a gap.
const leastGap = time.Millisecond

// gap is a period in which no frame arrived at the two guests.
type gap struct {
	from, to time.Time
	own      time.Duration // part of the gap in which this program's loop did not run
}

// streamConfig configures the loop that moves the two guests' frames.
type streamConfig struct {
	core   int           // core on which the loop runs; -1: any core
	rounds int           // steps of each guest between two readings of the clock
	rest   time.Duration // sleep after a round; 0: none
	paced  bool          // a guest takes at most pacedFrames frames in a step
}

// stream makes two guests exchange frames and checks the frames' contents. It records gaps in which no
// frame arrives. Its methods are safe for concurrent use.
type stream struct {
	config streamConfig
	stop   chan struct{}
	ended  chan struct{}

	mu          sync.Mutex
	load        *vhosttest.Load
	gaps        []gap                // gaps since the last call of watch
	ownGap      time.Duration        // time since the last frame for which the loop did not run
	lastArrival time.Time            // time of the last arrival of a frame
	bad         int                  // number of bad frames since the start
	base        vhosttest.LoadTotals // totals of the load at the last call of beginStill
	baseBad     int                  // number of bad frames at the last call of beginStill
	lostBefore  int64                // number of lost frames at the end of the last rest
	demand      demand               // what the guests asked for and got since the start
}

// startStream starts a goroutine that moves the guests' frames until the method end is called.
func startStream(l *vhosttest.Load, c streamConfig) *stream {
	s := &stream{config: c, load: l, stop: make(chan struct{}), ended: make(chan struct{}), lastArrival: time.Now()}
	go func() {
		defer close(s.ended)
		runtime.LockOSThread() // the pinned thread ends with its goroutine, because it is never unlocked
		if c.core >= 0 {
			if err := cpu.Pin(c.core); err != nil {
				log.Print(err)
			}
		}
		s.run()
	}()
	return s
}

func (s *stream) run() {
	replaced, nextReplace, before, waiting := int64(0), time.Now(), time.Now(), 0
	for {
		select {
		case <-s.stop:
			return
		default:
		}
		frames := 0
		s.mu.Lock()
		for range s.config.rounds {
			for i := range s.load.Guests {
				n, bad := s.load.Step(i)
				frames += n
				s.bad += bad
			}
		}
		now := time.Now()
		s.demand.note(s.config, len(s.load.Guests), frames, now)
		waitingBefore := waiting
		waiting = s.load.Waiting()
		s.note(frames+waiting > waitingBefore, before, now)
		before = now
		if now.After(nextReplace) {
			replaced, nextReplace = s.load.Replace(replaced), now.Add(50*time.Millisecond)
		}
		s.mu.Unlock()
		switch {
		case s.config.rest > 0:
			time.Sleep(s.config.rest)
		case frames == 0:
			cpu.Pause(64)
		}
	}
}

// note records one round of the loop, from the end of the previous round (begun) to now. arrived is true
// if a frame has arrived in the round. The caller holds s.mu.
func (s *stream) note(arrived bool, begun, now time.Time) {
	stood := now.Sub(begun)
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

// watch deletes the gaps recorded so far. If a gap has not ended yet, the method longest still counts
// all of it.
func (s *stream) watch() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gaps = s.gaps[:0]
}

// longest returns the longest gap since the last call of watch. The time in which the loop did not run
// is subtracted.
func (s *stream) longest() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	longest := time.Duration(0)
	for _, p := range append(s.gaps[:len(s.gaps):len(s.gaps)], gap{s.lastArrival, time.Now(), s.ownGap}) {
		longest = max(longest, p.to.Sub(p.from)-p.own)
	}
	return longest
}

// totals returns the totals of the load. They may include frames in flight among the lost ones.
func (s *stream) totals() vhosttest.LoadTotals {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.load.Totals()
}

// do calls f while the loop is stopped, so that f may use the guests. Frames may be in flight.
func (s *stream) do(f func() error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return f()
}

// errBusy means that frames were still in flight, or held by the switch, 5 s after the last arrival of a
// frame (see the constant "stalled").
var errBusy = errors.New("frames are in flight")

// whenStill waits until no frame is in flight and countHeld returns 0, and then calls f. countHeld
// returns the number of frames that the switch holds. The guests send nothing while f runs. If
// whenStill returns errBusy, it has not called f.
func (s *stream) whenStill(countHeld func() int, f func() error) (err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.restThen(countHeld, func(calm bool) {
		if err = errBusy; calm {
			err = f()
		}
	})
	return err
}

// counted returns the numbers of frames since beginStill. The functions f of do and whenStill may call
// it. In whenStill, the numbers are exact.
func (s *stream) counted() streamCounts { return s.since(s.load.Totals()) }

// beginStill waits until no frame is in flight and countHeld returns 0. countHeld returns the number of
// frames that the switch holds. The counts of countStill and end then start at 0.
func (s *stream) beginStill(countHeld func() int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.base, s.gaps = s.rest(countHeld), nil
	s.baseBad, s.lastArrival, s.ownGap = s.bad, time.Now(), 0
}

// streamCounts has numbers of frames since the last call of beginStill.
type streamCounts struct {
	vhosttest.LoadTotals     // Lost includes frames that the guests have sent again
	Bad                  int // number of frames with wrong contents
}

// countStill waits until no frame is in flight and countHeld returns 0. countHeld returns the number of
// frames that the switch holds. countStill returns the numbers of frames since beginStill.
func (s *stream) countStill(countHeld func() int) streamCounts {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.since(s.rest(countHeld))
}

// end stops the loop, and returns the numbers of frames since the last call of beginStill.
func (s *stream) end() streamCounts {
	close(s.stop)
	<-s.ended
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.since(s.rest(nil))
}

func (s *stream) since(t vhosttest.LoadTotals) streamCounts {
	t.Repeated -= s.base.Repeated
	t.Received -= s.base.Received
	t.Late -= s.base.Late
	t.Lost = max(t.Lost-s.base.Lost+int64(t.Repeated), 0)
	return streamCounts{t, s.bad - s.baseBad}
}

const (
	// quiet is the time after which, if no frame has arrived and none is missing, no frame is in flight
	// any more.
	quiet = 50 * time.Millisecond
	// missed takes the place of "quiet" if frames are missing. The worker returns a buffer before it
	// publishes the frame to the receiver. If the machine takes the worker's core away in between for
	// longer than "quiet", all frames in flight look lost.
	missed = 300 * time.Millisecond
	// stalled is the time without an arrival after which rest no longer waits for frames in flight. A
	// broken switch may never return the buffers.
	stalled = 5 * time.Second
)

// rest stops sending, and waits until no frame is in flight and the switch has returned all buffers. It
// returns the totals, which are exact then. It gives up when no frame has arrived for the time "stalled";
// the totals then count frames in flight as lost. The caller holds s.mu.
func (s *stream) rest(countHeld func() int) vhosttest.LoadTotals {
	return s.restThen(countHeld, func(bool) {})
}

// restThen waits like rest, and then calls f before the guests send again. It passes true to f, or
// false if frames are still in flight or held by the switch.
func (s *stream) restThen(countHeld func() int, f func(calm bool)) vhosttest.LoadTotals {
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
		if still < quiet || still < missed && s.load.Totals().Lost > s.lostBefore {
			return false
		}
		if s.load.Unreturned() == 0 && (countHeld == nil || countHeld() == 0) {
			returned = true // one more round receives frames that the switch delivered before countHeld
			return false
		}
		if still < stalled {
			return false
		}
		f(false)
		return true
	})
	s.bad += bad
	s.lostBefore = t.Lost
	return t
}
