// SPDX-License-Identifier: Apache-2.0

package fdb

import (
	"container/list"
	"net/netip"
)

// neighbours holds the IP addresses that hosts announced in ARP and neighbour
// discovery. An IP address that several hosts announce is contested: one of them may
// lie, so Weft does not answer for the address. A contested address keeps the MAC
// address that announced it first. The entry expires if this first host has not
// announced the address for the table's maximum age. The address stops being contested
// if no other host has announced it for that time. Nobody can announce an address that
// another port has declared.
type neighbours struct {
	limit   int
	changes *Changes                       // the Table's set, which find's results depend on
	entries map[neighbourKey]*list.Element // values are *neighbour
	// ages has a list of IP addresses for each port that has some. A list begins with the address announced
	// least recently.
	ages   map[uint32]*list.List
	tagged int // number of entries in a VLAN
}

type neighbourKey struct {
	segment Segment
	vlan    uint16
	ip      netip.Addr
}

type neighbour struct {
	neighbourKey
	port   uint32
	mac    uint64
	seenNS uint64
	// contestedNS is the time of the last announcement by another MAC address; 0: not
	// contested.
	contestedNS uint64
}

// newNeighbours returns an empty table for at most limit IP addresses, at most half of them from one port.
// If a port is at this quota, a new address evicts the port's least recently seen address. If the table is
// full, it evicts an address of the port with the most addresses.
func newNeighbours(limit int, changes *Changes) neighbours {
	return neighbours{limit: limit, changes: changes, entries: map[neighbourKey]*list.Element{}, ages: map[uint32]*list.List{}}
}

// find returns the MAC address that announced an IP address. ok is false if the IP address is
// unknown or contested.
func (n *neighbours) find(key neighbourKey) (mac uint64, ok bool) {
	if e := n.entries[key]; e != nil {
		said := e.Value.(*neighbour)
		return said.mac, said.contestedNS == 0
	}
	return 0, false
}

// knows reports whether mac is the MAC address that announced the IP address first.
func (n *neighbours) knows(key neighbourKey, mac uint64) bool {
	e := n.entries[key]
	return e != nil && e.Value.(*neighbour).mac == mac
}

// contest marks an IP address as contested if a host with another MAC address than "mac" has announced it
// first, and not longer than ageNS ago. The result contested reports whether that is so. hasChanged reports
// whether find now returns something else.
func (n *neighbours) contest(key neighbourKey, mac, nowNS, ageNS uint64) (contested, hasChanged bool) {
	e := n.entries[key]
	if e == nil {
		return false, false
	}
	said := e.Value.(*neighbour)
	if said.mac == mac || nowNS-min(nowNS, said.seenNS) >= ageNS {
		return false, false
	}
	if hasChanged = said.contestedNS == 0; hasChanged {
		n.changes.add(RefOfIP(key.ip))
	}
	said.contestedNS = max(said.contestedNS, nowNS, 1)
	return true, hasChanged
}

// learn records that the host with the address "mac" announces an IP address behind a port. The result tells
// whether find now returns something else. An IP address stops being contested if no other host announces it
// for the time ageNS.
func (n *neighbours) learn(key neighbourKey, port uint32, mac, nowNS, ageNS uint64) (changed bool) {
	changed = true
	contestedNS := uint64(0)
	if e := n.entries[key]; e != nil {
		said := e.Value.(*neighbour)
		if changed = said.mac != mac; !changed && said.contestedNS != 0 {
			if changed = nowNS-min(nowNS, said.contestedNS) >= ageNS; !changed {
				contestedNS = said.contestedNS
			}
		}
		n.unlink(e)
	}
	if changed {
		n.changes.add(RefOfIP(key.ip))
	}
	n.makeRoom(port)
	own := n.ages[port]
	if own == nil {
		own = list.New()
		n.ages[port] = own
	}
	n.entries[key] = own.PushBack(&neighbour{key, port, mac, nowNS, contestedNS})
	if key.vlan != 0 {
		n.tagged++
	}
	return changed
}

func (n *neighbours) len() int { return len(n.entries) }

// forget removes an IP address.
func (n *neighbours) forget(key neighbourKey) {
	if e := n.entries[key]; e != nil {
		n.remove(e)
	}
}

func (n *neighbours) makeRoom(port uint32) {
	most := n.ages[port]
	if most == nil || most.Len() < max(n.limit/2, 1) {
		if len(n.entries) < n.limit {
			return
		}
		for _, l := range n.ages {
			if most == nil || l.Len() > most.Len() {
				most = l
			}
		}
	}
	n.remove(most.Front())
}

// expire removes the IP addresses that their hosts have not announced for the maximum age, and returns their
// number. The argument age is a function that returns the maximum age in a segment, in nanoseconds.
func (n *neighbours) expire(nowNS uint64, age func(Segment) uint64) (count int) {
	for _, l := range n.ages {
		for e := l.Front(); e != nil; e = l.Front() {
			if said := e.Value.(*neighbour); nowNS-min(nowNS, said.seenNS) < age(said.segment) {
				break
			}
			n.remove(e)
			count++
		}
	}
	return count
}

func (n *neighbours) removeIf(unwanted func(*neighbour) bool) {
	for _, e := range n.entries {
		if unwanted(e.Value.(*neighbour)) {
			n.remove(e)
		}
	}
}

func (n *neighbours) remove(e *list.Element) {
	n.unlink(e)
	n.changes.add(RefOfIP(e.Value.(*neighbour).ip))
}

func (n *neighbours) unlink(e *list.Element) {
	said := e.Value.(*neighbour)
	delete(n.entries, said.neighbourKey)
	if said.vlan != 0 {
		n.tagged--
	}
	own := n.ages[said.port]
	if own.Remove(e); own.Len() == 0 {
		delete(n.ages, said.port)
	}
}
