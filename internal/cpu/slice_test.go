// SPDX-License-Identifier: Apache-2.0

package cpu

import (
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// ShortSlice sets the thread's time slice on Linux 6.12 and later. On all kernels, it keeps the policy
// and the niceness.
func TestShortSlice(t *testing.T) {
	runtime.LockOSThread() // the thread ends with the test
	before, err := unix.SchedGetAttr(0, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := ShortSlice(); err != nil {
		t.Fatal(err)
	}
	after, err := unix.SchedGetAttr(0, 0)
	if err != nil {
		t.Fatal(err)
	}
	if after.Policy != before.Policy || after.Nice != before.Nice {
		t.Errorf("%+v became %+v", before, after)
	}
	if before.Runtime != 0 && after.Runtime != sliceNS { // kernels without time slices return 0
		t.Errorf("turns of %d ns", after.Runtime)
	}
}
