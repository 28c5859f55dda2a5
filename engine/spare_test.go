// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// waitingSpare starts an engine in dir, and a spare engine that waits until the first one ends.
func waitingSpare(t *testing.T, dir string) (*Client, *Spare) {
	t.Helper()
	c := spawnEngine(t, dir)
	startEngine(t, c, 1)
	s := prepareSpare(t, dir)
	if err := s.AwaitReady(); err != nil {
		t.Fatal(err)
	}
	return c, s
}

func prepareSpare(t *testing.T, dir string) *Spare {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	s, err := Prepare(exe, dir, 2)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// A spare engine serves only after the serving engine has died.
func TestSpare(t *testing.T) {
	dir := t.TempDir()
	c := spawnEngine(t, dir)
	startEngine(t, c, 2)
	s := prepareSpare(t, dir)
	for range 20 {
		again, err := Connect(dir)
		if err != nil || again.PID() != c.PID() {
			t.Fatalf("while the engine lives: %v, %v", again, err)
		}
		again.Close()
		time.Sleep(5 * time.Millisecond)
	}
	if err := c.Kill(); err != nil {
		t.Fatal(err)
	}
	c.Close()
	next, err := s.Engage()
	if err != nil || next.PID() != s.cmd.Process.Pid {
		t.Fatalf("the spare's connection: %v, %v", next, err)
	}
	defer next.Close()
	startEngine(t, next, 2)
	attachSocket(t, next, 3, `null`)
	// When a spare engine has started its workers, it outlives control.
	next.conn.Close()
	time.Sleep(50 * time.Millisecond)
	again, err := Connect(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if _, err := again.Detach(3); err != nil || again.PID() != next.PID() {
		t.Fatalf("the engine that was a spare, %d, now %d: %v", next.PID(), again.PID(), err)
	}
}

// A spare engine ends with its control process. If it is dead, Engage fails at once.
func TestSpareEnds(t *testing.T) {
	dir := t.TempDir()
	spawnEngine(t, dir)
	s := prepareSpare(t, dir)
	s.client.conn.Close()
	if _, err := s.Engage(); err == nil || !strings.Contains(err.Error(), "ended at its start") {
		t.Fatalf("Engage of a spare that has ended: %v", err)
	}
	other := prepareSpare(t, dir)
	other.Close()
	if err := unix.Kill(other.cmd.Process.Pid, 0); err != unix.ESRCH {
		t.Fatalf("a closed spare: %v", err)
	}
}
