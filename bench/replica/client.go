// SPDX-License-Identifier: Apache-2.0

package replica

import (
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// askAgainAfter is the time without a reply after which the client sends a request again.
const askAgainAfter = 100 * time.Millisecond

// asker is the state of the client. It keeps at most "window" requests in flight.
type asker struct {
	requests, warmup   uint64 // warmup is the number of unmeasured requests at the start
	window             int
	requested, replied uint64
	completed          []bool
	sentAt             []time.Duration // time at which each request was first sent
	lastSent           []time.Duration // time at which each request was last sent
	oldest             uint64          // oldest request without a reply
	begin, end         time.Duration   // start and end of the measurement
	times              *hdrhistogram.Histogram
}

func newAsker(requests, warmup uint64, window int) *asker {
	all := requests + warmup
	return &asker{requests: all, warmup: warmup, window: window, completed: make([]bool, all), sentAt: make([]time.Duration, all),
		lastSent: make([]time.Duration, all), times: hdrhistogram.New(1, int64(time.Minute), 3)}
}

func (a *asker) ask(now time.Duration, envelopes []envelope) []envelope {
	// The measurement starts when no request of the warm-up is in flight any more.
	limit := a.requests
	if a.replied < a.warmup {
		limit = a.warmup
	}
	for a.requested < limit && a.requested-a.replied < uint64(a.window) {
		if a.requested == a.warmup {
			a.begin = now
		}
		a.sentAt[a.requested], a.lastSent[a.requested] = now, now
		envelopes = append(envelopes, envelope{0, Message{Kind: propose, From: Client, Request: a.requested}})
		a.requested++
	}
	return envelopes
}

func (a *asker) receive(m *Message, now time.Duration) {
	if m.Kind != reply || m.Request >= a.requested || a.completed[m.Request] {
		return
	}
	a.completed[m.Request] = true
	a.replied++
	if m.Request >= a.warmup {
		_ = a.times.RecordValue(min(int64(now-a.sentAt[m.Request]), int64(time.Minute))) // cannot fail: the value is within the histogram's bounds
		a.end = now
	}
	for a.oldest < a.requested && a.completed[a.oldest] {
		a.oldest++
	}
}

func (a *asker) tick(now time.Duration, envelopes []envelope) []envelope {
	for r := a.oldest; r < a.requested; r++ {
		if !a.completed[r] && now-a.lastSent[r] >= askAgainAfter {
			a.lastSent[r] = now
			envelopes = append(envelopes, envelope{0, Message{Kind: propose, From: Client, Request: r}})
		}
	}
	return envelopes
}

func (a *asker) finished() bool { return a.replied == a.requests }
