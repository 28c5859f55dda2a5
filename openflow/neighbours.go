package openflow

import (
	"container/list"
	"net/netip"
)

// neighbours is what hosts have said of their addresses, in ARP and neighbour
// discovery. Whoever lies there is believed here as he would be by the hosts.
type neighbours struct {
	limit   int
	entries map[neighbourKey]*list.Element // of *neighbour
	ages    *list.List                     // seen longest ago first
}

type neighbourKey struct {
	segment Segment
	vlan    uint16
	ip      netip.Addr
}

type neighbour struct {
	neighbourKey
	mac    uint64
	seenNS uint64
}

// newNeighbours holds limit addresses; at the limit the one seen longest ago makes
// room.
func newNeighbours(limit int) neighbours {
	return neighbours{limit: limit, entries: map[neighbourKey]*list.Element{}, ages: list.New()}
}

func (n *neighbours) find(key neighbourKey) (mac uint64, ok bool) {
	if e := n.entries[key]; e != nil {
		return e.Value.(*neighbour).mac, true
	}
	return 0, false
}

// learn reports whether find answers otherwise from now on.
func (n *neighbours) learn(key neighbourKey, mac, nowNS uint64) (changed bool) {
	if e := n.entries[key]; e != nil {
		known := e.Value.(*neighbour)
		changed = known.mac != mac
		known.mac, known.seenNS = mac, nowNS
		n.ages.MoveToBack(e)
		return changed
	}
	if len(n.entries) >= n.limit {
		n.remove(n.ages.Front())
	}
	n.entries[key] = n.ages.PushBack(&neighbour{key, mac, nowNS})
	return true
}

// expire returns how many it has removed.
func (n *neighbours) expire(nowNS, ageNS uint64) (gone int) {
	for e := n.ages.Front(); e != nil; e = n.ages.Front() {
		if seen := e.Value.(*neighbour).seenNS; nowNS-min(nowNS, seen) < ageNS {
			break
		}
		n.remove(e)
		gone++
	}
	return gone
}

func (n *neighbours) remove(e *list.Element) {
	delete(n.entries, e.Value.(*neighbour).neighbourKey)
	n.ages.Remove(e)
}
