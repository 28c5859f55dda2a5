// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// After Disown, the next engine does not wait for the lock of the engine that is stuck.
func TestDisown(t *testing.T) {
	dir := t.TempDir()
	stuck, err := os.OpenFile(filepath.Join(dir, LockName), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer stuck.Close()
	if err := unix.Flock(int(stuck.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if c, err := Spawn(exe, dir); err == nil {
		_ = c.Kill()
		t.Fatal("an engine serves a directory that another engine has locked")
	}
	if err := Disown(dir); err != nil {
		t.Fatal(err)
	}
	c := spawnEngine(t, dir)
	startEngine(t, c, 1)
	if again, err := Connect(dir); err != nil || again.PID() != c.PID() {
		t.Errorf("the new engine %d cannot be reached: %v", c.PID(), err)
	} else {
		again.Close()
	}
}

// A debugger holds an engine that has got SIGKILL. The engine counts as dead, and the
// spare engine takes its place.
func TestKillUnderDebugger(t *testing.T) {
	dir := t.TempDir()
	c := spawnEngine(t, dir)
	_, m := startEngine(t, c, 1)
	s := prepareSpare(t, dir)
	halted, done := make(chan error), make(chan struct{})
	defer close(done)
	go func() {
		runtime.LockOSThread() // the ptrace tracer, which never waits
		tid := int(m.Shared[0].InHand.Thread)
		err := unix.PtraceSeize(tid)
		if err == nil {
			err = unix.PtraceInterrupt(tid)
		}
		halted <- err
		<-done
	}()
	if err := <-halted; err != nil {
		t.Fatal(err)
	}
	c.Condemn()
	select {
	case <-c.Gone():
	case <-time.After(time.Minute):
		t.Fatal("the connection of a condemned engine stays open")
	}
	await(t, "the end of the engine's threads", func() bool { return c.Kill() == nil })
	next, err := s.Engage()
	if err != nil {
		t.Fatal(err)
	}
	next.Close()
}

// After Condemn, the engine answers no request, and Kill waits for its end.
func TestCondemn(t *testing.T) {
	c := spawnEngine(t, t.TempDir())
	startEngine(t, c, 1)
	c.Condemn()
	if _, err := c.Detach(3); !errors.Is(err, ErrGone) {
		t.Errorf("detach: %v, want ErrGone", err)
	}
	await(t, "the engine's end", func() bool { return c.Kill() == nil })
	if p := c.Pending(); p.Number != 0 {
		t.Errorf("request %+v is pending", p)
	}
}
