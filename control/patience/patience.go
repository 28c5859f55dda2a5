// SPDX-License-Identifier: Apache-2.0

// Package patience limits how long a client of the API waits for a request. A request
// that exceeds its limit continues in the background, because a change in control
// cannot be undone halfway. The client receives an error that says what the request
// waits for.
package patience

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// Time limits of a request.
const (
	// Explain is the time after which a request is abandoned if the cause of the
	// delay is known: a worker hangs, or there is no engine.
	Explain = time.Second
	// Short is the time limit of a request that touches few flows or connections,
	// while no long request is in progress.
	Short = 5 * time.Second
	// Long is the time limit of a request that may touch a million flows or
	// connections, and of requests that may have to wait for such a request.
	Long = 5 * time.Minute
	// MaxAbandoned is the limit of abandoned requests that still run. At the limit
	// every further request is refused.
	MaxAbandoned = 256
	// look is the interval at which a waiting request checks for a known cause of the
	// delay.
	look = 50 * time.Millisecond
)

// TooLong is the error of a request that was abandoned. Its HTTP status is 503.
type TooLong struct{ message string }

func (e *TooLong) Error() string { return e.message }

// Requests has the requests in progress. Any goroutine may call its methods.
type Requests struct {
	wrong     func() string
	slow      func() string
	givenUp   atomic.Uint64
	abandoned atomic.Int64

	mu      sync.Mutex
	last    uint64
	running map[uint64]*request
}

type request struct {
	name  string
	long  bool
	began time.Time
}

// NewRequests returns Requests with no request in progress. The function wrong
// returns the cause that keeps control from answering requests, or "" if no cause is
// known. The function slow returns a cause that probably delays requests, or "" if no
// cause is known. Neither function may block. A request that may touch very many flows
// or connections is not abandoned because of slow: it may take as long by itself.
func NewRequests(wrong, slow func() string) *Requests {
	return &Requests{wrong: wrong, slow: slow, running: map[uint64]*request{}}
}

// GivenUp returns the number of requests that were abandoned or refused.
func (r *Requests) GivenUp() uint64 { return r.givenUp.Load() }

// Do calls f and returns f's result. If f takes too long, Do abandons it and returns
// TooLong. The string name is the request's name in errors. The argument long is true
// if f may touch very many flows or connections. The argument changes is true if f
// changes state, perhaps only after it was abandoned.
func (r *Requests) Do(name string, long, changes bool, f func() (any, error)) (any, error) {
	if n := r.abandoned.Load(); n >= MaxAbandoned {
		r.givenUp.Add(1)
		return nil, &TooLong{fmt.Sprintf("%d abandoned requests are still running, which is the limit; try again when they end: %s", n, r.cause(name, 0))}
	}
	type result struct {
		value any
		err   error
	}
	number, done := r.enter(name, long), make(chan result, 1)
	var left atomic.Int32 // 0: f runs and the client waits; 1: f was abandoned; 2: f has ended
	go func() {
		value, err := f()
		r.leave(number)
		done <- result{value, err}
		if !left.CompareAndSwap(0, 2) {
			r.abandoned.Add(-1)
		}
	}()
	began, timer := time.Now(), time.NewTimer(Explain)
	defer timer.Stop()
	for {
		select {
		case a := <-done:
			return a.value, a.err
		case <-timer.C:
		}
		why, over := r.over(long, time.Since(began))
		if !over {
			timer.Reset(look)
			continue
		}
		r.abandoned.Add(1)
		if !left.CompareAndSwap(0, 1) { // f has ended meanwhile
			r.abandoned.Add(-1)
			a := <-done
			return a.value, a.err
		}
		r.givenUp.Add(1)
		if why == "" {
			why = r.cause(name, number)
		}
		if changes {
			why += "; the change may still take effect"
		}
		return nil, &TooLong{fmt.Sprintf("not done within %.1f s: %s", time.Since(began).Seconds(), why)}
	}
}

// over reports whether a request is abandoned that has been in progress for the given
// time. If the cause of the delay is known, over also returns the cause.
func (r *Requests) over(long bool, after time.Duration) (why string, over bool) {
	if why := r.wrong(); why != "" {
		return why, true
	}
	if !long {
		if why := r.slow(); why != "" {
			return why, true
		}
	}
	limit := Short
	if long || r.anyLong() {
		limit = Long
	}
	return "", after >= limit
}

func (r *Requests) enter(name string, long bool) (number uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last++
	r.running[r.last] = &request{name, long, time.Now()}
	return r.last
}

func (r *Requests) leave(number uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.running, number)
}

func (r *Requests) anyLong() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, q := range r.running {
		if q.long {
			return true
		}
	}
	return false
}

// cause names the oldest running request other than this one, because this request
// probably waits for it.
func (r *Requests) cause(name string, but uint64) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var oldest *request
	for number, q := range r.running {
		if number != but && (oldest == nil || q.began.Before(oldest.began)) {
			oldest = q
		}
	}
	if oldest == nil {
		return fmt.Sprintf("%s waits for weftd, whose log may say more", name)
	}
	return fmt.Sprintf("%s, begun %.1f s ago, is not done either", oldest.name, time.Since(oldest.began).Seconds())
}
