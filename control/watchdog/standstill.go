package watchdog

// standstill measures how long somebody has made no progress although it had a core,
// or was blocked. Time in which it waited for a core does not count: a thread that
// others have preempted, or that a quota throttles, is not hung.
type standstill struct {
	progress progress
	seen     bool   // progress was looked at before
	began    bool   // the fields below are of this stand-still
	sinceNS  uint64 // clock
	first    thread
	ns       uint64
}

// progress is what changes while somebody works.
type progress [2]uint64

// observe notes progress at a time of some clock and returns for how long there was
// none. ask is called only where it has not changed since the last time, after the
// time was taken: so time spent in between counts for the thread.
func (s *standstill) observe(p progress, atNS uint64, ask func() (thread, error)) (ns uint64, t thread) {
	if !s.seen || p != s.progress {
		*s = standstill{progress: p, seen: true}
		return 0, t
	}
	t, err := ask()
	if err != nil { // it is ending; whoever waits for that hears of it
		*s = standstill{}
		return 0, t
	}
	if !s.began {
		s.began, s.sinceNS, s.first = true, atNS, t
		return 0, t
	}
	s.ns = max(s.ns, less(t.runNS, s.first.runNS))
	if !t.runnable() { // it waits for no core now, so waitNS is complete
		s.ns = max(s.ns, less(atNS-s.sinceNS, less(t.waitNS, s.first.waitNS)))
	}
	return s.ns, t
}

// less is a-b, 0 if that is negative.
func less(a, b uint64) uint64 {
	if a < b {
		return 0
	}
	return a - b
}
