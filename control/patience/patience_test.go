// SPDX-License-Identifier: Apache-2.0

package patience

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"weft/internal/waitfor"
)

func nothingWrong() string { return "" }

// Do returns its function's result.
func TestDoPassesOn(t *testing.T) {
	r := NewRequests(func() string { return "wrong, and in time all the same" }, nothingWrong)
	sentinel := errors.New("sentinel")
	v, err := r.Do("GET /x", false, false, func() (any, error) { return 7, sentinel })
	if v != 7 || err != sentinel || r.GivenUp() != 0 {
		t.Errorf("%v, %v, %d given up", v, err, r.GivenUp())
	}
}

// An abandoned request continues in the background. The error that its client gets
// names the cause of the delay.
func TestDoSaysWhatIsWrong(t *testing.T) {
	r := NewRequests(func() string { return "worker 0 hangs" }, nothingWrong)
	wait, ended := make(chan struct{}), make(chan struct{})
	_, err := r.Do("DELETE /v1/ports/vm1", false, true, func() (any, error) {
		<-wait
		close(ended)
		return nil, nil
	})
	var late *TooLong
	if !errors.As(err, &late) || !strings.Contains(err.Error(), "worker 0 hangs") || !strings.Contains(err.Error(), "may still take effect") {
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
// progress, is long.
func TestOver(t *testing.T) {
	var wrong atomic.Bool
	r := NewRequests(func() string {
		if wrong.Load() {
			return "wrong"
		}
		return ""
	}, nothingWrong)
	want := func(long bool, waited time.Duration, want bool) {
		t.Helper()
		if _, over := r.expired(long, waited); over != want {
			t.Errorf("long %v, after %v: given up %v, want %v", long, waited, over, want)
		}
	}
	want(false, Short-1, false)
	want(false, Short, true)
	want(true, Long-1, false)
	want(true, Long, true)
	number := r.enter("POST /v1/flows", true)
	want(false, Short, false)
	want(false, Long, true)
	if cause := r.cause("GET /v1/show", 0); !strings.Contains(cause, "POST /v1/flows, begun ") {
		t.Errorf("cause %q does not name the oldest request", cause)
	}
	wrong.Store(true)
	want(true, Explain, true)
	r.leave(number)
	if cause := r.cause("GET /v1/show", 0); !strings.Contains(cause, "GET /v1/show waits") {
		t.Errorf("cause %q", cause)
	}
}

// When too many abandoned requests still run, new requests are refused.
func TestMaxAbandoned(t *testing.T) {
	r := NewRequests(nothingWrong, nothingWrong)
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

// A cause that only delays requests ends short requests, not long ones.
func TestSlowEndsShortRequestsOnly(t *testing.T) {
	r := NewRequests(nothingWrong, func() string { return "the engine has not answered" })
	if reason, over := r.expired(false, Explain); reason != "the engine has not answered" || !over {
		t.Errorf("short request: %q, %v", reason, over)
	}
	if reason, over := r.expired(true, Explain); reason != "" || over {
		t.Errorf("long request: %q, %v", reason, over)
	}
}
