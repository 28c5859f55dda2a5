// SPDX-License-Identifier: Apache-2.0

package engines

import (
	"runtime/debug"
	"strings"
	"testing"
	"time"
)

// upgrade makes the next control process a different build.
func upgrade(t *testing.T) {
	before := buildID
	buildID = func() string { return "another build" }
	t.Cleanup(func() { buildID = before })
}

func shortPause(t *testing.T) {
	before := provePause
	provePause = time.Millisecond
	t.Cleanup(func() { provePause = before })
}

// The running engine is of another build or has other settings. It forwards until the next engine has
// shown in a rehearsal that it can start. The tracked connections are kept. If the start after a
// rehearsal fails all the same, control tries again.
func TestDifferentEngineIsReplaced(t *testing.T) {
	for name, change := range map[string]func(t *testing.T, r *rig){
		"other build":    func(t *testing.T, _ *rig) { upgrade(t) },
		"other settings": func(_ *testing.T, r *rig) { r.spinUS = 7 },
	} {
		t.Run(name, func(t *testing.T) {
			shortPause(t)
			r := newRig(t)
			first := r.launcher.last()
			r.pipeline.Workers().Connections().SetLimit(77)
			key := r.frame()
			first.Workers[0].On(func() { first.Workers[0].Shared.Ports[1].RxPackets = 5 })
			r.die()
			change(t, r)
			r.launcher.refusals, r.launcher.failures = 2, 1
			r.begin()
			if n := len(r.launcher.rehearsals); n != 3 {
				t.Fatalf("%d rehearsals, want 3", n)
			}
			for i, serving := range r.launcher.rehearsals {
				if serving != first {
					t.Errorf("rehearsal %d: the old engine has ended", i)
				}
			}
			if r.launcher.last() == first || !first.HasEnded() || !first.WasHalted() {
				t.Error("the engine was not halted and replaced")
			}
			if len(r.delays) != 3 || !strings.Contains(r.delays[0], "the next engine cannot start: invalid argument") || !strings.Contains(r.delays[2], "no engine can be started") {
				t.Errorf("delays %q", r.delays)
			}
			if reason := r.engines.Troubled(); reason != "" {
				t.Errorf("trouble that is over: %s", reason)
			}
			if !r.knows(key) {
				t.Error("the next engine does not have the megaflow")
			}
			if n := r.engines.region.Ports[1].RxPackets; n != 5 {
				t.Errorf("port 1 has received %d frames, want 5", n)
			}
			if limit := r.pipeline.Workers().Connections().Limit(); limit != 77 {
				t.Errorf("limit of the connection table %d: another table", limit)
			}
		})
	}
}

// Control gives up while no engine can be started. Requests can still read the counters of the old
// engine.
func TestMemoryStaysAfterGivingUp(t *testing.T) {
	r := newRig(t)
	r.frame()
	r.die()
	upgrade(t)
	r.launcher.failures, r.giveUp = 1<<30, true
	if err := r.tryBegin(); err == nil {
		t.Fatal("a start without an engine succeeds")
	}
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	r.pipeline.Workers().Statistics(0, 0)
}

// Control ends while it cannot start an engine in place of a halted one. The next control process, of
// either build, replaces the halted engine and keeps its megaflows and counts.
func TestHaltedEngineIsReplaced(t *testing.T) {
	for name, next := range map[string]func(t *testing.T){"upgrade": func(*testing.T) {}, "return": func(*testing.T) { buildID = readBuildID }} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			first, key := r.launcher.last(), r.frame()
			first.Workers[0].On(func() { first.Workers[0].Shared.Ports[1].RxPackets = 5 })
			r.die()
			upgrade(t)
			r.launcher.failures, r.giveUp = 1<<30, true
			if err := r.tryBegin(); err == nil {
				t.Fatal("a start without an engine succeeds")
			}
			if first.HasEnded() || !first.Halted() {
				t.Fatal("the halted engine was not left to the next control process")
			}
			r.die()
			next(t)
			r.launcher.failures, r.giveUp = 0, false
			r.begin()
			if r.launcher.last() == first || !first.HasEnded() {
				t.Error("the halted engine was not replaced")
			}
			if !r.knows(key) || r.engines.region.Ports[1].RxPackets != 5 {
				t.Errorf("megaflow known %v, %d frames", r.knows(key), r.engines.region.Ports[1].RxPackets)
			}
		})
	}
}

// The old engine dies while the next one cannot start. Control then starts an engine without a
// rehearsal.
func TestOldEngineDiesMeanwhile(t *testing.T) {
	r := newRig(t)
	first := r.launcher.last()
	r.die()
	upgrade(t)
	r.launcher.refusals = 1
	if err := first.Kill(); err != nil {
		t.Fatal(err)
	}
	r.launcher.leftover = first
	r.begin()
	if r.launcher.last() == first || len(r.launcher.rehearsals) != 1 {
		t.Errorf("%d rehearsals", len(r.launcher.rehearsals))
	}
}
