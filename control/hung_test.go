// SPDX-License-Identifier: Apache-2.0

package control

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"weft/api"
	"weft/control/engines"
	"weft/control/engines/enginetest"
	"weft/control/workers/workertest"
	"weft/engine"
	"weft/internal/waitfor"
)

// hangWith lets the last engine's worker appear to hang on queue 1 of a port. A blocked thread of the
// test plays the worker's thread.
func (f *fakes) hangWith(number uint32) *enginetest.Engine {
	f.t.Helper()
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { unix.Close(p[0]) })
	hung, thread := f.last(), make(chan int)
	f.t.Cleanup(func() { unix.Close(p[1]) }) // unblocks the thread
	go func() {
		runtime.LockOSThread()
		thread <- unix.Gettid()
		var b [1]byte
		_, _ = unix.Read(p[0], b[:])
		runtime.UnlockOSThread()
	}()
	tid := <-thread
	hung.Workers[0].Stalled.Store(true)
	hand := hung.Workers[0].Shared.InHand
	atomic.StoreUint64(&hand.Visit, 1<<32|uint64(number)<<16|1)
	atomic.StoreUint64(&hand.Thread, uint64(tid))
	return hung
}

func (f *fakes) port(name string) (p api.Port) {
	f.t.Helper()
	list, err := f.d.ports.List(name)
	if err != nil || len(list) != 1 {
		f.t.Fatalf("port %s: %v, %v", name, list, err)
	}
	return list[0]
}

// awaitReplacement waits until another engine serves all ports.
func (f *fakes) awaitReplacement(old *enginetest.Engine) {
	f.t.Helper()
	waitfor.True(f.t, "another engine takes its place", func() bool {
		tx := f.d.configuration.Begin() // no engine is being started while the test has this lock
		defer tx.Commit()
		return f.last() != old && f.d.engines.Current() == engines.Client(f.last())
	})
}

// After a hang, only the port that was in use is held back from the next engine. A
// change that waits for the hung worker ends.
func TestHungWorkerIsReplaced(t *testing.T) {
	f := newFakes(t)
	f.vxlanPorts(2)
	f.add("in_port=1,actions=2")
	hung := f.hangWith(2)
	f.add("in_port=2,actions=1") // this change waits for the hung worker
	if err := f.d.ports.Delete("p2"); err != nil {
		t.Error(err)
	}
	f.awaitReplacement(hung)
	if n := f.d.engines.Replaced().WorkerHung; n != 1 {
		t.Errorf("%d engines replaced for a hung worker, want 1", n)
	}
	f.worker().Frame(workertest.UDPKey(1, 1, 2, 9), 100)
	f.settle()
}

// The API shows why a port is held back from engines. The port is attached again later.
func TestPortOfHungWorker(t *testing.T) {
	f := newFakes(t)
	f.vxlanPorts(2)
	hung := f.hangWith(2)
	f.awaitReplacement(hung)
	p := f.port("p2")
	for _, word := range []string{"worker 0 has stood still for ", "port p2 receive queue 1 in hand", "tried again within "} {
		if !strings.Contains(p.Detail, word) {
			t.Errorf("detail %q lacks %q", p.Detail, word)
		}
	}
	if p.State != "failed" || f.d.ports.Hangs(2) != 1 {
		t.Errorf("state %s, %d hangs; want failed and 1", p.State, f.d.ports.Hangs(2))
	}
	if other := f.port("p1"); strings.Contains(other.Detail, "stood still") {
		t.Errorf("the other port: %s %q", other.State, other.Detail)
	}
	waitfor.True(t, "the port comes back", func() bool {
		return f.port("p2").Detail != p.Detail && f.d.ports.Held(2) == nil && !strings.Contains(f.port("p2").Detail, "stood")
	})
}

// If an old engine cannot be killed, the next engine does not wait for the old engine's
// lock.
func TestStuckEngineIsLeftBehind(t *testing.T) {
	f := newFakes(t)
	f.vxlanPorts(2)
	lock := filepath.Join(f.config.StateDir, engine.LockName)
	if err := os.WriteFile(lock, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	old := f.last()
	old.GetStuck()
	_ = old.Kill()
	f.awaitReplacement(old)
	if _, err := os.Stat(lock); !os.IsNotExist(err) {
		t.Errorf("the lock of the stuck engine is still there: %v", err)
	}
}

// A read-only request that waits for the replacement of an engine gets an error with this cause. A
// change waits for the next engine.
func TestRequestsDuringReplacement(t *testing.T) {
	f := newFakes(t)
	f.vxlanPorts(2)
	tx := f.d.configuration.Begin()
	f.d.engines.SetTrouble("worker 0 has stood still; weftd is replacing the engine")
	client, err := api.NewClient(f.config.Socket)
	if err != nil {
		t.Fatal(err)
	}
	deleted := make(chan error, 1)
	go func() { deleted <- client.DelPort("p2") }()
	if _, err := client.Show(); err == nil || !strings.Contains(err.Error(), "weftd is replacing the engine") {
		t.Errorf("show: error %v", err)
	}
	tx.Commit()
	if err := <-deleted; err != nil {
		t.Errorf("del-port: %v", err)
	}
}
