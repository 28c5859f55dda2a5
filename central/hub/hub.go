// SPDX-License-Identifier: Apache-2.0

// Package hub sends each host the declarations that the host needs. A Hub has one watch
// of the whole store in etcd, keeps everything in memory, and serves any number of
// hosts from memory.
//
// Changes are delivered in rounds. Changes that arrive during a round are delivered
// together in the next round, so that a round becomes larger under load. A message for
// many hosts is encoded once. A host gets all messages of a round in one batch; under
// load, a batch has the messages of several rounds (see pace.go).
//
// Hub.mu guards everything in memory. Nobody waits while holding Hub.mu: messages to
// hosts go into the queues of their sessions, and requests to the store go into the
// queue of the binder.
package hub

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"weft/central/store"
	"weft/central/wire"
)

// Store has the methods of store.Store that a hub needs.
type Store interface {
	Follow(ctx context.Context, sink store.Sink) error
	Bind(ctx context.Context, requests []store.BindRequest) []store.BindResult
	PutStatus(ctx context.Context, status []*wire.HostStatus) error
	// Revision returns the store's present revision.
	Revision(ctx context.Context) (int64, error)
}

// Hub serves hosts while its method Run runs.
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

	// MoveGrace is the time for which the old host keeps a port that has moved.
	// Meanwhile the old host forwards frames that still arrive there. The caller sets
	// MoveGrace before Run.
	MoveGrace time.Duration
	// OnRevocations is called with changed revocations of certificates, or with all of
	// them if complete is true. It may be nil. The caller sets it before Run.
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
	// Lag is the number of revisions by which the slowest connected host is behind the
	// hub. Hosts report what they have applied every few seconds.
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

// Run follows the store and delivers changes until ctx ends.
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

// sink is a Hub with the methods that receive the store's changes.
type sink Hub

// Reset implements store.Sink. The store calls it with the first full list, and with
// a full list after a gap in its watch.
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

// Change implements store.Sink. The next round delivers the changed objects.
func (s *sink) Change(revision int64, objects []store.Object) {
	h := (*Hub)(s)
	h.noteRevocations(false, objects)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.take(revision, objects)
}

// Progress implements store.Sink. It passes a revision without changed objects to calls of Sync and to
// answers that wait for it.
func (s *sink) Progress(revision int64) {
	h := (*Hub)(s)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.take(revision, nil)
}

// take applies changed objects to the fleet and wakes up the function deliver. The
// caller holds mu.
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

// deliver sends changes to the sessions, in rounds, until ctx ends.
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
