// SPDX-License-Identifier: Apache-2.0

package cpu

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// sliceNS is the shortest time slice in nanoseconds that the kernel accepts
// (sched_setattr, __setparam_fair).
const sliceNS = 100_000

// ShortSlice gives the calling thread a short time slice. Linux 6.12 and later
// (EEVDF) then runs the thread as soon as it wakes up, and lets others interrupt it
// after a tenth of a millisecond. The thread's share of the core stays the same.
// Older kernels ignore the slice. ShortSlice also undoes Urgent for this thread.
func ShortSlice() error { return shortSlice(0) }

// ShortSlices does what ShortSlice does, for all threads of this process and later
// threads.
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

// Yield gives the core to another waiting thread, if any.
func Yield() { unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0) }
