// SPDX-License-Identifier: Apache-2.0

package tracking

import (
	"sync"
	"testing"

	"weft/conntrack"
	"weft/control/change"
	"weft/control/workers"
	"weft/control/workers/workertest"
	"weft/datapath"
	"weft/engine"
	"weft/flowtable"
)

// rig has an engine with one worker, which the test simulates.
type rig struct {
	*Connections
	configuration change.Configuration

	mu     sync.RWMutex
	w      *workers.Workers
	memory *engine.Memory
	worker *workertest.Worker
	ended  chan struct{} // closed when the engine has died
}

// Hold implements Engine.
func (r *rig) Hold() (*workers.Workers, func()) {
	r.mu.RLock()
	return r.w, r.mu.RUnlock
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{ended: make(chan struct{})}
	r.Connections = New(&r.configuration, r)
	sizes := datapath.Sizes{Cache: flowtable.Sizes{Megaflows: 16, Exact: 16, Masks: 16, Actions: 256}, Held: 16,
		CommandRing: 1 << 16, UpcallRing: 1 << 16, Templates: 16}
	var err error
	if r.memory, err = engine.NewMemory(engine.Start{Cores: []int{0}, Sizes: sizes}, nil); err != nil {
		t.Fatal(err)
	}
	r.worker = workertest.New(r.memory.Shared[0], r.memory.UpcallEvent, r.ended)
	r.w = workers.New(r.memory, r.ended)
	t.Cleanup(func() {
		r.kill()
		r.memory.Close()
	})
	return r
}

func (r *rig) table() *conntrack.Memory { return r.w.Connections() }

func (r *rig) kill() {
	select {
	case <-r.ended:
	default:
		close(r.ended)
	}
	r.worker.Wait()
}
