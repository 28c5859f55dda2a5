// SPDX-License-Identifier: Apache-2.0

package access

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// Time limits of a request.
const (
	// ExplainTimeout is the time limit of a request whose delay has a known reason, such as a hung worker.
	// The error tells the client the reason.
	ExplainTimeout = time.Second
	// ShortTimeout is the time limit of a request for few flows or connections.
	ShortTimeout = 5 * time.Second
	// busyTimeout is the time limit of a change of few flows or connections while the engine process is
	// busy. The engine is busy if it has not answered a request of the control process within slowAnswer,
	// for example because it waits for a core.
	busyTimeout = 30 * time.Second
	slowAnswer  = 200 * time.Millisecond
	// replacingTimeout is the time limit of a change while the control process replaces the engine
	// process.
	replacingTimeout = 10 * time.Second
	// longTimeout is the time limit of a request for up to a million flows or connections. It
	// also applies to requests that wait for such a request.
	longTimeout = 5 * time.Minute
	// maxAbandoned limits the abandoned requests, which still run in the background although their clients
	// have got an error. At the limit all new requests are refused.
	maxAbandoned = 256
	// checkInterval is the interval at which a waiting request checks again whether its delay has a known
	// reason.
	checkInterval = 50 * time.Millisecond
)

// TooLong is the error of an abandoned or refused request. The HTTP status is 503.
type TooLong struct{ message string }

func (e *TooLong) Error() string { return e.message }

// Requests has the requests in progress, and limits how long a client waits. Its methods are safe for
// concurrent use.
type Requests struct {
	wrong     func() string
	slow      func(limit time.Duration) string
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

// NewRequests returns Requests with no request in progress. The function wrong returns why all requests
// must wait now. The function slow returns what has delayed short requests for longer than limit. Both
// return "" if there is no such reason. They must not block.
func NewRequests(wrong func() string, slow func(limit time.Duration) string) *Requests {
	return &Requests{wrong: wrong, slow: slow, running: map[uint64]*request{}}
}

// GivenUp returns the number of abandoned or refused requests.
func (r *Requests) GivenUp() uint64 { return r.givenUp.Load() }

// Do calls f and returns its results. If f takes too long, Do returns a *TooLong, and f continues in the
// background. name is the request's name in errors. long means that f may handle very many flows or
// connections. changes means that f changes the switch's state.
func (r *Requests) Do(name string, long, changes bool, f func() (any, error)) (any, error) {
	if n := r.abandoned.Load(); n >= maxAbandoned {
		r.givenUp.Add(1)
		return nil, &TooLong{fmt.Sprintf("%d abandoned requests are still running, which is the limit; try again when they end: %s", n, r.cause(name, 0))}
	}
	type result struct {
		value any
		err   error
	}
	number, done := r.enter(name, long), make(chan result, 1)
	var left atomic.Int32 // state of the request: 0: the client waits; 1: abandoned; 2: done
	go func() {
		value, err := f()
		r.leave(number)
		done <- result{value, err}
		if !left.CompareAndSwap(0, 2) {
			r.abandoned.Add(-1)
		}
	}()
	began, timer, waits := time.Now(), time.NewTimer(ExplainTimeout), false
	defer timer.Stop()
	for {
		select {
		case a := <-done:
			return a.value, a.err
		case <-timer.C:
		}
		waits = waits || changes && r.engineWaits()
		reason, over := r.expired(long, waits, time.Since(began))
		if !over {
			timer.Reset(checkInterval)
			continue
		}
		r.abandoned.Add(1)
		if !left.CompareAndSwap(0, 1) { // f has ended meanwhile
			r.abandoned.Add(-1)
			a := <-done
			return a.value, a.err
		}
		r.givenUp.Add(1)
		if reason == "" {
			reason = r.cause(name, number)
		}
		if changes {
			reason += "; the change may still take effect"
		}
		return nil, &TooLong{fmt.Sprintf("not done within %.1f s: %s", time.Since(began).Seconds(), reason)}
	}
}

// engineWaits reports whether the engine is busy or being replaced.
func (r *Requests) engineWaits() bool { return r.wrong() != "" || r.slow(slowAnswer) != "" }

// expired reports whether to abandon a request that has waited for this time. reason says what delays the
// request, if that is known. waits means that the request is a change, and that the engine was busy or
// being replaced at some time. Such a change gets more time, because its client would otherwise have to
// find out whether the change took effect.
func (r *Requests) expired(long, waits bool, waited time.Duration) (reason string, expired bool) {
	if reason := r.wrong(); reason != "" && (!waits || waited >= replacingTimeout) {
		return reason, true
	}
	limit := ShortTimeout
	if waits {
		limit = busyTimeout
	}
	if !long {
		if reason := r.slow(ExplainTimeout); reason != "" && (!waits || waited >= limit) {
			return reason, true
		}
	}
	if long || r.anyLong() {
		limit = longTimeout
	}
	return "", waited >= limit
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
