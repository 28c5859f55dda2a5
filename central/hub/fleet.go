// SPDX-License-Identifier: Apache-2.0

package hub

import (
	"net/netip"

	"weft/central/store"
	"weft/central/wire"
)

// fleet has all declared networks, ports, hosts and groups, the host of each port, and indexes. It also
// has the changes that the next round sends to hosts.
type fleet struct {
	nets      map[string]*network
	ports     map[string]*port
	hosts     map[string]*host
	groups    map[string]*group
	portNames map[string]*port
	hostNames map[string]*host

	dirty        map[*network]struct{} // networks with changes
	dirtyPorts   map[*port]struct{}    // ports whose declaration or binding has changed
	removedHosts []string              // ids of hosts deleted since the last round
}

// host is a declared host, or an undeclared host to which ports are still bound.
type host struct {
	declared *wire.Host
	endpoint string             // VXLAN endpoint in declared
	bound    map[*port]struct{} // ports that it has bound
}

// port is a declared port, or an undeclared port that is still bound.
type port struct {
	id         string
	declared   *wire.Port // nil: not declared, or deleted
	bind       *wire.Bind // nil: unbound
	left       string     // id of the host whose binding was deleted, until the host shows that it has the port
	generation int64
	net        *network   // nil: not declared
	groups     []*group   // of declared
	placed     bool       // the port is declared and bound, so it has a place
	endpoint   string     // VXLAN endpoint of the host; ports of one host share the bytes
	digest     uint64     // of the place
	interested sessionSet // sessions of the hosts that have asked for the port's address
	owners     sessionSet // sessions whose host has the port
}

// network is a declared network, or an undeclared one that ports name.
type network struct {
	id       string
	declared *wire.Net          // nil: not declared, or no more
	ports    map[*port]struct{} // declared ports
	bound    int                // number of ports with a place
	onDemand bool               // hosts ask for addresses
	members  map[string]int     // number of bound ports by endpoint
	// XOR of the digests of all ports' addresses and hosts (wire.PlaceDigest), and of all tunnel
	// endpoints (wire.MemberDigest)
	placesDigest, membersDigest uint64
	byMAC                       map[uint64]*port // bound ports
	byIP                        map[netip.Addr]*port

	subscribers map[*session]struct{}
	// sessions of hosts that have asked for an address, by this address; no port has it yet
	waiting map[address]map[*session]struct{}
	reset   rawMessage // encoded NetReset; nil: not encoded yet

	changes netChanges
}

// address is the IP address ip, or the MAC address mac if ip is not valid.
type address struct {
	mac uint64
	ip  netip.Addr
}

// netChanges has the changes of one network that the next round sends to hosts.
type netChanges struct {
	view bool
	// remake is true if hosts get the whole network again: the hub starts or stops sending addresses
	// without being asked, or flooding was turned on or off
	remake  bool
	ports   map[*port]bool  // true if hosts have been sent an earlier place of the port
	members map[string]bool // by endpoint; true if it was a member in the last round
}

// The hub sends hosts all addresses of a network with few ports. If a network has more than askedAbove
// ports, hosts must ask for each address that they need. If it has fewer than pushedBelow, the hub
// sends all addresses again.
const askedAbove, pushedBelow = 1000, 800

func newFleet() *fleet {
	return &fleet{nets: map[string]*network{}, ports: map[string]*port{}, hosts: map[string]*host{}, groups: map[string]*group{},
		portNames: map[string]*port{}, hostNames: map[string]*host{},
		dirty: map[*network]struct{}{}, dirtyPorts: map[*port]struct{}{}}
}

func (f *fleet) apply(o *store.Object) {
	switch o.Kind {
	case store.KindNet:
		declared, _ := o.Message.(*wire.Net)
		f.setNet(o.ID, declared)
	case store.KindGroup:
		declared, _ := o.Message.(*wire.Group)
		f.setGroup(o.ID, declared)
	case store.KindPort:
		declared, _ := o.Message.(*wire.Port)
		f.setPort(o.ID, declared)
	case store.KindHost:
		declared, _ := o.Message.(*wire.Host)
		f.setHost(o.ID, declared)
	case store.KindBind:
		bind, _ := o.Message.(*wire.Bind)
		f.setBind(o.ID, bind, o.Revision)
	}
}

func (f *fleet) missing(list []store.Object) (missing []store.Object) {
	type key struct {
		kind store.Kind
		id   string
	}
	there := make(map[key]struct{}, len(list))
	for i := range list {
		there[key{list[i].Kind, list[i].ID}] = struct{}{}
	}
	add := func(kind store.Kind, id string) {
		if _, ok := there[key{kind, id}]; !ok {
			missing = append(missing, store.Object{Kind: kind, ID: id})
		}
	}
	for id, p := range f.ports {
		if p.bind != nil {
			add(store.KindBind, id)
		}
		if p.declared != nil {
			add(store.KindPort, id)
		}
	}
	for id, n := range f.nets {
		if n.declared != nil {
			add(store.KindNet, id)
		}
	}
	for id := range f.hosts {
		add(store.KindHost, id)
	}
	for id, g := range f.groups {
		if g.declared != nil {
			add(store.KindGroup, id)
		}
	}
	return missing
}

func (f *fleet) network(id string) *network {
	n := f.nets[id]
	if n == nil {
		n = &network{id: id, ports: map[*port]struct{}{}, members: map[string]int{}, byMAC: map[uint64]*port{},
			byIP: map[netip.Addr]*port{}, subscribers: map[*session]struct{}{}, waiting: map[address]map[*session]struct{}{},
			changes: newChanges()}
		f.nets[id] = n
	}
	return n
}

func newChanges() netChanges {
	return netChanges{ports: map[*port]bool{}, members: map[string]bool{}}
}

func (f *fleet) setNet(id string, declared *wire.Net) {
	n := f.network(id)
	c := f.touch(n)
	c.view = true
	c.remake = c.remake || n.declared.GetFlood() != declared.GetFlood() // members are sent only with flooding
	n.declared = declared
	for p := range n.ports {
		f.dirtyPorts[p] = struct{}{}
	}
}

func (n *network) digest() uint64 {
	d := n.placesDigest ^ n.view().Digest()
	if n.declared.GetFlood() {
		d ^= n.membersDigest
	}
	return d
}

func (n *network) view() *wire.NetView { return &wire.NetView{Net: n.declared, Asked: n.onDemand} }

func (f *fleet) touch(n *network) *netChanges {
	f.dirty[n] = struct{}{}
	n.reset = nil
	return &n.changes
}

func (f *fleet) setHost(id string, declared *wire.Host) {
	h := f.hosts[id]
	if h == nil {
		if declared == nil {
			return
		}
		h = &host{bound: map[*port]struct{}{}}
		f.hosts[id] = h
	}
	if h.declared != nil && f.hostNames[h.declared.GetName()] == h {
		delete(f.hostNames, h.declared.GetName())
	}
	h.declared, h.endpoint = declared, string(declared.GetEndpoint())
	if declared == nil {
		f.removedHosts = append(f.removedHosts, id)
		for p := range h.bound {
			f.dirtyPorts[p] = struct{}{} // the round releases its binding
		}
		if len(h.bound) == 0 {
			delete(f.hosts, id)
		}
		return
	}
	f.hostNames[declared.GetName()] = h
	for p := range h.bound { // its endpoint may have changed
		f.replace(p)
	}
}

func (f *fleet) port(id string) *port {
	p := f.ports[id]
	if p == nil {
		p = &port{id: id}
		f.ports[id] = p
	}
	return p
}

func (f *fleet) setPort(id string, declared *wire.Port) {
	p := f.port(id)
	f.unplace(p)
	if p.declared != nil && f.portNames[p.declared.GetName()] == p {
		delete(f.portNames, p.declared.GetName())
	}
	if p.net != nil {
		delete(p.net.ports, p)
		f.size(p.net)
		p.net = nil
	}
	f.dirtyPorts[p] = struct{}{}
	p.declared = declared
	f.setGroups(p)
	if declared == nil {
		return
	}
	f.portNames[declared.GetName()] = p
	p.net = f.network(declared.GetNet())
	p.net.ports[p] = struct{}{}
	f.size(p.net)
	f.setPlace(p)
}

func (f *fleet) size(n *network) {
	asked := len(n.ports) > askedAbove || n.onDemand && len(n.ports) >= pushedBelow
	if asked == n.onDemand {
		return
	}
	n.onDemand = asked
	f.touch(n).remake = true
}

func (f *fleet) setBind(id string, bind *wire.Bind, generation int64) {
	p := f.port(id)
	f.unplace(p)
	if p.bind != nil {
		if h := f.hosts[p.bind.GetHost()]; h != nil {
			delete(h.bound, p)
			if h.declared == nil && len(h.bound) == 0 {
				delete(f.hosts, p.bind.GetHost())
			}
		}
	}
	p.left = ""
	if bind == nil {
		p.left = p.bind.GetHost()
	}
	p.bind, p.generation = bind, generation
	f.dirtyPorts[p] = struct{}{}
	if bind == nil {
		p.generation = 0 // 0 means unbound in the next request
		return
	}
	h := f.hosts[bind.GetHost()]
	if h == nil {
		h = &host{bound: map[*port]struct{}{}}
		f.hosts[bind.GetHost()] = h
	}
	h.bound[p] = struct{}{}
	f.setPlace(p)
}

func (f *fleet) replace(p *port) {
	f.unplace(p)
	f.setPlace(p)
	f.dirtyPorts[p] = struct{}{}
}

func (f *fleet) unplace(p *port) {
	if !p.placed {
		return
	}
	n, c := p.net, f.touch(p.net)
	if _, noted := c.ports[p]; !noted {
		c.ports[p] = true
	}
	n.bound--
	n.placesDigest ^= p.digest
	if mac := wire.MACNumber(p.declared.GetMac()); n.byMAC[mac] == p {
		delete(n.byMAC, mac)
	}
	for _, b := range p.declared.GetAddresses() {
		if ip, _ := netip.AddrFromSlice(b); n.byIP[ip] == p {
			delete(n.byIP, ip)
		}
	}
	f.member(n, p.endpoint)
	if n.members[p.endpoint]--; n.members[p.endpoint] == 0 {
		delete(n.members, p.endpoint)
		n.membersDigest ^= wire.MemberDigest([]byte(p.endpoint))
	}
	p.placed, p.endpoint = false, ""
}

// setPlace adds a port's addresses and tunnel endpoint to the indexes of its network. It does nothing
// unless the port is declared and bound to a host.
func (f *fleet) setPlace(p *port) {
	if p.declared == nil || p.bind == nil {
		return
	}
	n, c := p.net, f.touch(p.net)
	if _, noted := c.ports[p]; !noted {
		c.ports[p] = false
	}
	p.placed = true
	if h := f.hosts[p.bind.GetHost()]; h != nil && h.declared != nil {
		p.endpoint = h.endpoint
	} else {
		p.endpoint = string(p.bind.GetEndpoint())
	}
	p.digest = wire.PlaceDigest([]byte(p.id), p.declared.GetMac(), []byte(p.bind.GetHost()), []byte(p.endpoint),
		p.declared.GetAddresses(), p.generation, p.groupIDs())
	n.bound++
	n.placesDigest ^= p.digest
	n.byMAC[wire.MACNumber(p.declared.GetMac())] = p
	for _, b := range p.declared.GetAddresses() {
		if ip, ok := netip.AddrFromSlice(b); ok {
			n.byIP[ip] = p
		}
	}
	f.member(n, p.endpoint)
	if n.members[p.endpoint]++; n.members[p.endpoint] == 1 {
		n.membersDigest ^= wire.MemberDigest([]byte(p.endpoint))
	}
}

func (f *fleet) member(n *network, endpoint string) {
	if _, noted := n.changes.members[endpoint]; !noted {
		n.changes.members[endpoint] = n.members[endpoint] > 0
	}
}

// bindable reports whether the declaration lets a port be on a host. A host that the declaration names,
// as the port's host or as the target of a move, may have the port. If the declaration names no host,
// the port may stay on the host to which it is bound. An unbound port may then be on any host.
func (p *port) bindable(host string) bool {
	d := p.declared
	return d != nil && (d.GetHost() == host || d.GetMoveTo() == host || d.GetHost() == "" && (p.bind == nil || p.bind.GetHost() == host))
}

func (f *fleet) changed() bool { return len(f.dirty)+len(f.dirtyPorts) > 0 }

// forget deletes ports and networks that are neither declared nor in use, and clears the lists of
// changes. round calls it when it has sent the changes.
func (f *fleet) forget() {
	for p := range f.dirtyPorts {
		if p.declared == nil && p.bind == nil {
			delete(f.ports, p.id)
		}
	}
	for n := range f.dirty {
		if n.declared == nil && len(n.ports) == 0 {
			delete(f.nets, n.id)
		}
	}
	clear(f.dirty)
	clear(f.dirtyPorts)
	f.removedHosts = nil
}
