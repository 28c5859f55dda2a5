// SPDX-License-Identifier: Apache-2.0

package conntrack

// This file has the quotas of the connection table. Each connection counts for a quota
// holder: the port that received the connection's first frame. A tunnel port carries
// the traffic of many senders, so a connection through a tunnel counts for its zone
// instead. If the table is full, the quota holder with the most connections loses one:
// an unreplied or closed one if it has any, otherwise an established one. If the new
// connection belongs to the same quota holder, no established connection ends; the new one is
// refused instead. A quota is the table's limit divided by the number of quota holders with
// connections, to within an eighth. A quota holder may exceed its quota as long as no other
// one needs the space.

const (
	// Ports is the number of ports that can be quota holders. A port's number is less than Ports.
	Ports = 1024
	// Holders is the number of quota holders: the ports, followed by the zones.
	Holders = Ports + Zones
	// unansweredShare limits a flood of connections without answers. It applies if the table is full and a
	// quota holder begins a connection. If the quota holder has unreplied connections for 1/unansweredShare
	// of the table's limit or more, it loses one of them.
	unansweredShare = 1024
	// minUnanswered is the smallest result of mostUnanswered. It counts in small tables.
	minUnanswered = 16
)

// holder is the state of one quota holder (a port or zone), in one cache line. The
// table's lock guards it. The control process reads the counters without the lock.
type holder struct {
	lists   [lists]list
	_       uint32
	evicted uint64 // number of evicted connections
	refused uint64 // number of refused connections
	_       uint64
}

// sender is the origin of a frame: the port that received it, and whether it came through a tunnel.
type sender struct {
	port   uint16
	tunnel bool
}

// holder returns the number of the quota holder for which the sender's connections in this zone count: the
// zone if the sender is a tunnel, otherwise the port.
func (s sender) holder(zone uint16) uint32 {
	if s.tunnel {
		return Ports + uint32(zone)
	}
	return uint32(s.port) % Ports
}

func (t *Table) holderOf(n uint32) uint32 {
	c := &t.conns[n]
	return sender{c.port, c.flags&connTunnel != 0}.holder(c.tuples[0].zone())
}

// Share is one quota holder's use of a limited resource: connections or expectations.
type Share struct {
	// Port is the number of the port that is the quota holder. If Tunnel is set, the quota holder
	// is instead the traffic of all tunnels in the ct zone Zone.
	Port   uint32
	Zone   uint16
	Tunnel bool
	// Used is the number of items that the quota holder has. Guaranteed is the number of items that
	// other quota holders cannot evict. Limit is the largest possible use, reached if no other quota
	// holder needs anything.
	Used, Guaranteed, Limit uint32
	// Evicted and Refused count the items that the quota holder lost by eviction or
	// refusal.
	Evicted, Refused uint64
}

// Shares calls visit for each quota holder that has connections, or lost some by
// eviction or refusal. Workers continue meanwhile.
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

// eachHolder calls visit for each port, and for each zone that a tunnel has used.
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

// count adds n, which may be negative, to the number of connections of quota holder h.
func (t *Table) count(h uint32, n int32) {
	t.head.ranking.set(t.ranks, h, t.ranks[h].count+uint32(n))
}

// evictFor ends a connection of the full table to make room for a new one of quota holder h. It
// returns false if no connection may be evicted.
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

// mostUnanswered returns the number of unreplied connections from which on a quota holder loses one of its
// own for each new one; see unansweredShare. tableLimit is the limit of the table or zone.
func mostUnanswered(tableLimit uint32) uint32 { return max(tableLimit/unansweredShare, minUnanswered) }

// evictOf ends the oldest connection in one eviction list of quota holder h (a port or zone). kind is the
// kind of list, such as listUnreplied. It returns false if the list is empty.
func (t *Table) evictOf(h uint32, kind uint8) bool {
	l := &t.holders[h].lists[kind%lists]
	if l.first == 0 {
		return false
	}
	t.evictFirst(l, inHolder)
	return true
}

// evictFromCrowdedZone ends the oldest unreplied connection in the zone with the most
// unreplied connections, if it belongs to quota holder h. A port with a flooded zone
// therefore loses connections of this zone, and not of its other zones.
func (t *Table) evictFromCrowdedZone(h uint32) bool {
	l := &t.members[t.head.crowded].lists[listUnreplied]
	if l.first == 0 || t.holderOf(l.first-1) != h {
		return false
	}
	t.evictFirst(l, inMember)
	return true
}
