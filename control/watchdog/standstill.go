// SPDX-License-Identifier: Apache-2.0

package watchdog

import (
	"errors"
	"io/fs"

	"golang.org/x/sys/unix"
)

// standstill measures how long a thread, or a server of several threads, makes no
// progress. Three kinds of time do not count, because they prove nothing about the
// thread: the time in which it waits for a core, the sleep of a worker, and the time
// in which the watchdog itself did not run.
type standstill struct {
	progress progress
	valid    bool   // false: progress has no value yet
	asleep   bool   // the worker slept at the last look
	seenNS   uint64 // time of the first look with these values of progress and asleep, on the caller's clock
	began    bool   // the fields lookedNS, last and ns belong to the present standstill
	lookedNS uint64 // time of the last look, on the caller's clock
	last     thread // accounting at the last look
	ns       uint64 // length of the present standstill in ns
	// blockedNS is the time since the beginning of the present wait in state D, in which the thread
	// has not run.
	blockedNS uint64
}

// progress has two values, at least one of which changes as long as the thread works.
type progress [2]uint64

// sleeps notes that the worker sleeps. It returns true if the worker has slept for less than limitNS
// without progress. If it returns false, the worker may have hung, and the caller must call observe.
func (s *standstill) sleeps(p progress, atNS, limitNS uint64) bool {
	// The progress value does not change when a worker falls asleep. The worker may have waited for a core
	// just before, and this time is no part of its sleep.
	if !s.valid || p != s.progress || !s.asleep {
		*s = standstill{progress: p, valid: true, asleep: true, seenNS: atNS}
	}
	return atNS-s.seenNS < limitNS
}

// observe returns for how long the progress value p has not changed, in nanoseconds, and the kernel's
// accounting of the thread. It calls readThread for the accounting only if p is unchanged. The time
// between two calls counts for at most mostNS: if more has passed, the machine or this process stood
// still, too.
func (s *standstill) observe(p progress, atNS, mostNS uint64, readThread func() (thread, error)) (ns uint64, t thread) {
	if !s.valid || p != s.progress {
		*s = standstill{progress: p, valid: true, seenNS: atNS}
		return 0, t
	}
	t, err := readThread()
	if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ESRCH) {
		*s = standstill{} // nothing is known, for example because this process has no free descriptor
		return 0, t
	}
	if err != nil { // the thread has ended; the channel Engine.Gone reports the end of its process
		t = thread{state: 'X', ending: true, runNS: s.last.runNS, waitNS: s.last.waitNS}
	}
	if !s.began {
		s.began, s.lookedNS, s.last = true, atNS, t
		return 0, t
	}
	stood := difference(t.runNS, s.last.runNS)
	if !t.runnable() { // the thread does not wait for a core, so waitNS is complete
		stood = difference(atNS-s.lookedNS, difference(t.waitNS, s.last.waitNS))
	}
	s.ns += min(stood, mostNS)
	if t.state == 'D' && s.last.state == 'D' && t.runNS == s.last.runNS {
		s.blockedNS += min(stood, mostNS, uint64(mostBlocked))
	} else {
		s.blockedNS = 0
	}
	s.lookedNS, s.last = atNS, t
	return s.ns, t
}

// wakes ends a sleep: the standstill begins again at 0.
func (s *standstill) wakes() {
	if s.asleep {
		s.asleep, s.began, s.ns, s.blockedNS = false, false, 0, 0
	}
}

func difference(a, b uint64) uint64 {
	if a < b {
		return 0
	}
	return a - b
}
