// SPDX-License-Identifier: Apache-2.0

// Package ports manages the switch's ports: kinds, options, addition, deletion, and retries after
// failures. It tells the pipeline which ports exist and which are up, and updates the tunnel
// endpoints. If a port has hung the engine, new engines do not get the port for a while.
//
// The configuration lock guards the set of ports, because a change of ports is a change of
// the pipeline too. Each driver has a lock, which is taken after the configuration lock.
// It guards the device against events of the guest or the kernel. The pipeline and the
// supervision of engines hold the configuration lock when they call this package.
//
// The set of ports:
//
//	set.go, ports.go        the set; adds, deletes and describes ports
//	commit.go               the ports' part in the commit of a transaction
//	modify.go, conflict.go  changes of options; options that exclude each other
//	numbers.go, bridge.go   a port's number and its bridge
//	restore.go              attaches ports to an engine, retries failed ports
//	blame.go                ports that are held back after a hang
//	addition.go             additions that wait for the next engine
//	liveness.go             which ports are up, for groups and bundles
//	central.go              ports and the tunnel that weft-central declares
//
// Kinds of ports, each a driver with a table of options:
//
//	driver.go, options.go   the driver's interface, and options in general
//	vhost.go, sessions.go, socketaccess.go, guestmemory.go   vhost-user
//	tap.go, local.go        taps, and the host's port LOCAL
//	uplink.go, uplinkdevice.go, xdp.go, packet.go            uplinks
//	tunnel.go, remotes.go, remotestate.go, encapoptions.go, bfd.go   tunnels
//	device.go               a device of the host, through packet.go
//	patch.go                patch ports
//	mirror.go, exporter.go  mirrors and exporters of a bridge
//	bond.go, lacp.go, slowsocket.go   ports of several members
//
// Options that several kinds have: admin.go, binding.go, qos.go, vlan.go, weight.go.
package ports

import (
	"context"
	"encoding/json"
	"log/slog"
	"sync"

	"weft/control/bond"
	"weft/control/change"
	"weft/control/flowexport"
	"weft/control/loop"
	"weft/control/pipeline"
	"weft/control/statistics"
	"weft/control/store"
	"weft/control/underlay"
	"weft/control/watchdog"
	"weft/control/workers"
	"weft/engine"
	"weft/openflow/fdb"
	"weft/port"
	"weft/tunnel"
	"weft/vhost"
)

// Client is the part of engine.Client that the ports use: it passes devices to the engine, and stores
// their state there.
type Client interface {
	Attach(a engine.Attach, fds []int) error
	Detach(port uint32) (json.RawMessage, error)
	Keep(key string, blob json.RawMessage, fds []int) error
	Forget(key string) error
}

// Engine gives the ports access to the engine process that runs now.
type Engine interface {
	// Client returns the engine's client, or nil while there is no engine.
	Client() Client
}

// Store saves the ports in the state file when a transaction commits.
type Store interface {
	SavePort(tx *change.Tx, p store.Port)
	DeletePort(tx *change.Tx, number uint32)
}

// Setup has the dependencies and settings of a set of ports.
type Setup struct {
	Configuration *change.Configuration // the configuration lock
	Store         Store
	Engine        Engine
	Pipeline      *pipeline.Pipeline
	Statistics    *statistics.Statistics // statistics of Pipeline
	Templates     *underlay.Templates
	Kernel        *underlay.Kernel
	Declared      Declared            // nil: weft-central declares no addresses
	Exporters     *flowexport.Service // nil: exporters send nothing
	// GuestMemoryGiB limits the memory in GiB that one guest may map; 0: the default.
	GuestMemoryGiB int
	Log            *slog.Logger
}

// Ports is the set of the switch's ports. The package comment describes its locks.
type Ports struct {
	configuration *change.Configuration
	log           *slog.Logger
	store         Store
	engine        Engine
	pipeline      *pipeline.Pipeline
	statistics    *statistics.Statistics
	templates     *underlay.Templates
	kernel        *underlay.Kernel
	guests        *vhost.MemoryPool
	sessions      *sessions
	suspects      *watchdog.Suspects
	declared      Declared
	exporters     *flowexport.Service

	byNumber  map[uint32]*switchPort // ports by number; guarded by the configuration lock
	additions uint64                 // number of ports added so far; guarded by the configuration lock
	numbers   map[uint32]string      // last port name of each number and each store.NumberKey; guarded by the configuration lock
	// terminated has the local ends of tunnels, as the workers have them in a table. The table
	// decides which received datagrams are decapsulated. The index is the tunnel's port number. The
	// configuration lock guards the map.
	terminated map[uint32]tunnel.Termination
	central    central
	bonds      map[string]*bond.Bond // by name of the bond; guarded by the configuration lock
	// aggregations has the LACP state of bonds, with a lock of its own.
	aggregations *aggregations
	buckets      map[bucketKey]uint32 // slots of token buckets in the workers; guarded by the configuration lock
	watched      chan struct{}        // wakes watchPorts
	ended        chan struct{}        // closed when Run ends
}

// Declared has the addresses that weft-central, the service that configures the networks of many
// hosts, has declared for ports of this switch.
type Declared interface {
	// Renumber stores the ports' present numbers in the declared addresses. The ports call it before
	// each change of the set that look-ups read. numbers has the ports' numbers by name. Renumber
	// returns the addresses whose port number has changed.
	Renumber(tx *change.Tx, numbers map[string]uint32) []fdb.NetAddress
}

// New returns a set without ports. Run starts its goroutines. Load adds the saved ports.
func New(s Setup) *Ports {
	ps := &Ports{
		configuration: s.Configuration, log: s.Log, store: s.Store, engine: s.Engine, pipeline: s.Pipeline, statistics: s.Statistics,
		templates: s.Templates, kernel: s.Kernel, guests: vhost.NewMemoryPool(guestMemoryLimits(s.GuestMemoryGiB)), suspects: watchdog.NewSuspects(),
		sessions: newSessions(), declared: s.Declared,
		byNumber: map[uint32]*switchPort{}, terminated: map[uint32]tunnel.Termination{},
		watched: make(chan struct{}, 1), ended: make(chan struct{}), aggregations: newAggregations(s.Log),
	}
	if ps.exporters = s.Exporters; ps.exporters == nil {
		ps.exporters = flowexport.New()
	}
	ps.pipeline.OnWatches(ps.updateLiveness)
	return ps
}

// Run checks the ports' devices, tries failed ports again and updates liveness until ctx ends.
func (ps *Ports) Run(ctx context.Context) {
	defer close(ps.ended)
	loop.Notify(ps.kernel.Moved) // devices may have changed while control was down
	loop.Notify(ps.watched)      // groups in the saved state may watch ports
	var done sync.WaitGroup
	done.Go(func() { ps.watchPorts(ctx) })
	done.Go(func() { ps.aggregations.run(ctx) })
	done.Go(func() { ps.followAddresses(ctx) })
	done.Go(func() { ps.retryPorts(ctx) })
	done.Wait()
}

// followAddresses checks the ports' devices and passes the present tunnel endpoints to the uplinks,
// whenever links or addresses of the host change. It returns when ctx ends.
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

// The following methods are called when the control process starts, and when a new engine process
// replaces another.

// Load makes the saved ports. "names" has, by number, the name of the last port with this number.
// "devices" has the devices that an earlier control process has left in the engine, by port number.
// Load removes the devices that it takes over from the map.
func (ps *Ports) Load(tx *change.Tx, saved []store.Port, names map[uint32]string, devices map[uint32]*engine.Kept) {
	ps.numbers = names
	for _, p := range saved {
		ps.loadPort(p, devices[p.Number])
		delete(devices, p.Number)
	}
	ps.central.loaded = true
	if _, err := ps.setTunnel(tx); err != nil {
		ps.log.Error("there is no tunnel to weft-central's other hosts", "error", err)
	}
	ps.updateView(tx)
	ps.SetTunnels(tx) // after this call, followLiveness knows which tunnels are down
	if ps.followLiveness(tx) {
		ps.updateView(tx) // the revalidation of older megaflows needs the ports' liveness
	}
}

// SetTunnels passes everything about tunnels to package underlay: the uplinks, the remotes, the
// options for outer headers and the BFD sessions. The package makes the outer headers from them.
func (ps *Ports) SetTunnels(tx *change.Tx) {
	remotes := ps.declaredRemotes(tx)
	ps.templates.Watch(remotes)
	ps.templates.SetPorts(ps.uplinks(tx), ps.encaps(tx))
	sessions := ps.bfdSessions(tx, remotes)
	ps.templates.Supervise(sessions)
	if len(sessions) > 0 {
		loop.Notify(ps.watched)
	}
}

// TakeOver continues with the workers of an earlier control process. "attached" has the numbers of
// the ports that the engine has. TakeOver attaches the other ports. It sends the table of tunnel
// ends to the workers again.
func (ps *Ports) TakeOver(tx *change.Tx, w *workers.Workers, attached map[uint32]bool) {
	for number := range uint32(port.MaxPorts) {
		ps.terminated[number] = tunnel.Termination{Port: port.MaxPorts}
	}
	ps.sendTerminations(tx, w)
	ps.updateEndpointsLocked(tx)
	for number, p := range ps.byNumber {
		if !attached[number] {
			ps.attachPort(p, true)
		}
	}
}

// Terminate sends the table of tunnel ends to the workers of a new engine, which have none yet.
func (ps *Ports) Terminate(tx *change.Tx, w *workers.Workers) {
	ps.terminated = map[uint32]tunnel.Termination{}
	ps.sendTerminations(tx, w)
}

// AttachAll passes all ports to a new engine. resume is true if an engine that used their devices
// has died, see portDriver.
func (ps *Ports) AttachAll(tx *change.Tx, resume bool) {
	ps.SetTunnels(tx)
	ps.updateEndpointsLocked(tx)
	for _, p := range ps.byNumber {
		ps.attachPort(p, resume)
	}
}

// Close closes the devices of all ports. It is called when the control process ends.
func (ps *Ports) Close() {
	for _, p := range ps.byNumber {
		p.driver.close()
	}
}

// Hangs returns how many engines have hung while they served the port.
func (ps *Ports) Hangs(number uint32) uint64 { return ps.suspects.Hangs(number) }

// Fail closes a port's device and stores the reason. retryPorts opens it again later.
func (ps *Ports) Fail(tx *change.Tx, number uint32, reason error) {
	if p := ps.byNumber[number]; p != nil {
		ps.failPort(tx, p, reason)
	}
}
