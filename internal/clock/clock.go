// SPDX-License-Identifier: Apache-2.0

// Package clock reads CLOCK_MONOTONIC, which all statistics of Weft use.
package clock

import (
	"time"

	"golang.org/x/sys/unix"
)

// Monotonic returns CLOCK_MONOTONIC in nanoseconds. The engine's workers read the
// same clock. Go reads CLOCK_MONOTONIC without a system call, but exposes only
// differences of it. One reading at the start turns the differences into absolute
// times.
func Monotonic() uint64 { return startNS + uint64(time.Since(start)) }

var start, startNS = time.Now(), read()

func read() uint64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		return 0 // the call cannot fail for this clock
	}
	return uint64(ts.Nano())
}
