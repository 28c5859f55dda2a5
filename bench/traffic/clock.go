// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Stamps use CLOCK_MONOTONIC, which all namespaces and processes of a machine share.
// Go reads this clock without a system call but exposes only differences. One reading
// of both clocks at start gives the offset.
var (
	clockBase  = time.Now()
	clockStart = monotonic()
)

// monotonic returns CLOCK_MONOTONIC at the moment of clockBase, as exactly as the
// quickest of a few readings allows.
func monotonic() int64 {
	best, start := time.Hour, int64(0)
	for range 16 {
		before := time.Since(clockBase)
		var t unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
			return 0 // 0 keeps the stamps of one process consistent, which is all that can be had
		}
		after := time.Since(clockBase)
		if d := after - before; d < best {
			best, start = d, t.Nano()-(before+d/2).Nanoseconds()
		}
	}
	return start
}

// now returns the time for a stamp in nanoseconds.
func now() int64 { return clockStart + time.Since(clockBase).Nanoseconds() }

// clockName identifies the clock: two ends with the same name read the same clock. It
// differs between machines and between time namespaces.
func clockName() string {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	zone, _ := os.Readlink("/proc/self/ns/time") // a kernel without time namespaces has one clock
	return strings.TrimSpace(string(boot)) + " " + zone
}

// offset is how far the other end's clock is ahead, and the error of this value.
type offset struct{ ahead, within time.Duration }

// better improves the offset by a probe: sent at before, answered at there by the
// other's clock, received at after. The quickest of several probes is the most exact.
func (o *offset) better(first bool, before, there, after int64) {
	within := time.Duration(after-before) / 2
	if first || within < o.within {
		*o = offset{ahead: time.Duration(there - (before + within.Nanoseconds())), within: within}
	}
}
