package replica

import (
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// askAgainAfter is how long the client waits for a reply before it asks again.
const askAgainAfter = 100 * time.Millisecond

// asker is the client: so many requests at a time, until all have been replied to.
type asker struct {
	requests, warmup uint64 // the first warmup requests are not measured
	window           int
	asked, replied   uint64
	done             []bool
	at               []time.Duration // when first asked
	last             []time.Duration // when last asked
	oldest           uint64          // without a reply
	begin, end       time.Duration   // of what is measured
	times            *hdrhistogram.Histogram
}

func newAsker(requests, warmup uint64, window int) *asker {
	all := requests + warmup
	return &asker{requests: all, warmup: warmup, window: window, done: make([]bool, all), at: make([]time.Duration, all),
		last: make([]time.Duration, all), times: hdrhistogram.New(1, int64(time.Minute), 3)}
}

// ask appends the requests for which there is room.
func (a *asker) ask(at time.Duration, out []envelope) []envelope {
	// The warm-up ends before the measurement begins, so that none of it is in flight.
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

// receive takes a reply.
func (a *asker) receive(m *Message, at time.Duration) {
	if m.Kind != reply || m.Request >= a.asked || a.done[m.Request] {
		return
	}
	a.done[m.Request] = true
	a.replied++
	if m.Request >= a.warmup {
		_ = a.times.RecordValue(min(int64(at-a.at[m.Request]), int64(time.Minute))) // in its bounds
		a.end = at
	}
	for a.oldest < a.asked && a.done[a.oldest] {
		a.oldest++
	}
}

// tick asks again for what has waited too long.
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
