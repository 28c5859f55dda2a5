// SPDX-License-Identifier: Apache-2.0

// Package clock reads the clock that all statistics use.
package clock

import (
	"time"

	"golang.org/x/sys/unix"
)

// Monotonic returns CLOCK_MONOTONIC in ns, the clock that the engine's workers read.
// The runtime reads this clock without a system call but exposes only differences.
func Monotonic() uint64 { return startNS + uint64(time.Since(start)) }

var start, startNS = time.Now(), read()

func read() uint64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		return 0 // the call cannot fail for this clock
	}
	return uint64(ts.Nano())
}
