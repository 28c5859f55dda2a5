// SPDX-License-Identifier: Apache-2.0

package hub

import (
	"context"
	"slices"
	"time"

	"weft/central/wire"
)

const (
	// reportEvery is the interval at which the hub asks hosts which revision of the store they have
	// applied.
	reportEvery = 6 * time.Second
	// endMovesEvery is the interval at which the hub looks for moved ports whose time MoveGrace is
	// over. The old host of such a port then deletes its record of the port.
	endMovesEvery = time.Second
	// storeEvery is the interval at which the hub compares a host's version and reported error text
	// with the status in the store. It writes the status if it differs.
	storeEvery = 10 * time.Second
	// storeAppliedEvery is the interval for a host's status in which only the applied revision has
	// changed. It is longer, because every change of a network changes this revision at all hosts of
	// the network.
	storeAppliedEvery = time.Minute
	// storeTurns is the number of turns in storeEvery; a turn is one interval of endMovesEvery. In each
	// turn the hub writes the status of one in storeTurns hosts. One transaction with the status of all
	// hosts would delay other writes.
	storeTurns = int(storeEvery / endMovesEvery)
	// storeAppliedTurns is the number of these turns in storeAppliedEvery.
	storeAppliedTurns = int(storeAppliedEvery / endMovesEvery)
)

// syncWait is one call of Sync, which waits until all connected hosts have applied a revision.
type syncWait struct {
	revision int64
	done     chan struct{}
}

// endRevision sends a session its queued messages. A Revision message with the hub's revision comes
// after them. If report or s.ask is true, this message asks the host to report which revision it has
// applied.
func (h *Hub) endRevision(s *session, report bool) {
	h.putRevision(s, report)
	s.flush()
}

// putRevision queues a Revision message as endRevision does, but does not send the queue yet.
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

// endOfRevision is the Revision message that was encoded last. If several sessions need the same
// message, they share its bytes.
type endOfRevision struct {
	revision int64
	report   bool
	raw      rawMessage
}

// Sync waits until the hub has received a revision of the store and all connected hosts have applied
// it. It returns the ids of these hosts.
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

// endWaits ends each call of Sync whose revision all connected hosts have applied. Of the other calls,
// it returns the highest revision that the hub has received; 0: none. The caller holds mu.
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

// checkWaiting ends the calls of Sync whose revision all hosts have applied. For the other calls, it
// asks the hosts to report. The caller holds mu.
func (h *Hub) checkWaiting() {
	highest := h.endWaits()
	if highest == 0 {
		return
	}
	// Changes of this revision are not sent yet. A Revision message sent now would come before them.
	// The next round sends both in order.
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

// report asks hosts at the interval reportEvery which revision they have applied, and writes changed
// status to the store. It returns when ctx ends.
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

// askReports asks each host for a report if it has been sent changes since the last request for one.
// The request goes with the next batch to the host.
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

// statusSince returns the status of each host whose turn it is and whose status has changed since it
// was last written. stored has the last written status by host; statusSince updates it. If only the
// applied revision has changed, the status is written again after storeAppliedTurns turns.
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
