// SPDX-License-Identifier: Apache-2.0

package watchdog

import (
	"testing"
	"time"

	"weft/datapath"
	"weft/engine"
)

// fakeWatch watches one simulated worker. The test writes the worker's shared memory and the kernel's
// accounting of its thread.
type fakeWatch struct {
	*watch
	sh       *datapath.Shared
	requests int // number of times that the thread's accounting was read
	thread   thread
	atNS     uint64
}

func newFakeWatch() *fakeWatch {
	f := &fakeWatch{sh: &datapath.Shared{InHand: &datapath.InHand{Thread: 7}, Counters: &datapath.Counters{HeartbeatNS: 1}}}
	f.watch = newWatch(Engine{Workers: []*datapath.Shared{f.sh}, Pending: func() engine.Pending { return engine.Pending{} }})
	f.watch.thread = func(int, uint64) (thread, error) {
		f.requests++
		return f.thread, nil
	}
	return f
}

// hangs looks at the worker as Watch does. It returns the time until it finds a hang, or 0 if it finds
// none within limit.
func (f *fakeWatch) hangs(limit time.Duration) time.Duration {
	began := f.atNS
	for f.atNS < began+uint64(limit) {
		_, hung, idle := f.look(f.atNS)
		if hung {
			return time.Duration(f.atNS - began)
		}
		if idle {
			f.atNS += uint64(idleInterval)
		} else {
			f.atNS += uint64(interval)
		}
	}
	return 0
}

// A worker sleeps and wakes up every MaxSleepNS. The watchdog looks at the shared memory only every
// idleInterval, and never reads the kernel's accounting of the worker.
func TestSleepingWorkerCostsNoSystemCall(t *testing.T) {
	f := newFakeWatch()
	f.thread.state = 'S'
	f.sh.InHand.Asleep = 1
	for range 20 {
		if after := f.hangs(datapath.MaxSleepNS); after != 0 {
			t.Fatalf("a sleeping worker hangs after %v", after)
		}
		f.sh.InHand.Visit++
		f.sh.Counters.HeartbeatNS++
	}
	if _, _, idle := f.look(f.atNS); idle {
		t.Error("idle right after a pass")
	}
	if _, _, idle := f.look(f.atNS); f.requests != 0 || !idle {
		t.Errorf("%d readings of the accounting, idle %v; want 0, and true", f.requests, idle)
	}
}

// A worker claims to sleep, but is blocked or loops for longer than a sleep may last. It is detected
// after the longest sleep plus WorkerLimit plus two intervals.
func TestWorkerThatPretendsToSleep(t *testing.T) {
	for _, state := range []byte{'S', 'D', 't', 'R'} {
		f := newFakeWatch()
		f.sh.InHand.Asleep = 1
		read := f.watch.thread
		f.watch.thread = func(pid int, tid uint64) (thread, error) {
			if f.thread.state = state; state == 'R' {
				f.thread.runNS = f.atNS
			}
			return read(pid, tid)
		}
		most := datapath.MaxSleepNS + WorkerLimit + idleInterval + interval
		if after := f.hangs(2 * most); after < datapath.MaxSleepNS+WorkerLimit || after > most {
			t.Errorf("state %c: found after %v, want at most %v", state, after, most)
		}
	}
}

// A worker wakes up and then hangs. It is detected after WorkerLimit plus two intervals.
func TestWorkerHangsAfterSleep(t *testing.T) {
	f := newFakeWatch()
	f.thread.state = 'D'
	f.sh.InHand.Asleep = 1
	f.hangs(300 * time.Millisecond)
	f.sh.InHand.Asleep = 0
	most := WorkerLimit + idleInterval + 2*interval
	if after := f.hangs(time.Second); after < WorkerLimit || after > most {
		t.Errorf("found after %v, want at most %v", after, most)
	}
}

// A worker waited for a core before it fell asleep. It does not hang, because this wait does not count
// as part of its sleep.
func TestWorkerWaitsForCoreBeforeSleep(t *testing.T) {
	f := newFakeWatch()
	f.thread.state = 'R'
	if after := f.hangs(60 * time.Millisecond); after != 0 {
		t.Fatalf("a worker that waits for a core hangs after %v", after)
	}
	f.sh.InHand.Asleep = 1
	f.thread = thread{state: 'S', waitNS: uint64(60 * time.Millisecond)}
	if after := f.hangs(datapath.MaxSleepNS + WorkerLimit/2); after != 0 {
		t.Fatalf("it hangs after %v of its sleep", after)
	}
	if after := f.hangs(time.Second); after == 0 {
		t.Error("a worker that does not wake up is not found")
	}
}

// An engine that was killed takes a while to exit. No port is to blame, even if it never ends.
func TestExitingWorkerIsNoHangOfItsPorts(t *testing.T) {
	f := newFakeWatch()
	f.sh.InHand.Visit, f.sh.InHand.Sending = 99<<32|3<<16, 4
	f.thread = thread{state: 'D', ending: true}
	if after := f.hangs(ExitLimit); after != 0 {
		t.Fatalf("an exiting worker hangs after %v", after)
	}
	h, hung, _ := f.look(f.atNS + uint64(2*interval))
	if !hung || !h.Exiting || len(h.Suspects) != 0 {
		t.Errorf("after %v: %+v, hung %v; want a hang without suspects", ExitLimit, h, hung)
	}
}

// No port is to blame if somebody has stopped or frozen the engine.
func TestStoppedEngineIsNoHangOfItsPorts(t *testing.T) {
	for name, c := range map[string]struct {
		state  byte
		frozen bool
		blamed bool
	}{
		"hangs": {'S', false, true}, "stopped": {'T', false, false}, "traced": {'t', false, false},
		"frozen": {'S', true, false}, "frozen, version 1": {'D', true, false},
	} {
		f := newFakeWatch()
		f.sh.InHand.Visit, f.sh.InHand.Sending = 99<<32|3<<16, 4
		f.thread.state = c.state
		f.frozen = func(int) bool { return c.frozen }
		h, hung := Hang{}, false
		for ; !hung && f.atNS < uint64(time.Second); f.atNS += uint64(interval) {
			h, hung, _ = f.look(f.atNS)
		}
		if !hung || (len(h.Suspects) > 0) != c.blamed || h.Frozen != c.frozen {
			t.Errorf("%s: hung %v, %+v", name, hung, h)
		}
		f = newFakeWatch()
		f.sh.InHand.Asleep = 1
		f.Pending = func() engine.Pending { return engine.Pending{Number: 1, Op: engine.OpAttach, Port: 5} }
		f.otherThread = func(int, func(uint64) bool) (thread, error) { return thread{state: c.state}, nil }
		f.frozen = func(int) bool { return c.frozen }
		for hung = false; !hung && f.atNS < uint64(time.Minute); f.atNS += uint64(interval) {
			f.sh.InHand.Visit++
			h, hung, _ = f.look(f.atNS)
		}
		if !hung || (len(h.Suspects) > 0) != c.blamed {
			t.Errorf("%s: server hung %v, %+v", name, hung, h)
		}
	}
}

// The server of an engine waits for the workers. It does not count as hung while a worker waits for a
// core.
func TestRequestWaitsForStarvedWorker(t *testing.T) {
	f := newFakeWatch()
	f.Pending = func() engine.Pending { return engine.Pending{Number: 1, Op: engine.OpAttach, Port: 5} }
	f.otherThread = func(int, func(uint64) bool) (thread, error) { return thread{state: 'S'}, nil }
	f.thread.state = 'R'
	if after := f.hangs(10 * time.Second); after != 0 {
		t.Fatalf("the server hangs after %v, though the worker waits for a core", after)
	}
	working := func(limit time.Duration) (h Hang, elapsed time.Duration) {
		for began := f.atNS; f.atNS < began+uint64(limit); f.atNS += uint64(interval) {
			f.sh.InHand.Visit++
			if h, hung, _ := f.look(f.atNS); hung {
				return h, time.Duration(f.atNS - began)
			}
		}
		return h, 0
	}
	f.atNS += uint64(10 * time.Second) // the machine stands still
	if h, elapsed := working(ServerLimit / 2); elapsed != 0 {
		t.Fatalf("the server hangs after %v: %+v", elapsed, h)
	}
	if h, elapsed := working(ServerLimit); elapsed == 0 || len(h.Suspects) != 1 || h.Suspects[0].Port != 5 {
		t.Errorf("found %+v after %v, want port 5", h, elapsed)
	}
}

func TestParseSchedstat(t *testing.T) {
	if run, wait, err := parseSchedstat([]byte("123 4567 89\n")); run != 123 || wait != 4567 || err != nil {
		t.Errorf("%d %d %v", run, wait, err)
	}
	for _, bad := range []string{"", "1", "x 2 3", "1 y 3"} {
		if _, _, err := parseSchedstat([]byte(bad)); err == nil {
			t.Errorf("%q: no error", bad)
		}
	}
}
