// SPDX-License-Identifier: Apache-2.0

package watchdog

import (
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weft/datapath"
)

const testPortA, testPortB = 3, 4

// A probe counts the time in which its thread waits for a file's lock, or spins for it. It does not
// count the time in which the thread waits for a core.
func TestProbeCountsLocks(t *testing.T) {
	const ms = uint64(time.Millisecond)
	for name, c := range map[string]struct {
		in     bool          // the thread has been in one call since the probe began
		locked time.Duration // time of earlier calls
		probed time.Duration
		thread thread
		want   bool
	}{
		"waits":                  {in: true, probed: 60 * time.Millisecond, thread: thread{state: 'D'}, want: true},
		"waits for a core":       {in: true, probed: 60 * time.Millisecond, thread: thread{state: 'R', runNS: ms}},
		"waited for a core":      {in: true, probed: 60 * time.Millisecond, thread: thread{state: 'D', waitNS: 40 * ms}},
		"spins":                  {in: true, probed: 60 * time.Millisecond, thread: thread{state: 'R', runNS: 50 * ms}, want: true},
		"waits for a short time": {in: true, probed: leastProbe - 1, thread: thread{state: 'D'}},
		"has waited half of it":  {locked: 30 * time.Millisecond, probed: 60 * time.Millisecond, want: true},
		"has waited less":        {locked: 29 * time.Millisecond, probed: 60 * time.Millisecond},
		"waits again":            {in: true, locked: 5 * time.Millisecond, probed: 25 * time.Millisecond, thread: thread{state: 'S'}, want: true},
		"never waits":            {probed: time.Second},
		"has only begun":         {in: true, thread: thread{state: 'D'}},
	} {
		p := &probe{began: true, locked: c.locked, inCall: c.in, now: func() time.Duration { return c.probed },
			self: func(uint64) (thread, error) { return c.thread, nil }}
		if got := p.proves(); got != c.want {
			t.Errorf("%s: proves %v, want %v", name, got, c.want)
		}
		if p.began = false; p.proves() {
			t.Errorf("%s: a probe that has not begun proves something", name)
		}
	}
}

// A front end locks its file again and again, each time for less than an interval of the watchdog.
// This is proven. It is not proven for a front end whose file is seldom locked.
func TestProbeAddsUpLocks(t *testing.T) {
	for _, c := range []struct {
		lock time.Duration
		want bool
	}{{2 * time.Millisecond, true}, {probeRest / 10, false}} {
		var clock time.Duration
		p := &probe{now: func() time.Duration { return clock },
			self: func(uint64) (thread, error) { return thread{state: 'R'}, nil }}
		p.seek = func(int) { clock += c.lock }
		rounds := 0
		p.run(1, []int{-1, -1}, func() {
			clock += probeRest
			if rounds++; rounds == 200 {
				p.end()
			}
		})
		if p.proves() != c.want {
			t.Errorf("locks of %v: proves %v, want %v", c.lock, !c.want, c.want)
		}
	}
}

// A probe does not move the position of the front end's descriptor, and it ends.
func TestProbeChangesNothing(t *testing.T) {
	fd, err := unix.MemfdCreate("probe", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if _, err := unix.Write(fd, make([]byte, 100)); err != nil {
		t.Fatal(err)
	}
	dup := make(chan int, 1)
	p := startProbe(testPortA, func(uint32) []int {
		d, _ := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
		dup <- d
		return []int{d}
	})
	d := <-dup
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		if p.mu.Lock(); p.began {
			p.mu.Unlock()
			break
		}
		p.mu.Unlock()
		if time.Now().After(end) {
			t.Fatal("the probe does not begin")
		}
	}
	p.end()
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		if _, err := unix.FcntlInt(uintptr(d), unix.F_GETFD, 0); err == unix.EBADF {
			break
		}
		if time.Now().After(end) {
			t.Fatal("the probe does not close its descriptors")
		}
	}
	if at, err := unix.Seek(fd, 0, unix.SEEK_CUR); at != 100 || err != nil {
		t.Errorf("position %d, %v; want 100", at, err)
	}
}

// A worker hangs while it copies a frame from port A to port B. The front end that locks its file is
// the owner, on either side. If no front end does, no owner is proven.
func TestOwnersOfAHang(t *testing.T) {
	for _, locked := range [][]uint32{nil, {testPortA}, {testPortB}, {testPortA, testPortB}} {
		f := newFakeWatch()
		f.Files = func(uint32) []int { return nil }
		f.thread.state = 'D'
		f.sh.InHand.Visit, f.sh.InHand.Sending = 99<<32|testPortA<<16, testPortB
		probed := 0
		f.startProbe = func(port uint32) *probe {
			probed++
			began := f.atNS
			return &probe{port: port, began: true, inCall: slices.Contains(locked, port),
				now:  func() time.Duration { return time.Duration(f.atNS - began) },
				self: func(uint64) (thread, error) { return thread{state: 'D'}, nil }}
		}
		h, hung := Hang{}, false
		for ; !hung && f.atNS < uint64(time.Second); f.atNS += uint64(interval) {
			h, hung, _ = f.look(f.atNS)
		}
		slices.Sort(h.Owners)
		limit := WorkerLimit
		if locked != nil {
			limit = ProvenLimit
		}
		if !hung || !slices.Equal(h.Owners, locked) || probed != 2 || h.Standing < limit || h.Standing > limit+interval {
			t.Errorf("locked %v: hung %v after %v, owners %v after %d probes", locked, hung, h.Standing, h.Owners, probed)
		}
		if f.sh.InHand.Visit++; len(f.probes[0]) != 2 {
			t.Errorf("%d probes during the hang, want 2", len(f.probes[0]))
		}
		if f.look(f.atNS); len(f.probes[0]) != 0 {
			t.Error("the probes go on although the worker does")
		}
	}
}

// A locked file proves its owner after one wait: the worker's thread waits at every look and does not
// run in between. It proves nothing if the thread runs, has no core, waits interruptibly or exits, or
// if control did not look meanwhile.
func TestOwnersAreProvenByOneWait(t *testing.T) {
	for name, c := range map[string]struct {
		step   time.Duration // between two looks
		looks  int
		thread func(look uint64) thread
		want   bool
	}{
		"waits":               {interval, 3, func(uint64) thread { return thread{state: 'D'} }, true},
		"waits often":         {interval, 10, func(n uint64) thread { return thread{state: 'D', runNS: n} }, false},
		"runs in between":     {interval, 10, func(n uint64) thread { return thread{state: "DR"[n%2]} }, false},
		"has no core":         {interval, 10, func(uint64) thread { return thread{state: 'R'} }, false},
		"is interruptible":    {interval, 10, func(uint64) thread { return thread{state: 'S'} }, false},
		"exits":               {interval, 10, func(uint64) thread { return thread{state: 'D', ending: true} }, false},
		"control stood still": {time.Second, 2, func(uint64) thread { return thread{state: 'D'} }, false},
	} {
		f := newFakeWatch()
		f.Files = func(uint32) []int { return nil }
		f.sh.InHand.Visit = 99<<32 | testPortA<<16
		f.startProbe = func(port uint32) *probe {
			return &probe{port: port, began: true, inCall: true,
				now:  func() time.Duration { return time.Duration(f.atNS) },
				self: func(uint64) (thread, error) { return thread{state: 'D'}, nil }}
		}
		f.atNS = uint64(time.Hour) // the probes are old enough
		f.look(f.atNS)
		var h Hang
		for n := range c.looks {
			f.thread = c.thread(uint64(n))
			f.atNS += uint64(c.step)
			h, _, _ = f.look(f.atNS)
		}
		if proven := h.Owners != nil; proven != c.want {
			t.Errorf("%s: owners %v", name, h.Owners)
		}
	}
}

// A probe's thread gets no core. Control keeps the engine for a while longer, so that the owner can be
// proven. Then it replaces the engine without a proof.
func TestProbesWithoutACore(t *testing.T) {
	for _, late := range []time.Duration{WorkerLimit, time.Hour} {
		f := newFakeWatch()
		f.Files = func(uint32) []int { return nil }
		f.thread.state = 'D'
		f.sh.InHand.Visit, f.sh.InHand.Sending = 99<<32|testPortA<<16, testPortB
		f.startProbe = func(port uint32) *probe {
			return &probe{port: port, inCall: port == testPortA, beganAt: late, calledAt: late,
				now:  func() time.Duration { return time.Duration(f.atNS) },
				self: func(uint64) (thread, error) { return thread{state: 'D'}, nil }}
		}
		h, hung := Hang{}, false
		for ; !hung && f.atNS < uint64(time.Second); f.atNS += uint64(interval) {
			for _, p := range f.probes[0] {
				p.began = time.Duration(f.atNS) >= late
			}
			h, hung, _ = f.look(f.atNS)
		}
		if limit := WorkerLimit + mostProof; !hung || h.Standing > limit || late > limit != (len(h.Owners) == 0) {
			t.Errorf("probes that begin after %v: hung %v after %v, owners %v", late, hung, h.Standing, h.Owners)
		}
	}
}

// Each port that the worker may hang in is probed once.
func TestProbesOfSuspects(t *testing.T) {
	var ps probes
	var started []uint32
	start := func(port uint32) *probe {
		started = append(started, port)
		return &probe{port: port}
	}
	for _, marks := range []datapath.InHand{
		{Visit: testPortA << 16}, {Visit: testPortA << 16, Sending: testPortA},
		{Visit: testPortA << 16, Sending: testPortB}, {Visit: testPortA << 16, Sending: testPortB}, {Visit: testPortA << 16, Sending: 9},
	} {
		ps.add(inHand(marks), start)
	}
	if want := []uint32{testPortA, testPortB, 9}; !slices.Equal(started, want) {
		t.Errorf("probed %v, want %v", started, want)
	}
}
