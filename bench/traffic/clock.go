package traffic

import (
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// The clock of stamps is CLOCK_MONOTONIC, which all namespaces and processes of a
// machine share. Go reads it without a system call but shows it only as
// differences, so that one reading of both gives the rest.
var (
	clockBase  = time.Now()
	clockStart = monotonic()
)

// monotonic is CLOCK_MONOTONIC when clockBase was read, to within the quickest of
// a few readings.
func monotonic() int64 {
	best, start := time.Hour, int64(0)
	for range 16 {
		before := time.Since(clockBase)
		var t unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
			return 0 // all of one process agree, which is what is left
		}
		after := time.Since(clockBase)
		if d := after - before; d < best {
			best, start = d, t.Nano()-(before+d/2).Nanoseconds()
		}
	}
	return start
}

// now is the time for a stamp.
func now() int64 { return clockStart + time.Since(clockBase).Nanoseconds() }

// clockName tells machines apart, and namespaces that see another clock: two ends
// of the same name read the same one.
func clockName() string {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	zone, _ := os.Readlink("/proc/self/ns/time") // without them all share one
	return strings.TrimSpace(string(boot)) + " " + zone
}

// offset is how much the other end's clock is ahead, and by how much that may be
// wrong.
type offset struct{ ahead, within time.Duration }

// better takes a probe: asked at before, the other's clock said there, answered at
// after. The quickest of several tells most.
func (o *offset) better(first bool, before, there, after int64) {
	within := time.Duration(after-before) / 2
	if first || within < o.within {
		*o = offset{ahead: time.Duration(there - (before + within.Nanoseconds())), within: within}
	}
}
