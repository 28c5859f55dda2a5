// SPDX-License-Identifier: Apache-2.0

package watchdog

import (
	"testing"
	"time"

	"weft/datapath"
	"weft/engine"
)

// fakeWatch watches one worker whose shared memory and whose accounting the test writes.
type fakeWatch struct {
	*watch
	sh       *datapath.Shared
	requests int // number of readings of the thread's accounting
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

// hangs looks at the worker as Watch does, and returns the time until it finds a hang, or
// 0 if it finds none within limit.
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

// The watchdog does not read the accounting of a worker that sleeps and wakes up every
// MaxSleepNS, and checks it only every idleEvery.
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
	if _, _, idle := f.look(f.atNS); f.requests != 0 || !idle {
		t.Errorf("%d readings of the accounting, idle %v; want 0, and true", f.requests, idle)
	}
}

// A worker that says that it sleeps, but is blocked or loops longer than a sleep may
// last, is found WorkerLimit after the longest sleep, plus the times between two looks.
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

// A worker that wakes up and then hangs is found WorkerLimit later, plus the times
// between two looks.
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
