// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"context"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// transportAsker sends requests on a transport, one at a time in each stream. If Spec.PerSecond is set,
// the latency of a request counts from the time at which the request was due, even if it was sent
// later. One delay then counts for each request that it delays.
type transportAsker struct {
	transport transport
	test      uint32
	plans     map[int]*requester
	order     []int // numbers of the streams, in order
	live      *live
	times     *hdrhistogram.Histogram
	buf       []byte
	built     uint64
	rated     bool
}

type requester struct {
	*schedule
	answers Totals
	lost    uint64
	strays  uint64 // number of responses that arrived too late or twice
	waiting bool
	seq     uint64
	sentNS  int64     // time in the request's stamp, in ns
	until   time.Time // time at which the request counts as lost
}

func newTransportAsker(s *Spec, l transport, test uint32, streams []int, counters *live) *transportAsker {
	la := &transportAsker{transport: l, test: test, order: streams, live: counters, times: newHistogram(), plans: map[int]*requester{},
		buf: make([]byte, s.Sizes.largest()), rated: s.PerSecond > 0}
	for _, i := range streams {
		la.plans[i] = &requester{schedule: newSchedule(s)}
	}
	return la
}

// phase sends requests until the time limit, and then waits for the last responses.
func (la *transportAsker) phase(ctx context.Context, measured bool, limit time.Duration) error {
	kind := byte(kindCold)
	if measured {
		kind = kindRequest
	}
	for _, p := range la.plans {
		p.restart()
	}
	start, begun := time.Now(), nowNS()
	for ctx.Err() == nil {
		elapsed := time.Since(start)
		next, open, err := la.ask(kind, elapsed, limit, begun)
		if err != nil {
			return err
		}
		if !open {
			return nil
		}
		frames, err := la.transport.recv(max(next-elapsed, 0))
		if err != nil {
			return err
		}
		la.take(frames, kind)
	}
	return ctx.Err()
}

// ask sends the requests that are due, but none after the time "limit". A request without a response
// counts as lost after lostAfter. "elapsed" is the time since the phase began, and "begun" is the value
// of nowNS at its beginning. The caller calls ask again when the elapsed time reaches askAgain. isOpen
// is false when no stream has a request to send or to wait for.
func (la *transportAsker) ask(kind byte, elapsed, limit time.Duration, begun int64) (askAgain time.Duration, isOpen bool, err error) {
	askAgain = elapsed + idleWait
	for _, i := range la.order {
		p := la.plans[i]
		if p.waiting && time.Now().After(p.until) {
			p.waiting = false
			if kind == kindRequest {
				p.lost++
			}
		}
		due := p.due()
		switch {
		case p.waiting:
			isOpen = true
		case elapsed >= limit || kind == kindRequest && p.finished():
		case due > elapsed:
			isOpen, askAgain = true, min(askAgain, due)
		default:
			isOpen = true
			p.sentNS = nowNS()
			if la.rated {
				p.sentNS = begun + due.Nanoseconds()
			}
			if err := la.send(i, p, kind); err != nil {
				return 0, false, err
			}
		}
	}
	return askAgain, isOpen, nil
}

func (la *transportAsker) send(stream int, p *requester, kind byte) error {
	f := la.buf[:p.next()]
	la.transport.dress(f, la.built)
	la.built++
	stamp(f[la.transport.headers():]).set(la.test, stream, kind, p.frames, p.sentNS)
	p.seq, p.waiting, p.until = p.frames, true, time.Now().Add(lostAfter)
	p.sent()
	la.live.frames.Add(1)
	la.live.bytes.Add(uint64(len(f)))
	since := time.Now()
	for {
		n, err := la.transport.send([][]byte{f})
		if n == 1 || err != nil {
			return err
		}
		if time.Since(since) > stuckAfter {
			return errStuck
		}
	}
}

func (la *transportAsker) take(frames [][]byte, kind byte) {
	at := nowNS()
	for _, f := range frames {
		s, ok := stampOf(f, la.transport.headers(), la.test)
		if !ok || s.kind() != kindResponse {
			continue
		}
		p := la.plans[s.stream()]
		if p == nil {
			continue
		}
		if !p.waiting || p.seq != s.seq() || p.sentNS != s.time() {
			p.strays++
			continue
		}
		p.waiting = false
		if kind == kindRequest {
			record(la.times, at-s.time())
			p.answers.Frames++
			p.answers.Bytes += uint64(len(f))
		}
	}
}

func (la *transportAsker) totals() map[int]Totals {
	m := map[int]Totals{}
	for i, p := range la.plans {
		m[i] = Totals{Frames: p.frames, Bytes: p.bytes}
	}
	return m
}

// answerTransport answers requests until ctx ends. responseBytes is the size of a response in bytes; 0
// means the size of the request.
func answerTransport(ctx context.Context, l transport, test uint32, responseBytes int, counters *live) error {
	out := make([][]byte, 0, batch)
	bufs := make([][]byte, batch)
	for i := range bufs {
		bufs[i] = make([]byte, maxDatagram)
	}
	for n := uint64(0); ctx.Err() == nil; {
		frames, err := l.recv(idleWait)
		if err != nil {
			return err
		}
		out = out[:0]
		for _, f := range frames {
			s, ok := stampOf(f, l.headers(), test)
			if !ok || s.kind() != kindRequest && s.kind() != kindCold {
				continue
			}
			size := len(f)
			if responseBytes > 0 {
				size = responseBytes
			}
			back := bufs[len(out)][:size]
			l.dress(back, n)
			copy(back[l.headers():], s)
			stamp(back[l.headers():]).setKind(kindResponse)
			counters.frames.Add(1)
			counters.bytes.Add(uint64(size))
			out = append(out, back)
			n++
		}
		for since := time.Now(); len(out) > 0; {
			n, err := l.send(out)
			if err != nil {
				return err
			}
			out = out[n:]
			if time.Since(since) > stuckAfter {
				return errStuck
			}
		}
	}
	return nil
}
