// SPDX-License-Identifier: Apache-2.0

package openflow

import (
	"net/netip"
	"slices"
)

// Addresses of declared networks. weft-central says where each is: behind a local port
// or behind another host. A frame never moves such an address, and no port learns it.
const (
	// MaxNetAddresses is the maximum number of MAC addresses in all declared networks.
	// At the limit a new address is left out, and SetNetAddresses counts it.
	MaxNetAddresses = 1 << 20
	// MaxNetIPs is the maximum number of IP addresses of one MAC address. Further IP
	// addresses are left out: nobody answers questions for them.
	MaxNetIPs = 64
)

// Network has the settings of a declared network. It is immutable.
type Network struct {
	// Flood: broadcasts and frames to unknown addresses also go to Members. Otherwise
	// they go to the ports of this switch only.
	Flood bool
	// Asked: the switch asks weft-central for the place of an unknown address.
	Asked bool
	// Members are the endpoints of the other hosts in the network.
	Members []netip.Addr
}

// NetAddress is a MAC address of a declared network with its IP addresses and place.
type NetAddress struct {
	Segment Segment
	MAC     uint64 // 48 bits
	IPs     []netip.Addr
	Place
	// Generation orders the places of an address.
	Generation int64
}

// Place says where an address of a declared network is.
type Place struct {
	// Remote is the endpoint of the host that has the address. If it is invalid, the
	// address is behind Port.
	Remote netip.Addr
	Port   uint32 // number of a port of this switch; 0: the port does not exist now
}

// RemovedNetAddress is an address that has no place any more.
type RemovedNetAddress struct {
	Segment    Segment
	MAC        uint64
	Generation int64 // of the place that is removed
}

// netTable is a declared network with its addresses.
type netTable struct {
	network *Network
	macs    map[uint64]*NetAddress
	ips     map[netip.Addr]ipClaim
}

// ipClaim is an element of the list of addresses that declare the same IP address. The
// list is longer than one only while an IP address moves to another MAC address.
type ipClaim struct {
	address *NetAddress
	next    *ipClaim
}

// SetNetwork declares the network of a segment, or changes its settings. If n is nil,
// SetNetwork forgets the network and its addresses.
func (t *MACTable) SetNetwork(s Segment, n *Network) {
	t.generation++
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

// HostOf implements Networks. While several addresses declare ip, HostOf returns the
// one with the highest generation, and the lowest of those.
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

// RefusedNetAddresses returns how many addresses were left out at MaxNetAddresses.
func (t *MACTable) RefusedNetAddresses() uint64 { return t.netRefused }

// SetNetAddresses adds and changes addresses of declared networks, and then removes
// addresses. It ignores an address or a removal that is older than the present place,
// and an address of a segment that is no declared network. It keeps IPs of list. It
// returns the number of addresses for which there was no room.
func (t *MACTable) SetNetAddresses(list []NetAddress, removed []RemovedNetAddress) (left int) {
	t.generation++
	for i := range list {
		if !t.setNetAddress(&list[i]) {
			left++
		}
	}
	for i := range removed {
		r := &removed[i]
		if a := t.netAddress(r.Segment, r.MAC); a != nil && a.Generation <= r.Generation {
			t.removeNetAddress(a)
		}
	}
	t.forgetDeclared(list)
	t.netRefused += uint64(left)
	return left
}

// setNetAddress returns false if there is no room for the address.
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

func (t *MACTable) removeNetAddress(a *NetAddress) {
	net := t.nets[a.Segment]
	delete(net.macs, a.MAC)
	t.netAddresses--
	for _, ip := range a.IPs {
		net.unclaim(ip, a)
	}
}

// unclaim removes a from the list of ip, if it is there.
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

// forgetDeclared removes what ports have learnt for the addresses in list. Entries of
// a VLAN are found only by a pass over the whole table.
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

// declaredInNet reports whether the address of l is one of a declared network, and
// whether the network places it elsewhere than l.
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

// overlap reports whether two segments share ports: a port without a VNI is in all
// segments, except declared networks.
func (t *MACTable) overlap(a, b Segment) bool {
	return a == b || (a == 0 || b == 0) && t.nets[a|b] == nil
}
