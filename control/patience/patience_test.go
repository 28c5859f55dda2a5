// SPDX-License-Identifier: Apache-2.0

package patience

import (
	"errors"
	"strings"
	"testing"
	"time"

	"weft/internal/waitfor"
)

func nothingWrong() string { return "" }

func nothingSlow(time.Duration) string { return "" }

// Do returns its function's result.
func TestDoPassesOn(t *testing.T) {
	r := NewRequests(func() string { return "wrong, and in time all the same" }, nothingSlow)
	sentinel := errors.New("sentinel")
	v, err := r.Do("GET /x", false, false, func() (any, error) { return 7, sentinel })
	if v != 7 || err != sentinel || r.GivenUp() != 0 {
		t.Errorf("%v, %v, %d given up", v, err, r.GivenUp())
	}
}

// An abandoned request continues in the background. The error that its client gets
// names the cause of the delay.
func TestDoSaysWhatIsWrong(t *testing.T) {
	r := NewRequests(func() string { return "worker 0 hangs" }, nothingSlow)
	wait, ended := make(chan struct{}), make(chan struct{})
	_, err := r.Do("GET /v1/ports/vm1", false, false, func() (any, error) {
		<-wait
		close(ended)
		return nil, nil
	})
	var late *TooLong
	if !errors.As(err, &late) || !strings.Contains(err.Error(), "worker 0 hangs") {
		t.Errorf("error %v", err)
	}
	if r.GivenUp() != 1 || r.abandoned.Load() != 1 {
		t.Errorf("%d given up, %d still run; want 1 and 1", r.GivenUp(), r.abandoned.Load())
	}
	close(wait)
	<-ended
	waitfor.True(t, "no abandoned request runs", func() bool { return r.abandoned.Load() == 0 && !r.anyLong() })
}

// The time limit of a request is long if the request itself, or another one in
// progress, is long. A change waits for a busy engine, and for an engine that is being replaced.
func TestOver(t *testing.T) {
	const look, waits = false, true
	var wrong, slow string
	r := NewRequests(func() string { return wrong }, func(time.Duration) string { return slow })
	want := func(long, waits bool, waited time.Duration, want bool) {
		t.Helper()
		if _, over := r.expired(long, waits, waited); over != want {
			t.Errorf("long %v, waits %v, after %v: given up %v, want %v", long, waits, waited, over, want)
		}
	}
	want(false, look, Short-1, false)
	want(false, look, Short, true)
	want(false, waits, Busy-1, false)
	want(false, waits, Busy, true)
	want(true, look, Long-1, false)
	want(true, waits, Long, true)
	slow = "the engine has not answered"
	want(false, look, Explain, true)
	want(false, waits, Busy-1, false)
	want(false, waits, Busy, true)
	want(true, look, Busy, false)
	slow = ""
	number := r.enter("POST /v1/flows", true)
	want(false, look, Short, false)
	want(false, waits, Busy, false)
	want(false, look, Long, true)
	if cause := r.cause("GET /v1/show", 0); !strings.Contains(cause, "POST /v1/flows, begun ") {
		t.Errorf("cause %q does not name the oldest request", cause)
	}
	wrong = "weftd is replacing the engine"
	want(true, look, Explain, true)
	want(true, waits, Replacing-1, false)
	want(true, waits, Replacing, true)
	r.leave(number)
	if cause := r.cause("GET /v1/show", 0); !strings.Contains(cause, "GET /v1/show waits") {
		t.Errorf("cause %q", cause)
	}
}

// When too many abandoned requests still run, new requests are refused.
func TestMaxAbandoned(t *testing.T) {
	r := NewRequests(nothingWrong, nothingSlow)
	r.abandoned.Store(MaxAbandoned)
	_, err := r.Do("GET /v1/show", false, false, func() (any, error) {
		t.Error("a request beyond the limit has begun")
		return nil, nil
	})
	if err == nil || r.GivenUp() != 1 {
		t.Errorf("error %v, %d given up", err, r.GivenUp())
	}
	r.abandoned.Store(0)
	if _, err := r.Do("GET /v1/show", false, false, func() (any, error) { return nil, nil }); err != nil {
		t.Error(err)
	}
}
