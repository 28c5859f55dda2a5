// SPDX-License-Identifier: Apache-2.0

// Package control is the control process. Its Daemon makes the objects of the packages below control/,
// starts and stops them, owns the configuration lock, and serves the API (control/rest). The packages
// have the state and do the work. The control process may allocate memory, be upgraded and crash, while
// the engine keeps forwarding.
//
// # Packages and their locks, in the order in which the locks are taken
//
// A package takes its own locks before the locks of the packages that it imports.
// internal/archtest lists the allowed imports, so the order of imports is the order of
// locks.
//
//  1. The configuration lock is Daemon.configuration, a change.Configuration that many
//     packages share. A goroutine that has one of its transactions holds the lock, so there is
//     one change at a time. A change alters ports or tables, removes megaflows, or replaces the
//     engine. A change that holds no other lock may wait for the disk, the kernel and the
//     workers. The API's dumps take this lock too, so that they never show a half-applied
//     change.
//  2. control/engines: Present.mu guards only the pointer to the engine's client and is
//     never held while another lock is taken.
//     control/central takes the configuration lock, and its own lock last. The agent's lock
//     (control/agent) is taken before the configuration lock.
//     control/ofconn takes its lock Service.framing before the configuration lock. Its locks of
//     connections are taken after Pipeline.mu, like Monitors.mu, and no other lock is
//     taken while they are held. control/bridges takes Frames.mu before the configuration lock.
//     Bridges.changing is taken before every other lock, and allows one change of bridges at a time.
//     Bridges.mu guards the list of bridges. While it is held, only the lock of
//     ofconn.Services is taken.
//     control/rest, control/appctl and control/ovsdb have no lock. The goroutine of
//     control/ovsdb calls control/bridges and control/ports as a request does. control/unixctl
//     takes its lock of connections while it holds no other lock.
//  3. control/ports: each driver's lock guards its device against events of the guest
//     and the kernel.
//  4. control/observe: the locks of captures and of connection events are taken right
//     before the pipeline's lock. Monitors.mu is taken after the pipeline's lock, and no
//     other lock is taken while Monitors.mu is held.
//     control/tracking takes its lock of settings before the pipeline's lock.
//     control/statistics takes its lock right after the pipeline's lock, and no other lock
//     after it.
//     control/tables and control/macs have no lock. They answer requests under the
//     configuration lock.
//  5. control/pipeline: Pipeline.mu guards the tables that translations read, and the
//     statistics. It also guards the rows of rules. questions.mu and the locks
//     of control/megaflows and openflow/fdb are taken after it.
//  6. control/underlay: Templates.mu, then Kernel.mu. The lock of the flows in the kernel
//     (control/pipeline) is taken after Templates.mu, or after Pipeline.mu.
//  7. control/workers: Workers.mu guards the command rings.
//
// Every wait for workers or for the engine ends when the watchdog (control/engines) kills the engine.
// The watchdog itself takes no lock. A client of the API waits at most as long as access.Requests
// allows, whatever lock its request needs. An abandoned request continues in the background. A request
// of an OpenFlow connection waits without a limit, and delays only its own connection.
package control

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"time"

	"weft/conntrack"
	"weft/control/access"
	"weft/control/bridges"
	"weft/control/central"
	"weft/control/change"
	"weft/control/engines"
	"weft/control/flowexport"
	"weft/control/limits"
	"weft/control/macs"
	"weft/control/observe"
	"weft/control/ofconn"
	"weft/control/pipeline"
	"weft/control/ports"
	"weft/control/rest"
	"weft/control/statistics"
	"weft/control/store"
	"weft/control/tracking"
	"weft/control/underlay"
	"weft/control/unixctl"
	"weft/engine"
	"weft/internal/cpu"
	"weft/internal/privilege"
)

// Daemon is a control process. It has the objects of the packages below control/.
type Daemon struct {
	config        Config
	log           *slog.Logger
	started       time.Time
	configuration change.Configuration // the configuration lock: one change at a time

	engines    *engines.Engines
	fleet      *central.Switch  // through it, weft-central changes the switch
	central    *central.Central // session with weft-central; nil: none is configured
	ports      *ports.Ports
	pipeline   *pipeline.Pipeline
	bridges    *bridges.Bridges
	macs       *macs.MACs
	statistics *statistics.Statistics
	tracking   *tracking.Connections
	templates  *underlay.Templates
	kernel     *underlay.Kernel
	store      *store.Store

	captures  *observe.Captures
	exporters *flowexport.Service
	monitors  observe.Monitors
	services  ofconn.Services // OpenFlow services, by bridge
	// controllerFrames passes frames that flows send to the controller from the workers to the bridges'
	// connections.
	controllerFrames *bridges.Frames
	connections      *observe.ConnectionEvents

	servers  *access.Servers
	rest     *rest.Handlers
	unixctl  *unixctl.Server // answers ovs-appctl; nil without OVSDB
	requests *access.Requests
	limits   limits.Registry
	ready    chan struct{} // closed when the start is complete
	shutDown func()        // ends Run as ErrShutDown does
	// handOverNow ends Run and leaves the engine to the next control process.
	handOverNow func()
	done        sync.WaitGroup // the goroutines that begin has started
}

// Run runs the daemon until ctx ends. By default the engine then continues, and the next control process
// takes over the engine and the ports. If the cause of the end is ErrShutDown, or a client of the API
// asks for it, Run also ends the engine, detaches XDP programs and removes taps and sockets. Run calls
// ready, if it is not nil, when the start is complete. An error is one line for the operator.
func Run(ctx context.Context, config Config, ready func()) error {
	d, err := newDaemon(config)
	if err != nil {
		return err
	}
	d.logPrivileges()
	// The engine inherits the descriptor limit. The usual limit of 1,024 is too low
	// for a host's ports.
	if n, err := access.RaiseDescriptors(); err != nil {
		d.log.Warn("cannot raise the limit of descriptors", "limit", n, "error", err)
	}
	// Only workers may run on the workers' cores. This process confines itself to the other cores, and the
	// engine inherits this.
	if allowed, err := cpu.Allowed(); err == nil && len(allowed) == len(d.config.Cores) {
		d.log.Warn("the workers use all cores, none is left for this process", "cores", d.config.Cores)
	}
	if err := cpu.Confine(d.config.Cores); err != nil {
		d.log.Warn("this process shares the workers' cores", "error", err)
	}
	runtime.SetDefaultGOMAXPROCS() // adapts GOMAXPROCS to the cores that are left for control
	_ = cpu.ShortSlices()          // so control gets a core soon: guests wait while it replaces an engine
	running, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	d.shutDown, d.handOverNow = func() { stop(ErrShutDown) }, func() { stop(nil) }
	if err := d.begin(running); err != nil {
		return d.giveUp(running, stop, err)
	}
	if ready != nil {
		ready()
	}
	<-running.Done()
	if errors.Is(context.Cause(running), ErrShutDown) {
		d.log.Info("shutting down the switch")
		d.end()
	} else {
		d.log.Info("stopping, the engine continues", "engine", d.engines.PID())
		d.handOver()
	}
	return nil
}

// ErrShutDown, as the cause of a context's end, makes Run also end the engine and the ports.
var ErrShutDown = errors.New("the switch is shut down")

// logPrivileges logs the user of this process, and the capabilities that some kinds of ports need and
// this process lacks.
func (d *Daemon) logPrivileges() {
	d.log.Info("privileges", "user", privilege.User(), "capabilities", len(privilege.Own()))
	for _, l := range privilege.Missing() {
		d.log.Warn("a capability is missing", "capability", privilege.Name(l.Capability), "needed_for", strings.Join(l.For, "; "))
	}
}

// newDaemon makes a daemon. It locks the state directory and opens the sockets, so that it fails while
// another daemon uses them.
func newDaemon(config Config) (*Daemon, error) {
	if err := config.complete(); err != nil {
		return nil, err
	}
	d := &Daemon{
		config: config, log: config.Log, started: time.Now(), ready: make(chan struct{}),
	}
	var err error
	if d.store, err = store.Open(config.StateDir); err != nil {
		return nil, err
	}
	if d.kernel, err = underlay.Open(d.log); err != nil {
		d.store.Close()
		return nil, err
	}
	// An object is made after the objects that it calls. Some also call objects that are made later. They
	// do that through d.services, declared or present, which are made before both.
	d.templates = underlay.NewTemplates(d.kernel, d.log)
	declared, present := central.NewDeclared(), new(engines.Present)
	d.pipeline = pipeline.New(pipeline.Setup{Configuration: &d.configuration, Name: config.Name, Store: d.store, Templates: d.templates,
		Monitors: &flowMonitors{&d.monitors, &d.services}, Declared: declared, Sizes: config.sizes.Cache, Log: d.log})
	d.macs = macs.New(&d.configuration, d.pipeline, d.store, d.log)
	d.statistics = statistics.New(d.pipeline, config.Cores)
	d.tracking = tracking.New(&d.configuration, d.pipeline)
	d.exporters = flowexport.New()
	d.ports = ports.New(ports.Setup{Configuration: &d.configuration, Store: d.store, Engine: present, Pipeline: d.pipeline, Statistics: d.statistics,
		Templates: d.templates, Kernel: d.kernel, Declared: declared, Exporters: d.exporters, GuestMemoryGiB: config.GuestMemoryGiB, Log: d.log})
	d.engines = engines.New(engines.Setup{Configuration: &d.configuration, Launcher: config.launcher, Exe: config.Exe, Dir: config.StateDir,
		Start: engine.Start{Cores: config.Cores, Sizes: config.sizes, SpinUS: config.SpinUS,
			Connections: conntrack.Sizes{Connections: config.Connections}},
		Store: d.store, Pipeline: d.pipeline, Ports: d.ports, Present: present, MACs: d.macs, Templates: d.templates, Delayed: config.Delayed, Log: d.log})
	d.requests = access.NewRequests(d.engines.Troubled, d.engines.Unanswered)
	d.fleet = central.NewSwitch(&d.configuration, d.pipeline, d.ports, declared)
	if len(config.Central) > 0 {
		if d.central, err = central.New(central.Setup{Addresses: config.Central, Certs: config.CentralCerts, Dir: config.StateDir,
			Switch: d.fleet, Log: d.log}); err != nil {
			d.kernel.Close()
			d.store.Close()
			return nil, err
		}
	}
	d.captures = observe.NewCaptures(presentEngine{d.pipeline}, d.log)
	d.connections = observe.NewConnectionEvents(presentEngine{d.pipeline})
	d.controllerFrames = bridges.NewFrames(&d.configuration, d.pipeline, d.captures, &d.services, d.log)
	d.registerLimits()
	if err = d.listen(); err != nil {
		d.kernel.Close()
		d.store.Close()
		return nil, err
	}
	d.rest = rest.New(rest.Setup{Name: config.Name, StateDir: config.StateDir, Since: d.started, Started: d.ready,
		ShutDown: func() { d.shutDown() }, LogSettings: config.LogSettings, Configuration: &d.configuration, Engines: d.engines,
		Central: d.central, Ports: d.ports, Pipeline: d.pipeline, Bridges: d.bridges, MACs: d.macs, Statistics: d.statistics,
		Tracking: d.tracking, Templates: d.templates, Captures: d.captures, Monitors: &d.monitors, Connections: d.connections,
		Requests: d.requests, Limits: &d.limits, Log: d.log})
	return d, nil
}

func (d *Daemon) begin(ctx context.Context) error {
	saved, err := d.store.Load()
	if err != nil {
		return fmt.Errorf("state in %s: %w", d.config.StateDir, err)
	}
	if d.central != nil {
		d.central.Restore(saved.Ports)
	}
	d.serve() // first, so that a request during a long start gets an answer
	return d.configuration.Update(func(tx *change.Tx) error {
		if err := d.bridges.Restore(tx, saved.Bridges); err != nil {
			return err
		}
		if err := d.engines.Start(ctx, tx, saved); err != nil {
			return err
		}
		d.done.Go(func() { d.pipeline.Run(ctx) })
		d.done.Go(func() { d.macs.Run(ctx) })
		d.done.Go(func() { d.statistics.LogDrops(ctx, d.log) })
		d.done.Go(func() { d.templates.Follow(ctx) })
		d.done.Go(func() { d.templates.FollowSessions(ctx) })
		d.done.Go(func() { d.ports.Run(ctx) })
		d.done.Go(func() { d.exporters.Run(ctx, d.exporterSetup()) })
		d.done.Go(func() { d.engines.Supervise(ctx) })
		if d.central != nil {
			d.done.Go(func() { d.fleet.Run(ctx, d.central.Events()) })
			d.done.Go(func() { d.central.Run(ctx) })
		}
		d.bridges.Start(ctx)
		if d.config.OVSDB != "" {
			client := d.newOVSDB()
			d.limits.Add(client.LimitRows)
			d.done.Go(func() { client.Run(ctx) })
			if d.unixctl != nil {
				d.done.Go(func() { d.unixctl.Run(ctx) })
			}
		}
		close(d.ready)
		return nil
	})
}

// giveUp ends this process after its start has failed with err or was interrupted. The engine of an
// earlier process continues, unless the cause is ErrShutDown.
func (d *Daemon) giveUp(running context.Context, stop context.CancelCauseFunc, err error) error {
	ended := running.Err() != nil
	stop(nil)
	switch {
	case ended && errors.Is(context.Cause(running), ErrShutDown):
		d.end()
		return nil
	case ended:
		err = nil
	}
	d.log.Info("stopping before the start is complete, a running engine continues", "engine", d.engines.PID())
	d.handOver()
	return err
}

// saveMACs saves the learned addresses. It does nothing if the start was not completed, because the
// addresses of the last save may not have been restored yet.
func (d *Daemon) saveMACs() {
	select {
	case <-d.ready:
		if err := d.macs.Save(); err != nil {
			d.log.Error("learned addresses cannot be saved", "error", err)
		}
	default:
	}
}

func (d *Daemon) end() {
	d.finish(func(tx *change.Tx) {
		d.ports.Close()
		d.engines.Stop(tx)
	})
}

// handOver ends this control process, and leaves the engine and the ports to the next one. Unlike
// SIGKILL, it completes the change in progress and saves the learned addresses. The process's
// descriptors of ports close with it, but the engine has duplicates of them.
func (d *Daemon) handOver() { d.finish(func(*change.Tx) {}) }

// finish ends the goroutines of this process and saves the learned addresses. It calls handOver in a last
// transaction, and closes the state directory.
func (d *Daemon) finish(handOver func(tx *change.Tx)) {
	d.servers.Close()
	d.bridges.Close()
	d.done.Wait()
	d.configuration.Do(func(tx *change.Tx) {
		d.pipeline.EndUpcalls(tx)
		d.pipeline.Save(tx)
		d.saveMACs()
		handOver(tx)
		d.kernel.Close()
		if err := d.store.Close(); err != nil {
			d.log.Error("state", "error", err)
		}
	})
}
