// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"runtime/debug"
	"testing"

	"golang.org/x/sys/unix"
)

func closeFDs(fds ...int) {
	for _, fd := range fds {
		unix.Close(fd)
	}
}

func panicOnFault(t *testing.T) {
	old := debug.SetPanicOnFault(true)
	t.Cleanup(func() { debug.SetPanicOnFault(old) })
}
