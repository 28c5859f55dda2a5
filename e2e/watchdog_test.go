// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weft/e2e/lab"
)

// workerThread returns the id of the engine's thread that runs on the first worker's
// core.
func workerThread(t *testing.T, d *lab.Daemon) (tid int) {
	t.Helper()
	now := show(d)
	core := fmt.Sprintf("Cpus_allowed_list:\t%d\n", now.Workers[0].Core)
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", now.EnginePID))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		text, _ := os.ReadFile(name)
		if strings.Contains(string(text), core) {
			tid, _ = strconv.Atoi(filepath.Base(filepath.Dir(name)))
			return tid
		}
	}
	t.Fatalf("no thread of engine %d has %q", now.EnginePID, core)
	return 0
}

func halt(t *testing.T, tid int) {
	t.Helper()
	halted, done := make(chan error), make(chan struct{})
	t.Cleanup(func() { close(done) })
	go func() {
		runtime.LockOSThread() // this thread traces the worker, and ends with its goroutine
		err := unix.PtraceSeize(tid)
		if err == nil {
			err = unix.PtraceInterrupt(tid)
		}
		halted <- err
		<-done
	}()
	if err := <-halted; err != nil {
		t.Fatalf("stop thread %d: %v", tid, err)
	}
}

// Control replaces an engine in which a worker hangs. Meanwhile the port's state has
// the reason. The port recovers by itself.
func TestHungWorker(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	reach(t, s.guest, remoteIP)
	const pings = 120
	steady := s.guest.StartPings(remoteIP, pings, pingGap.Seconds())
	before := show(s.weft)
	tid := workerThread(t, s.weft)
	began := time.Now()
	halt(t, tid)
	first := show(s.weft)
	answered := time.Since(began)
	eventually(t, func() error {
		if now := show(s.weft); now.EnginePID == 0 || now.EnginePID == before.EnginePID {
			return fmt.Errorf("engine is %d, was %d", now.EnginePID, before.EnginePID)
		}
		return nil
	})
	replaced := time.Since(began)
	reach(t, s.guest, remoteIP)
	t.Logf("show answered after %v (engine %d, then %d), another engine after %v", answered, before.EnginePID, first.EnginePID, replaced)
	eventually(t, func() error {
		for _, p := range show(s.weft).Ports {
			if p.State != "up" {
				return fmt.Errorf("port %s is %s: %s", p.Name, p.State, p.Detail)
			}
		}
		return nil
	})
	t.Logf("the hang cost %v", steadyPings(t, steady, pings))
	if text := s.weft.Control().Output(); !strings.Contains(text, "worker 0 has stood still for ") {
		t.Errorf("the log does not say why the engine was replaced:\n%s", text)
	}
}

// A port is added although the engine stands still: the watchdog replaces the engine, and the
// next one gets the port.
func TestPortAddedToStoppedEngine(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	stopped := show(s.weft).EnginePID
	if err := unix.Kill(stopped, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	s.weft.Weft("add-port", "late", "type=tap")
	if p := portOf(t, s.weft, "late"); p.State != "up" {
		t.Errorf("port late is %s: %s", p.State, p.Detail)
	}
	if pid := show(s.weft).EnginePID; pid == stopped {
		t.Errorf("engine %d was stopped, and is not replaced", pid)
	}
	reach(t, s.guest, remoteIP)
}
