// SPDX-License-Identifier: Apache-2.0

package watchdog

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A ticker ticks repeatedly, also after a change of its interval. It ends with the engine or with the
// watch.
func TestTicker(t *testing.T) {
	for _, ending := range []string{"gone", "unused"} {
		gone, unused := make(chan struct{}), make(chan struct{})
		tick := newTicker(gone, unused)
		for _, every := range []time.Duration{2 * time.Millisecond, time.Millisecond, time.Millisecond} {
			tick.set(every)
			for range 5 {
				if !tick.wait() {
					t.Fatal("the ticker has ended")
				}
			}
		}
		tick.set(time.Hour)
		if ending == "gone" {
			close(gone)
		} else {
			close(unused)
		}
		if tick.wait() {
			t.Errorf("%s: the ticker has not ended", ending)
		}
	}
}

// A process without free descriptors still watches its engine.
func TestTickerWithoutDescriptors(t *testing.T) {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	none := unix.Rlimit{Cur: 0, Max: limit.Max}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &none); err != nil {
		t.Fatal(err)
	}
	gone := make(chan struct{})
	tick := newTicker(gone, nil)
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	tick.set(time.Millisecond)
	if tick.file != nil || !tick.wait() {
		t.Errorf("file %v: want none, and a tick", tick.file)
	}
	close(gone)
	tick.set(time.Hour)
	if tick.wait() {
		t.Error("the ticker has not ended")
	}
}
