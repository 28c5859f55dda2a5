// SPDX-License-Identifier: Apache-2.0

package replica

import (
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// askAgainAfter is the time after which the client repeats a request that has no
// reply.
const askAgainAfter = 100 * time.Millisecond

// asker is the state of the client. Until all requests have a reply, it keeps
// requests in flight, at most as many as the field window.
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

// ask appends new requests to the slice out until the number of requests in flight is
// a.window.
func (a *asker) ask(at time.Duration, out []envelope) []envelope {
	// The measurement begins only after all warm-up requests have a reply, so that no
	// warm-up request is in flight during the measurement.
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

// receive records the reply to a request.
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

// tick repeats the requests that have waited longer than askAgainAfter for a reply:
// it appends them to the slice out.
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
