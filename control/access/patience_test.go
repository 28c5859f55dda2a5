// SPDX-License-Identifier: Apache-2.0

package access

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

// An abandoned request continues in the background. The error for its client names what delays the
// request.
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

// The time limit is long if the request, or another request in progress, is one that takes long. A
// change also waits for an engine that is busy or being replaced.
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
	want(false, look, ShortTimeout-1, false)
	want(false, look, ShortTimeout, true)
	want(false, waits, busyTimeout-1, false)
	want(false, waits, busyTimeout, true)
	want(true, look, longTimeout-1, false)
	want(true, waits, longTimeout, true)
	slow = "the engine has not answered"
	want(false, look, ExplainTimeout, true)
	want(false, waits, busyTimeout-1, false)
	want(false, waits, busyTimeout, true)
	want(true, look, busyTimeout, false)
	slow = ""
	number := r.enter("POST /v1/flows", true)
	want(false, look, ShortTimeout, false)
	want(false, waits, busyTimeout, false)
	want(false, look, longTimeout, true)
	if cause := r.cause("GET /v1/show", 0); !strings.Contains(cause, "POST /v1/flows, begun ") {
		t.Errorf("cause %q does not name the oldest request", cause)
	}
	wrong = "weftd is replacing the engine"
	want(true, look, ExplainTimeout, true)
	want(true, waits, replacingTimeout-1, false)
	want(true, waits, replacingTimeout, true)
	r.leave(number)
	if cause := r.cause("GET /v1/show", 0); !strings.Contains(cause, "GET /v1/show waits") {
		t.Errorf("cause %q", cause)
	}
}

// New requests are refused while too many abandoned ones still run.
func TestMaxAbandoned(t *testing.T) {
	r := NewRequests(nothingWrong, nothingSlow)
	r.abandoned.Store(maxAbandoned)
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
