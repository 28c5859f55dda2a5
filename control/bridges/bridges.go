// SPDX-License-Identifier: Apache-2.0

// Package bridges has the bridges of the switch. It adds and deletes bridges, serves the OpenFlow
// connections of each bridge, and connects it with its controllers.
//
//	bridges.go      the set of bridges
//	change.go       adds, deletes and restores bridges
//	controllers.go  changes the controllers and the fail mode of a bridge
//	connections.go  listeners, certificates and roles of OpenFlow peers
//	switch.go       a bridge in the role of the switch that OpenFlow connections control
//	frames.go       packet-ins from the frames that flows send to the controller
package bridges

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"

	"weft/api"
	"weft/control/access"
	"weft/control/change"
	"weft/control/limits"
	"weft/control/observe"
	"weft/control/ofconn"
	"weft/control/pipeline"
	"weft/control/ports"
	"weft/control/store"
	"weft/control/tables"
	"weft/control/tracking"
	"weft/control/usererr"
	"weft/openflow"
)

// Bridge is a bridge with its flow tables and OpenFlow connections. The first bridge has number 0 and
// always exists.
type Bridge struct {
	Number   uint8
	Name     string // "": the first bridge of a switch without a name
	Pipeline *pipeline.Bridge
	Tables   *tables.Tables

	id     uint64 // datapath ID of add-br; 0: datapathID computes one
	socket string // path of the OpenFlow socket; "": none
	wire   *ofconn.Service
	stop   context.CancelFunc
	done   sync.WaitGroup
}

// Setup has the dependencies and settings of a set of bridges.
type Setup struct {
	Configuration *change.Configuration // the configuration lock
	Name          string                // name of the first bridge; "": none
	StateDir      string                // path of the state directory; datapath IDs depend on it
	OpenFlow      OpenFlow              // configuration of the first bridge
	Store         *store.Store
	Pipeline      *pipeline.Pipeline
	Ports         *ports.Ports
	Tracking      *tracking.Connections
	Frames        *Frames
	Services      *ofconn.Services // finds the service of each bridge
	Policy        *access.Policy
	Log           *slog.Logger
}

// Bridges is the set of bridges. A bridge is added or deleted in a transaction, which holds the
// configuration lock.
type Bridges struct {
	setup Setup
	// changing serializes additions, deletions and changes of bridges. It is taken before every other
	// lock.
	changing sync.Mutex
	running  context.Context // when it ends, the bridges stop serving connections
	bundles  *ofconn.BundlePool
	// certificates names the certificate files that SetCertificates has set. It is nil before that.
	certificates atomic.Pointer[ofconn.Certificates]

	mu   sync.RWMutex // while mu is held, only the lock of Services is taken
	list []*Bridge    // sorted by number; the first bridge is at index 0
}

// New makes the first bridge and listens for its OpenFlow connections.
func New(setup Setup) (*Bridges, error) {
	bs := &Bridges{setup: setup, bundles: ofconn.NewBundlePool()}
	listeners, err := listen(&bs.setup.OpenFlow, bs.setup.Policy)
	if err != nil {
		return nil, err
	}
	b := &Bridge{Name: bs.setup.Name, socket: bs.setup.OpenFlow.Socket}
	bs.complete(b, bs.setup.Pipeline.First(), &connections{OpenFlow: bs.setup.OpenFlow, listeners: listeners})
	return bs, nil
}

// Start serves the OpenFlow connections of all bridges in the background, until ctx ends.
func (bs *Bridges) Start(ctx context.Context) {
	bs.running = ctx
	for _, b := range bs.snapshot() {
		b.start(ctx)
	}
}

// Close closes the listeners and connections of all bridges, and waits for their goroutines.
func (bs *Bridges) Close() {
	for _, b := range bs.snapshot() {
		b.wire.Close()
		b.done.Wait()
	}
}

// start serves the OpenFlow connections of a bridge in the background, until ctx ends or b.stop is
// called.
func (b *Bridge) start(ctx context.Context) {
	ctx, b.stop = context.WithCancel(ctx)
	b.done.Go(func() { b.wire.Run(ctx) })
}

func (bs *Bridges) snapshot() []*Bridge {
	bs.mu.RLock()
	defer bs.mu.RUnlock()
	return slices.Clone(bs.list)
}

// Named returns the bridge with a name, or nil if there is none. The name "" stands for the first
// bridge.
func (bs *Bridges) Named(name string) *Bridge {
	bs.mu.RLock()
	defer bs.mu.RUnlock()
	for _, b := range bs.list {
		if b.Name == name || name == "" {
			return b
		}
	}
	return nil
}

// Megaflows returns the handler of requests about megaflows. All bridges share their megaflows, so it is
// that of the first bridge.
func (bs *Bridges) Megaflows() *tables.Tables { return bs.Named("").Tables }

// Numbered returns the bridge with this number, or nil if there is none. 0 is the first bridge.
func (bs *Bridges) Numbered(number uint8) *Bridge {
	bs.mu.RLock()
	defer bs.mu.RUnlock()
	i := slices.IndexFunc(bs.list, func(b *Bridge) bool { return b.Number == number })
	if i < 0 {
		return nil
	}
	return bs.list[i]
}

// TraceNames returns a function that finds the names which a trace shows for a bridge: the bridge's name,
// and the names of its ports in the view. words says whether ports are shown by name or by number.
func (bs *Bridges) TraceNames(view *pipeline.View, words pipeline.PortWords) observe.BridgeNames {
	return func(number uint8) (name string, ports openflow.Names) {
		ports = view.Of(number).Names(words)
		if b := bs.Numbered(number); b != nil {
			name, ports = b.Name, openflow.WithTLVs(ports, b.Pipeline.TLVs())
		}
		return name, ports
	}
}

func (bs *Bridges) insert(b *Bridge) {
	bs.mu.Lock()
	defer bs.mu.Unlock()
	bs.setup.Services.Put(b.Number, b.wire)
	bs.list = append(slices.Clone(bs.list), b)
	slices.SortFunc(bs.list, func(a, b *Bridge) int { return int(a.Number) - int(b.Number) })
}

func (bs *Bridges) remove(b *Bridge) {
	bs.mu.Lock()
	defer bs.mu.Unlock()
	bs.setup.Services.Remove(b.Number)
	bs.list = slices.DeleteFunc(slices.Clone(bs.list), func(o *Bridge) bool { return o == b })
}

// LimitRows emits the rows of `weft show limits` about OpenFlow connections. Rows with the same name and
// holder are added up over all bridges.
func (bs *Bridges) LimitRows(emit func(limits.Row)) {
	type key struct {
		name   string
		holder limits.Holder
	}
	sums, order := map[key]limits.Row{}, []key{}
	for _, b := range bs.snapshot() {
		b.wire.LimitRows(func(r limits.Row) {
			k := key{r.Name, r.Holder}
			sum, there := sums[k]
			if !there {
				order = append(order, k)
				sums[k] = r
				return
			}
			sum.Used, sum.Limit, sum.Refused = sum.Used+r.Used, sum.Limit+r.Limit, sum.Refused+r.Refused
			sum.Guarantee, sum.Evicted = sum.Guarantee+r.Guarantee, sum.Evicted+r.Evicted
			sums[k] = sum
		})
	}
	for _, k := range order {
		emit(sums[k])
	}
	bs.bundles.LimitRows(emit)
}

// Find returns the bridge that a request names, or an error for the user. The name "" stands for the
// first bridge.
func (bs *Bridges) Find(name string) (*Bridge, error) {
	if b := bs.Named(name); b != nil {
		return b, nil
	}
	return nil, bs.noBridge(name)
}

// noBridge returns the error for a request that names a bridge that does not exist. The error lists the
// bridges.
func (bs *Bridges) noBridge(name string) error {
	var names []string
	for _, b := range bs.snapshot() {
		if b.Name != "" {
			names = append(names, b.Name)
		}
	}
	if len(names) == 0 {
		return usererr.Errorf("%s: no such bridge; the only bridge has no name: leave %s out, or give it one with weftd --name", name, name)
	}
	return usererr.Errorf("%s: no such bridge; expected one of %v", name, names)
}

// NoteEmpty returns a note for a user who changes the flows of bridge b, or "". The note is for the case
// that b has no ports, and the first bridge has ports but no name. A user of Open vSwitch may expect these
// ports in b.
func (bs *Bridges) NoteEmpty(b *Bridge) string {
	first := bs.Named("")
	if first == nil || first.Name != "" || b == first || len(b.Pipeline.View().Ports()) > 0 {
		return ""
	}
	n := len(first.Pipeline.View().Ports())
	if n == 0 {
		return ""
	}
	return fmt.Sprintf("bridge %s has no port and forwards nothing; the %d ports without bridge= belong to the bridge without a name: leave %s out to change its flows",
		b.Name, n, b.Name)
}

// Describe returns the description of a bridge for the API.
func (bs *Bridges) Describe(b *Bridge) api.Bridge {
	f := b.wire.Following()
	return api.Bridge{Name: b.Name, First: b.Number == 0, OpenFlowSocket: b.socket, DatapathID: fmt.Sprintf("%016x", b.wire.DatapathID()), FailMode: failMode(f.Standalone),
		Controllers: f.Controllers, Configured: bs.configured(b), Ports: len(b.Pipeline.View().Ports()), Flows: b.Pipeline.Flows()}
}

// List describes all bridges that have a name.
func (bs *Bridges) List() []api.Bridge {
	list := []api.Bridge{}
	for _, b := range bs.snapshot() {
		if b.Name != "" {
			list = append(list, bs.Describe(b))
		}
	}
	return list
}

// Controllers returns the states of the named bridge's connections to controllers. The keys are the
// controllers' targets, such as tcp:HOST:PORT.
func (bs *Bridges) Controllers(name string) map[string]ofconn.ControllerState {
	if b := bs.Named(name); b != nil {
		return b.wire.Controllers()
	}
	return nil
}
