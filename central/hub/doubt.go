// SPDX-License-Identifier: Apache-2.0

package hub

// This file decides what a hub does when another central has changed a binding, the record in etcd of
// the host on which a port is. The other central has bound a port to a host although, by its session
// with this hub, the host does not have the port. Or it has deleted a binding although the host has the
// port.
//
// The session with this hub may be out of date. If packets between a host and its hub are lost, the
// host opens a session with another hub, but the old hub notices the loss later. If both hubs trusted
// their sessions, they would bind the port and delete the binding in turns without end. So the hub
// first asks the host for a report. A host answers only in its newest session.

// doubt makes the hub wait for a report of the session's host before it binds the port or deletes the
// binding. The request for the report is sent in the next round. The caller holds mu.
func (h *Hub) doubt(s *session, p *port) {
	if s.doubts == nil {
		s.doubts = map[*port]int64{}
	}
	if _, open := s.doubts[p]; !open {
		h.stats.Doubts++
	}
	s.doubts[p] = h.revision
	s.ask, s.behind, s.urgent = true, true, true
	h.list(s)
}

// settle continues with the ports for which doubt has asked the host to report, if the report has come.
// It binds a port that the host has, and deletes the binding of a port that the host no longer has. The
// caller holds mu.
func (h *Hub) settle(s *session) {
	for p, revision := range s.doubts {
		if s.applied < revision {
			continue
		}
		delete(s.doubts, p)
		if s.attached(p) {
			p.left = ""
			h.updateOwn(s, p)
		}
		h.releaseAbsent(p)
	}
	if s.behind {
		h.wake()
	}
}
