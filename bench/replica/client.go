// SPDX-License-Identifier: Apache-2.0

package replica

import (
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// askAgainAfter is how long the client waits for a reply before it repeats a request.
const askAgainAfter = 100 * time.Millisecond

// asker is the client. It keeps window requests outstanding until all have a reply.
type asker struct {
	requests, warmup uint64 // the first warmup requests are not measured
	window           int
	asked, replied   uint64
	done             []bool
	at               []time.Duration // time of the first transmission
	last             []time.Duration // time of the last transmission
	oldest           uint64          // oldest request without a reply
	begin, end       time.Duration   // start and end of the measurement
	times            *hdrhistogram.Histogram
}

func newAsker(requests, warmup uint64, window int) *asker {
	all := requests + warmup
	return &asker{requests: all, warmup: warmup, window: window, done: make([]bool, all), at: make([]time.Duration, all),
		last: make([]time.Duration, all), times: hdrhistogram.New(1, int64(time.Minute), 3)}
}

// ask appends new requests up to the window.
func (a *asker) ask(at time.Duration, out []envelope) []envelope {
	// The warm-up ends before the measurement begins: none of its requests is in
	// flight then.
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

// receive handles a reply.
func (a *asker) receive(m *Message, at time.Duration) {
	if m.Kind != reply || m.Request >= a.asked || a.done[m.Request] {
		return
	}
	a.done[m.Request] = true
	a.replied++
	if m.Request >= a.warmup {
		_ = a.times.RecordValue(min(int64(at-a.at[m.Request]), int64(time.Minute))) // the value is within bounds
		a.end = at
	}
	for a.oldest < a.asked && a.done[a.oldest] {
		a.oldest++
	}
}

// tick repeats requests that have waited too long.
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
