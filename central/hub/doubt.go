// SPDX-License-Identifier: Apache-2.0

package hub

// This file delays what a hub does after somebody else has changed a binding: another
// central has bound a port to a host that does not have it in the session here, or has
// released a binding of a port that the host does have here. If the path between a host
// and its hub drops packets, the host opens a session with another hub, and the old
// session lasts until its hub notices. What the old session knows of the host's ports is
// out of date then. Two hubs that both trust their session bind and release such a port
// in turns without end. So the hub first asks the host for a report: a host answers only
// in its present session.

// doubt makes the hub wait for a report of the session's host before it binds or releases the port. The
// next round asks for the report. The caller holds mu.
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

// settle ends the doubts that the newest report of the host answers: it binds or releases the ports.
// The caller holds mu.
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
