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

// stuckLock locks a state directory, as a stuck engine does, until its caller calls the returned
// function.
func stuckLock(t *testing.T, dir string) (release func()) {
	t.Helper()
	stuck, err := os.OpenFile(filepath.Join(dir, LockName), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stuck.Close() })
	if err := unix.Flock(int(stuck.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	return func() { stuck.Close() }
}

// wantServing fails unless c can start workers and the next control process finds c in dir.
func wantServing(t *testing.T, dir string, c *Client) {
	t.Helper()
	startEngine(t, c, 1)
	again, err := Connect(dir)
	if err != nil {
		t.Fatalf("the new engine %d cannot be reached: %v", c.PID(), err)
	}
	defer again.Close()
	if again.PID() != c.PID() || again.Forget("nothing") != nil {
		t.Errorf("engine %d serves, want %d", again.PID(), c.PID())
	}
}

// After Disown, the next engine does not wait for the lock of the engine that is stuck.
func TestDisown(t *testing.T) {
	dir := t.TempDir()
	stuckLock(t, dir)
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
	wantServing(t, dir, spawnEngine(t, dir))
}

// A spare engine takes the place of a stuck engine, which may end later.
func TestSpareSucceedsStuckEngine(t *testing.T) {
	dir := t.TempDir()
	release := stuckLock(t, dir)
	s := prepareSpare(t, dir)
	if err := s.Succeed(dir); err != nil {
		t.Fatal(err)
	}
	c, err := s.Engage()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	release()
	if exe, err := os.Executable(); err != nil {
		t.Fatal(err)
	} else if other, err := Spawn(exe, dir); err == nil {
		_ = other.Kill()
		t.Fatal("another engine serves the directory, too")
	}
	wantServing(t, dir, c)
}

// A stuck engine ends at the very moment when control lets the spare engine succeed it. Whichever
// comes first, the spare engine has the new lock.
func TestStuckEngineEndsMeanwhile(t *testing.T) {
	for range 3 {
		dir := t.TempDir()
		release := stuckLock(t, dir)
		s := prepareSpare(t, dir)
		go release()
		if err := s.Succeed(dir); err != nil {
			t.Fatal(err)
		}
		c, err := s.Engage()
		if err != nil {
			t.Fatal(err)
		}
		wantServing(t, dir, c)
		if !locked(dir) {
			t.Error("the state directory is not locked")
		}
		c.Close()
		s.Close()
	}
}

// A spare engine that already serves gets the new lock file. It must not reply: control would take the
// reply for that of its next request.
func TestServingEngineTakesLock(t *testing.T) {
	dir := t.TempDir()
	s := prepareSpare(t, dir)
	c, err := s.Engage()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if err := s.Succeed(dir); err != nil {
		t.Fatal(err)
	}
	wantServing(t, dir, c)
	if !locked(dir) {
		t.Error("the state directory is not locked")
	}
}

// A thread executes no more instructions if it exits, or if it is blocked after SIGKILL.
func TestStandstillOfThread(t *testing.T) {
	for text, want := range map[string]standstill{
		"7 (weftd) R 1 7 7 0 -1 4194304 1 2": moving,
		"7 (weftd) S 1 7 7 0 -1 4194304 1 2": moving, // SIGKILL wakes it
		"7 (weftd) t 1 7 7 0 -1 4194304 1 2": moving,
		"7 (weftd) D 1 7 7 0 -1 4194304 1 2": held,
		"7 (weftd) D 1 7 7 0 -1 4194308 1 2": leaving, // PF_EXITING
		"7 (weftd) R 1 7 7 0 -1 4194308 1 2": leaving,
		"7 (weftd) Z 1 7 7 0 -1 4194308 1 2": ended,
		"":                                   moving,
	} {
		if got := standstillOfThread([]byte(text)); got != want {
			t.Errorf("%q: %d, want %d", text, got, want)
		}
	}
}

// Quiesce ends an engine and detects that it has ended.
func TestQuiesce(t *testing.T) {
	c := spawnEngine(t, t.TempDir())
	startEngine(t, c, 1)
	await(t, "the engine's end", func() bool {
		err := c.Quiesce()
		if err != nil && !errors.Is(err, ErrStuck) {
			t.Fatal(err)
		}
		return err == nil
	})
}

// A debugger holds an engine that has received SIGKILL. The engine counts as dead, and the spare
// engine takes its place.
func TestKillUnderDebugger(t *testing.T) {
	dir := t.TempDir()
	c := spawnEngine(t, dir)
	_, m := startEngine(t, c, 1)
	s := prepareSpare(t, dir)
	halted, done := make(chan error), make(chan struct{})
	defer close(done)
	go func() {
		runtime.LockOSThread() // this thread is the tracer, which never waits
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

// After Condemn, the engine answers no request. Kill waits until it ends.
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
