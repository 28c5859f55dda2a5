// SPDX-License-Identifier: Apache-2.0

package engines

import (
	"context"
	"io/fs"
	"log/slog"
	"sync"
	"testing"

	"weft/api"
	"weft/control/change"
	"weft/control/engines/enginetest"
	"weft/control/macs"
	"weft/control/pipeline"
	"weft/control/pipeline/pipelinetest"
	"weft/control/ports"
	"weft/control/statistics"
	"weft/control/store"
	"weft/control/tables"
	"weft/control/underlay"
	"weft/control/workers/workertest"
	"weft/datapath"
	"weft/engine"
	"weft/flowtable"
	"weft/internal/waitfor"
)

type launcher struct {
	mu       sync.Mutex
	started  []*enginetest.Engine
	failures int                // number of calls of Spawn that will fail
	refusals int                // number of calls of Rehearse that will fail
	leftover *enginetest.Engine // engine that Connect returns, even one that has ended; nil: none
	// rehearsals has, for each call of Rehearse, the engine that served meanwhile.
	rehearsals []*enginetest.Engine
}

func (l *launcher) Prepare(string, string, int) (*engine.Spare, error) { return nil, nil }

func (l *launcher) Rehearse(string, string, engine.Start) error {
	serving := l.last()
	l.mu.Lock()
	defer l.mu.Unlock()
	if serving.HasEnded() {
		serving = nil
	}
	l.rehearsals = append(l.rehearsals, serving)
	if l.refusals > 0 {
		l.refusals--
		return fs.ErrInvalid
	}
	return nil
}

func (l *launcher) Spawn(string, string) (Client, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.failures > 0 {
		l.failures--
		return nil, fs.ErrPermission
	}
	e := enginetest.New()
	l.started = append(l.started, e)
	return e, nil
}

func (l *launcher) Connect(string) (Client, error) {
	if l.leftover != nil {
		return l.leftover, nil
	}
	if e := l.last(); e != nil && !e.HasEnded() {
		return e, nil
	}
	return nil, fs.ErrNotExist
}

func (l *launcher) last() *enginetest.Engine {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.started) == 0 {
		return nil
	}
	return l.started[len(l.started)-1]
}

// rig has the parts of control that surround the engines: a store, a kernel, a pipeline and ports. It
// has no daemon.
type rig struct {
	t             *testing.T
	configuration change.Configuration
	launcher      launcher
	dir           string
	disk          *store.Store
	kernel        *underlay.Kernel
	pipeline      *pipeline.Pipeline
	ports         *ports.Ports
	engines       *Engines
	spinUS        int      // setting of the engines
	delays        []string // reasons why starts have waited
	giveUp        bool     // the start ends at the first delay
	stop          context.CancelFunc
	done          sync.WaitGroup
}

func newRig(t *testing.T) *rig {
	r := &rig{t: t, dir: t.TempDir()}
	r.begin()
	t.Cleanup(func() {
		r.stop()
		r.done.Wait()
		tx := r.configuration.Begin()
		defer tx.Commit()
		r.pipeline.EndUpcalls(tx)
		r.ports.Close()
		r.engines.Stop(tx)
		r.kernel.Close()
		if err := r.disk.Close(); err != nil {
			t.Error(err)
		}
		for _, e := range r.launcher.started {
			_ = e.Kill()
		}
	})
	return r
}

func (r *rig) delayed(reason string) {
	if r.delays = append(r.delays, reason); r.giveUp {
		r.stop()
	}
}

func (r *rig) begin() {
	r.t.Helper()
	if err := r.tryBegin(); err != nil {
		r.t.Fatal(err)
	}
}

// tryBegin starts a control process. It returns the error of the engines' start.
func (r *rig) tryBegin() error {
	r.t.Helper()
	check := func(err error) {
		r.t.Helper()
		if err != nil {
			r.t.Fatal(err)
		}
	}
	log, err := slog.New(slog.DiscardHandler), error(nil)
	sizes := datapath.Sizes{
		Cache: flowtable.Sizes{Megaflows: 64, Exact: 64, Masks: 8, Actions: 512},
		Held:  64, CommandRing: 1 << 18, UpcallRing: 1 << 18, Templates: underlay.MaxTemplates,
	}
	r.disk, err = store.Open(r.dir)
	check(err)
	r.kernel, err = underlay.Open(log)
	check(err)
	templates := underlay.NewTemplates(r.kernel, log)
	r.pipeline = pipeline.New(pipeline.Setup{Configuration: &r.configuration, Store: r.disk, Templates: templates, Monitors: pipelinetest.NoMonitors{},
		Sizes: sizes.Cache, Log: log})
	addresses := macs.New(&r.configuration, r.pipeline, r.disk, log)
	present := new(Present)
	r.ports = ports.New(ports.Setup{Configuration: &r.configuration, Store: r.disk, Engine: present, Pipeline: r.pipeline, Statistics: statistics.New(r.pipeline, []int{0}),
		Templates: templates, Kernel: r.kernel, Log: log})
	r.engines = New(Setup{Configuration: &r.configuration, Launcher: &r.launcher, Exe: "none", Dir: r.dir,
		Start:   engine.Start{Cores: []int{0}, Sizes: sizes, SpinUS: r.spinUS},
		Delayed: r.delayed, Store: r.disk, Pipeline: r.pipeline, Ports: r.ports, Present: present, MACs: addresses, Templates: templates, Log: log})
	saved, err := r.disk.Load()
	check(err)
	tx := r.configuration.Begin()
	defer tx.Commit()
	ctx, stop := context.WithCancel(context.Background())
	r.stop = stop
	if err := r.engines.Start(ctx, tx, saved); err != nil {
		return err
	}
	r.done.Go(func() { r.pipeline.Run(ctx) })
	r.done.Go(func() { r.engines.Supervise(ctx) })
	return nil
}

func (r *rig) die() {
	r.stop()
	r.done.Wait()
	r.configuration.Do(r.pipeline.EndUpcalls)
	r.kernel.Close()
	if err := r.disk.Close(); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) worker() *workertest.Worker { return r.launcher.last().Workers[0] }

func (r *rig) frame() flowtable.Key {
	r.t.Helper()
	if _, err := tables.New(&r.configuration, r.pipeline.First()).ChangeFlows(api.ChangeFlows{Op: "add", Text: "actions=drop"}); err != nil {
		r.t.Fatal(err)
	}
	var key flowtable.Key
	key.SetInPort(1)
	r.worker().Frame(key, 100)
	waitfor.True(r.t, "no frame waits", func() bool { return r.worker().Waiting() == 0 })
	return key
}

func (r *rig) knows(key flowtable.Key) (known bool) {
	tx := r.configuration.Begin() // no engine starts while this is held
	defer tx.Commit()
	r.worker().On(func() { _, known = r.worker().Lookup(&key) })
	return known
}

// A dead engine is replaced, even if some attempts fail. Megaflows and counts are kept.
func TestDeadEngineIsReplaced(t *testing.T) {
	r := newRig(t)
	key, first := r.frame(), r.launcher.last()
	r.launcher.mu.Lock()
	r.launcher.failures = 2
	r.launcher.mu.Unlock()
	if err := first.Kill(); err != nil {
		t.Fatal(err)
	}
	waitfor.True(t, "another engine with the megaflow", func() bool { return r.launcher.last() != first && r.knows(key) })
	if n := r.engines.Replaced(); n.All != 1 || n.Died != 1 || n.WorkerHung != 0 {
		t.Errorf("replaced %+v", n)
	}
	if reason := r.engines.Troubled(); reason != "" {
		t.Errorf("Troubled after the replacement: %s", reason)
	}
	flows, err := tables.New(&r.configuration, r.pipeline.First()).DumpFlows("", pipeline.ByName)
	if err != nil || len(flows) != 1 || flows[0].Packets != 1 {
		t.Errorf("flows %+v, %v; want one with one packet", flows, err)
	}
}

// The daemon stops while no engine can be started. It saves the tracked connections of the dead
// engine.
func TestStopWithoutEngineSavesConnections(t *testing.T) {
	r := newRig(t)
	r.launcher.mu.Lock()
	r.launcher.failures = 1 << 30
	r.launcher.mu.Unlock()
	if err := r.launcher.last().Kill(); err != nil {
		t.Fatal(err)
	}
	waitfor.True(t, "there is no engine", func() bool { return r.engines.Current() == nil })
	r.stop()
	r.done.Wait()
	tx := r.configuration.Begin()
	defer tx.Commit()
	r.engines.Stop(tx)
	if _, saved, err := r.disk.LoadConnections(r.pipeline.Workers().Connections()); err != nil || !saved {
		t.Errorf("connections saved: %v, %v", saved, err)
	}
}

// A new control process takes over a running engine with its megaflows.
func TestLivingEngineIsTakenOver(t *testing.T) {
	r := newRig(t)
	key, first := r.frame(), r.launcher.last()
	installs := r.worker().Installs
	r.die()
	r.begin()
	if r.launcher.last() != first || !r.knows(key) || r.engines.Current() != Client(first) {
		t.Error("the living engine was not taken over with its megaflow")
	}
	r.worker().On(func() {
		if r.worker().Installs != installs {
			t.Errorf("%d megaflows were installed again", r.worker().Installs-installs)
		}
	})
	r.worker().Frame(key, 100)
	flows, err := tables.New(&r.configuration, r.pipeline.First()).DumpFlows("", pipeline.ByName)
	if err != nil || len(flows) != 1 || flows[0].Packets != 2 {
		t.Errorf("flows %+v, %v; want one with two packets", flows, err)
	}
}
