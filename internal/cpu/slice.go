// SPDX-License-Identifier: Apache-2.0

package cpu

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// sliceNS is the shortest time slice in nanoseconds that the kernel accepts
// (sched_setattr, __setparam_fair).
const sliceNS = 100_000

// ShortSlice gives the calling thread a short time slice. Linux 6.12 and later (EEVDF) then runs the
// thread as soon as it wakes up, and lets other threads interrupt it after a tenth of a millisecond.
// The thread's share of the core stays the same. Older kernels ignore the slice. ShortSlice also ends
// the effect of Urgent on this thread.
func ShortSlice() error { return shortSlice(0) }

// ShortSlices does the same as ShortSlice for all threads of this process, including those that it
// starts later.
func ShortSlices() error { return eachThread(shortSlice) }

func shortSlice(tid int) error {
	attr, err := unix.SchedGetAttr(tid, 0)
	if err == nil {
		if attr.Policy == unix.SCHED_RR {
			attr = usual(tid, attr)
		}
		attr.Runtime = sliceNS
		err = unix.SchedSetAttr(tid, attr, 0)
	}
	if err != nil {
		return fmt.Errorf("time slice: %w", err)
	}
	return nil
}

// Yield lets another thread that waits for this core run, if there is one.
func Yield() { unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0) }
