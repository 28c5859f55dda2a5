// SPDX-License-Identifier: Apache-2.0

package replica

import (
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// askAgainAfter is the client's timeout for a reply.
const askAgainAfter = 100 * time.Millisecond

// asker is the state of the client. It keeps at most window requests in flight.
type asker struct {
	requests, warmup uint64 // warmup is the number of unmeasured requests at the start
	window           int
	asked, replied   uint64
	done             []bool
	at               []time.Duration // time at which each request was first sent
	last             []time.Duration // time at which each request was last sent
	oldest           uint64          // oldest request without a reply
	begin, end       time.Duration   // start and end of the measurement
	times            *hdrhistogram.Histogram
}

func newAsker(requests, warmup uint64, window int) *asker {
	all := requests + warmup
	return &asker{requests: all, warmup: warmup, window: window, done: make([]bool, all), at: make([]time.Duration, all),
		last: make([]time.Duration, all), times: hdrhistogram.New(1, int64(time.Minute), 3)}
}

func (a *asker) ask(at time.Duration, out []envelope) []envelope {
	// no warm-up request may be in flight during the measurement
	limit := a.requests
	if a.replied < a.warmup {
		limit = a.warmup
	}
	for a.asked < limit && a.asked-a.replied < uint64(a.window) {
		if a.asked == a.warmup {
			a.begin = at
		}
		a.at[a.asked], a.last[a.asked] = at, at
		out = append(out, envelope{0, Message{Kind: propose, From: Client, Request: a.asked}})
		a.asked++
	}
	return out
}

func (a *asker) receive(m *Message, at time.Duration) {
	if m.Kind != reply || m.Request >= a.asked || a.done[m.Request] {
		return
	}
	a.done[m.Request] = true
	a.replied++
	if m.Request >= a.warmup {
		_ = a.times.RecordValue(min(int64(at-a.at[m.Request]), int64(time.Minute))) // cannot fail: the value is within the histogram's bounds
		a.end = at
	}
	for a.oldest < a.asked && a.done[a.oldest] {
		a.oldest++
	}
}

func (a *asker) tick(at time.Duration, out []envelope) []envelope {
	for r := a.oldest; r < a.asked; r++ {
		if !a.done[r] && at-a.last[r] >= askAgainAfter {
			a.last[r] = at
			out = append(out, envelope{0, Message{Kind: propose, From: Client, Request: r}})
		}
	}
	return out
}

func (a *asker) finished() bool { return a.replied == a.requests }
