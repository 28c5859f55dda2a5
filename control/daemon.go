// Package control is the control process: the API, the ports' life, the flow
// tables and their translation, the way of tunnels after the kernel's routes
// and neighbours, the state on disk, and the engine's supervision. It may
// allocate, be upgraded and crash; the engine forwards meanwhile.
//
// # Locks, in the order they are taken
//
//  1. Daemon.change: one change at a time. A change alters ports or flows,
//     removes megaflows, or replaces the engine, and may wait for the disk, the
//     kernel and the workers while it holds only this. The API's dumps take it
//     too, so that they see no change half done.
//  2. A driver's own lock (port_*.go): a port's device against what the guest
//     or the kernel does to it.
//  3. Daemon.mu: what translation reads: the pipeline, the view of the ports,
//     the workers; and what statistics are credited to: rules, counters. Misses
//     hold it for reading from translation to installation, so that a megaflow
//     is from before a change, and revalidated by it, or from after it.
//     Nothing is waited for under it but room in a command ring, and, for the
//     setting of a tap, the workers. captures.mu and connectionEvents.mu come
//     right before it.
//  4. megaflows.mu (slots and the order of install and remove), tunnels.mu,
//     underlay.mu, macs.mu.
//  5. workers.mu: the command rings.
//
// Every wait for workers or for the engine ends when the watchdog kills the engine, for
// which it takes no lock (hung.go). A request of the API waits no longer than package
// patience lets it, whatever lock it needs; what it began goes on.
//
// engineMu guards only the pointer to the engine's client and is never held
// while another is taken.
package control

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"os"
	"runtime"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"weft/conntrack"
	"weft/control/access"
	"weft/control/engines"
	"weft/control/limits"
	"weft/control/observe"
	"weft/control/patience"
	"weft/control/pipeline"
	"weft/control/ports"
	"weft/control/store"
	"weft/control/underlay"
	"weft/control/workers"
	"weft/datapath"
	"weft/engine"
	"weft/flowtable"
	"weft/internal/cpu"
)

const noSlot = flowtable.NoSlot

// Config is what the daemon is started with.
type Config struct {
	Socket      string // API, a path
	SocketGroup string // members may use all of the API; "": none
	// SocketReadGroup names the group whose members may look and not change; "": none.
	SocketReadGroup string
	StateDir        string
	Workers         int   // 0: as many as Cores, or 1
	Cores           []int // one worker each; nil: the last ones allowed
	// VsockPort makes the API listen on vsock too; 0: not.
	VsockPort uint32
	// VsockAllow gives roles to CIDs, before access.DefaultCIDs.
	VsockAllow map[uint32]access.Role
	Metrics    string // TCP address of the Prometheus listener; "": none
	// GuestMemoryGiB is what one guest may have mapped; 0: as the machine allows.
	GuestMemoryGiB int
	SpinUS         int    // how long a worker polls empty queues, µs; 0: DefaultSpinUS
	Exe            string // the binary with the engine in it; "": this one
	Log            *slog.Logger

	sizes    datapath.Sizes   // of the workers' memory; zero: the default
	launcher engines.Launcher // of engines; nil: processes
}

// DefaultSpinUS keeps a worker awake over the gaps of traffic that is not idle.
const DefaultSpinUS = 50

// stateStore is the state on disk: *store.Store, or a test's stand-in.
type stateStore interface {
	Load() (store.State, error)
	SavePort(p store.Port) error
	DeletePort(number uint32) error
	ChangeFlows(save iter.Seq[store.Flow], remove []uint32) error
	ChangeTables(groups, meters map[uint32]string, remove []uint32) error
	SaveTableConfigs(texts map[uint32]string) error
	SaveConnections(table *conntrack.Memory) error
	LoadConnections(table *conntrack.Memory) (n int, saved bool, err error)
	Close() error
}

// Daemon is a control process. See the package's comment for its locks.
type Daemon struct {
	config  Config
	log     *slog.Logger
	store   stateStore
	started time.Time

	change sync.Mutex

	pipeline *pipeline.Pipeline
	ports    *ports.Ports
	engines  *engines.Engines

	templates *underlay.Templates
	underlay  *underlay.Kernel

	captures  *observe.Captures
	monitors  observe.Monitors
	connected *observe.ConnectionEvents
	limits    limits.Registry
	requests  *patience.Requests

	servers  *access.Servers
	stopping context.CancelFunc
	done     sync.WaitGroup
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
	d.stopping = stop
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
	if d.underlay, err = underlay.Open(d.log); err != nil {
		d.store.Close()
		return nil, err
	}
	d.templates = underlay.NewTemplates(d.underlay, d.log)
	d.engines = engines.New(engines.Setup{Change: &d.change, Launcher: config.launcher, Exe: config.Exe, Dir: config.StateDir,
		Start: engine.Start{Cores: config.Cores, Sizes: config.sizes, SpinUS: config.SpinUS},
		Store: d.store, Pipeline: d.pipeline, Templates: d.templates, Log: d.log})
	d.requests = patience.NewRequests(d.engines.Troubled)
	d.ports = ports.New(ports.Setup{Change: &d.change, Store: d.store, Engine: d.engines, Pipeline: d.pipeline,
		Templates: d.templates, Kernel: d.underlay, GuestMemoryGiB: config.GuestMemoryGiB, Log: d.log})
	d.pipeline.Attach(d.ports, d.templates)
	d.engines.Attach(d.ports)
	d.captures = observe.NewCaptures(presentEngine{d.pipeline}, d.log)
	d.connected = observe.NewConnectionEvents(presentEngine{d.pipeline})
	d.registerLimits()
	if err = d.listen(); err != nil {
		d.underlay.Close()
		d.store.Close()
		return nil, err
	}
	return d, nil
}

// complete fills defaults in and refuses what cannot be.
func (c *Config) complete() error {
	if c.Log == nil {
		c.Log = slog.Default()
	}
	if c.sizes == (datapath.Sizes{}) {
		c.sizes = datapath.DefaultSizes
	}
	if c.launcher == nil {
		c.launcher = engines.Processes{}
	}
	if c.SpinUS == 0 {
		c.SpinUS = DefaultSpinUS
	}
	if c.Exe == "" {
		exe, err := os.Executable()
		if err != nil {
			return fmt.Errorf("own binary: %w", err)
		}
		c.Exe = exe
	}
	allowed, err := cpu.Allowed()
	if err != nil {
		return err
	}
	return c.chooseCores(allowed)
}

// chooseCores settles which cores are workers' ones.
func (c *Config) chooseCores(allowed []int) error {
	for _, core := range c.Cores {
		if !slices.Contains(allowed, core) {
			return inputf("cores: %d: this process may run on %v only", core, allowed)
		}
	}
	switch {
	case c.Workers < 0 || c.Workers > workers.Max:
		return inputf("workers: %d: expected a number from 1 to %d", c.Workers, workers.Max)
	case c.Workers != 0 && c.Cores != nil && c.Workers != len(c.Cores):
		return inputf("workers: %d: expected as many as there are cores in the list, %d", c.Workers, len(c.Cores))
	case c.Cores != nil:
		c.Workers = len(c.Cores)
		return nil
	}
	c.Workers = max(c.Workers, 1)
	if c.Workers > len(allowed) {
		return inputf("workers: %d: this process may run on %d cores only", c.Workers, len(allowed))
	}
	c.Cores = allowed[len(allowed)-c.Workers:]
	return nil
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
	d.underlay.Close()
	if err := d.store.Close(); err != nil {
		d.log.Error("state", "error", err)
	}
}
