package conntrack

// Shares. Each connection counts for a holder: the port on which its first frame came
// in. Behind a tunnel are many senders on one port, so what comes through one counts
// for its zone instead. In a table that is full the heaviest holder makes room, with an
// established connection if need be, so that a holder which has less than the others
// always gets what it asks for: its share is the limit divided by the holders that
// have connections, to within an eighth. A holder may have the whole table as long as
// nobody else asks.

const (
	// Ports bounds the numbers of ports.
	Ports = 1024
	// Holders are the ports, and behind them the zones.
	Holders = Ports + Zones
	// unansweredShare is the part of a full table that one holder's connections without
	// an answer take from others: beyond it, its own oldest makes room. So a flood that
	// nobody answers costs others this part at most.
	unansweredShare = 1024
	// minUnanswered is the least that unansweredShare comes to.
	minUnanswered = 16
)

// holder is one line. Guarded by the table's lock; control reads counters whenever it
// likes.
type holder struct {
	lists   [lists]list
	_       uint32
	evicted uint64 // connections that made room for others, its own included
	refused uint64 // connections that were not made
	_       uint64
}

// sender says where a frame comes from.
type sender struct {
	port   uint16
	tunnel bool
}

// holder is the number of who pays for connections that the frame begins in a zone.
func (s sender) holder(zone uint16) uint32 {
	if s.tunnel {
		return Ports + uint32(zone)
	}
	return uint32(s.port) % Ports
}

// holderOf is the holder of connection n.
func (t *Table) holderOf(n uint32) uint32 {
	c := &t.conns[n]
	return sender{c.port, c.flags&connTunnel != 0}.holder(c.tuples[0].zone())
}

// Share is what a holder has of a thing that all share.
type Share struct {
	// Port is the holder or, with Tunnel, what comes through tunnels into Zone.
	Port   uint32
	Zone   uint16
	Tunnel bool
	// Used is what it has. Guaranteed is what nobody takes from it, with the holders
	// there are; Limit is what it may have while nobody else asks.
	Used, Guaranteed, Limit uint32
	// Evicted are those that made room for others or for its own; Refused were not made.
	Evicted, Refused uint64
}

// Shares calls visit for each holder that has connections, or had some that were
// evicted or refused. Workers go on meanwhile.
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

// eachHolder visits the ports, and those zones that something may have come into.
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

// count adds by connections to a holder.
func (t *Table) count(h uint32, by int32) {
	t.head.ranking.set(t.ranks, h, t.ranks[h].count+uint32(by))
}

// evictFor ends a connection so that holder h can have one more; it reports false if
// nobody is to give one up.
func (t *Table) evictFor(h uint32) bool {
	heavy := t.head.ranking.payer(t.ranks, h)
	if heavy == none {
		return false
	}
	if own := t.holders[h].lists[listUnreplied].count; heavy != h && own >= t.mostUnanswered() {
		return t.evictOf(h, listUnreplied)
	}
	return t.evictOfCrowd(heavy) || t.evictOf(heavy, listUnreplied) || t.evictOf(heavy, listClosing) ||
		heavy != h && t.evictOf(heavy, listEstablished)
}

func (t *Table) mostUnanswered() uint32 { return max(uint32(t.Limit())/unansweredShare, minUnanswered) }

// evictOf ends the oldest connection of a holder's list.
func (t *Table) evictOf(h uint32, kind uint8) bool {
	l := &t.holders[h].lists[kind%lists]
	if l.first == 0 {
		return false
	}
	t.evictFirst(l, inHolder)
	return true
}

// evictOfCrowd ends the oldest unreplied connection of the zone that has most of them,
// if it is the holder's: where one port has many zones, one that is flooded pays with
// its own.
func (t *Table) evictOfCrowd(h uint32) bool {
	l := &t.zones[t.head.crowded%Zones].lists[listUnreplied]
	if l.first == 0 || t.holderOf(l.first-1) != h {
		return false
	}
	t.evictFirst(l, inZone)
	return true
}
