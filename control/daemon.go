// Package control is the control process. Daemon makes the packages under it, starts and
// stops them, owns the lock of changes and answers the API (api_*.go); the state and the
// work are theirs. The process may allocate, be upgraded and crash; the engine forwards
// meanwhile.
//
// # Packages and locks, in the order they are taken
//
// A package takes its locks before those of the packages that it imports, and
// internal/archtest lists what each may import: the lock order is the order of imports.
//
//  1. The lock of changes, Daemon.change, handed to engines, ports and pipeline: one
//     change at a time. A change alters ports or tables, removes megaflows, or replaces
//     the engine, and may wait for the disk, the kernel and the workers while it holds
//     only this. The API's dumps take it too, so that they see no change half done.
//  2. control/engines: Engines.mu guards only the pointer to the engine's client and is
//     never held while another lock is taken.
//  3. control/ports: a driver's own lock, for its device against what the guest or the
//     kernel does to it.
//  4. control/observe: the locks of captures and of connection events, right before the
//     pipeline's. That of monitors is a leaf, taken inside the pipeline's.
//  5. control/pipeline: Pipeline.mu, for what translation reads and statistics are
//     credited to. Inside it, those of megaflows and of learnt addresses.
//  6. control/underlay: Templates.mu, then Kernel.mu.
//  7. control/workers: Workers.mu, for the command rings.
//
// Every wait for workers or for the engine ends when the watchdog kills the engine, for
// which it takes no lock (control/engines). A request of the API waits no longer than
// control/patience lets it, whatever lock it needs; what it began goes on.
package control

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"weft/control/access"
	"weft/control/engines"
	"weft/control/limits"
	"weft/control/observe"
	"weft/control/patience"
	"weft/control/pipeline"
	"weft/control/ports"
	"weft/control/store"
	"weft/control/underlay"
	"weft/engine"
	"weft/internal/cpu"
)

// Daemon is a control process: its packages and their order. See the package's comment
// for the locks.
type Daemon struct {
	config  Config
	log     *slog.Logger
	started time.Time
	change  sync.Mutex // the lock of changes

	engines   *engines.Engines
	ports     *ports.Ports
	pipeline  *pipeline.Pipeline
	templates *underlay.Templates
	kernel    *underlay.Kernel
	store     *store.Store

	captures    *observe.Captures
	monitors    observe.Monitors
	connections *observe.ConnectionEvents

	servers  *access.Servers
	requests *patience.Requests
	limits   limits.Registry
	done     sync.WaitGroup // goroutines that begin has started
}

// Run runs the daemon until ctx ends, and then takes it down in good order:
// the engine stops, XDP programs are detached, sockets removed. ready, unless
// nil, is called once the API answers. Errors are one line for the operator.
func Run(ctx context.Context, config Config, ready func()) error {
	d, err := newDaemon(config)
	if err != nil {
		return err
	}
	// Before the first engine starts, which inherits it. Ports and front ends take
	// descriptors, and 1,024 are too few for a host.
	if n, err := access.RaiseDescriptors(); err != nil {
		d.log.Warn("the limit of descriptors stays", "limit", n, "error", err)
	}
	// The workers' cores are theirs. The engine inherits this and does the same.
	if allowed, err := cpu.Allowed(); err == nil && len(allowed) == len(d.config.Cores) {
		d.log.Warn("all cores are workers', none is left for this process", "cores", d.config.Cores)
	}
	if err := cpu.Confine(d.config.Cores); err != nil {
		d.log.Warn("this process shares the workers' cores", "error", err)
	}
	runtime.SetDefaultGOMAXPROCS() // as many as cores are left
	_ = cpu.ShortSlices()          // a matter of latency: guests wait for a dead engine's successor
	running, stop := context.WithCancel(ctx)
	if err := d.begin(running); err != nil {
		stop()
		d.end()
		return err
	}
	if ready != nil {
		ready()
	}
	<-ctx.Done()
	d.log.Info("stopping")
	stop()
	d.end()
	return nil
}

// checkPrivileges refuses to start where the first port would fail anyway.
func checkPrivileges() error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData // 32 capabilities each
	if err := unix.Capget(&header, &sets[0]); err != nil {
		return fmt.Errorf("own capabilities: %w", err)
	}
	if sets[0].Effective&(1<<unix.CAP_NET_ADMIN) == 0 {
		return errors.New("missing privilege: CAP_NET_ADMIN is needed for taps, XDP and neighbours; run as root")
	}
	return nil
}

// newDaemon takes what only one daemon can have: state directory and sockets.
func newDaemon(config Config) (*Daemon, error) {
	if err := config.complete(); err != nil {
		return nil, err
	}
	if err := checkPrivileges(); err != nil {
		return nil, err
	}
	d := &Daemon{
		config: config, log: config.Log, started: time.Now(),
	}
	var err error
	if d.store, err = store.Open(config.StateDir); err != nil {
		return nil, err
	}
	d.pipeline = pipeline.New(pipeline.Setup{Change: &d.change, Store: d.store, Monitors: &d.monitors,
		Sizes: config.sizes.Cache, Cores: config.Cores, Log: d.log})
	if d.kernel, err = underlay.Open(d.log); err != nil {
		d.store.Close()
		return nil, err
	}
	d.templates = underlay.NewTemplates(d.kernel, d.log)
	d.engines = engines.New(engines.Setup{Change: &d.change, Launcher: config.launcher, Exe: config.Exe, Dir: config.StateDir,
		Start: engine.Start{Cores: config.Cores, Sizes: config.sizes, SpinUS: config.SpinUS},
		Store: d.store, Pipeline: d.pipeline, Templates: d.templates, Log: d.log})
	d.requests = patience.NewRequests(d.engines.Troubled)
	d.ports = ports.New(ports.Setup{Change: &d.change, Store: d.store, Engine: d.engines, Pipeline: d.pipeline,
		Templates: d.templates, Kernel: d.kernel, GuestMemoryGiB: config.GuestMemoryGiB, Log: d.log})
	d.pipeline.Attach(d.ports, d.templates)
	d.engines.Attach(d.ports)
	d.captures = observe.NewCaptures(presentEngine{d.pipeline}, d.log)
	d.connections = observe.NewConnectionEvents(presentEngine{d.pipeline})
	d.registerLimits()
	if err = d.listen(); err != nil {
		d.kernel.Close()
		d.store.Close()
		return nil, err
	}
	return d, nil
}

// begin brings everything up: the engine (an old one, if it lives), ports,
// flows, and then the goroutines that keep it all current.
func (d *Daemon) begin(ctx context.Context) error {
	saved, err := d.store.Load()
	if err != nil {
		return fmt.Errorf("state in %s: %w", d.config.StateDir, err)
	}
	d.change.Lock()
	defer d.change.Unlock()
	if err := d.engines.Start(saved); err != nil {
		return err
	}
	d.done.Go(func() { d.pipeline.Run(ctx) })
	d.done.Go(func() { d.templates.Follow(ctx) })
	d.done.Go(func() { d.ports.Run(ctx) })
	d.done.Go(func() { d.engines.Supervise(ctx) })
	d.serve()
	return nil
}

// end takes down what begin brought up, as far as it got.
func (d *Daemon) end() {
	d.servers.Close()
	d.done.Wait()
	d.change.Lock()
	defer d.change.Unlock()
	d.pipeline.EndUpcalls()
	d.ports.Close()
	d.engines.Stop()
	d.kernel.Close()
	if err := d.store.Close(); err != nil {
		d.log.Error("state", "error", err)
	}
}
