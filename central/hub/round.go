// SPDX-License-Identifier: Apache-2.0

package hub

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"weft/central/wire"
)

// round sends hosts all changes since the last round. The changes of a network come before those of its
// ports, and the Revision message comes last.
func (h *Hub) round() {
	h.stats.Rounds++
	f := h.fleet
	for _, id := range f.removedHosts {
		if s := h.sessions[id]; s != nil && f.hosts[id].deleted() {
			s.close(errNoHost)
		}
	}
	for n := range f.dirty {
		h.updateNetwork(n)
	}
	var sessions []*session
	for p := range f.dirtyPorts {
		sessions = h.having(sessions[:0], p)
		for _, s := range sessions {
			h.updateOwn(s, p)
		}
		if s := h.boundWithout(p); s != nil {
			h.doubt(s, p)
		} else {
			h.releaseAbsent(p)
		}
		if p.declared == nil { // its removal is in the hosts' queues
			for s := range p.interested.members() {
				h.dropInterest(s, p)
			}
		}
	}
	f.forget()
	if len(h.waiting) > 0 { // a call of Sync waits for these changes, so the pacer delays none of them
		for _, s := range h.sessions {
			if s.behind {
				h.endRevision(s, true)
			}
		}
	}
	for _, s := range h.queued {
		s.listed = false
		switch {
		case !s.behind:
		case s.urgent:
			h.endRevision(s, false)
		default:
			h.pacer.join(s)
		}
	}
	clear(h.queued)
	h.queued = h.queued[:0]
	h.checkWaiting()
}

// list notes that a session has new messages. At its end, round sends them or puts the session into the
// pacer's queue.
func (h *Hub) list(s *session) {
	if !s.listed {
		s.listed = true
		h.queued = append(h.queued, s)
	}
}

func (o *host) deleted() bool { return o == nil || o.declared == nil }

// updateNetwork sends a network's changes to the hosts that have a port in the network.
func (h *Hub) updateNetwork(n *network) {
	c := n.changes
	n.changes = newChanges()
	switch {
	case n.declared == nil:
		h.sendGone(n)
	case c.remake:
		h.remake(n)
	case n.onDemand:
		h.updateAsked(n, &c)
	default:
		h.updatePushed(n, &c)
	}
}

// remake sends the whole network again to its hosts. If the network is so large that hosts must ask for
// addresses, a host also gets the addresses of its own ports, and asks again for the others that it
// needs.
func (h *Hub) remake(n *network) {
	for s := range n.subscribers {
		h.forgetQuestions(s, n)
		s.queue(h.resetOf(n))
		for p, own := range s.own {
			if n.onDemand && own.net == n && p.placed && p.bind.GetHost() == s.host {
				h.sendOwnPlace(s, p)
			}
		}
	}
}

// sendOwnPlace sends a host the addresses and the binding of its own port p. The host gets them without
// asking, even in a network where it must ask for other addresses.
func (h *Hub) sendOwnPlace(s *session, p *port) {
	h.addInterest(s, p)
	s.queue(encodeUpdate(&wire.NetUpdate{Net: p.net.id}, []*port{p}))
}

func (h *Hub) sendGone(n *network) {
	if len(n.subscribers) == 0 {
		return
	}
	raw := h.encode(&wire.ToHost{Message: &wire.ToHost_Update{Update: &wire.NetUpdate{Net: n.id, Gone: true}}})
	for s := range n.subscribers {
		delete(s.nets, n)
		h.forgetQuestions(s, n)
		s.queue(raw)
	}
	clear(n.subscribers)
}

func (h *Hub) updatePushed(n *network, c *netChanges) {
	if len(n.subscribers) == 0 {
		return
	}
	u := n.commonUpdate(c)
	var places []*port
	moved := false
	for p, known := range c.ports {
		switch {
		case p.placed && p.net == n:
			places = append(places, p)
			moved = moved || known
			h.endWanting(n, p)
		case known:
			u.Removed = append(u.Removed, p.id)
		}
	}
	if empty(u) && len(places) == 0 {
		return
	}
	raw := encodeUpdate(u, places)
	for s := range n.subscribers {
		s.queue(raw)
		s.urgent = s.urgent || moved // until then, frames go to the wrong host
	}
}

// updateAsked sends the changes of a large network, in which hosts must ask for addresses. A changed
// address goes only to the hosts that have asked for it.
func (h *Hub) updateAsked(n *network, c *netChanges) {
	if u := n.commonUpdate(c); !empty(u) && len(n.subscribers) > 0 {
		raw := h.encode(&wire.ToHost{Message: &wire.ToHost_Update{Update: u}})
		for s := range n.subscribers {
			s.queue(raw)
		}
	}
	for p := range c.ports {
		here := p.placed && p.net == n
		if here {
			for _, a := range p.addresses() {
				for s := range n.waiting[a] {
					h.addInterest(s, p)
					h.unwant(s, want{n, a})
				}
			}
		}
		if p.interested.empty() {
			continue
		}
		var raw rawMessage
		if here {
			raw = encodeUpdate(&wire.NetUpdate{Net: n.id}, []*port{p})
		} else {
			raw = encodeUpdate(&wire.NetUpdate{Net: n.id, Removed: []string{p.id}}, nil)
		}
		for s := range p.interested.members() {
			s.queue(raw)
			s.urgent = true
			if !here {
				h.dropInterest(s, p)
			}
		}
	}
}

// commonUpdate returns the part of a network's update that all its hosts get: changed settings, and the
// tunnel endpoints to which frames are flooded.
func (n *network) commonUpdate(c *netChanges) *wire.NetUpdate {
	u := &wire.NetUpdate{Net: n.id}
	if c.view {
		u.View = n.view()
	}
	if !n.declared.GetFlood() {
		return u
	}
	for endpoint, was := range c.members {
		switch is := n.members[endpoint] > 0; {
		case is && !was:
			u.Joined = append(u.Joined, []byte(endpoint))
		case was && !is:
			u.Left = append(u.Left, []byte(endpoint))
		}
	}
	return u
}

func empty(u *wire.NetUpdate) bool {
	return u.View == nil && len(u.Removed)+len(u.Joined)+len(u.Left) == 0
}

// resetOf returns an encoded message with the network's settings, the tunnel endpoints for flooding,
// and all addresses. In a large network, where hosts must ask for addresses, it has no addresses.
func (h *Hub) resetOf(n *network) rawMessage {
	if n.reset != nil {
		return n.reset
	}
	r := &wire.NetReset{View: n.view()}
	var places []*port
	if !n.onDemand {
		for p := range n.ports {
			if p.placed {
				places = append(places, p)
			}
		}
	}
	if n.declared.GetFlood() {
		for endpoint := range n.members {
			r.Members = append(r.Members, []byte(endpoint))
		}
	}
	n.reset = encodeReset(r, places)
	return n.reset
}

// addresses returns the addresses of a declared port.
func (p *port) addresses() []address {
	list := []address{{mac: wire.MACNumber(p.declared.GetMac())}}
	for _, b := range p.declared.GetAddresses() {
		if ip, ok := netip.AddrFromSlice(b); ok {
			list = append(list, address{ip: ip})
		}
	}
	return list
}

// having appends to the list the sessions of the hosts that have the port now, or that have been sent
// its declaration.
func (h *Hub) having(list []*session, p *port) []*session {
	for _, key := range [...]string{p.id, p.declared.GetName()} {
		attached := h.attached[key]
		list = slices.AppendSeq(list, attached.members())
	}
	list = slices.AppendSeq(list, p.owners.members())
	if len(list) < 2 {
		return list
	}
	slices.SortFunc(list, func(a, b *session) int { return cmp.Compare(a.number, b.number) })
	return slices.Compact(list)
}

// releaseAbsent deletes the binding of a port to a connected host that no longer has the port. The hub
// calls it after each change of the port, not only after the host's message Detach. The hub that got
// the Detach may have died before it deleted the binding. A hub that was suspended may also write an
// old binding late.
//
// releaseAbsent also deletes a binding to an undeclared host. A central deletes a host first and the
// host's bindings afterwards, and may have died in between.
func (h *Hub) releaseAbsent(p *port) {
	if p.bind == nil || p.declared == nil {
		h.binder.drop(p.id) // the binding is gone already
		return
	}
	if h.fleet.hosts[p.bind.GetHost()].deleted() {
		h.binder.add(job{request: releaseOf(p)})
		return
	}
	if s := h.boundWithout(p); s != nil {
		h.binder.add(job{session: s, request: releaseOf(p)})
	}
}

// boundWithout returns the session of the host to which the port is bound, if this host is connected
// and does not have the port. Otherwise it returns nil.
func (h *Hub) boundWithout(p *port) *session {
	if p.bind == nil || p.declared == nil {
		return nil
	}
	if s := h.sessions[p.bind.GetHost()]; s != nil && !s.attached(p) && !h.fleet.hosts[s.host].deleted() {
		return s
	}
	return nil
}

// updateOwn sends a host the declaration of a port that it has, and binds the port to the host if the
// declaration allows it. Until the port is bound, the message need not be sent at once: the binding,
// which is stored some milliseconds later, causes a second message.
func (h *Hub) updateOwn(s *session, p *port) {
	if !s.attached(p) || p.net == nil || p.net.declared == nil || !s.enforces(p) || !p.bindable(s.host) && !h.movedAway(s, p) {
		if p.owners.contains(s) {
			p.owners.remove(s)
			s.queue(h.encode(&wire.ToHost{Message: &wire.ToHost_Port{Port: &wire.PortUpdate{Removed: []string{p.id}}}}))
			h.leave(s, s.own[p].net)
			delete(s.own, p)
		}
		if s.attached(p) && p.declared != nil {
			h.sayRefused(s, p)
		}
		// The host may have removed the port itself. The message about it is then not urgent.
		s.urgent = s.urgent || p.declared == nil || s.attached(p)
		return
	}
	here := p.bind != nil && p.bind.GetHost() == s.host
	old, had := s.own[p]
	if !had || old.net != p.net {
		h.join(s, p.net)
		if had {
			h.leave(s, old.net)
		}
		p.owners.add(s)
	}
	s.own[p] = ownPort{p.net, here || old.bound && p.bind != nil}
	s.queue(h.encode(&wire.ToHost{Message: &wire.ToHost_Port{Port: &wire.PortUpdate{Ports: []*wire.LocalPort{
		{Port: p.declared, Bound: here, Generation: p.generation, Groups: p.declaredGroups()}}}}}))
	if here && p.net.onDemand && p.placed {
		h.sendOwnPlace(s, p)
	}
	if here {
		h.binder.drop(p.id) // the host has the port again
	}
	s.urgent = s.urgent || p.bind != nil
	if !p.bindable(s.host) || here && slices.Equal(p.bind.GetEndpoint(), h.endpointOf(s)) {
		return
	}
	// The port is bound at once if it is unbound, if its declaration names this host, or if the host's
	// tunnel endpoint has changed. A port that moves is bound after its first frame on the new host. If
	// another central has deleted this host's binding, the hub first asks the host whether it still has
	// the port (see doubt).
	if p.bind == nil && p.left == s.host {
		h.doubt(s, p)
	} else if p.bind == nil || here || p.declared.GetHost() == s.host || s.heard(p) {
		h.bind(s, p)
	}
}

// movedAway reports whether a port was bound to the host and is now bound to another host, for less
// than MoveGrace. It returns false if the port was never bound to this host: another host that also has
// the port was bound first.
func (h *Hub) movedAway(s *session, p *port) bool {
	if !s.own[p].bound || p.bind == nil {
		return false
	}
	until, noted := s.moved[p]
	if !noted {
		until = time.Now().Add(h.MoveGrace)
		s.moved[p] = until
	}
	return time.Now().Before(until)
}

// endMoves tells hosts to delete their records of ports that moved away longer than MoveGrace ago.
func (h *Hub) endMoves() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, s := range h.sessions {
		for p, until := range s.moved {
			if p.bindable(s.host) {
				delete(s.moved, p)
			} else if !time.Now().Before(until) {
				h.updateOwn(s, p)
				delete(s.moved, p)
			}
		}
		if s.behind {
			h.wake()
		}
	}
}

func (h *Hub) endpointOf(s *session) []byte {
	if host := h.fleet.hosts[s.host]; host != nil {
		return host.declared.GetEndpoint()
	}
	return nil
}
