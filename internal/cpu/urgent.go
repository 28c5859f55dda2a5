// SPDX-License-Identifier: Apache-2.0

package cpu

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// urgentPriority is the lowest real-time priority. It is above all ordinary threads.
const urgentPriority = 1

// Urgent makes all threads of this process run before every ordinary thread of the machine (SCHED_RR,
// sched(7)), including those that it starts later. The effect lasts until ShortSlice or ShortSlices.
// Urgent is meant for a few milliseconds, because an urgent thread that polls keeps all others off its
// core. Without CAP_SYS_NICE, it returns an error and changes nothing.
func Urgent() error { return eachThread(urgent) }

// UrgentThread does for the calling thread what Urgent does for all threads. The caller must keep its
// goroutine on the thread (runtime.LockOSThread).
func UrgentThread() error { return urgent(0) }

func urgent(tid int) error {
	return unix.SchedSetAttr(tid, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_RR, Priority: urgentPriority}, 0)
}

// usual returns attributes of the ordinary scheduling policy, with the niceness that thread tid has.
func usual(tid int, attr *unix.SchedAttr) *unix.SchedAttr {
	nice := int32(0)
	if n, err := unix.Getpriority(unix.PRIO_PROCESS, tid); err == nil {
		nice = int32(20 - n) // the system call returns 20 minus the niceness
	}
	return &unix.SchedAttr{Size: attr.Size, Nice: nice}
}

// eachThread calls f for every thread of this process, including threads that start meanwhile. It
// ignores threads that end meanwhile.
func eachThread(f func(tid int) error) error {
	seen := map[int]bool{}
	for again := true; again; {
		again = false
		tids, err := threads()
		if err != nil {
			return err
		}
		for _, tid := range tids {
			if seen[tid] {
				continue
			}
			seen[tid], again = true, true
			if err := f(tid); err != nil && !errors.Is(err, unix.ESRCH) {
				return fmt.Errorf("thread %d: %w", tid, err)
			}
		}
	}
	return nil
}
