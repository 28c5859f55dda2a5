// SPDX-License-Identifier: Apache-2.0

// Package ports manages the switch's ports: their kinds and options, their life from
// the request that adds a port to the request that deletes it, and retries after a
// device has failed. It also updates everything that depends on the devices: the
// pipeline's view of the ports, the liveness of ports, and the terminations and
// endpoints of tunnels. Ports on which an engine hung are held back from the next
// engines.
//
// Ports owns the set of ports. The lock of changes guards the set; all of control
// shares this lock, because a change of ports is a change of the pipeline too. Each
// driver has its own lock, taken after the lock of changes, which guards its device
// against events of the guest or the kernel. The handlers of the API and the loops of
// this package take the lock of changes; the pipeline and the supervision of engines
// already hold it when they call.
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

// Client has the calls to the engine that the ports need. engine.Client implements
// it; tests use a fake.
type Client interface {
	Attach(a engine.Attach, fds []int) error
	Detach(port uint32) (json.RawMessage, error)
	Keep(key string, blob json.RawMessage, fds []int) error
	Forget(key string) error
}

// Engine gives the ports access to the present engine.
type Engine interface {
	// Client returns the engine's client, or nil while there is no engine.
	Client() Client
}

// Store saves ports. Its methods may wait for the disk.
type Store interface {
	SavePort(p store.Port) error
	DeletePort(number uint32) error
}

// Setup has the dependencies and settings of a set of ports.
type Setup struct {
	Change    sync.Locker // the lock of changes
	Store     Store
	Engine    Engine
	Pipeline  *pipeline.Pipeline
	Templates *underlay.Templates
	Kernel    *underlay.Kernel
	// GuestMemoryGiB is the memory that one guest may map, in GiB; 0: the default.
	GuestMemoryGiB int
	Log            *slog.Logger
}

// Ports is the set of the switch's ports. See the package comment for its locks.
type Ports struct {
	change    sync.Locker
	log       *slog.Logger
	store     Store
	engine    Engine
	pipeline  *pipeline.Pipeline
	templates *underlay.Templates
	kernel    *underlay.Kernel
	guests    *vhost.MemoryPool
	sessions  *sessions
	suspects  *watchdog.Suspects

	all       map[uint32]*switchPort // ports by number; guarded by the lock of changes
	additions uint64                 // ports added so far; guarded by the lock of changes
	numbers   map[uint32]string      // name of the last port with each number, also of deleted ports; guarded by the lock of changes
	// terminated is the content of the workers' termination table, by index; guarded
	// by the lock of changes.
	terminated map[uint32]tunnel.Termination
	central    central
	// Renumbered is called, if it is not nil, before the pipeline gets a new view of the
	// ports, under the lock of changes. It is set before anything else.
	Renumbered func()
	watched    chan struct{} // wakes watchPorts when groups watch ports
}

// New returns a set without ports. Run starts its goroutines.
func New(s Setup) *Ports {
	return &Ports{
		change: s.Change, log: s.Log, store: s.Store, engine: s.Engine, pipeline: s.Pipeline,
		templates: s.Templates, kernel: s.Kernel, guests: vhost.NewMemoryPool(guestMemoryLimits(s.GuestMemoryGiB)), suspects: watchdog.NewSuspects(),
		sessions: newSessions(),
		all:      map[uint32]*switchPort{}, terminated: map[uint32]tunnel.Termination{},
		watched: make(chan struct{}, 1),
	}
}

// Run follows the ports' devices, retries failed ports, and updates groups that watch
// ports, until ctx ends.
func (ps *Ports) Run(ctx context.Context) {
	loop.Notify(ps.kernel.Moved) // checks the devices, which may have changed since their ports were set up
	loop.Notify(ps.watched)      // checks liveness, because saved groups may watch ports
	var done sync.WaitGroup
	done.Go(func() { ps.watchPorts(ctx) })
	done.Go(func() { ps.followAddresses(ctx) })
	done.Go(func() { ps.retryPorts(ctx) })
	done.Wait()
}

// followAddresses updates the uplinks' endpoints after each change of the kernel's
// addresses, until ctx ends.
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

// The steps of control's start and of the replacement of an engine. The caller holds
// the lock of changes during all steps.

// Load makes the saved ports. The map names has the name of the last port with each
// number. The map kept has the devices that an engine kept, by port number. Load
// removes the devices that it uses from this map.
func (ps *Ports) Load(saved []store.Port, names map[uint32]string, kept map[uint32]*engine.Kept) {
	ps.numbers = names
	for _, p := range saved {
		ps.loadPort(p, kept[p.Number])
		delete(kept, p.Number)
	}
	ps.central.loaded = true
	if _, err := ps.setTunnel(); err != nil {
		ps.log.Error("there is no tunnel to weft-central's other hosts", "error", err)
	}
	ps.updateView()
	ps.UpdateLiveness() // sets the liveness that groups need before megaflows of an earlier process are revalidated
}

// SetTunnels passes the present uplinks and encap options to the tunnel templates.
func (ps *Ports) SetTunnels() { ps.templates.SetPorts(ps.uplinks(), ps.encaps()) }

// TakeOver continues with workers that an earlier control process used. attached has
// the ports that the workers already have; TakeOver attaches the other ports.
// TakeOver rewrites every row of the termination table, because the workers' rows are
// unknown.
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

// Terminate sends the termination table of all ports to new workers, whose tables are
// empty.
func (ps *Ports) Terminate(w *workers.Workers) {
	ps.terminated = map[uint32]tunnel.Termination{}
	ps.sendTerminations(w)
}

// AttachAll passes all ports to a new engine. resume means that an earlier engine had
// the ports and was killed.
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

// Hangs returns the number of engines that hung on the port with this number.
func (ps *Ports) Hangs(number uint32) uint64 { return ps.suspects.Hangs(number) }

// Fail closes a port's device and stores the reason; control then tries to open it
// again. The caller holds the lock of changes.
func (ps *Ports) Fail(number uint32, why error) {
	if p := ps.all[number]; p != nil {
		ps.failPort(p, why)
	}
}
