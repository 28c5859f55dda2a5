// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"weft/e2e/lab"
	"weft/internal/cpu"
	"weft/internal/shm"
	"weft/vhost/vhosttest"
)

// The functions below measure wake-ups. After an idle time, one guest kicks the switch, and another
// guest polls for the frame. For comparison, an eventfd wakes a thread that sleeps in epoll on the
// switch's core. A switch that sleeps cannot be faster than this thread.

// wakes is the number of measured frames of one run.
const wakes = 1000

// The idle time is idleLeast plus a random part of idleSpread. The random part keeps frames out of
// step with timers. A worker sleeps after less than idleLeast.
const (
	idleLeast  = 2 * time.Millisecond
	idleSpread = time.Millisecond
)

// wakeLimit is the time after which a frame counts as lost.
const wakeLimit = time.Second

// wakeBar is the time that the first frame after an idle time should take at most.
const wakeBar = 100 * time.Microsecond

// wakeTimes summarises the times that frames take through an idle switch, or that a sleeping thread
// takes to wake up. They are in seconds.
type wakeTimes struct {
	Median, Within99, Longest float64
	InTime                    float64 // share of the times within wakeBar
}

func newWakeTimes(times []time.Duration) wakeTimes {
	slices.Sort(times)
	late, _ := slices.BinarySearch(times, wakeBar+1)
	return wakeTimes{times[len(times)/2].Seconds(), times[len(times)*99/100].Seconds(), times[len(times)-1].Seconds(), float64(late) / float64(len(times))}
}

func (t *wakeTimes) note(r *run, whose string) {
	r.note(whose+"median", "s", t.Median)
	r.note(whose+"longest", "s", t.Longest)
	r.note(whose+fmt.Sprint("within ", wakeBar), "%", 100*t.InTime)
}

// measureWake returns the 99th percentile of the time that the first frame after an idle time takes
// through the switch.
func measureWake(r *run, peer string) float64 {
	var result pairReport
	withPairs(r, peer, pairSpec{Size: 64, Flows: 1, Wakes: wakes}, 1, func(_ vswitch, guests *process) {
		guests.waitForReport(60*time.Second, &result)
	})
	result.Wake.note(r, "")
	result.BareWake.note(r, "eventfd to epoll alone, ")
	r.note("eventfd to epoll alone, 99th", "s", result.BareWake.Within99)
	return result.Wake.Within99
}

// wake measures n times how long a frame takes through the idle switch. After each frame, it measures
// how long a thread that sleeps in epoll takes to wake up, for comparison. Five more rounds at the
// beginning do not count.
func wake(guests []*vhosttest.Guest, frame []byte, n int) pairReport {
	const first = 5
	bare := newSleeper()
	times, bareTimes := make([]time.Duration, 0, n), make([]time.Duration, 0, n)
	for i := range n + first {
		d, err := wakeSwitch(guests[0].Tx[0], guests[1].Rx[0], frame)
		if err != nil && i >= first { // a frame that does not count may be lost while the switch still attaches
			lab.Check(fmt.Errorf("frame %d: %w", i, err))
		}
		e := bare.wake()
		if i >= first {
			times, bareTimes = append(times, d), append(bareTimes, e)
		}
	}
	return pairReport{Wake: newWakeTimes(times), BareWake: newWakeTimes(bareTimes)}
}

func wakeSwitch(from, to *vhosttest.Queue, frame []byte) (time.Duration, error) {
	time.Sleep(idleLeast + rand.N(idleSpread))
	if !from.Send(frame) {
		return 0, errors.New("the switch does not return the transmit buffers")
	}
	begin := time.Now()
	from.Publish()
	buf := make([]byte, 0, 2048)
	for {
		if _, _, ok := to.Recv(buf); ok {
			d := time.Since(begin)
			to.Refill()
			return d, nil
		}
		if time.Since(begin) > wakeLimit {
			return 0, fmt.Errorf("the frame did not arrive within %v", wakeLimit)
		}
	}
}

// sleeper is a thread on the switch's core. It sleeps in epoll and counts how often it is woken.
type sleeper struct {
	_       [64]byte // gives counter a cache line of its own, because another thread polls it
	counter atomic.Uint64
	_       [64]byte
	event   int
}

func newSleeper() *sleeper {
	set := lab.Must(unix.EpollCreate1(unix.EPOLL_CLOEXEC))
	s := &sleeper{}
	s.event = lab.Must(shm.NewEvent())
	lab.Check(unix.EpollCtl(set, unix.EPOLL_CTL_ADD, s.event, &unix.EpollEvent{Events: unix.EPOLLIN}))
	runtime.GOMAXPROCS(2) // one for the polling goroutine, which never yields
	pinned := make(chan error)
	go func() {
		runtime.LockOSThread() // it stays locked until the process ends
		pinned <- cpu.Pin(switchCore)
		for events := make([]unix.EpollEvent, 1); ; {
			if n, _ := unix.EpollWait(set, events, -1); n > 0 {
				s.counter.Add(1)
				shm.DrainOwn(s.event)
			}
		}
	}()
	lab.Check(<-pinned)
	return s
}

func (s *sleeper) wake() time.Duration {
	time.Sleep(idleLeast + rand.N(idleSpread))
	seen, begin := s.counter.Load(), time.Now()
	shm.SignalOwn(s.event)
	for s.counter.Load() == seen {
	}
	return time.Since(begin)
}
