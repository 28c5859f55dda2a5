// SPDX-License-Identifier: Apache-2.0

package hub

import (
	"context"
	"slices"
	"time"

	"weft/central/wire"
)

const (
	// reportEvery is the time after which a host is asked what it has applied.
	reportEvery = time.Second
	// storeEvery is the time between two writes of the hosts' status to the store.
	storeEvery = 10 * time.Second
)

// syncWait waits until every session has applied a revision.
type syncWait struct {
	revision int64
	done     chan struct{}
}

// revisionFor ends what a session gets in a round. It asks for a report if somebody
// waits for one.
func (h *Hub) revisionFor(s *session) rawMessage {
	s.behind = false
	s.sent = h.revision
	report := len(h.waiting) > 0
	if report {
		s.reported = h.revision
	}
	defer func() { s.behind = false }()
	return h.encode(&wire.ToHost{Message: &wire.ToHost_Revision{Revision: &wire.Revision{Revision: h.revision, Report: report}}})
}

// Sync waits until all connected hosts have applied a revision, and returns the ids of
// those. The hub must have the revision or get it.
func (h *Hub) Sync(ctx context.Context, revision int64) (hosts []string, err error) {
	w := &syncWait{revision: revision, done: make(chan struct{})}
	h.mu.Lock()
	h.waiting[w] = struct{}{}
	h.checkWaiting()
	h.mu.Unlock()
	defer func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.waiting, w)
	}()
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-w.done:
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for id, s := range h.sessions {
		if s.applied >= revision {
			hosts = append(hosts, id)
		}
	}
	slices.Sort(hosts)
	return hosts, nil
}

// checkWaiting ends the waits that are over, and asks the sessions for reports that the
// others need. The caller holds mu.
func (h *Hub) checkWaiting() {
	var highest int64
	for w := range h.waiting {
		if h.revision < w.revision {
			continue
		}
		highest = max(highest, w.revision)
		if h.allApplied(w.revision) {
			delete(h.waiting, w)
			close(w.done)
		}
	}
	if len(h.waiting) == 0 || highest == 0 {
		return
	}
	for _, s := range h.sessions {
		if s.applied < highest && s.reported < highest {
			s.queue(h.revisionFor(s))
		}
	}
}

func (h *Hub) allApplied(revision int64) bool {
	for _, s := range h.sessions {
		if s.applied < revision {
			return false
		}
	}
	return true
}

// report asks the sessions now and then what they have applied, and stores it.
func (h *Hub) report(ctx context.Context) {
	tick := time.NewTicker(reportEvery)
	defer tick.Stop()
	stored := map[string]int64{}
	last := time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		h.endMoves()
		h.askReports()
		if time.Since(last) < storeEvery {
			continue
		}
		last = time.Now()
		if list := h.statusSince(stored); len(list) > 0 {
			if err := h.store.PutStatus(ctx, list); err != nil {
				h.log.Warn("the hosts' status cannot be stored", "error", err)
				clear(stored)
			}
		}
	}
}

// askReports asks each session that has got something since its last report.
func (h *Hub) askReports() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, s := range h.sessions {
		if s.reported >= s.sent && s.sent != 0 {
			continue
		}
		s.reported, s.sent = h.revision, h.revision
		s.queue(h.encode(&wire.ToHost{Message: &wire.ToHost_Revision{Revision: &wire.Revision{Revision: h.revision, Report: true}}}))
		s.behind = false
	}
}

// statusSince returns the status of the hosts whose applied revision differs from
// stored, which it updates.
func (h *Hub) statusSince(stored map[string]int64) (list []*wire.HostStatus) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for id, s := range h.sessions {
		if at, ok := stored[id]; ok && at == s.applied {
			continue
		}
		stored[id] = s.applied
		list = append(list, &wire.HostStatus{Host: id, Applied: s.applied, Version: s.version, Trouble: s.trouble})
	}
	return list
}

// Sessions returns the connected hosts.
func (h *Hub) Sessions() (list []*wire.SessionInfo) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for id, s := range h.sessions {
		list = append(list, &wire.SessionInfo{Host: id, Applied: s.applied, Version: s.version, Trouble: s.trouble})
	}
	return list
}
