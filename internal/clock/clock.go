// Package clock reads the clock of all statistics.
package clock

import (
	"time"

	"golang.org/x/sys/unix"
)

// Monotonic is CLOCK_MONOTONIC in ns, as the engine's workers read it. The runtime
// reads the same clock without a system call, but gives differences only.
func Monotonic() uint64 { return startNS + uint64(time.Since(start)) }

var start, startNS = time.Now(), read()

func read() uint64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		return 0 // cannot fail for this clock
	}
	return uint64(ts.Nano())
}
