// SPDX-License-Identifier: Apache-2.0

// Package ofconn speaks OpenFlow with tools that connect to the switch, such as
// ovs-ofctl, and with controllers to which the switch connects. It turns OpenFlow
// messages into the same requests that the API makes. Package openflow/ofp encodes and
// decodes the messages.
//
// Each connection has a goroutine that reads and handles its messages in order, and a
// goroutine that sends events. A handler takes the locks of the switch only through the
// interface Switch. It holds none of them while it writes to the socket: a peer that
// does not read blocks only its own handler. Events that wait for a peer are limited in
// bytes (maxEventBytes), messages by their 16-bit length, connections by the limits of
// admit.go. Each peer has helloTimeout for its handshake and hello.
//
// Service.mu guards the list of connections. Conn.mu guards the state that events read.
// Conn.mu is taken after Service.mu. Both are taken after the locks of the switch, because
// the switch reports changes of flows while it holds its own locks.
package ofconn

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"weft/control/limits"
	"weft/openflow"
	"weft/openflow/ofp"
	"weft/openflow/ofproto"
)

const (
	// maxEventBytes limits the events that wait in the queue of one connection. An event that exceeds
	// the limit ends the connection, because the peer would miss a change. Frames have lower limits,
	// and are dropped and counted beyond them. maxReservedBytes is for frames that took a token of
	// their port's reserve (see rateLimit), maxFrameBytes for all others.
	maxEventBytes    = 4 << 20
	maxReservedBytes = 3 << 20
	maxFrameBytes    = 2 << 20
	// MaxControllers limits the controllers to which the switch connects.
	MaxControllers = 16
	// helloTimeout is the time from a connection's start to the end of the peer's hello,
	// with the TLS handshake.
	helloTimeout = 10 * time.Second
	// After remoteProbeInterval without a message from a peer of a TCP or TLS listener, the
	// switch sends an echo request. Without an answer after another interval, the connection
	// ends.
	remoteProbeInterval = 30 * time.Second
	// writeTimeout is the time limit of writing one message.
	writeTimeout = 15 * time.Second
	// maxPacketIns is the largest number of frames a second to all controllers together.
	// packetInBurst is the number that may be sent at once: the frames that arrive while a busy
	// machine suspends the control process for 0.1 s. Further frames are dropped and counted.
	maxPacketIns  = 60_000
	packetInBurst = 6_000
	// readBuffer is the size of a connection's read buffer. The flow_mods in it are
	// applied as one batch.
	readBuffer = 128 << 10
)

// Switch is the part of the switch that connections use. Its methods may wait for the
// disk and the workers. Errors with an OpenFlow code are *openflow.CodedError.
type Switch interface {
	// ApplyEach applies changes of flows in order. A refused change does not affect the
	// others.
	ApplyEach(mods []openflow.FlowMod, author Author) []error
	// ApplyBundle applies all changes or none. failed is the index of the refused
	// change or frame.
	ApplyBundle(items []ofproto.BundleItem, author Author) (failed int, err error)
	// PullCounts reads the counts of the workers and updates the statistics of rules.
	PullCounts()
	// ScanRules appends copies of some of the rules that "filter" selects, beginning at index "slot"
	// of the list of rules. It returns the index at which the caller continues, and false if there
	// are no more rules.
	ScanRules(filter *openflow.FlowMod, slot uint32, rules []ofproto.Rule) ([]ofproto.Rule, uint32, bool)
	ApplyGroups(mods []openflow.GroupMod, author Author) error
	Groups(id uint32) []Group
	ApplyMeters(mods []openflow.MeterMod, author Author) error
	Meters(id uint32) []Meter
	// Queues lists the queues of all ports, by port and number.
	Queues() []ofp.Queue
	Tables() []ofp.TableState
	// SetEviction sets whether a full table evicts flows for new ones. openflow.TableAll means all
	// tables.
	SetEviction(table uint8, evict bool) error
	TLVs() *openflow.TLVMap
	ChangeTLVs(mod *openflow.TLVMod) error
	Ports() []Port
	// SetPortConfig sets ofp.ConfigDown and ofp.ConfigNoFlood of a port.
	SetPortConfig(number, config uint32) error
	Send(request *openflow.PacketOut) error
	// Resume continues the processing of a frame that a controller has paused with controller(pause).
	Resume(request *ofp.ResumeRequest) error
	// Fragments returns how look-ups treat IP fragments, and SetFragments changes it.
	Fragments() ofproto.Fragments
	SetFragments(mode ofproto.Fragments)
	// FlushConnections removes the tracked connections that m selects.
	FlushConnections(m *ofp.CTMatch) error
}

// Author is told when the Switch makes its change. The Switch calls Begin before the change and End
// after the last event about the change. It holds the configuration lock in between, so all these
// events are about the author's change.
type Author interface {
	Begin()
	End()
}

// Group is a group with its statistics. Flows is the number of flows that refer to the group.
type Group struct {
	*openflow.Group
	Stats ofproto.GroupStats
	Flows int
}

// Meter is a meter with its statistics, for replies.
type Meter struct {
	*openflow.Meter
	Counters ofp.MeterCounters
}

// Port is a port of the switch with its counters, for replies and events.
type Port struct {
	ofp.Port
	Counters ofp.PortCounters
}

// Setup has the dependencies and settings of a Service.
type Setup struct {
	Switch     Switch
	DatapathID uint64
	Name       string // of the switch, in its description
	Version    string // of the software
	// Listeners accept connections of peers. The function Role returns which requests a peer may
	// make, and the peer's name.
	Listeners []net.Listener
	Role      func(net.Conn) (role Role, peer string)
	Following
	Fresh   bool        // the bridge is new, so its tables are empty
	Bundles *BundlePool // memory of bundles, shared by all bridges; nil: the service makes a pool
	// Frames starts or stops the sending of frames to controllers. The frames arrive at SendPacketIn.
	// misses is true if a connection of OpenFlow 1.0 wants the frames that match no flow. expired is
	// true if a connection wants the frames whose TTL dec_ttl finds expired.
	Frames func(enabled, misses, expired bool)
	Log    *slog.Logger

	helloTimeout        time.Duration // for tests; 0: the constant
	remoteProbeInterval time.Duration // for tests; 0: the constant
	bundleTimeout       time.Duration // for tests; 0: the constant
	bundleLimits        bundleSize    // of a connection, without bytes; for tests; 0: the constants
}

// Role limits the requests that a peer may make.
type Role uint8

const (
	None  Role = iota // nothing
	Read              // requests that change nothing
	Write             // all requests
)

// Service has the OpenFlow connections of one bridge.
type Service struct {
	setup   Setup
	log     *slog.Logger
	changed chan struct{} // wakes followControllers; capacity 1

	// mu guards the fields below. The callers of makeRoom, isOfLargest and forget hold it.
	mu        sync.Mutex
	following Following
	// controllers has the controllers to which the switch connects, by target such as
	// tcp:192.0.2.1:6653. followControllers sets them.
	controllers map[string]*controller
	conns       map[*Conn]struct{}
	accepted    [origins]int   // number of connections in conns
	holders     map[string]int // accepted connections by Conn.holder
	entered     uint64         // number of connections since the start
	generation  uint64         // highest generation_id of all role requests
	hasGen      bool
	closed      bool

	watchers atomic.Int32 // connections that want events of flows
	// author is the connection whose request is changing flows now, or nil. The events about the
	// change are the connection's own.
	author atomic.Pointer[Conn]

	framing sync.Mutex   // serializes calls of Setup.Frames; taken before mu
	framed  wantedFrames // arguments of the last call of Setup.Frames

	comparing sync.Mutex          // guards ports; taken before the locks of the switch
	ports     map[uint32]ofp.Port // the ports of which the peers know, by number; nil: no connection wants events

	monitors monitorCount

	rate   rateLimit // frames to all controllers
	counts Counts
}

// Counts are the counters of a service since its start.
type Counts struct {
	Refused   atomic.Uint64 // connections beyond a limit
	GaveWay   atomic.Uint64 // connections without a hello that were closed to make room for new ones
	Failed    atomic.Uint64 // connections that ended because of a peer's error
	Stalled   atomic.Uint64 // number of connections closed because the peer did not read, or said nothing
	Messages  atomic.Uint64 // messages received
	Errors    atomic.Uint64 // error messages sent
	PacketIns atomic.Uint64 // frames sent to controllers
	Dropped   atomic.Uint64 // number of frames dropped because a peer did not read
}

// New returns a Service. Run starts it.
func New(s Setup) *Service {
	s.helloTimeout = cmp.Or(s.helloTimeout, helloTimeout)
	s.remoteProbeInterval = cmp.Or(s.remoteProbeInterval, remoteProbeInterval)
	s.bundleTimeout = cmp.Or(s.bundleTimeout, bundleTimeout)
	s.bundleLimits = cmp.Or(s.bundleLimits, bundleSize{items: maxBundleItems, frames: maxBundleFrames, actions: maxBundleActions})
	if s.Bundles == nil {
		s.Bundles = NewBundlePool()
	}
	return &Service{setup: s, log: s.Log, changed: make(chan struct{}, 1), following: s.Following, conns: map[*Conn]struct{}{}, holders: map[string]int{}}
}

// DatapathID returns the number with which the switch identifies itself to controllers.
func (s *Service) DatapathID() uint64 { return s.setup.DatapathID }

// Counts returns the counters.
func (s *Service) Counts() *Counts { return &s.counts }

// Run accepts connections and connects to the controllers until ctx ends. It then
// closes all connections.
func (s *Service) Run(ctx context.Context) {
	var done sync.WaitGroup
	for _, l := range s.setup.Listeners {
		done.Go(func() { s.accept(l, &done) })
	}
	done.Go(func() { s.followControllers(ctx) })
	done.Go(func() { s.watchPorts(ctx) })
	<-ctx.Done()
	s.Close()
	done.Wait()
}

// Close closes the listeners and all connections.
func (s *Service) Close() {
	for _, l := range s.setup.Listeners {
		l.Close()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for c := range s.conns {
		c.net.Close()
	}
}

func (s *Service) accept(l net.Listener, done *sync.WaitGroup) {
	for {
		nc, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			s.log.Error("OpenFlow listener", "address", l.Addr(), "error", err)
			time.Sleep(100 * time.Millisecond) // Accept also fails while the process has no free descriptors
			continue
		}
		role, peer := s.setup.Role(nc)
		c := newConn(s, nc, peer, role)
		c.origin, c.holder = originOf(nc), holderOf(nc.RemoteAddr(), peer)
		if role == None || !s.enter(c) {
			s.counts.Refused.Add(1)
			nc.Close()
			continue
		}
		done.Go(func() {
			defer s.leave(c)
			c.serveUntilEnd()
		})
	}
}

// connections returns the present connections.
func (s *Service) connections() []*Conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := make([]*Conn, 0, len(s.conns))
	for c := range s.conns {
		list = append(list, c)
	}
	return list
}

// LimitRows reports the use and limits of connections, frames and monitors for "weft show limits".
// It is a limits.Source.
func (s *Service) LimitRows(emit func(limits.Row)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	emit(limits.Row{Name: "openflow_connections", Unit: "connections", Holder: limits.All(), Used: uint64(s.accepted[local] + s.accepted[remote]),
		Guarantee: maxLocalConnections, Limit: maxLocalConnections + maxRemoteConnections, Refused: s.counts.Refused.Load(), Evicted: s.counts.GaveWay.Load()})
	emit(limits.Row{Name: "openflow_frames", Unit: "frames a second", Holder: limits.All(), Limit: maxPacketIns, Refused: s.counts.Dropped.Load()})
	s.monitors.limitRows(emit)
	rows := map[string]limits.Row{}
	for c := range s.conns {
		if c.origin != dialed {
			rows[c.holder] = limits.Row{Name: "openflow_connections", Unit: "connections", Holder: limits.Peer(c.holder),
				Used: uint64(s.holders[c.holder]), Limit: uint64(maxHolder[c.origin])}
		}
	}
	for _, row := range rows {
		emit(row)
	}
	for c := range s.conns {
		emit(limits.Row{Name: "openflow_events", Unit: "bytes", Holder: limits.Peer(c.name), Used: uint64(c.queued()),
			Limit: maxEventBytes, Refused: c.dropped.Load()})
	}
}
