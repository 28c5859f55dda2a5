package cpu

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// sliceNS is the least that the kernel takes (sched_setattr, __setparam_fair).
const sliceNS = 100_000

// ShortSlice has the calling thread ask for the core in short turns. Linux (from
// 6.12, EEVDF) then lets it run as soon as it wakes, instead of letting another
// thread end a turn of some milliseconds first, and lets others run after a tenth of
// a millisecond where it spins. Its share of the core stays what it is. Older kernels
// take no notice. For this thread it ends Urgent.
func ShortSlice() error { return shortSlice(0) }

// ShortSlices is ShortSlice for all threads of this process, and those that they
// start.
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
		return fmt.Errorf("length of turns: %w", err)
	}
	return nil
}

// Yield lets another thread that waits for this core run, and returns at once if
// there is none.
func Yield() { unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0) }
