// SPDX-License-Identifier: Apache-2.0

// Package hub tells each host what it needs of the fleet's declaration. A Hub follows
// the store once, keeps everything in memory, and serves any number of hosts from it, so
// etcd has as many watchers as there are hubs.
//
// Changes are delivered in rounds. While a round is delivered, further changes gather
// for the next one: under load, rounds become larger instead of later. A message for
// many hosts is encoded once.
//
// Hub.mu guards everything in memory. Nothing waits while it is held: messages go into
// the sessions' queues, requests to the store into the binder's.
package hub

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"weft/central/store"
	"weft/central/wire"
)

// Store is the part of store.Store that a hub needs.
type Store interface {
	Follow(ctx context.Context, sink store.Sink) error
	Bind(ctx context.Context, requests []store.BindRequest) []store.BindResult
	PutStatus(ctx context.Context, status []*wire.HostStatus) error
}

// Hub serves hosts. Run must be running.
type Hub struct {
	wire.UnimplementedHubServer
	store Store
	log   *slog.Logger
	// identify returns the name of the host that called.
	identify func(ctx context.Context) (name string, err error)
	binder   *binder

	mu       sync.Mutex
	fleet    *fleet
	revision int64                            // newest that fleet has
	sessions map[string]*session              // by host id
	attached map[string]map[*session]struct{} // by the word that names a port: its name or id
	ready    chan struct{}                    // closed once fleet is complete
	waiting  map[*syncWait]struct{}
	stats    Stats
	ended    endOfRevision

	changed chan struct{} // wakes deliver

	// MoveGrace is how long the old host of a moved port stays in the port's network, so
	// that it forwards the frames that still come. Set it before Run.
	MoveGrace time.Duration
}

// DefaultMoveGrace is the MoveGrace of New.
const DefaultMoveGrace = 30 * time.Second

// Stats are a hub's figures, for metrics.
type Stats struct {
	Revision                               int64
	Nets, Ports, Bound, Hosts, Sessions    int
	Delivered, DeliveredBytes              uint64 // messages put into sessions' queues
	Questions, QuestionsRefused, Interests uint64
	SlowSessions, Refused, Rounds, Encoded uint64
}

// New returns a hub. identify returns the name of the host whose request ctx belongs to.
func New(s Store, identify func(ctx context.Context) (name string, err error), log *slog.Logger) *Hub {
	h := &Hub{store: s, identify: identify, log: log, fleet: newFleet(), sessions: map[string]*session{},
		attached: map[string]map[*session]struct{}{}, ready: make(chan struct{}), waiting: map[*syncWait]struct{}{},
		changed: make(chan struct{}, 1), MoveGrace: DefaultMoveGrace}
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

// Stats returns the present figures.
func (h *Hub) Stats() Stats {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.stats
	s.Revision, s.Nets, s.Ports, s.Hosts, s.Sessions = h.revision, len(h.fleet.nets), len(h.fleet.ports), len(h.fleet.hosts), len(h.sessions)
	for _, n := range h.fleet.nets {
		s.Bound += n.bound
	}
	return s
}

// sink is the Hub as what the store follows.
type sink Hub

// Reset implements store.Sink: after the first list, and after a gap in the watch.
func (s *sink) Reset(revision int64, objects []store.Object) {
	h := (*Hub)(s)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.take(revision, append(h.fleet.missing(objects), objects...))
	if !h.Ready() {
		close(h.ready)
	}
}

// Change implements store.Sink.
func (s *sink) Change(revision int64, objects []store.Object) {
	h := (*Hub)(s)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.take(revision, objects)
}

// Progress implements store.Sink.
func (s *sink) Progress(revision int64) {
	h := (*Hub)(s)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.take(revision, nil)
}

// take applies objects to the fleet and wakes deliver. The caller holds mu.
func (h *Hub) take(revision int64, objects []store.Object) {
	for i := range objects {
		h.fleet.apply(&objects[i])
	}
	h.revision = revision
	h.wake()
}

func (h *Hub) wake() {
	select {
	case h.changed <- struct{}{}:
	default:
	}
}

// deliver sends what has changed to the sessions, in rounds, until ctx ends.
func (h *Hub) deliver(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			h.mu.Lock()
			for _, s := range h.sessions {
				s.close(errStopping)
			}
			h.mu.Unlock()
			return
		case <-h.changed:
			h.mu.Lock()
			h.round()
			h.mu.Unlock()
		}
	}
}

// encode returns a message in the form that sessions queue.
func (h *Hub) encode(m *wire.ToHost) rawMessage {
	b, err := proto.Marshal(m)
	if err != nil {
		panic("hub: " + err.Error()) // a string that is no UTF-8; the store accepts none
	}
	h.stats.Encoded++
	return b
}
