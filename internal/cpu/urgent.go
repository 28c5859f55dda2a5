package cpu

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// urgentPriority is the lowest of those that go before every usual thread.
const urgentPriority = 1

// Urgent has all threads of this process, and those that they start, run before any
// usual thread of the machine (SCHED_RR, sched(7)), until ShortSlice or ShortSlices.
// It is for threads that sleep, and for milliseconds: what spins meanwhile keeps
// others from its core. Without CAP_SYS_NICE it fails and changes nothing.
func Urgent() error { return eachThread(urgent) }

// UrgentThread is Urgent for the calling thread alone.
func UrgentThread() error { return urgent(0) }

func urgent(tid int) error {
	return unix.SchedSetAttr(tid, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_RR, Priority: urgentPriority}, 0)
}

// usual is a thread's attributes under the usual policy, with the niceness that it
// has kept.
func usual(tid int, attr *unix.SchedAttr) *unix.SchedAttr {
	nice := int32(0)
	if n, err := unix.Getpriority(unix.PRIO_PROCESS, tid); err == nil {
		nice = int32(20 - n) // what the system call returns is positive
	}
	return &unix.SchedAttr{Size: attr.Size, Nice: nice}
}

// eachThread calls f for every thread of this process. A thread may start another
// meanwhile: it goes over them until no new one turns up. Those that have ended are
// left out.
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
