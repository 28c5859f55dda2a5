// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A halted engine forwards nothing, but still returns the requests that it keeps.
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

// The spare engine serves while the halted engine still runs. The halted engine ends when its control
// process does.
func TestSpareServesAfterHalt(t *testing.T) {
	dir := t.TempDir()
	c, s := waitingSpare(t, dir)
	if err := c.Halt(); err != nil {
		t.Fatal(err)
	}
	next, err := s.Engage()
	if err != nil {
		t.Fatal(err)
	}
	startEngine(t, next, 1)
	if err := unix.Kill(c.PID(), 0); err != nil {
		t.Errorf("the halted engine: %v", err)
	}
	if err := c.Halt(); err != nil {
		t.Errorf("a second halt: %v", err)
	}
	if err := c.Attach(Attach{Port: 3, Name: "s3", Kind: "socket"}, nil); err == nil {
		t.Error("a halted engine attaches a device")
	}
	c.conn.Close()
	await(t, "the end of the halted engine", func() bool { return c.awaitDeath(time.Millisecond) == nil })
	again, err := Connect(dir)
	if err != nil || again.PID() != next.PID() {
		t.Fatalf("the serving engine: %v, %v", again, err)
	}
	again.Close()
}

// A halted engine stays if its control process dies before another engine serves. The next control
// process then finds everything that the engine keeps.
func TestHaltedEngineServesAgain(t *testing.T) {
	dir := t.TempDir()
	c := spawnEngine(t, dir)
	startEngine(t, c, 1)
	attachSocket(t, c, 1, `null`)
	if _, err := c.Recall(); err != nil || c.Halted() {
		t.Fatalf("before the halt: halted %v, %v", c.Halted(), err)
	}
	if err := c.Halt(); err != nil {
		t.Fatal(err)
	}
	c.conn.Close()
	again, err := Connect(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if kept, err := again.Recall(); err != nil || len(kept) != 2 || again.PID() != c.PID() || !again.Halted() {
		t.Fatalf("engine %d, which was %d, halted %v, keeps %+v: %v", again.PID(), c.PID(), again.Halted(), kept, err)
	}
	// As the next control process does, halt the engine again before another engine serves.
	if err := again.Halt(); err != nil {
		t.Fatal(err)
	}
	next := spawnEngine(t, dir)
	startEngine(t, next, 1)
	again.conn.Close()
	await(t, "the end of the halted engine", func() bool { return again.awaitDeath(time.Millisecond) == nil })
	if third, err := Connect(dir); err != nil || third.PID() != next.PID() {
		t.Fatalf("the serving engine: %v, %v", third, err)
	} else {
		third.Close()
	}
}
