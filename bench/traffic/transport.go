// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// transport carries the frames of a measurement. It is a UDP socket, which carries one stream, or a
// device or a vhost-user port, which carries all streams. One goroutine may send while another
// receives.
type transport interface {
	// dress writes the protocol headers of frame number n.
	dress(frame []byte, n uint64)
	// send sends frames in order and returns the number of frames for which there was room. It waits
	// briefly if there is none.
	send(frames [][]byte) (int, error)
	// recv waits for frames at most for the time wait, and returns those that have arrived. They are
	// valid until the next call.
	recv(wait time.Duration) ([][]byte, error)
	// headers returns the length in bytes of the protocol headers, after which the stamp begins.
	headers() int
	// dropped returns the number of received frames that were lost because a buffer was full.
	dropped() uint64
	close()
}

const (
	batch = 64 // largest number of frames in one send or receive
	// idleWait is the longest time for which recv waits before its caller checks whether the
	// measurement has ended.
	idleWait = 20 * time.Millisecond
	// stuckAfter is the time after which a measurement fails if a transport accepts no
	// frame.
	stuckAfter = 5 * time.Second
	// napMin is the shortest time for which a sender sleeps. If the next frame is due sooner, the
	// sender polls the clock.
	napMin = 100 * time.Microsecond
	// quiet is the time without any frame after which the frames that are missing count as lost.
	quiet = 300 * time.Millisecond
	// catchUp is the time after the end of a measurement in which overdue frames may still be sent.
	catchUp = 100 * time.Millisecond
)

// live has running totals, which progress reads while the measurement runs.
type live struct{ frames, bytes atomic.Uint64 }

// Totals counts frames, blocks or requests and their bytes.
type Totals struct {
	Frames uint64 `json:"frames"`
	Bytes  uint64 `json:"bytes"`
}

// transportSender sends the frames of all streams of a transport.
type transportSender struct {
	transport transport
	test      uint32
	streams   []int // numbers of the streams
	plans     []*schedule
	live      *live
	bufs      [][]byte
	turn      int    // index of the stream that sends next
	built     uint64 // number of frames of all streams so far
}

func newTransportSender(s *Spec, l transport, test uint32, streams []int, counters *live) *transportSender {
	ls := &transportSender{transport: l, test: test, streams: streams, live: counters}
	for range batch {
		ls.bufs = append(ls.bufs, make([]byte, s.Sizes.largest()))
	}
	for range streams {
		ls.plans = append(ls.plans, newSchedule(s))
	}
	return ls
}

// phase sends frames until the time limit. The limits on the number of frames apply only if measured
// is set.
func (ls *transportSender) phase(ctx context.Context, measured bool, limit time.Duration) error {
	kind := byte(kindWarmup)
	if measured {
		kind = kindData
	}
	for _, p := range ls.plans {
		p.restart()
	}
	start := time.Now()
	var last time.Duration // time at which catching up ends; 0 before the time limit
	frames := make([][]byte, 0, batch)
	for ctx.Err() == nil {
		elapsed := time.Since(start)
		if elapsed >= limit {
			if last == 0 {
				last = elapsed + catchUp
			}
			if elapsed >= last || !ls.limited() {
				return nil
			}
			elapsed = limit - 1 // only overdue frames are sent
		}
		var next time.Duration
		frames, next = ls.collect(frames[:0], kind, elapsed)
		if len(frames) == 0 {
			if next < 0 || last > 0 {
				return nil
			}
			wait(min(next, limit)-elapsed, ctx)
			continue
		}
		if err := ls.push(ctx, frames); err != nil {
			return err
		}
	}
	return ctx.Err()
}

func (ls *transportSender) limited() bool {
	return !slices.ContainsFunc(ls.plans, func(p *schedule) bool { return p.bits == 0 && p.count == 0 })
}

// collect appends the frames that are due to "frames", from all streams in turn. nextDue is the time at
// which the next frame is due; negative: all streams have sent all their frames.
func (ls *transportSender) collect(frames [][]byte, kind byte, elapsed time.Duration) (_ [][]byte, nextDue time.Duration) {
	at := nowNS()
	nextDue = -1
	for idle := 0; len(frames) < batch && idle < len(ls.plans); {
		i, p := ls.turn, ls.plans[ls.turn]
		if ls.turn++; ls.turn == len(ls.plans) {
			ls.turn = 0
		}
		due := p.due()
		switch {
		case kind == kindData && p.finished():
			idle++
		case due > elapsed:
			if idle++; nextDue < 0 || due < nextDue {
				nextDue = due
			}
		default:
			idle, nextDue = 0, -1
			f := ls.bufs[len(frames)][:p.next()]
			ls.transport.dress(f, ls.built)
			stamp(f[ls.transport.headers():]).set(ls.test, ls.streams[i], kind, p.frames, at)
			ls.built++
			p.sent()
			frames = append(frames, f)
		}
	}
	return frames, nextDue
}

func wait(d time.Duration, ctx context.Context) {
	if d < napMin {
		return
	}
	t := time.NewTimer(d - napMin/2)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

var errStuck = fmt.Errorf("nothing can be sent for %s: is the other side of the link up?", stuckAfter)

func (ls *transportSender) push(ctx context.Context, frames [][]byte) error {
	var since time.Time
	for len(frames) > 0 {
		n, err := ls.transport.send(frames)
		if err != nil {
			return err
		}
		bytes := 0
		for _, f := range frames[:n] {
			bytes += len(f)
		}
		ls.live.frames.Add(uint64(n))
		ls.live.bytes.Add(uint64(bytes))
		frames = frames[n:]
		switch {
		case n > 0:
			since = time.Time{}
		case ctx.Err() != nil:
			return ctx.Err()
		case since.IsZero():
			since = time.Now()
		case time.Since(since) > stuckAfter:
			return errStuck
		}
	}
	return nil
}

func (ls *transportSender) totals() map[int]Totals {
	m := map[int]Totals{}
	for i, p := range ls.plans {
		m[ls.streams[i]] = Totals{Frames: p.frames, Bytes: p.bytes}
	}
	return m
}

// transportReceiver receives and counts the frames of a transport.
type transportReceiver struct {
	transport transport
	test      uint32
	ahead     int64 // difference between the receiver's clock and the sender's, in nanoseconds
	tally     map[int]*tally
	jitter    map[int]*jitter
	delay     *hdrhistogram.Histogram
	live      *live
	strays    uint64 // number of frames of other measurements
	first     time.Time
	last      time.Time
	seen      atomic.Uint64 // number of frames of any kind; drain waits while it grows
	done      atomic.Uint64 // number of distinct data frames
}

func newTransportReceiver(l transport, test uint32, streams []int, ahead time.Duration, counters *live) *transportReceiver {
	lr := &transportReceiver{transport: l, test: test, ahead: ahead.Nanoseconds(), live: counters,
		tally: map[int]*tally{}, jitter: map[int]*jitter{}, delay: newHistogram()}
	for _, s := range streams {
		lr.tally[s], lr.jitter[s] = newTally(), &jitter{}
	}
	return lr
}

func (lr *transportReceiver) run(ctx context.Context) error {
	for ctx.Err() == nil {
		frames, err := lr.transport.recv(idleWait)
		if err != nil {
			return err
		}
		if len(frames) > 0 {
			lr.count(frames)
		}
	}
	return nil
}

func (lr *transportReceiver) count(frames [][]byte) {
	at := nowNS()
	counted, bytes := uint64(0), 0
	for _, f := range frames {
		s, ok := stampOf(f, lr.transport.headers(), lr.test)
		if !ok {
			lr.strays++
			continue
		}
		t := lr.tally[s.stream()]
		if t == nil || s.kind() != kindData {
			continue
		}
		t.add(s.seq(), len(f))
		transit := at - s.time() - lr.ahead
		record(lr.delay, transit)
		lr.jitter[s.stream()].add(transit)
		counted++
		bytes += len(f)
	}
	if counted > 0 {
		lr.last = time.Now()
		if lr.first.IsZero() {
			lr.first = lr.last
		}
	}
	if counted > 0 {
		n := uint64(0)
		for _, t := range lr.tally {
			n += t.received
		}
		lr.done.Store(n)
	}
	lr.seen.Add(uint64(len(frames)))
	lr.live.frames.Add(counted)
	lr.live.bytes.Add(uint64(bytes))
}

// stampOf returns a frame's stamp. ok is false if the frame is of another measurement or too short.
func stampOf(frame []byte, headers int, test uint32) (stamp, bool) {
	if len(frame) < headers+stampLen {
		return nil, false
	}
	s := stamp(frame[headers : headers+stampLen])
	return s, s.test() == test
}

// hello sends hello frames until ctx ends. They make hosts resolve neighbours, and switches learn
// addresses, before the measurement.
func hello(ctx context.Context, l transport, test uint32, streams []int) error {
	f := make([]byte, l.headers()+stampLen)
	for n := uint64(0); ctx.Err() == nil; n++ {
		for _, s := range streams {
			l.dress(f, n)
			stamp(f[l.headers():]).set(test, s, kindHello, n, nowNS())
			if _, err := l.send([][]byte{f}); err != nil {
				return err
			}
		}
		wait(10*time.Millisecond, ctx)
	}
	return nil
}

func greeted(ctx context.Context, l transport, test uint32, streams []int) error {
	missing := map[int]bool{}
	for _, s := range streams {
		missing[s] = true
	}
	for len(missing) > 0 && ctx.Err() == nil {
		frames, err := l.recv(idleWait)
		if err != nil {
			return err
		}
		for _, f := range frames {
			if s, ok := stampOf(f, l.headers(), test); ok {
				delete(missing, s.stream())
			}
		}
	}
	if len(missing) > 0 {
		return errors.Join(errNoHello, ctx.Err())
	}
	return nil
}

var errNoHello = errors.New("nothing came through")
