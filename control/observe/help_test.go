// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"encoding/binary"
	"sync"
	"testing"

	"weft/conntrack"
	"weft/datapath"
	"weft/engine"
	"weft/flowtable"
	"weft/internal/clock"
	"weft/internal/shm"
)

// testEngine is an Engine with one worker, which the test simulates. It records the captures that
// control sets.
type testEngine struct {
	mu      sync.RWMutex
	workers Workers
}

func (e *testEngine) Hold() (Workers, func()) {
	e.mu.RLock()
	return e.workers, e.mu.RUnlock
}

func (e *testEngine) replace(w Workers) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.workers = w
}

type testWorkers struct {
	memory   *engine.Memory
	mu       sync.Mutex
	captures map[uint32]datapath.CaptureKind
}

func newTestWorkers(t *testing.T) *testWorkers {
	t.Helper()
	memory, err := engine.NewMemory(engine.Start{Cores: []int{0}, Sizes: datapath.Sizes{
		Cache: flowtable.Sizes{Megaflows: 16, Exact: 16, Masks: 4, Actions: 64},
		Held:  16, CommandRing: 1 << 12, UpcallRing: 1 << 12, Templates: 16,
	}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(memory.Close)
	return &testWorkers{memory: memory, captures: map[uint32]datapath.CaptureKind{}}
}

func (w *testWorkers) Broadcast(msg []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if op := datapath.CommandOp(binary.LittleEndian.Uint32(msg)); op == datapath.CmdCapture {
		w.captures[binary.LittleEndian.Uint32(msg[4:])] = datapath.CaptureKind(binary.LittleEndian.Uint32(msg[8:]))
	}
}

func (w *testWorkers) WaitApplied() error             { return nil }
func (w *testWorkers) Shared() []*datapath.Shared     { return w.memory.Shared }
func (w *testWorkers) Connections() *conntrack.Memory { return &w.memory.Connections }

func (w *testWorkers) capture(index uint32) datapath.CaptureKind {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.captures[index]
}

func (w *testWorkers) show(t *testing.T) {
	t.Helper()
	msg := make([]byte, 104)
	msg[1], msg[3] = byte(datapath.CapturedDrop), byte(datapath.VerdictDropped)
	binary.LittleEndian.PutUint64(msg[32:], clock.Monotonic())
	if !shm.NewProducer(w.memory.Shared[0].Captures, -1).Push(msg) {
		t.Fatal("the capture ring is full")
	}
}
