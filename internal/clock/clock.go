// SPDX-License-Identifier: Apache-2.0

// Package clock reads CLOCK_MONOTONIC, which all statistics of Weft use.
package clock

import (
	"time"

	"golang.org/x/sys/unix"
)

// Monotonic returns the time of CLOCK_MONOTONIC in nanoseconds. Package time gives only differences between
// times of this clock. Package clock therefore reads the clock itself once, at the start, with a system
// call.
func Monotonic() uint64 { return startNS + uint64(time.Since(start)) }

var start, startNS = time.Now(), read()

func read() uint64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		return 0 // the call cannot fail for this clock
	}
	return uint64(ts.Nano())
}
