// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Every thread of an engine has no capability and cannot gain one. It can make only the system calls
// that the sandbox allows. The same is true of a spare engine that waits.
func TestSandbox(t *testing.T) {
	dir := t.TempDir()
	c := spawnEngine(t, dir)
	startEngine(t, c, 2)
	attachSocket(t, c, 1, `null`)
	s := prepareSpare(t, dir)
	await(t, "the spare's sandbox", func() bool { return len(outside(t, s.cmd.Process.Pid)) == 0 })
	for _, line := range outside(t, c.PID()) {
		t.Error(line)
	}
	if len(outside(t, os.Getpid())) == 0 {
		t.Error("the test itself counts as a process in the sandbox")
	}
}

// outside returns one line for each property of a thread that is not as the sandbox sets it.
func outside(t *testing.T, pid int) (wrong []string) {
	t.Helper()
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
	if err != nil || len(threads) == 0 {
		t.Fatalf("threads of %d: %v, %v", pid, threads, err)
	}
	for _, path := range threads {
		text, err := os.ReadFile(path)
		if err != nil {
			continue // the thread has ended
		}
		for _, want := range []string{"CapInh:\t0000000000000000", "CapPrm:\t0000000000000000", "CapEff:\t0000000000000000",
			"CapAmb:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2"} {
			if !strings.Contains(string(text), want+"\n") {
				wrong = append(wrong, fmt.Sprintf("%s: no %q", path, want))
			}
		}
	}
	return wrong
}

// RemoveSockets removes the sockets of engines that have ended, and leaves those of running ones.
func TestRemoveSockets(t *testing.T) {
	dir := t.TempDir()
	c := spawnEngine(t, dir)
	s := prepareSpare(t, dir)
	stale := filepath.Join(dir, socketName(1))
	for _, path := range []string{stale, filepath.Join(dir, formerSocket)} {
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	spare := filepath.Join(dir, socketName(s.cmd.Process.Pid))
	await(t, "the spare's socket", func() bool { _, err := os.Stat(spare); return err == nil })
	RemoveSockets(dir, c.PID(), s.cmd.Process.Pid)
	for path, want := range map[string]bool{stale: false, filepath.Join(dir, formerSocket): false, spare: true,
		filepath.Join(dir, socketName(c.PID())): true} {
		if _, err := os.Stat(path); (err == nil) != want {
			t.Errorf("%s: %v, want there: %v", filepath.Base(path), err, want)
		}
	}
	again, err := Connect(dir)
	if err != nil {
		t.Fatal(err)
	}
	again.Close()
}
