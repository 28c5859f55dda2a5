// Package ports is the switch's ports: their kinds and options, their life from the
// request that adds one to the one that deletes it, further attempts where a device fails,
// and what follows the devices: the view of the ports that the pipeline has, liveness,
// terminations and endpoints of tunnels, ports that are held because an engine hung on
// them.
//
// Ports owns the set of ports. The lock of changes guards it, which belongs to the whole
// of control: a change of ports is a change of the pipeline too. Each driver has a lock of
// its own, taken after that one, for its device against what the guest or the kernel does
// to it. The handlers of the API and the loops of this package take the lock of changes;
// the pipeline and the supervision of engines hold it when they call.
package ports

import (
	"context"
	"encoding/json"
	"log/slog"
	"sync"

	"weft/control/loop"
	"weft/control/pipeline"
	"weft/control/store"
	"weft/control/underlay"
	"weft/control/watchdog"
	"weft/control/workers"
	"weft/engine"
	"weft/port"
	"weft/tunnel"
	"weft/vhost"
)

// Client is the engine as the ports need it: engine.Client, or a test's stand-in.
type Client interface {
	Attach(a engine.Attach, fds []int) error
	Detach(port uint32) (json.RawMessage, error)
	Keep(key string, blob json.RawMessage, fds []int) error
	Forget(key string) error
}

// Engine gives the present engine.
type Engine interface {
	// Client is nil while there is no engine.
	Client() Client
}

// Store saves ports; it may wait for the disk.
type Store interface {
	SavePort(p store.Port) error
	DeletePort(number uint32) error
}

// Setup is what Ports are made of.
type Setup struct {
	Change    sync.Locker // the lock of changes
	Store     Store
	Engine    Engine
	Pipeline  *pipeline.Pipeline
	Templates *underlay.Templates
	Kernel    *underlay.Kernel
	// GuestMemoryGiB is the most that one guest may map; 0: the default.
	GuestMemoryGiB int
	Log            *slog.Logger
}

// Ports are the switch's ports. See the package's comment for their locks.
type Ports struct {
	change    sync.Locker
	log       *slog.Logger
	store     Store
	engine    Engine
	pipeline  *pipeline.Pipeline
	templates *underlay.Templates
	kernel    *underlay.Kernel
	guests    *vhost.MemoryPool
	suspects  *watchdog.Suspects

	all     map[uint32]*switchPort // by number; change
	numbers map[uint32]string      // last port's name by number, deleted ones too; change
	// terminated are the rows of the workers' termination table, by index; change.
	terminated map[uint32]tunnel.Termination
	watched    chan struct{} // groups watch ports: see watchPorts
}

// New has no ports. Its goroutines begin with run.
func New(s Setup) *Ports {
	return &Ports{
		change: s.Change, log: s.Log, store: s.Store, engine: s.Engine, pipeline: s.Pipeline,
		templates: s.Templates, kernel: s.Kernel, guests: vhost.NewMemoryPool(guestMemoryLimits(s.GuestMemoryGiB)), suspects: watchdog.NewSuspects(),
		all: map[uint32]*switchPort{}, terminated: map[uint32]tunnel.Termination{},
		watched: make(chan struct{}, 1),
	}
}

// Run has the ports follow their devices, tries failed ones again, and tells groups of
// ports that come and go, until ctx ends.
func (ps *Ports) Run(ctx context.Context) {
	loop.Notify(ps.kernel.Moved) // devices may have changed since their ports were set up
	loop.Notify(ps.watched)      // groups of the saved state may watch ports
	var done sync.WaitGroup
	done.Go(func() { ps.watchPorts(ctx) })
	done.Go(func() { ps.followAddresses(ctx) })
	done.Go(func() { ps.retryPorts(ctx) })
	done.Wait()
}

// followAddresses keeps the uplinks' endpoints as the kernel has addresses, until ctx
// ends.
func (ps *Ports) followAddresses(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-ps.kernel.Moved:
			ps.updateEndpoints()
		}
	}
}

// The steps of a start, and of the replacement of an engine. Caller holds the change
// lock for all of them.

// Load makes the saved ports. names are the names of the last port with each number; kept
// are the devices that an engine kept, by number, from which load takes those it uses.
func (ps *Ports) Load(saved []store.Port, names map[uint32]string, kept map[uint32]*engine.Kept) {
	ps.numbers = names
	for _, p := range saved {
		ps.loadPort(p, kept[p.Number])
		delete(kept, p.Number)
	}
	ps.updateView()
	ps.UpdateLiveness() // before an old process's megaflows are compared with what groups say now
}

// SetTunnels gives the templates the uplinks and the encap options of now.
func (ps *Ports) SetTunnels() { ps.templates.SetPorts(ps.uplinks(), ps.encaps()) }

// TakeOver goes on with workers that an earlier control process has used: whatever rows
// of terminations they have, and the ports in attached.
func (ps *Ports) TakeOver(w *workers.Workers, attached map[uint32]bool) {
	for number := range uint32(port.MaxPorts) {
		ps.terminated[number] = tunnel.Termination{Port: port.MaxPorts}
	}
	ps.sendTerminations(w)
	ps.updateEndpointsLocked()
	for number, p := range ps.all {
		if !attached[number] {
			ps.attachPort(p, true)
		}
	}
}

// Terminate sends new workers the terminations of all ports.
func (ps *Ports) Terminate(w *workers.Workers) {
	ps.terminated = map[uint32]tunnel.Termination{}
	ps.sendTerminations(w)
}

// AttachAll gives all ports to a new engine. resume: another engine had them and was
// killed.
func (ps *Ports) AttachAll(resume bool) {
	ps.SetTunnels()
	ps.updateEndpointsLocked()
	for _, p := range ps.all {
		ps.attachPort(p, resume)
	}
}

// Close closes all devices.
func (ps *Ports) Close() {
	for _, p := range ps.all {
		p.driver.close()
	}
}

// Hangs counts the engines that hung on a port.
func (ps *Ports) Hangs(number uint32) uint64 { return ps.suspects.Hangs(number) }

// Fail closes a port's device, for a reason; it is tried again. Caller holds change.
func (ps *Ports) Fail(number uint32, why error) {
	if p := ps.all[number]; p != nil {
		ps.failPort(p, why)
	}
}
