// SPDX-License-Identifier: Apache-2.0

package cpu

import (
	"os"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// Urgent makes all threads urgent, including those that start later. ShortSlices restores their
// previous niceness.
func TestUrgent(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: real-time priorities")
	}
	started, end := make(chan int), make(chan struct{})
	defer close(end)
	thread := func() {
		runtime.LockOSThread() // the thread is never unlocked, so Go ends it with the goroutine
		started <- unix.Gettid()
		<-end
	}
	own, err := unix.SchedGetAttr(0, 0) // policy and niceness of the tests' threads
	if err != nil {
		t.Fatal(err)
	}
	go thread()
	nice := <-started
	if err := unix.Setpriority(unix.PRIO_PROCESS, nice, 17); err != nil {
		t.Fatal(err)
	}
	if err := Urgent(); err != nil {
		t.Fatal(err)
	}
	defer ShortSlices()
	go thread()
	check := func(tid int, policy uint32, niceness int32) {
		t.Helper()
		attr, err := unix.SchedGetAttr(tid, 0)
		if err != nil {
			t.Fatal(err)
		}
		if attr.Policy != policy || policy == unix.SCHED_NORMAL && attr.Nice != niceness {
			t.Errorf("thread %d: %+v, want policy %d, niceness %d", tid, attr, policy, niceness)
		}
	}
	late := <-started
	check(nice, unix.SCHED_RR, 0)
	check(late, unix.SCHED_RR, 0)
	if err := ShortSlices(); err != nil {
		t.Fatal(err)
	}
	check(nice, unix.SCHED_NORMAL, 17)
	check(late, unix.SCHED_NORMAL, own.Nice)
}
