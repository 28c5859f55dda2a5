package cpu

import (
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// The kernel keeps the length asked for, from 6.12, and policy and niceness always.
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
	if before.Runtime != 0 && after.Runtime != sliceNS { // 0: a kernel that has no such thing
		t.Errorf("turns of %d ns", after.Runtime)
	}
}
