// SPDX-License-Identifier: Apache-2.0

package cpu

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

func TestParseList(t *testing.T) {
	for _, c := range []struct {
		list string
		want []int
	}{
		{"", nil}, {" ", nil}, {"0", []int{0}}, {"0,2-3", []int{0, 2, 3}}, {"3, 1-2,0", []int{3, 1, 2, 0}}, {"5-5", []int{5}},
	} {
		got, err := ParseList(c.list)
		if err != nil || !slices.Equal(got, c.want) {
			t.Errorf("ParseList(%q) = %v, %v; want %v", c.list, got, err, c.want)
		}
	}
	for _, bad := range []string{"x", "1,", "2-1", "-1", "1-", "0,0", "0-2,1", "1024", "99999999999", "0x1"} {
		if got, err := ParseList(bad); err == nil {
			t.Errorf("ParseList(%q) = %v, want an error", bad, got)
		}
	}
}

func affinity(t *testing.T, tid int) []int {
	t.Helper()
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(tid, &set); err != nil {
		t.Fatal(err)
	}
	var cores []int
	for c := range maxCores {
		if set.IsSet(c) {
			cores = append(cores, c)
		}
	}
	return cores
}

func release(t *testing.T, tid int, cores []int) {
	var set unix.CPUSet
	for _, c := range cores {
		set.Set(c)
	}
	if err := unix.SchedSetaffinity(tid, &set); err != nil && err != unix.ESRCH {
		t.Error(err)
	}
}

func TestPin(t *testing.T) {
	allowed, err := Allowed()
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan []int)
	go func() {
		runtime.LockOSThread() // the thread is never unlocked, so Go ends it with the goroutine
		if err := Pin(allowed[0]); err != nil {
			t.Error(err)
		}
		got := affinity(t, 0)
		release(t, 0, allowed)
		done <- got
	}()
	if got := <-done; !slices.Equal(got, allowed[:1]) {
		t.Fatalf("pinned to %v, want %v", got, allowed[:1])
	}
	if err := Pin(maxCores - 1); err == nil {
		t.Fatal("pinned to a core that is not there")
	}
}

// Confine moves all threads to cores that are not taken. If all cores are taken, it moves none.
func TestConfine(t *testing.T) {
	allowed, err := Allowed()
	if err != nil {
		t.Fatal(err)
	}
	check := func(want []int) {
		t.Helper()
		tids, err := threads()
		if err != nil {
			t.Fatal(err)
		}
		for _, tid := range tids {
			if _, err := os.Stat(fmt.Sprintf("/proc/self/task/%d", tid)); err != nil {
				continue // the thread has ended
			}
			if got := affinity(t, tid); !slices.Equal(got, want) {
				t.Fatalf("thread %d on %v, want %v", tid, got, want)
			}
		}
	}
	if err := Confine(allowed); err != nil {
		t.Fatal(err)
	}
	check(allowed)
	if err := Confine(nil); err != nil {
		t.Fatal(err)
	}
	check(allowed)
	taken := allowed[1:]
	if err := Confine(taken); err != nil {
		t.Fatal(err)
	}
	check(allowed[:1])
	tids, err := threads()
	if err != nil {
		t.Fatal(err)
	}
	for _, tid := range tids {
		release(t, tid, allowed)
	}
}

func TestPauseAllocatesNothing(t *testing.T) {
	if n := testing.AllocsPerRun(100, func() { Pause(10) }); n != 0 {
		t.Fatalf("%v allocations", n)
	}
}
