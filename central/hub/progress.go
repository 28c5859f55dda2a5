// SPDX-License-Identifier: Apache-2.0

package hub

import (
	"context"
	"slices"
	"time"

	"weft/central/wire"
)

const (
	// reportEvery is the interval at which the hub asks hosts which revision of the
	// store they have applied.
	reportEvery = 6 * time.Second
	// endMovesEvery is the interval at which the hub looks for moved ports that their old hosts have kept
	// for MoveGrace.
	endMovesEvery = time.Second
	// storeEvery is the time after which the hub looks whether a host's version or reported error text
	// (trouble) has changed, and writes a changed status to the store.
	storeEvery = 10 * time.Second
	// storeAppliedEvery is the time between two writes of a status in which only the applied
	// revision has changed. Every change of a network changes it at each host of the network.
	storeAppliedEvery = time.Minute
	// storeTurns is the number of turns in storeEvery. In each turn the hub writes the
	// status of one in storeTurns hosts, because one transaction with the status of all
	// hosts would delay other writes.
	storeTurns = int(storeEvery / endMovesEvery)
	// storeAppliedTurns is the number of turns in storeAppliedEvery.
	storeAppliedTurns = int(storeAppliedEvery / endMovesEvery)
)

// syncWait is one call of Sync, which waits until every session has applied a
// revision.
type syncWait struct {
	revision int64
	done     chan struct{}
}

// endRevision sends a session its queued messages, followed by a Revision message with
// the hub's present revision. If report or s.ask is true, the message asks the host to
// report the revision that it has applied.
func (h *Hub) endRevision(s *session, report bool) {
	h.putRevision(s, report)
	s.flush()
}

// putRevision does what endRevision does, but leaves the sending to the caller.
func (h *Hub) putRevision(s *session, report bool) {
	report = report || s.ask
	s.sent, s.ask = h.revision, false
	if report {
		s.reported = h.revision
	}
	if e := &h.ended; e.raw == nil || e.revision != h.revision || e.report != report {
		*e = endOfRevision{h.revision, report, h.encode(&wire.ToHost{Message: &wire.ToHost_Revision{
			Revision: &wire.Revision{Revision: h.revision, Report: report}}})}
	}
	s.put(h.ended.raw)
	s.behind, s.urgent = false, false
}

// endOfRevision is the last Revision message that was encoded. Sessions that need an
// equal message share the bytes.
type endOfRevision struct {
	revision int64
	report   bool
	raw      rawMessage
}

// Sync waits until the hub has a revision and all connected hosts have applied it. It
// returns the ids of these hosts.
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

// endWaits ends each call of Sync whose revision all sessions have applied. It returns
// the highest revision that other calls of Sync wait for and that the hub already has,
// or 0. The caller holds mu.
func (h *Hub) endWaits() (highest int64) {
	for w := range h.waiting {
		if h.revision < w.revision {
			continue
		}
		if h.allApplied(w.revision) {
			delete(h.waiting, w)
			close(w.done)
		} else {
			highest = max(highest, w.revision)
		}
	}
	return highest
}

// checkWaiting ends calls of Sync as endWaits does. For the other calls it asks the
// sessions to report. The caller holds mu.
func (h *Hub) checkWaiting() {
	highest := h.endWaits()
	if highest == 0 {
		return
	}
	// a Revision message sent now would overtake changes that belong to it; the next
	// round sends both
	if h.fleet.changed() {
		h.wake()
		return
	}
	for _, s := range h.sessions {
		if s.applied < highest && s.reported < highest {
			h.endRevision(s, true)
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

// report regularly asks the sessions which revision they have applied, and saves the
// answers in the store, until ctx ends.
func (h *Hub) report(ctx context.Context) {
	tick := time.NewTicker(endMovesEvery)
	defer tick.Stop()
	stored := map[string]storedStatus{}
	asked := time.Now()
	for turn := 0; ; turn++ {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		h.endMoves()
		if time.Since(asked) >= reportEvery {
			asked = time.Now()
			h.askReports()
		}
		if list := h.statusSince(stored, turn); len(list) > 0 {
			if err := h.store.PutStatus(ctx, list); err != nil {
				h.log.Warn("the hosts' status cannot be stored", "error", err)
				clear(stored)
			}
		}
	}
}

// askReports asks for a report from each session whose last changes were sent after the last such
// question. The question goes with the session's next batch or beat.
func (h *Hub) askReports() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, s := range h.sessions {
		s.ask = s.ask || s.reported < s.sent || s.sent == 0
	}
}

// storedStatus is a host's status as the hub has last written it to etcd.
type storedStatus struct {
	applied          int64
	version, trouble string
	turn             int // in which it was written
}

// statusSince returns the status of each host whose turn it is and whose status differs from the
// entry in stored (the last written status by host). It updates these entries. If only the applied
// revision differs, the status is due storeAppliedTurns turns after the last one.
func (h *Hub) statusSince(stored map[string]storedStatus, turn int) (list []*wire.HostStatus) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for id, s := range h.sessions {
		if s.number%storeTurns != turn%storeTurns {
			continue
		}
		last, ok := stored[id]
		if ok && last.version == s.version && last.trouble == s.trouble &&
			(last.applied == s.applied || turn-last.turn < storeAppliedTurns) {
			continue
		}
		stored[id] = storedStatus{s.applied, s.version, s.trouble, turn}
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
