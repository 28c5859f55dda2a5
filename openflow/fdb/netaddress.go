// SPDX-License-Identifier: Apache-2.0

package fdb

import (
	"net/netip"
	"slices"
)

// Limits of the networks that weft-central declares. weft-central is the service that configures networks on
// many hosts. It declares the location of each address of a network: behind a port of this switch, or behind
// another host. Frames cannot move such an address, and no port learns it.
const (
	// MaxNetAddresses is the largest number of MAC addresses in all declared networks. Table.Change does not
	// add further addresses, but counts them.
	MaxNetAddresses = 1 << 20
	// maxNetIPs is the largest number of IP addresses of one MAC address in a declared network.
	// Weft does not answer ARP or neighbour discovery for further addresses.
	maxNetIPs = 64
)

// Network has the settings of a declared network. It is immutable.
type Network struct {
	// Flood is true if broadcasts and frames to unknown addresses also go to Members.
	Flood bool
	// Asked is true if weft-central does not send all addresses of this network, but only those that the switch
	// asks for. A frame to an address that nobody has is then dropped. In other networks, such a frame is
	// forwarded as a frame to an unknown address.
	Asked bool
	// Members are the underlay addresses of the network's other hosts.
	Members []netip.Addr
	// Services says which requests of the network's guests this host answers itself, such as ARP and DHCP; nil:
	// none.
	Services *Services
}

// NetAddress is a MAC address that weft-central declares in a network, with its IP addresses and location.
type NetAddress struct {
	Segment Segment
	MAC     uint64 // 48 bits
	IPs     []netip.Addr
	Place
	// Generation orders the declarations of one address: a newer declaration has a higher number.
	Generation int64
}

// Place is the location of a declared network's address: another host or a port.
type Place struct {
	// Remote is the underlay address of the other host. It is invalid if the address is behind
	// Port.
	Remote netip.Addr
	Port   uint32  // number of a port in the data path; 0: the port does not exist now
	Groups *Groups // groups of the address's declared port; nil: none
}

// RemovedNetAddress is an address to remove from a declared network.
type RemovedNetAddress struct {
	Segment    Segment
	MAC        uint64
	Generation int64 // of the declaration to remove; a newer one stays
}

// netTable has a declared network's settings and addresses.
type netTable struct {
	network *Network
	macs    map[uint64]*NetAddress
	ips     map[netip.Addr]ipClaim
}

// ipClaim is a linked list of the MAC addresses that have one IP address in a declared network. The list has
// several entries only while the IP address moves from one MAC address to another.
type ipClaim struct {
	address *NetAddress
	next    *ipClaim
}

// Change is one change of the networks that weft-central declares, with their addresses.
type Change struct {
	// RemovedNetworks are the networks to remove, with their addresses. Table.Change removes them first.
	RemovedNetworks []Segment
	// Networks are new networks, and networks whose settings change.
	Networks map[Segment]*Network
	// Addresses are added after the addresses in Removed are removed. Table.Change ignores an entry whose
	// Generation is lower than that of the address in the table, or whose segment has no declared network. The
	// table keeps the slices IPs of the entries.
	Addresses []NetAddress
	Removed   []RemovedNetAddress
}

// Change changes the declared networks as c says. It returns the number of addresses that it has not added
// because the table has MaxNetAddresses.
func (t *Table) Change(c *Change) (refused int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, s := range c.RemovedNetworks {
		t.setNetwork(s, nil)
	}
	for s, network := range c.Networks {
		t.setNetwork(s, network)
	}
	return t.setNetAddresses(c.Addresses, c.Removed)
}

// setNetwork declares the network of a segment, or changes its settings. If n is nil, it removes the
// network. The next TakeChanges then returns the Ref of the network, and the caller revalidates the
// megaflows that have read its settings. After a network has been added or removed, any megaflow may be
// stale.
func (t *Table) setNetwork(s Segment, n *Network) {
	t.generation++
	t.changes.add(RefOfNetwork(s))
	net := t.nets[s]
	switch {
	case n == nil && net != nil:
		t.netAddresses -= len(net.macs)
		delete(t.nets, s)
	case n == nil:
	case net != nil:
		net.network = n
	default:
		t.nets[s] = &netTable{network: n, macs: map[uint64]*NetAddress{}, ips: map[netip.Addr]ipClaim{}}
	}
}

// Network returns the settings of the network that weft-central has declared for segment s, or nil.
func (t *Table) Network(s Segment) *Network {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if net := t.nets[s]; net != nil {
		return net.network
	}
	return nil
}

// Place returns the location of a MAC address that weft-central has declared. The second result is false if
// weft-central has not declared the address.
func (t *Table) Place(s Segment, mac uint64) (Place, bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if a := t.netAddress(s, mac); a != nil {
		return a.Place, true
	}
	return Place{}, false
}

func (t *Table) netAddress(s Segment, mac uint64) *NetAddress {
	if net := t.nets[s]; net != nil {
		return net.macs[mac]
	}
	return nil
}

// HostOf returns the MAC address that a declared network has for an IP address. Of several
// MAC addresses, the highest generation wins, then the lowest address.
func (t *Table) HostOf(s Segment, ip netip.Addr) (mac uint64, ok bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.hostOf(s, ip)
}

func (t *Table) hostOf(s Segment, ip netip.Addr) (mac uint64, ok bool) {
	net := t.nets[s]
	if net == nil {
		return 0, false
	}
	claim, ok := net.ips[ip]
	if !ok {
		return 0, false
	}
	best := claim.address
	for c := claim.next; c != nil; c = c.next {
		if a := c.address; a.Generation > best.Generation || a.Generation == best.Generation && a.MAC < best.MAC {
			best = a
		}
	}
	return best.MAC, true
}

// NetAddresses returns the number of addresses of declared networks.
func (t *Table) NetAddresses() int {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.netAddresses
}

// RefusedNetAddresses returns the number of addresses that Change has not added because the table had
// MaxNetAddresses.
func (t *Table) RefusedNetAddresses() uint64 {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.netRefused
}

// setNetAddresses removes the addresses in "removed" from the declared networks, and then adds or changes
// those in "list". It returns the number of addresses that it has not added because of the limit.
func (t *Table) setNetAddresses(list []NetAddress, removed []RemovedNetAddress) (refused int) {
	t.generation++
	for i := range removed {
		r := &removed[i]
		if a := t.netAddress(r.Segment, r.MAC); a != nil && a.Generation <= r.Generation {
			t.removeNetAddress(a)
		}
	}
	for i := range list {
		if !t.setNetAddress(&list[i]) {
			refused++
		}
	}
	t.forgetDeclared(list)
	t.netRefused += uint64(refused)
	return refused
}

// setNetAddress adds or changes one address of a declared network. It returns false if the table is at its
// limit and cannot add the address.
func (t *Table) setNetAddress(n *NetAddress) bool {
	net := t.nets[n.Segment]
	if net == nil {
		return true
	}
	a := net.macs[n.MAC]
	switch {
	case a != nil && a.Generation > n.Generation:
		return true
	case a != nil && slices.Equal(a.IPs, n.IPs):
		if a.Place != n.Place || a.Generation != n.Generation {
			t.changed(a) // of entries that declare the same IP address, the highest generation wins
		}
		a.Place, a.Generation = n.Place, n.Generation
		return true
	case a != nil:
		t.removeNetAddress(a)
	case t.netAddresses >= t.netLimit:
		return false
	}
	a = new(NetAddress)
	*a = *n
	if len(a.IPs) > maxNetIPs {
		a.IPs = a.IPs[:maxNetIPs:maxNetIPs]
	}
	net.macs[a.MAC] = a
	t.netAddresses++
	t.changed(a)
	for i, ip := range a.IPs {
		if slices.Contains(a.IPs[:i], ip) {
			continue
		}
		claim := ipClaim{address: a}
		if other, taken := net.ips[ip]; taken {
			claim.next = &other
		}
		net.ips[ip] = claim
	}
	return true
}

func (t *Table) changed(a *NetAddress) {
	t.changes.add(RefOfMAC(a.MAC))
	for _, ip := range a.IPs {
		t.changes.add(RefOfIP(ip))
	}
}

func (t *Table) removeNetAddress(a *NetAddress) {
	net := t.nets[a.Segment]
	t.changed(a)
	delete(net.macs, a.MAC)
	t.netAddresses--
	for _, ip := range a.IPs {
		net.unclaim(ip, a)
	}
}

// unclaim removes a from the list of the MAC addresses that have the IP address ip.
func (net *netTable) unclaim(ip netip.Addr, a *NetAddress) {
	claim, ok := net.ips[ip]
	switch {
	case !ok:
	case claim.address == a && claim.next == nil:
		delete(net.ips, ip)
	case claim.address == a:
		net.ips[ip] = *claim.next
	default:
		for c := &claim; c.next != nil; c = c.next {
			if c.next.address == a {
				c.next = c.next.next
				break
			}
		}
		net.ips[ip] = claim
	}
}

// forgetDeclared removes learned addresses that are also in the declarations of "list". The table never
// learns a declared address.
func (t *Table) forgetDeclared(list []NetAddress) {
	if len(list) == 0 || t.count == 0 && t.neighbours.len() == 0 {
		return
	}
	if t.tagged == 0 && t.neighbours.tagged == 0 {
		for i := range list {
			a := &list[i]
			if t.netAddress(a.Segment, a.MAC) == nil {
				continue
			}
			if e := t.exact(a.Segment, keyOf(0, a.MAC)); e != nil {
				t.remove(e)
			}
			for _, ip := range a.IPs {
				t.neighbours.forget(neighbourKey{a.Segment, 0, ip})
			}
		}
		return
	}
	t.removeIf(func(e *macEntry) bool { return t.netAddress(e.segment, e.entry().MAC) != nil })
	t.neighbours.removeIf(func(n *neighbour) bool {
		_, declared := t.hostOf(n.segment, n.ip)
		return declared
	})
}

// declaredInNet looks l.MAC up in the declared networks. isDeclared is true if a network has the address.
// elsewhere is true if the declared location is another port or host than the one in l.
func (t *Table) declaredInNet(l *Learn) (isDeclared, elsewhere bool) {
	a := t.netAddress(l.Segment, l.MAC)
	if a == nil {
		return false, false
	}
	if a.Remote.IsValid() {
		return true, a.Remote != l.Remote
	}
	return true, a.Port != l.Port
}

// overlap reports whether a frame of one segment may reach ports of the other. Ports without a
// VNI are in every segment of their bridge except the segments of declared networks.
func (t *Table) overlap(a, b Segment) bool {
	return a == b || a.Bridge() == b.Bridge() && (a.Local() == 0 || b.Local() == 0) && t.nets[a|b] == nil
}
