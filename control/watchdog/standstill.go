// SPDX-License-Identifier: Apache-2.0

package watchdog

// standstill measures how long a thread, or a server of several threads, makes no
// progress. Waiting for a core does not count: a preempted or throttled thread does
// not hang.
type standstill struct {
	progress progress
	valid    bool   // progress has a value
	seenNS   uint64 // time of the first look that saw progress, on the caller's clock
	began    bool   // the fields sinceNS, first and ns belong to the present standstill
	sinceNS  uint64 // begin, on the caller's clock
	first    thread
	ns       uint64
}

// progress has values that change while the thread works.
type progress [2]uint64

// sleeps reports whether a sleeping thread's progress has stood still for less than
// limitNS. After that, the caller calls observe.
func (s *standstill) sleeps(p progress, atNS, limitNS uint64) bool {
	if !s.valid || p != s.progress {
		*s = standstill{progress: p, valid: true, seenNS: atNS}
	}
	return atNS-s.seenNS < limitNS
}

// observe returns for how long p has not changed, in nanoseconds. It calls readThread,
// which reads the thread's accounting, only if p is unchanged.
func (s *standstill) observe(p progress, atNS uint64, readThread func() (thread, error)) (ns uint64, t thread) {
	if !s.valid || p != s.progress {
		*s = standstill{progress: p, valid: true, seenNS: atNS}
		return 0, t
	}
	t, err := readThread()
	if err != nil { // the thread has ended; Engine.Gone reports it
		*s = standstill{}
		return 0, t
	}
	if !s.began {
		s.began, s.sinceNS, s.first = true, atNS, t
		return 0, t
	}
	s.ns = max(s.ns, difference(t.runNS, s.first.runNS))
	if !t.runnable() { // not waiting for a core, so waitNS is complete
		s.ns = max(s.ns, difference(atNS-s.sinceNS, difference(t.waitNS, s.first.waitNS)))
	}
	return s.ns, t
}

func difference(a, b uint64) uint64 {
	if a < b {
		return 0
	}
	return a - b
}
