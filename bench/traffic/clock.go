// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Time stamps are CLOCK_MONOTONIC, which all processes of a machine share. Go's clock
// has only differences, so one reading at the start makes them absolute.
var (
	clockBase  = time.Now()
	clockStart = monotonic()
)

// monotonic returns the value of CLOCK_MONOTONIC at the time clockBase. It uses the quickest of a few
// readings.
func monotonic() int64 {
	best, start := time.Hour, int64(0)
	for range 16 {
		before := time.Since(clockBase)
		var t unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
			return 0 // only this process itself can compare its time stamps then
		}
		after := time.Since(clockBase)
		if d := after - before; d < best {
			best, start = d, t.Nano()-(before+d/2).Nanoseconds()
		}
	}
	return start
}

func nowNS() int64 { return clockStart + time.Since(clockBase).Nanoseconds() }

// clockName returns a name for this process's clock: processes whose names are equal read the same
// clock.
func clockName() string {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	zone, _ := os.Readlink("/proc/self/ns/time") // an error means that the kernel has no time namespaces
	return strings.TrimSpace(string(boot)) + " " + zone
}

// offset is the difference between the other end's clock and this end's. "ahead" is positive if the
// other end's clock is ahead. "within" is the largest possible error of "ahead".
type offset struct{ ahead, within time.Duration }

// better updates the offset if a probe has a smaller error than all earlier ones. isFirst marks the
// first probe. startNS and endNS are readings of this end's clock, remoteNS is a reading of the other
// end's clock between them.
func (o *offset) better(isFirst bool, startNS, remoteNS, endNS int64) {
	within := time.Duration(endNS-startNS) / 2
	if isFirst || within < o.within {
		*o = offset{ahead: time.Duration(remoteNS - (startNS + within.Nanoseconds())), within: within}
	}
}
