// SPDX-License-Identifier: Apache-2.0

package central

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"time"
)

// Peer is the destination of a series of pings.
type Peer struct {
	MAC [6]byte
	IP  netip.Addr
}

// pings is a series of pings to one peer. The pings are sent at a fixed interval, whether or not
// earlier ones have been answered.
type pings struct {
	from     *guest
	to       Peer
	id       uint16
	interval time.Duration
	slow     bool // after quickPings, send at slowInterval
	stop     func()
	done     chan struct{}

	mu    sync.Mutex // guards the fields below
	sent  []sentPing // in order of sequence numbers; the first has number 1
	first chan struct{}
}

// sentPing has the times at which a ping was sent, received and answered. A time is 0 until its event
// has happened.
type sentPing struct {
	sent, arrived, answered time.Duration
}

func (s *sentPing) lost() bool { return s.answered == 0 }

// A series that waits for a first answer sends its first quickPings pings at its own interval, and the
// others at slowInterval. If many ports are late, their pings then take less CPU time.
const (
	quickPings   = 100
	slowInterval = 20 * time.Millisecond
)

// maxPings limits the number of pings in a series, because their sequence numbers have 16 bits.
const maxPings = 65535

// start starts a series of at most maxPings pings.
func (gs *guests) start(from *guest, to Peer, interval time.Duration, slow bool) *pings {
	p := &pings{from: from, to: to, interval: interval, slow: slow, done: make(chan struct{}), first: make(chan struct{})}
	gs.mu.Lock()
	for gs.series[gs.next] != nil {
		gs.next++
	}
	p.id = gs.next
	gs.next++
	gs.series[p.id] = p
	gs.mu.Unlock()
	ctx, stop := context.WithCancel(context.Background())
	p.stop = stop
	go p.run(ctx)
	return p
}

func (p *pings) run(ctx context.Context) {
	defer close(p.done)
	next := clock()
	for n := 1; ctx.Err() == nil && n <= maxPings; n++ {
		if wait := next - clock(); wait > 0 {
			select {
			case <-ctx.Done():
				return
			case <-time.After(wait):
			}
		}
		p.from.mu.Lock()
		mac, ip := p.from.mac, p.from.ip
		p.from.mu.Unlock()
		p.mu.Lock()
		p.sent = append(p.sent, sentPing{sent: clock()})
		p.mu.Unlock()
		// error ignored: a frame that the tap does not accept counts as lost
		_, _ = p.from.file.Write(ping(mac, p.to.MAC, ip, p.to.IP, icmpRequest, p.id, uint16(n)))
		next += p.pause(n)
	}
}

// pause returns the time to wait between ping n and the next one.
func (p *pings) pause(n int) time.Duration {
	if p.slow && n >= quickPings {
		return slowInterval
	}
	return p.interval
}

// note stores the present time in a field of a ping, unless the field already has a time. The function
// "field" returns a pointer to the field. If the series p is nil, note does nothing.
func (p *pings) note(sequence uint16, field func(*pings, *sentPing) *time.Duration) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if sequence == 0 || int(sequence) > len(p.sent) {
		return
	}
	if at := field(p, &p.sent[sequence-1]); *at == 0 {
		*at = clock()
	}
}

func (p *pings) arrivals(s *sentPing) *time.Duration { return &s.arrived }

func (p *pings) answers(s *sentPing) *time.Duration {
	select {
	case <-p.first:
	default:
		close(p.first)
	}
	return &s.answered
}

const (
	// lastAnswers is how long to wait for answers after a series has sent its last ping.
	lastAnswers = 3 * time.Second
	// lateAnswer is the round-trip time from which a ping counts as late. Late pings are not lost.
	lateAnswer = time.Second
)

// Tally is the result of a series of pings.
type Tally struct {
	Sent, Lost int
	Unarrived  int // number of lost pings that the peer has not received
	Late       int
	Longest    time.Duration // longest round-trip time
	Gaps       string        // describes the runs of lost pings, for the log
}

// end stops the series, waits for the last answers as long as wait says, and then counts the pings.
func (p *pings) end(wait time.Duration) (t Tally) {
	p.stop()
	<-p.done
	time.Sleep(wait)
	gs := p.from.group
	gs.mu.Lock()
	delete(gs.series, p.id)
	gs.mu.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	t.Sent, t.Gaps = len(p.sent), p.gaps()
	for i := range p.sent {
		s := &p.sent[i]
		switch took := s.answered - s.sent; {
		case s.lost():
			t.Lost++
			if s.arrived == 0 {
				t.Unarrived++
			}
		default:
			t.Longest = max(t.Longest, took)
			if took >= lateAnswer {
				t.Late++
			}
		}
	}
	return t
}

// gaps describes each run of consecutive lost pings: their number and the time of the first. The
// caller holds mu.
func (p *pings) gaps() string {
	var list []string
	for n := 0; n < len(p.sent); n++ {
		first := n
		for n < len(p.sent) && p.sent[n].lost() {
			n++
		}
		if n > first {
			list = append(list, fmt.Sprintf("%d at %s", n-first, p.sent[first].sent.Round(time.Millisecond)))
		}
	}
	return strings.Join(list, ", ")
}

// firstAnswer sends pings until one is answered, and returns the time of the answer.
func (gs *guests) firstAnswer(ctx context.Context, from *guest, to Peer, interval time.Duration) (answered time.Duration, ok bool) {
	p := gs.start(from, to, interval, true)
	defer p.end(0)
	select {
	case <-p.first:
		p.mu.Lock()
		defer p.mu.Unlock()
		for i := range p.sent {
			if t := p.sent[i].answered; t != 0 && (answered == 0 || t < answered) {
				answered = t
			}
		}
		return answered, true
	case <-ctx.Done():
		return 0, false
	}
}
