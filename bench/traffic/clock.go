// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Time stamps use CLOCK_MONOTONIC, which is the same in all processes and network
// namespaces of a machine. Go reads this clock without a system call, but exposes
// only differences of it. One reading of CLOCK_MONOTONIC at the start of the process
// turns the differences into absolute times.
var (
	clockBase  = time.Now()
	clockStart = monotonic()
)

// monotonic returns the value of CLOCK_MONOTONIC at the time clockBase. Its error is
// as small as the quickest of a few readings allows.
func monotonic() int64 {
	best, start := time.Hour, int64(0)
	for range 16 {
		before := time.Since(clockBase)
		var t unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
			return 0 // without the clock, only the stamps of this process are comparable
		}
		after := time.Since(clockBase)
		if d := after - before; d < best {
			best, start = d, t.Nano()-(before+d/2).Nanoseconds()
		}
	}
	return start
}

// now returns the current CLOCK_MONOTONIC in nanoseconds.
func now() int64 { return clockStart + time.Since(clockBase).Nanoseconds() }

// clockName returns a name of this process's clock. Two processes with the same name
// read the same clock. The name differs between machines and between time namespaces.
func clockName() string {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	zone, _ := os.Readlink("/proc/self/ns/time") // an error means that the kernel has no time namespaces, and thus a single clock
	return strings.TrimSpace(string(boot)) + " " + zone
}

// offset is how far the other end's clock is ahead of this one, and the possible
// error of this value.
type offset struct{ ahead, within time.Duration }

// better updates the offset with the result of a probe, if the probe has the smallest
// error so far, because it was the quickest. The arguments are clock values: this
// end's clock when it sent the probe (before) and when it received the answer
// (after), and the other end's clock in the answer (there).
func (o *offset) better(first bool, before, there, after int64) {
	within := time.Duration(after-before) / 2
	if first || within < o.within {
		*o = offset{ahead: time.Duration(there - (before + within.Nanoseconds())), within: within}
	}
}
