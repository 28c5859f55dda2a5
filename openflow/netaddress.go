// SPDX-License-Identifier: Apache-2.0

package openflow

import (
	"net/netip"
	"slices"
)

// Addresses of declared networks. weft-central declares networks and the place of
// each of their addresses: behind a port of this switch or behind another host.
// Frames cannot move such an address, and no port learns it.
const (
	// MaxNetAddresses is the maximum number of MAC addresses in all declared
	// networks. Beyond the limit SetNetAddresses refuses new addresses and counts
	// them.
	MaxNetAddresses = 1 << 20
	// MaxNetIPs is the maximum number of IP addresses of one MAC address in a
	// declared network. Further IP addresses are ignored: Weft answers no questions
	// for them.
	MaxNetIPs = 64
)

// Network has the settings of a network that weft-central has declared. It is
// immutable.
type Network struct {
	// Flood is true if broadcasts and frames to unknown addresses also go to the
	// hosts in Members. Otherwise they only go to ports of this switch.
	Flood bool
	// Asked is true if the switch asks weft-central behind which host an unknown
	// address is.
	Asked bool
	// Members are the underlay addresses of the other hosts of the network.
	Members []netip.Addr
}

// NetAddress is a MAC address of a declared network, with its IP addresses and its
// place: a port of this switch or another host.
type NetAddress struct {
	Segment Segment
	MAC     uint64 // 48 bits
	IPs     []netip.Addr
	Place
	// Generation is higher for a newer declaration of the same address.
	Generation int64
}

// Place is the place of an address of a declared network: another host or a port of
// this switch.
type Place struct {
	// Remote is the underlay address of the host that has the address. If Remote is
	// invalid, the address is behind Port.
	Remote netip.Addr
	Port   uint32 // number of the port of this switch; 0: the port does not exist at present
}

// RemovedNetAddress is an address that weft-central removes from a declared network.
type RemovedNetAddress struct {
	Segment    Segment
	MAC        uint64
	Generation int64 // of the place that is removed
}

// netTable has a declared network's settings and addresses.
type netTable struct {
	network *Network
	macs    map[uint64]*NetAddress
	ips     map[netip.Addr]ipClaim
}

// ipClaim is an element of the list of MAC addresses that declare the same IP
// address. The list has more than one element only while an IP address moves to
// another MAC address.
type ipClaim struct {
	address *NetAddress
	next    *ipClaim
}

// SetNetwork declares the network of a segment, or changes its settings. If n is nil,
// SetNetwork forgets the network and its addresses. If only settings change, the
// result of TakeChanges covers all affected translations. If a network is new or
// gone, every translation may change, and TakeChanges does not report them all.
func (t *MACTable) SetNetwork(s Segment, n *Network) {
	t.generation++
	t.changes.add(refOfNetwork(s))
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

// Network implements Networks.
func (t *MACTable) Network(s Segment) *Network {
	if net := t.nets[s]; net != nil {
		return net.network
	}
	return nil
}

// Place implements Networks.
func (t *MACTable) Place(s Segment, mac uint64) (Place, bool) {
	if a := t.netAddress(s, mac); a != nil {
		return a.Place, true
	}
	return Place{}, false
}

func (t *MACTable) netAddress(s Segment, mac uint64) *NetAddress {
	if net := t.nets[s]; net != nil {
		return net.macs[mac]
	}
	return nil
}

// HostOf implements Networks. If several MAC addresses declare ip, HostOf returns the
// one with the highest generation. Among equal generations it returns the lowest MAC
// address.
func (t *MACTable) HostOf(s Segment, ip netip.Addr) (mac uint64, ok bool) {
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
func (t *MACTable) NetAddresses() int { return t.netAddresses }

// RefusedNetAddresses returns the number of addresses that were refused at
// MaxNetAddresses.
func (t *MACTable) RefusedNetAddresses() uint64 { return t.netRefused }

// SetNetAddresses removes the addresses in removed, and then adds or changes the
// addresses in list. An address may be in both. SetNetAddresses ignores a change or
// removal that is older than the address's present declaration, and addresses of
// segments without a declared network. It keeps the IPs slices of list. It returns
// the number of addresses that were refused at the limit.
func (t *MACTable) SetNetAddresses(list []NetAddress, removed []RemovedNetAddress) (left int) {
	t.generation++
	for i := range removed {
		r := &removed[i]
		if a := t.netAddress(r.Segment, r.MAC); a != nil && a.Generation <= r.Generation {
			t.removeNetAddress(a)
		}
	}
	for i := range list {
		if !t.setNetAddress(&list[i]) {
			left++
		}
	}
	t.forgetDeclared(list)
	t.netRefused += uint64(left)
	return left
}

// setNetAddress adds or changes one address of a declared network. It returns false
// at the limit of addresses.
func (t *MACTable) setNetAddress(n *NetAddress) bool {
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
			t.changed(a) // if several MAC addresses declare an IP address, the highest generation gets it
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
	if len(a.IPs) > MaxNetIPs {
		a.IPs = a.IPs[:MaxNetIPs:MaxNetIPs]
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

// changed notes a change of an address of a declared network.
func (t *MACTable) changed(a *NetAddress) {
	t.changes.add(refOfMAC(a.MAC))
	for _, ip := range a.IPs {
		t.changes.add(refOfIP(ip))
	}
}

func (t *MACTable) removeNetAddress(a *NetAddress) {
	net := t.nets[a.Segment]
	t.changed(a)
	delete(net.macs, a.MAC)
	t.netAddresses--
	for _, ip := range a.IPs {
		net.unclaim(ip, a)
	}
}

// unclaim removes the MAC address a from the list of MAC addresses that declare ip.
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

// forgetDeclared removes learnt MAC addresses and announced IP addresses that are now
// declared in list. If any entry is in a VLAN, it has to search the whole table.
func (t *MACTable) forgetDeclared(list []NetAddress) {
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
		_, declared := t.HostOf(n.segment, n.ip)
		return declared
	})
}

// declaredInNet reports whether the address l.MAC is in a declared network, and
// whether it is declared behind another port or host than l names.
func (t *MACTable) declaredInNet(l *Learn) (declared, elsewhere bool) {
	a := t.netAddress(l.Segment, l.MAC)
	if a == nil {
		return false, false
	}
	if a.Remote.IsValid() {
		return true, a.Remote != l.Remote
	}
	return true, a.Port != l.Port
}

// overlap reports whether two segments have ports in common. Ports without a VNI are
// in every segment except declared networks.
func (t *MACTable) overlap(a, b Segment) bool {
	return a == b || (a == 0 || b == 0) && t.nets[a|b] == nil
}
