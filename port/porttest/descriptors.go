// SPDX-License-Identifier: Apache-2.0

package porttest

import (
	"testing"

	"golang.org/x/sys/unix"
)

// Duplicates returns a duplicate of each descriptor, as an engine process gets them from the control process.
// The caller owns the duplicates. If a descriptor cannot be duplicated, Duplicates ends the test.
func Duplicates(t testing.TB, fds []int) []int {
	t.Helper()
	var dups []int
	for _, fd := range fds {
		dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		dups = append(dups, dup)
	}
	return dups
}
