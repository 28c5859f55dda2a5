// SPDX-License-Identifier: Apache-2.0

package ports

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"testing"

	"weft/control/change"
	"weft/control/counters"
	"weft/control/pipeline"
	"weft/control/pipeline/pipelinetest"
	"weft/control/statistics"
	"weft/control/store"
	"weft/control/underlay"
	"weft/control/workers"
	"weft/control/workers/workertest"
	"weft/datapath"
	"weft/engine"
	"weft/flowtable"
	"weft/openflow/fdb"
)

// noEngine is an engine client that ignores every call.
type noEngine struct{}

func (e noEngine) Client() Client                          { return e }
func (noEngine) Attach(engine.Attach, []int) error         { return nil }
func (noEngine) Detach(uint32) (json.RawMessage, error)    { return nil, nil }
func (noEngine) Keep(string, json.RawMessage, []int) error { return nil }
func (noEngine) Forget(string) error                       { return nil }

// newTestPorts returns ports with a pipeline and one worker, and the configuration lock.
func newTestPorts(t *testing.T) (*Ports, *change.Configuration) {
	t.Helper()
	ports, configuration, _ := newTestPortsOfWorker(t)
	return ports, configuration
}

// newTestPortsOfWorker does the work of newTestPorts, and returns the worker as well.
func newTestPortsOfWorker(t *testing.T) (*Ports, *change.Configuration, *workertest.Worker) {
	t.Helper()
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	log, configuration := slog.New(slog.DiscardHandler), new(change.Configuration)
	disk, err := store.Open(t.TempDir())
	check(err)
	t.Cleanup(func() { _ = disk.Close() })
	kernel, err := underlay.Open(log)
	check(err)
	t.Cleanup(kernel.Close)
	sizes := datapath.Sizes{
		Cache: flowtable.Sizes{Megaflows: 64, Exact: 64, Masks: 4, Actions: 512},
		Held:  16, CommandRing: 1 << 18, UpcallRing: 1 << 12, Templates: underlay.MaxTemplates,
	}
	memory, err := engine.NewMemory(engine.Start{Cores: []int{0}, Sizes: sizes}, nil)
	check(err)
	t.Cleanup(memory.Close)
	gone := make(chan struct{})
	worker := workertest.New(memory.Shared[0], memory.UpcallEvent, gone)
	t.Cleanup(func() { close(gone); worker.Wait() })
	templates := underlay.NewTemplates(kernel, log)
	p := pipeline.New(pipeline.Setup{Configuration: configuration, Name: "br0", Store: disk, Templates: templates, Monitors: pipelinetest.NoMonitors{},
		Sizes: sizes.Cache, Log: log})
	ports := New(Setup{Configuration: configuration, Store: disk, Engine: noEngine{}, Pipeline: p, Statistics: statistics.New(p, []int{0}), Templates: templates, Kernel: kernel, Log: log})
	region, err := counters.New(sizes.Cache.Megaflows)
	check(err)
	configuration.Do(func(tx *change.Tx) {
		p.Load(tx, &store.State{}, region, false)
		ports.Load(tx, nil, map[uint32]string{}, nil)
	})
	w := workers.New(memory, gone)
	templates.Replay(w, region.Tunnels)
	configuration.Do(func(tx *change.Tx) { p.Fill(tx, w) })
	return ports, configuration, worker
}

func (ps *Ports) vxlanPorts(t *testing.T, n int) {
	t.Helper()
	for i := range n {
		if _, err := ps.Add(fmt.Sprintf("p%d", i+1), []string{"type=vxlan", "vni=1", fmt.Sprint("remote=192.0.2.", i+1)}); err != nil {
			t.Fatal(err)
		}
	}
}

// addBridges adds bridges with the numbers 1, 2 and so on.
func (ps *Ports) addBridges(names ...string) {
	ps.configuration.Do(func(tx *change.Tx) {
		for i, name := range names {
			ps.pipeline.AddBridge(tx, uint8(i)+1, name)
		}
	})
}

// numbersNow returns the numbers of all ports, by name.
func (ps *Ports) numbersNow() (numbers map[string]uint32) {
	ps.configuration.View(func(tx *change.Tx) { numbers = ps.Numbers(tx) })
	return numbers
}

// countedViews is a Declared that counts how often a new view of the ports is made.
type countedViews int

func (n *countedViews) Renumber(*change.Tx, map[string]uint32) []fdb.NetAddress {
	*n++
	return nil
}
