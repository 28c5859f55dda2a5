// SPDX-License-Identifier: Apache-2.0

package openflow

import (
	"container/list"
	"net/netip"
)

// neighbours holds the IP addresses that hosts have announced in ARP and neighbour
// discovery. Weft believes every announcement, as hosts do, unless a port has
// declared the IP address.
type neighbours struct {
	limit   int
	entries map[neighbourKey]*list.Element // values are *neighbour
	ages    map[uint32]*list.List          // entries of each port, least recently seen first; a port without entries has no list
	tagged  int                            // number of entries in a VLAN
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
}

// newNeighbours returns an empty table for at most limit IP addresses. One port may
// have at most half of them. At its limit a port loses its least recently seen
// address. In a full table the port with the most addresses loses one.
func newNeighbours(limit int) neighbours {
	return neighbours{limit: limit, entries: map[neighbourKey]*list.Element{}, ages: map[uint32]*list.List{}}
}

func (n *neighbours) find(key neighbourKey) (mac uint64, ok bool) {
	if e := n.entries[key]; e != nil {
		return e.Value.(*neighbour).mac, true
	}
	return 0, false
}

// learn adds or refreshes an IP address. It reports whether a later find returns
// another MAC address than before.
func (n *neighbours) learn(key neighbourKey, port uint32, mac, nowNS uint64) (changed bool) {
	changed = true
	if e := n.entries[key]; e != nil {
		changed = e.Value.(*neighbour).mac != mac
		n.remove(e)
	}
	n.makeRoom(port)
	own := n.ages[port]
	if own == nil {
		own = list.New()
		n.ages[port] = own
	}
	n.entries[key] = own.PushBack(&neighbour{key, port, mac, nowNS})
	if key.vlan != 0 {
		n.tagged++
	}
	return changed
}

func (n *neighbours) len() int { return len(n.entries) }

// forget removes the announcement of an IP address, if the table has it.
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

// expire removes the IP addresses that were not announced for ageNS. It returns their
// number.
func (n *neighbours) expire(nowNS, ageNS uint64) (gone int) {
	for _, l := range n.ages {
		for e := l.Front(); e != nil; e = l.Front() {
			if seen := e.Value.(*neighbour).seenNS; nowNS-min(nowNS, seen) < ageNS {
				break
			}
			n.remove(e)
			gone++
		}
	}
	return gone
}

func (n *neighbours) removeIf(unwanted func(*neighbour) bool) {
	for _, e := range n.entries {
		if unwanted(e.Value.(*neighbour)) {
			n.remove(e)
		}
	}
}

func (n *neighbours) remove(e *list.Element) {
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
