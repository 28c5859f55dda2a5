// SPDX-License-Identifier: Apache-2.0

// Package hub sends each host the declared networks, ports and groups that the host needs. A Hub
// watches all keys of the store in etcd, keeps everything in memory, and serves any number of hosts
// from memory.
//
// The hub sends changes in rounds. Changes that arrive during a round are sent together in the next
// round, so that a round becomes larger under load. A message for many hosts is encoded once. A host
// gets all messages of a round in one wire.Batch. Under load, the hub sends fewer batches, and each has
// the messages of several rounds (see pace.go).
//
// Hub.mu guards everything in memory. Code that holds Hub.mu never waits for a host or for etcd:
// messages to hosts go into the queues of their sessions, and requests to the store into the queue of
// the binder.
package hub

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"weft/central/store"
	"weft/central/wire"
)

// Store has the methods of store.Store that a hub uses. Tests use a store in memory instead.
type Store interface {
	Follow(ctx context.Context, sink store.Sink) error
	Bind(ctx context.Context, requests []store.BindRequest) []store.BindResult
	PutStatus(ctx context.Context, status []*wire.HostStatus) error
	// Revision returns the store's present revision.
	Revision(ctx context.Context) (int64, error)
}

// Hub is the gRPC service to which hosts connect. It serves them while its method Run runs.
type Hub struct {
	wire.UnimplementedHubServer
	store Store
	log   *slog.Logger
	// identify returns the name of the host that sent a request.
	identify func(ctx context.Context) (name string, err error)
	binder   *binder

	mu       sync.Mutex
	fleet    *fleet
	revision int64                 // newest revision of the store that fleet contains
	sessions map[string]*session   // by host id
	attached map[string]sessionSet // sessions by the name or id of a port that their hosts have reported
	ready    chan struct{}         // closed once fleet is complete
	waiting  map[*syncWait]struct{}
	stats    Stats
	ended    endOfRevision
	pacer    pacer
	queued   []*session // sessions for which messages were queued since the last round
	stalled  bool       // only in tests: all sessions wait before they get a batch
	fences   []fenced
	opened   int   // sessions opened so far
	tick     int64 // number of ticks of beats so far

	announcers map[*announcer]struct{}
	elsewhere  map[string]elsewhere // by the name or id with which a host reports a port

	changed   chan struct{} // wakes deliver
	fenceWake chan struct{} // wakes catchUp
	advanced  chan struct{} // wakes catchUp after a new revision
	stopping  chan struct{} // closed when Run ends

	// MoveGrace is the time for which the old host of a moved port keeps its record of the port. In
	// this time, the old host forwards frames that still arrive there. The caller sets MoveGrace before
	// Run.
	MoveGrace time.Duration
	// OnRevocations is called with the revocations of certificates that have changed. If "complete" is
	// true, it gets all of them. It may be nil. The caller sets it before Run.
	OnRevocations func(complete bool, changed []store.Object)
}

// DefaultMoveGrace is the default of Hub.MoveGrace.
const DefaultMoveGrace = 30 * time.Second

// Stats has the counters of a hub, for metrics.
type Stats struct {
	Revision                               int64
	Nets, Ports, Bound, Hosts, Sessions    int
	Delivered, DeliveredBytes              uint64 // messages put into sessions' queues
	Batches, Pulls                         uint64
	Waiting                                int // sessions in the pacer's queue, see pace.go
	Questions, QuestionsRefused, Interests uint64
	QuestionsLate                          uint64 // questions answered with ABSENCE_LATE
	Unknown                                uint64 // messages of a kind that this version does not know
	LongNames                              uint64 // names of ports that are longer than a declared one can be
	SlowSessions, Refused, Rounds, Doubts  uint64
	WaitingDropped                         uint64 // undeclared ports beyond maxAnnounced or maxElsewhere
	// Lag is the number of revisions that the slowest connected host has yet to apply. A host reports
	// every few seconds which revision it has applied.
	Lag int64
}

// New returns a hub. The function identify returns the name of the host that sent the
// request with context ctx.
func New(s Store, identify func(ctx context.Context) (name string, err error), log *slog.Logger) *Hub {
	h := &Hub{store: s, identify: identify, log: log, fleet: newFleet(), sessions: map[string]*session{},
		attached: map[string]sessionSet{}, ready: make(chan struct{}), waiting: map[*syncWait]struct{}{},
		announcers: map[*announcer]struct{}{}, elsewhere: map[string]elsewhere{},
		changed: make(chan struct{}, 1), MoveGrace: DefaultMoveGrace,
		fenceWake: make(chan struct{}, 1), advanced: make(chan struct{}, 1), stopping: make(chan struct{})}
	h.binder = newBinder(s, h.refuse, log)
	return h
}

// Run reads the store, watches it, and sends changes to hosts, until ctx ends.
func (h *Hub) Run(ctx context.Context) error {
	var done sync.WaitGroup
	defer done.Wait()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	done.Go(func() { h.deliver(ctx) })
	done.Go(func() { h.beats(ctx) })
	done.Go(func() { h.catchUp(ctx) })
	done.Go(func() { h.binder.run(ctx) })
	done.Go(func() { h.report(ctx) })
	return h.store.Follow(ctx, (*sink)(h))
}

// Ready reports whether the hub has read the store.
func (h *Hub) Ready() bool {
	select {
	case <-h.ready:
		return true
	default:
		return false
	}
}

// Stats returns the counters since the start, and the numbers of objects and sessions at this moment.
func (h *Hub) Stats() Stats {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.stats
	s.Waiting = len(h.pacer.line)
	s.Revision, s.Nets, s.Ports, s.Hosts, s.Sessions = h.revision, len(h.fleet.nets), len(h.fleet.ports), len(h.fleet.hosts), len(h.sessions)
	for _, n := range h.fleet.nets {
		s.Bound += n.bound
	}
	for _, o := range h.sessions {
		if o.applied == 0 {
			continue // it has not reported yet
		}
		newest := o.sent // later revisions have no change for this host
		if o.behind {
			newest = h.revision
		}
		s.Lag = max(s.Lag, newest-o.applied)
	}
	return s
}

// sink is a Hub as a store.Sink: its methods receive the store's objects and changes.
type sink Hub

// Reset implements store.Sink. The store calls it with all objects at the start, and again if its watch
// of etcd has missed changes.
func (s *sink) Reset(revision int64, objects []store.Object) {
	h := (*Hub)(s)
	h.noteRevocations(true, objects)
	h.mu.Lock()
	defer h.mu.Unlock()
	if revision < h.revision { // etcd was restored from a backup, which has a lower revision
		for _, session := range h.sessions {
			session.applied, session.reported, session.sent = 0, 0, 0
		}
	}
	h.take(revision, append(h.fleet.missing(objects), objects...))
	if !h.Ready() {
		close(h.ready)
	}
}

func (h *Hub) noteRevocations(complete bool, objects []store.Object) {
	if h.OnRevocations == nil {
		return
	}
	var list []store.Object
	for _, o := range objects {
		if o.Kind == store.KindRevocation {
			list = append(list, o)
		}
	}
	if complete || len(list) > 0 {
		h.OnRevocations(complete, list)
	}
}

// Change implements store.Sink. The hub sends the changed objects to hosts in the next round.
func (s *sink) Change(revision int64, objects []store.Object) {
	h := (*Hub)(s)
	h.noteRevocations(false, objects)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.take(revision, objects)
}

// Progress implements store.Sink. It tells the hub that the store has reached a revision without
// changed objects. Calls of Sync and delayed answers may wait for this revision.
func (s *sink) Progress(revision int64) {
	h := (*Hub)(s)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.take(revision, nil)
}

// take enters changed objects into the fleet and wakes up the goroutine of deliver, which sends them.
// The caller holds mu.
func (h *Hub) take(revision int64, objects []store.Object) {
	for i := range objects {
		h.fleet.apply(&objects[i])
		h.endWaiting(&objects[i])
	}
	h.revision = revision
	h.wake()
	select {
	case h.advanced <- struct{}{}:
	default:
	}
}

func (h *Hub) wake() {
	select {
	case h.changed <- struct{}{}:
	default:
	}
}

// deliver sends changes to hosts, round by round, until ctx ends.
func (h *Hub) deliver(ctx context.Context) {
	turn := time.NewTimer(time.Hour)
	defer turn.Stop()
	for {
		select {
		case <-ctx.Done():
			close(h.stopping)
			h.mu.Lock()
			for _, s := range h.sessions {
				s.close(errStopping)
			}
			h.mu.Unlock()
			return
		case <-h.changed:
			h.mu.Lock()
			h.round()
		case <-turn.C:
			h.mu.Lock()
			if h.fleet.changed() { // a Revision sent now would overtake the changes
				h.round()
			}
		}
		waiting := h.pace(time.Now())
		h.mu.Unlock()
		if waiting {
			turn.Reset(paceTick)
		}
	}
}
