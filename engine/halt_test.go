// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"testing"

	"golang.org/x/sys/unix"
)

// A halted engine forwards nothing, and still returns what it keeps.
func TestHalt(t *testing.T) {
	c := spawnEngine(t, t.TempDir())
	_, m := startEngine(t, c, 2)
	a, b := attachSocket(t, c, 1, `null`), attachSocket(t, c, 2, `null`)
	install(t, m, 1, 1, 2)
	frame, buffer := make([]byte, 100), make([]byte, 200)
	if _, err := unix.Write(a, frame); err != nil {
		t.Fatal(err)
	}
	if n, err := unix.Read(b, buffer); n != len(frame) || err != nil {
		t.Fatalf("before the halt: %d bytes, %v", n, err)
	}
	if err := c.Halt(); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.Write(a, frame); err != nil {
		t.Fatal(err)
	}
	if n, _, err := unix.Recvfrom(b, buffer, unix.MSG_DONTWAIT); err != unix.EAGAIN {
		t.Errorf("after the halt: %d bytes, %v", n, err)
	}
	if kept, err := c.Recall(); err != nil || len(kept) != 3 {
		t.Errorf("kept %+v, %v", kept, err)
	}
	if _, err := c.Detach(1); err != nil {
		t.Error(err)
	}
}
