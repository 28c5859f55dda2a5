// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"maps"
	"net/netip"
	"slices"

	"weft/central/wire"
)

// state is what the hub has sent. Its methods apply messages and collect the
// resulting changes of the switch.
type state struct {
	revision int64
	host     string // id of this host
	endpoint netip.Addr
	nets     map[string]*network   // by id
	ports    map[string]*localPort // declared ports of this host, by id
}

type network struct {
	id       string
	view     *wire.NetView
	number   uint32           // VNI of view
	services *Services        // of view; nil: none
	places   map[string]place // by port id
	members  map[netip.Addr]struct{}
	digest   uint64 // see package wire
}

type localPort struct {
	declared *wire.LocalPort
	name     string // name of the switch's port for the declaration; "": no such port now
	added    uint64 // LocalPort.Added of the switch's port
	// confirmed is true if the hub has sent the port's declaration in this session.
	confirmed bool
}

func newState() *state {
	return &state{nets: map[string]*network{}, ports: map[string]*localPort{}}
}

func (n *network) vni() uint32 { return n.number }

// welcome stores the host's id and endpoint. The host gets a new id after it was
// deleted; a new id empties the state.
func (s *state) welcome(w *wire.Welcome, b *batch) {
	if s.host != "" && s.host != w.GetHost() {
		for _, n := range s.nets {
			s.forget(n, b)
		}
		for id := range s.ports {
			s.removePort(id, b)
		}
	}
	s.host = w.GetHost()
	if endpoint := addrOf(w.GetEndpoint()); endpoint != s.endpoint {
		s.endpoint = endpoint
		b.endpoint = endpoint
	}
}

// reset replaces the state of a network. The batch gets only the differences.
func (s *state) reset(r netReset, b *batch) {
	id := r.view.GetNet().GetId()
	n := s.nets[id]
	if n != nil && n.vni() != r.view.GetNet().GetVni() {
		s.forget(n, b)
		n = nil
	}
	if n == nil {
		n = &network{id: id, places: make(map[string]place, len(r.places)), members: map[netip.Addr]struct{}{}}
		s.nets[id] = n
	}
	// If the hub sends the network's addresses without being asked, or did so before, the message is
	// complete: locations that it lacks are removed. Otherwise the host has asked for each location
	// itself, and all stay.
	drop := n.view != nil && !n.view.GetAsked() || !r.view.GetAsked()
	n.setView(r.view)
	if drop && len(n.places) > 0 {
		stay := make(map[string]struct{}, len(r.places))
		for i := range r.places {
			stay[r.places[i].port] = struct{}{}
		}
		for port := range n.places {
			if _, ok := stay[port]; !ok {
				s.removePlace(n, port, b)
			}
		}
	}
	b.grow(len(r.places))
	for i := range r.places {
		s.setPlace(n, &r.places[i], b)
	}
	members := make(map[netip.Addr]struct{}, len(r.members))
	for _, m := range r.members {
		members[m] = struct{}{}
	}
	for m := range n.members {
		if _, ok := members[m]; !ok {
			n.leave(m)
		}
	}
	for m := range members {
		n.join(m)
	}
	b.nets = append(b.nets, s.switchNet(n))
	s.updatePorts(n, b)
}

func (s *state) update(u *netUpdate, b *batch) {
	n := s.nets[u.net]
	switch {
	case n == nil:
		return
	case u.deleted:
		s.forget(n, b)
		return
	case u.view != nil && u.view.GetNet().GetVni() != n.vni():
		s.renumber(n, u.view, b)
	}
	for _, port := range u.removed {
		s.removePlace(n, port, b)
	}
	for i := range u.places {
		s.setPlace(n, &u.places[i], b)
	}
	for _, m := range u.departed {
		n.leave(m)
	}
	for _, m := range u.joined {
		n.join(m)
	}
	if u.view != nil {
		n.setView(u.view)
		s.updatePorts(n, b)
	}
	if u.view != nil || len(u.departed)+len(u.joined) > 0 {
		b.nets = append(b.nets, s.switchNet(n))
	}
}

// renumber assigns a new VNI to a network with all its addresses.
func (s *state) renumber(n *network, view *wire.NetView, b *batch) {
	s.clear(n, b)
	n.setView(view)
	for port, p := range n.places {
		s.program(n, port, &p, b)
	}
}

func (s *state) forget(n *network, b *batch) {
	delete(s.nets, n.id)
	s.clear(n, b)
}

// clear removes a network's VNI from the switch. If another network uses the VNI by
// now, only the addresses of this network are removed.
func (s *state) clear(n *network, b *batch) {
	vni := n.vni()
	for _, other := range s.nets {
		if other != n && other.vni() == vni {
			for id := range n.places {
				p := n.places[id]
				b.remove(vni, p.mac, p.generation)
			}
			return
		}
	}
	b.clear(vni)
}

func (n *network) setView(v *wire.NetView) {
	if n.view != nil {
		n.digest ^= n.view.Digest()
	}
	n.view, n.number, n.services = v, v.GetNet().GetVni(), servicesOf(v.GetNet())
	n.digest ^= v.Digest()
}

func (n *network) join(m netip.Addr) {
	if _, known := n.members[m]; !known {
		n.members[m] = struct{}{}
		n.digest ^= wire.MemberDigest(m.AsSlice())
	}
}

func (n *network) leave(m netip.Addr) {
	if _, known := n.members[m]; known {
		delete(n.members, m)
		n.digest ^= wire.MemberDigest(m.AsSlice())
	}
}

// setPlace records p, the location of a port's addresses, unless a newer location (with a larger
// generation) is recorded already.
func (s *state) setPlace(n *network, p *portPlace, b *batch) {
	id := p.port
	old, known := n.places[id]
	if known && (p.generation < old.generation || p.digest == old.digest) {
		return
	}
	if known {
		n.digest ^= old.digest
		if old.mac != p.mac {
			b.remove(n.vni(), old.mac, old.generation)
		}
	}
	n.places[id] = p.place
	n.digest ^= p.digest
	s.program(n, id, &p.place, b)
}

// program adds the addresses of a port, and their location p, to the batch. It does nothing if the port
// belongs to this host but the switch does not have it.
func (s *state) program(n *network, id string, p *place, b *batch) {
	a := Address{VNI: n.vni(), MAC: p.mac, IPs: p.ips, Remote: p.endpoint, Generation: p.generation, Groups: p.groups}
	if p.host == s.host {
		l := s.ports[id]
		if l == nil || l.name == "" {
			return
		}
		a.Remote, a.Port = netip.Addr{}, l.name
	}
	b.set(a)
}

func (s *state) removePlace(n *network, id string, b *batch) {
	p, known := n.places[id]
	if !known {
		return
	}
	delete(n.places, id)
	n.digest ^= p.digest
	b.remove(n.vni(), p.mac, p.generation)
}

// setPort stores the declaration of a port of this host. local is the switch's port;
// its Name is "" if the switch does not have the port.
func (s *state) setPort(p *wire.LocalPort, local LocalPort, b *batch) {
	id, name := p.GetPort().GetId(), local.Name
	if old := s.ports[id]; old != nil && old.name != "" && (old.name != name || old.added != local.Added || old.declared.GetPort().GetNet() != p.GetPort().GetNet()) {
		s.release(id, old, b)
		if old.name != name {
			b.ports = append(b.ports, Port{Name: old.name, Gone: true})
		}
	}
	l := &localPort{declared: p, name: name, added: local.Added, confirmed: true}
	s.ports[id] = l
	s.attach(l, b)
}

// attach adds the declaration of a local port to the batch. If weft-central regards the port as being on
// this host, it also adds the port's addresses.
func (s *state) attach(l *localPort, b *batch) {
	port := l.declared.GetPort()
	n := s.nets[port.GetNet()]
	if n == nil || l.name == "" {
		return
	}
	b.ports = append(b.ports, Port{Name: l.name, VNI: n.vni(), MAC: wire.MACNumber(port.GetMac()), IPs: addrsOf(port.GetAddresses()),
		Unchecked: port.GetUnchecked(), Guest: guestName(port), Services: n.services, Groups: groupsOf(port.GetGroups(), l.declared.GetGroups())})
	if p, known := n.places[port.GetId()]; known && p.host == s.host {
		s.program(n, port.GetId(), &p, b)
	}
}

// removePort forgets the declaration of a port of this host. If another declaration is for the same port
// of the switch, that one stays in force.
func (s *state) removePort(id string, b *batch) {
	l := s.ports[id]
	delete(s.ports, id)
	if l == nil || l.name == "" {
		return
	}
	s.release(id, l, b)
	b.ports = append(b.ports, Port{Name: l.name, Gone: true})
	for _, other := range s.ports {
		if other.name == l.name {
			s.attach(other, b)
		}
	}
}

// release removes the addresses of a port that the switch no longer has.
func (s *state) release(id string, l *localPort, b *batch) {
	b.release(l.name)
	n := s.nets[l.declared.GetPort().GetNet()]
	if n == nil {
		return
	}
	if p, known := n.places[id]; known && p.host == s.host {
		b.remove(n.vni(), p.mac, p.generation)
	}
}

// newSession notes that in the new session the hub has not sent the declaration of any local port yet.
func (s *state) newSession() {
	for _, l := range s.ports {
		l.confirmed = false
	}
}

// removeUnconfirmed removes the local ports that the hub has not sent in this
// session.
func (s *state) removeUnconfirmed(b *batch) {
	for id, l := range s.ports {
		if !l.confirmed {
			s.removePort(id, b)
		}
	}
}

// updatePorts adds the declarations of the local ports in network n to the batch.
func (s *state) updatePorts(n *network, b *batch) {
	for _, l := range s.ports {
		if l.declared.GetPort().GetNet() == n.id {
			s.attach(l, b)
		}
	}
}

func (s *state) switchNet(n *network) Net {
	net := Net{VNI: n.vni(), Flood: n.view.GetNet().GetFlood(), Asked: n.view.GetAsked(), Services: n.services}
	for m := range n.members {
		if m != s.endpoint {
			net.Members = append(net.Members, m)
		}
	}
	slices.SortFunc(net.Members, netip.Addr.Compare)
	return net
}

func (s *state) fill(b *batch) {
	b.endpoint = s.endpoint
	for _, n := range s.nets {
		b.nets = append(b.nets, s.switchNet(n))
		for id, p := range n.places {
			s.program(n, id, &p, b)
		}
	}
	for _, l := range s.ports {
		s.attach(l, b)
	}
}

func (s *state) digests() (list []*wire.NetDigest) {
	for id, n := range s.nets {
		list = append(list, &wire.NetDigest{Net: id, Digest: n.digest})
	}
	return list
}

func (s *state) message() *wire.HostState {
	m := &wire.HostState{Revision: s.revision, Welcome: &wire.Welcome{Host: s.host, Endpoint: s.endpoint.AsSlice()}}
	for _, id := range slices.Sorted(maps.Keys(s.nets)) {
		n := s.nets[id]
		r := &wire.NetReset{View: n.view}
		for _, port := range slices.Sorted(maps.Keys(n.places)) {
			p := n.places[port]
			r.Places = append(r.Places, p.message(port, id))
		}
		for member := range n.members {
			r.Members = append(r.Members, member.AsSlice())
		}
		m.Nets = append(m.Nets, r)
	}
	for _, id := range slices.Sorted(maps.Keys(s.ports)) {
		m.Ports = append(m.Ports, s.ports[id].declared)
	}
	return m
}

// stateOf converts the saved state m. The function local finds the switch's port for a declaration.
func stateOf(m *wire.HostState, local func(*wire.Port) LocalPort) *state {
	s := newState()
	unused := newBatch()
	s.welcome(m.GetWelcome(), unused)
	for _, r := range m.GetNets() {
		s.reset(netResetOf(r), unused)
	}
	for _, p := range m.GetPorts() {
		s.setPort(p, local(p.GetPort()), unused)
	}
	s.revision = m.GetRevision()
	return s
}
