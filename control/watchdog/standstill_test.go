// SPDX-License-Identifier: Apache-2.0

package watchdog

import (
	"io/fs"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Each step is one look at a thread, and the standstill that is expected after it. The time between
// two looks counts for at most 40 ms.
func TestStandstill(t *testing.T) {
	const ms = uint64(time.Millisecond)
	type look struct {
		atNS, progress uint64
		state          byte
		run, wait      uint64
		want           uint64
	}
	for name, looks := range map[string][]look{
		"works":            {{0, 1, 'R', 0, 0, 0}, {200, 2, 'R', 200, 0, 0}, {400, 3, 'R', 400, 0, 0}},
		"blocked":          {{0, 1, 'S', 7, 9, 0}, {20, 1, 'S', 7, 9, 0}, {40, 1, 'D', 7, 9, 20}, {60, 1, 'D', 7, 9, 40}},
		"loops":            {{0, 1, 'R', 7, 9, 0}, {20, 1, 'R', 27, 9, 0}, {40, 1, 'R', 47, 9, 20}, {60, 1, 'R', 67, 9, 40}},
		"waits for a core": {{0, 1, 'R', 7, 9, 0}, {20, 1, 'R', 7, 9, 0}, {500, 1, 'R', 7, 9, 0}, {520, 1, 'R', 8, 500, 1}},
		"waited, then blocked": {{0, 1, 'R', 7, 0, 0}, {20, 1, 'R', 7, 0, 0}, {40, 1, 'R', 7, 0, 0},
			{60, 1, 'D', 8, 35, 0}, {80, 1, 'D', 8, 35, 20}},
		"progress between":         {{0, 1, 'S', 0, 0, 0}, {20, 1, 'S', 0, 0, 0}, {40, 1, 'S', 0, 0, 20}, {50, 2, 'S', 0, 0, 0}, {70, 2, 'S', 0, 0, 0}, {90, 2, 'S', 0, 0, 20}},
		"blocked, then woken":      {{0, 1, 'D', 0, 0, 0}, {20, 1, 'D', 0, 0, 0}, {40, 1, 'D', 0, 0, 20}, {60, 1, 'R', 1, 0, 21}},
		"control stood still":      {{0, 1, 'S', 0, 0, 0}, {20, 1, 'S', 0, 0, 0}, {5020, 1, 'S', 0, 0, 40}, {5040, 2, 'S', 0, 0, 0}},
		"the machine stood still":  {{0, 1, 'R', 0, 0, 0}, {20, 1, 'R', 1, 0, 0}, {5020, 1, 'R', 5001, 0, 40}, {5040, 2, 'R', 5021, 0, 0}},
		"control stood still once": {{0, 1, 'S', 0, 0, 0}, {5000, 1, 'S', 0, 0, 0}, {5020, 1, 'S', 0, 0, 20}},
	} {
		var s standstill
		for i, l := range looks {
			got, _ := s.observe(progress{l.progress}, l.atNS*ms, 40*ms, func() (thread, error) {
				return thread{state: l.state, runNS: l.run * ms, waitNS: l.wait * ms}, nil
			})
			if got != l.want*ms {
				t.Errorf("%s: look %d: %v, want %d ms", name, i, time.Duration(got), l.want)
			}
		}
	}
}

// A thread that has ended stands still while its process exits. If control cannot read the thread's
// accounting, its state is unknown.
func TestStandstillOfEndedThread(t *testing.T) {
	for _, c := range []struct {
		err    error
		exited bool
	}{{&fs.PathError{Err: unix.ENOENT}, true}, {unix.ESRCH, true}, {unix.EMFILE, false}} {
		var s standstill
		for at := range uint64(4) {
			ns, got := s.observe(progress{1}, at*uint64(time.Second), uint64(time.Second), func() (thread, error) { return thread{}, c.err })
			want := uint64(0)
			if c.exited && at > 1 {
				want = (at - 1) * uint64(time.Second)
			}
			if ns != want || got.ending != (c.exited && at > 0) {
				t.Errorf("%v: look %d: %d ns, %+v", c.err, at, ns, got)
			}
		}
	}
}
