// SPDX-License-Identifier: Apache-2.0

package main

import (
	"syscall"
	"testing"
	"time"

	"weft/e2e/lab"
	"weft/internal/testnet"
)

// If an engine is killed while it holds frames, these frames are lost. The switch counts them, so a
// storm reports no uncounted loss.
func TestFramesHeldByAKilledEngineAreCounted(t *testing.T) {
	inStorm(t, func(w *storming) {
		w.holdAll(w.daemon.KillEngine)
		w.daemon.Control().Signal(syscall.SIGCONT)
		if w.end(); w.r.Lost == 0 || w.r.Drops["held-lost"] != uint64(w.r.Lost) {
			t.Errorf("lost %d, drops %v: want lost frames, and as many counted as held-lost", w.r.Lost, w.r.Drops)
		}
	})
}

// If the engine and then control are killed while the engine holds frames, these frames and their
// counters are lost. The storm reports them as uncountable.
func TestFramesHeldWhenBothDieAreUncountable(t *testing.T) {
	inStorm(t, func(w *storming) {
		w.holdAll(w.daemon.KillEngine) // control is stopped, so that it does not replace the engine
		if err := w.restartControl(); err != nil {
			t.Fatal(err)
		}
		if w.end(); w.r.Lost == 0 || w.r.Uncountable != w.r.Lost {
			t.Errorf("lost %d, uncountable %d, drops %v: want lost frames, all of them uncountable", w.r.Lost, w.r.Uncountable, w.r.Drops)
		}
	})
}

// A storm kills both processes only when the switch holds no frame of the bystanders, because held
// frames and drop counters die with the two processes.
func TestKillOfBothWaitsForHeldFrames(t *testing.T) {
	inStorm(t, func(w *storming) {
		w.holdAll(func() {})
		time.AfterFunc(200*time.Millisecond, func() { w.daemon.Control().Signal(syscall.SIGCONT) })
		if err := w.kill("both"); err != nil {
			t.Fatal(err)
		}
		w.end()
	})
}

// A frame is not lost if the switch delivers it while the stream counts the held frames.
func TestFramesDeliveredDuringCountAreNotLost(t *testing.T) {
	inStorm(t, func(w *storming) {
		w.holdAll(func() {})
		released := func() int {
			w.daemon.Control().Signal(syscall.SIGCONT)
			for w.heldFrames() > 0 {
				time.Sleep(time.Millisecond)
			}
			return 0
		}
		err := w.stream.whenStill(released, func() error {
			if lost := w.stream.counted().Lost; lost != 0 {
				t.Errorf("%d frames count as lost", lost)
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	})
}

// inStorm calls f during a storm without attacks, kills and changes of flows. The test
// fails if the storm reports a fault.
func inStorm(t *testing.T, f func(w *storming)) {
	testnet.NeedsRoot(t, "makes network namespaces")
	var err error
	defer func() {
		if err != nil {
			t.Fatal(err)
		}
	}()
	defer lab.Caught(&err)
	l := lab.New(lab.Program{})
	defer l.Close()
	w := newStorm(l, 1, siteConfig{workers: 1})
	defer w.close()
	if err = w.begin(); err != nil {
		return
	}
	f(w)
	if len(w.r.Faults) > 0 {
		t.Errorf("%q\n%s", w.r.Faults, w.log())
	}
}

// holdAll makes the engine hold all frames of the bystanders: it removes their megaflows and stops
// control, which would answer the cache misses. It calls whileHeld before the bystanders send more
// frames. The caller lets control continue.
func (w *storming) holdAll(whileHeld func()) {
	_ = w.stream.do(func() error {
		// the worker would drop a frame as table-miss that it looks up between the two changes
		for end := time.Now().Add(patience); w.load.Unreturned() > 0 && time.Now().Before(end); {
			time.Sleep(100 * time.Microsecond)
		}
		for _, way := range []string{"in_port=a,actions=output:b", "in_port=b,actions=output:a"} {
			w.weft("del-flows", way[:len("in_port=a")])
			w.weft("add-flow", "priority=100,"+way)
		}
		w.daemon.Control().Signal(syscall.SIGSTOP)
		for last := time.Now(); time.Since(last) < 100*time.Millisecond || w.load.Unreturned() > 0; time.Sleep(100 * time.Microsecond) {
			for i := range w.load.Guests {
				if came, _ := w.load.Step(i); came > 0 {
					last = time.Now()
				}
			}
		}
		whileHeld()
		return nil
	})
}

// All attacks together, with kills, changes of flows and two workers, do not harm the bystanders. The
// command "attack -storm 1h" runs such a storm for an hour.
func TestShortStormWithTwoWorkers(t *testing.T) {
	testnet.NeedsRoot(t, "makes network namespaces")
	r, err := storms(5*time.Second, 1, attacks, 2)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d goes, %d broken, kills %v, moves %d, received %d, lost %d, drops %v", r.Goes, r.Broken, r.Kills, r.Moves, r.Received, r.Lost, r.Drops)
	if len(r.Faults) > 0 {
		t.Errorf("%q", r.Faults)
	}
}

// If a drop counter restarts at 0, a storm adds its new value to the drops.
func TestStormCountsDropsAfterAReset(t *testing.T) {
	w := &storming{seen: map[string]uint64{}, r: stormResult{Drops: map[string]uint64{}}}
	for _, n := range []uint64{320, 352, 32, 32, 96} {
		w.countDrops("a no-port", "no-port", n)
	}
	if got := w.r.Drops["no-port"]; got != 352+96 || !w.reset {
		t.Errorf("%d drops, reset %v; want %d, and true", got, w.reset, 352+96)
	}
}

func TestQuantiles(t *testing.T) {
	var pauses []time.Duration
	for n := range 200 {
		pauses = append(pauses, time.Duration(200-n)*time.Millisecond)
	}
	if got, want := *quantilesOf(pauses), (quantiles{200, 101, 181, 199, 200}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}
