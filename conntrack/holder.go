// SPDX-License-Identifier: Apache-2.0

package conntrack

// Quotas. Each connection counts for a holder: the port that received its first
// frame. A tunnel port carries many senders, so a connection through a tunnel counts
// for its zone instead. If the table is full, the holder with the most connections
// loses one, an established one if it has no other. A holder with fewer connections
// than the others therefore always gets a new one. Its quota is the limit divided by
// the number of holders with connections, to within an eighth. A holder may fill the
// whole table as long as no other holder needs a connection.

const (
	// Ports bounds the port numbers.
	Ports = 1024
	// Holders is the number of holders: the ports, followed by the zones.
	Holders = Ports + Zones
	// unansweredShare bounds the unreplied connections for which a holder may evict
	// connections of others: 1/unansweredShare of the limit. A holder with more
	// evicts its own oldest one. An unanswered flood therefore costs the others at
	// most this part of the table.
	unansweredShare = 1024
	// minUnanswered is the lower bound of that number, for small tables.
	minUnanswered = 16
)

// holder is one cache line. The table's lock guards it; control reads the counters
// without the lock.
type holder struct {
	lists   [lists]list
	_       uint32
	evicted uint64 // connections evicted, for others or for the holder itself
	refused uint64 // connections refused
	_       uint64
}

// sender is the origin of a frame.
type sender struct {
	port   uint16
	tunnel bool
}

// holder returns the number of the holder for connections that the sender's frames
// begin in a zone.
func (s sender) holder(zone uint16) uint32 {
	if s.tunnel {
		return Ports + uint32(zone)
	}
	return uint32(s.port) % Ports
}

// holderOf returns the holder of connection n.
func (t *Table) holderOf(n uint32) uint32 {
	c := &t.conns[n]
	return sender{c.port, c.flags&connTunnel != 0}.holder(c.tuples[0].zone())
}

// Share is a holder's use of a limited resource.
type Share struct {
	// Port is the holder. With Tunnel the holder is the traffic of all tunnels into
	// Zone.
	Port   uint32
	Zone   uint16
	Tunnel bool
	// Used is the holder's current use. Guaranteed is the part that the other current
	// holders cannot evict. Limit is the most it may use if no other holder needs
	// any.
	Used, Guaranteed, Limit uint32
	// Evicted counts the holder's evicted items. Refused counts items refused to the
	// holder.
	Evicted, Refused uint64
}

// Shares calls visit for each holder that has connections, or that had some evicted
// or refused. Workers continue meanwhile.
func (m *Memory) Shares(visit func(Share)) {
	limit := uint32(m.Limit())
	m.eachHolder(func(i uint32) {
		k, h := &m.ranks[i], &m.holders[i]
		if k.count|uint32(h.evicted|h.evicted>>32|h.refused|h.refused>>32) == 0 {
			return
		}
		s := shareOf(i)
		s.Used, s.Limit, s.Guaranteed = k.count, limit, m.head.ranking.fairShare(m.ranks, i, limit)
		s.Evicted, s.Refused = h.evicted, h.refused
		visit(s)
	})
}

// eachHolder calls visit for all ports, and for the zones in which a tunnel's frame
// began something.
func (m *Memory) eachHolder(visit func(i uint32)) {
	for i := range uint32(Ports) {
		visit(i)
	}
	for i := range m.zones {
		if m.zones[i].tunnelled {
			visit(Ports + uint32(i))
		}
	}
}

func shareOf(i uint32) (s Share) {
	if i < Ports {
		s.Port = i
	} else {
		s.Zone, s.Tunnel = uint16(i-Ports), true
	}
	return s
}

// count adds by to the number of holder h's connections.
func (t *Table) count(h uint32, by int32) {
	t.head.ranking.set(t.ranks, h, t.ranks[h].count+uint32(by))
}

// evictFor ends a connection so that holder h can have another. It reports false if
// no connection may be evicted.
func (t *Table) evictFor(h uint32) bool {
	heavy := t.head.ranking.holderToEvict(t.ranks, h)
	if heavy == none {
		return false
	}
	if own := t.holders[h].lists[listUnreplied].count; heavy != h && own >= mostUnanswered(uint32(t.Limit())) {
		return t.evictOf(h, listUnreplied)
	}
	return t.evictFromCrowdedZone(heavy) || t.evictOf(heavy, listUnreplied) || t.evictOf(heavy, listClosing) ||
		heavy != h && t.evictOf(heavy, listEstablished)
}

// mostUnanswered returns the number of unreplied connections from which on a holder
// pays with its own ones at a limit.
func mostUnanswered(limit uint32) uint32 { return max(limit/unansweredShare, minUnanswered) }

// evictOf ends the oldest connection in a list of a holder. It reports false if the
// list is empty.
func (t *Table) evictOf(h uint32, kind uint8) bool {
	l := &t.holders[h].lists[kind%lists]
	if l.first == 0 {
		return false
	}
	t.evictFirst(l, inHolder)
	return true
}

// evictFromCrowdedZone ends the oldest unreplied connection of the member with the
// most of them, if holder h is that member; otherwise it reports false. If one port
// serves many zones, a flooded zone thus loses its own connections.
func (t *Table) evictFromCrowdedZone(h uint32) bool {
	l := &t.members[t.head.crowded].lists[listUnreplied]
	if l.first == 0 || t.holderOf(l.first-1) != h {
		return false
	}
	t.evictFirst(l, inMember)
	return true
}
