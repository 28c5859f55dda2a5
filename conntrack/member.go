// SPDX-License-Identifier: Apache-2.0

package conntrack

import "math/bits"

// This file has the quotas within a ct zone that has a limit of connections. A member stands for the
// connections of one quota holder (a port, or all tunnels; see holder.go) in one zone. If the zone is at
// its limit, the member with the most connections loses one, by the rules in holder.go. A quota is the
// zone's limit divided by the number of its members, to within an eighth.
//
// Members also exist in zones without a limit, so that a new limit takes effect at once. A member is freed
// when its last connection ends. The table has as many records for members as for connections, so there is
// always a free one.

// member is the state of one quota holder (a port, or all tunnels) within one ct zone, in one cache line.
// The table's lock guards it.
type member struct {
	key   uint32 // zone and port, see memberKey
	next  uint32 // 1 + the number of the next member in the hash chain or free list
	lists [lists]list
	_     [20]byte
}

func memberKey(zone uint16, h uint32) uint32 { return uint32(zone)<<11 | min(h, Ports) }

// memberChain returns the hash chain of the member (quota holder within one zone) with this key. The hash
// has a secret multiplier, so no sender can put many members into one chain.
func (t *Table) memberChain(key uint32) *uint32 {
	hash := uint64(key+1) * (t.head.seeds[0] | 1)
	return &t.memberChains[hash>>(64-bits.TrailingZeros(uint(len(t.memberChains))))]
}

// findMember returns the number of the member that stands for quota holder h in a zone. If there is none,
// it returns the constant none.
func (t *Table) findMember(zone uint16, h uint32) uint32 {
	key := memberKey(zone, h)
	for at := *t.memberChain(key); at != 0; at = t.members[at-1].next {
		if t.members[at-1].key == key {
			return at - 1
		}
	}
	return none
}

// addMember returns the number of the member that stands for quota holder h in a zone. If there is none, it
// allocates one.
func (t *Table) addMember(zone uint16, h uint32) uint32 {
	m := t.findMember(zone, h)
	if m != none {
		return m
	}
	if m = t.head.freeMember - 1; m != none {
		t.head.freeMember = t.members[m].next
	} else {
		m = t.head.freshMember
		t.head.freshMember++
	}
	key := memberKey(zone, h)
	chain := t.memberChain(key)
	t.members[m], t.memberRanks[m] = member{key: key, next: *chain}, rank{}
	*chain = m + 1
	return m
}

// freeMember frees member m (a quota holder within one zone), whose last connection has ended.
func (t *Table) freeMember(m uint32) {
	at := t.memberChain(t.members[m].key)
	for *at != m+1 {
		at = &t.members[*at-1].next
	}
	*at = t.members[m].next
	t.members[m].next, t.head.freeMember = t.head.freeMember, m+1
}

// A seat names the four counts that include a connection: those of the table, of its zone, of its quota
// holder and of its member. In a full table, a new connection often replaces an evicted one of the same
// member. It then takes over the seat of the evicted one, and no count changes.
type seat struct {
	member, holder uint32
	zone           uint16
	kept           bool // the connection was evicted, but the counts still include it
}

// seatOf returns the seat of connection n: it says which counts include the connection. Connection n is
// live or has just ended. No other connection may have used its record since.
func (t *Table) seatOf(n uint32) seat {
	return seat{member: t.links[n].member, holder: t.holderOf(n), zone: t.conns[n].tuples[0].zone()}
}

// keepSeat stores in Table.seat that the counts still include connection n, which was evicted. The next
// call of enrol or settleSeat needs this. The table's lock guards Table.seat; the race detector does not
// see this lock, because it is in shared memory.
//
//go:norace
func (t *Table) keepSeat(n uint32) {
	t.seat = t.seatOf(n)
	t.seat.kept = true
}

// takeSeat returns the seat that keepSeat has stored for an evicted connection, and removes it from
// Table.seat. The field "kept" of the result is false if there is none.
//
//go:norace
func (t *Table) takeSeat() seat {
	s := t.seat
	t.seat.kept = false
	return s
}

// settleSeat subtracts an evicted connection from all counts, if no new connection has taken its place
// there.
func (t *Table) settleSeat() {
	if s := t.takeSeat(); s.kept {
		t.dismiss(s)
	}
}

// enrol adds the new connection n to the counts. If a connection of the same member was just evicted, the
// counts still include that connection, so n takes its place and the counts stay the same.
func (t *Table) enrol(n uint32) {
	c, h := &t.conns[n], t.holderOf(n)
	zone := c.tuples[0].zone()
	if s := t.takeSeat(); s.kept {
		if t.members[s.member].key == memberKey(zone, h) {
			t.links[n].member = s.member
			return
		}
		t.dismiss(s)
	}
	z := &t.zones[zone]
	// set first, because the function rebuild clears only zones in which a connection
	// has begun
	z.begun = true
	z.tunnelled = z.tunnelled || c.flags&connTunnel != 0
	z.count++
	t.head.count++
	t.count(h, 1)
	m := t.addMember(zone, h)
	t.links[n].member = m
	t.zoneRankings[zone].set(t.memberRanks, m, t.memberRanks[m].count+1)
}

// dismiss subtracts one connection from the counts that include it; s says which ones. The connection must
// have left its eviction lists.
func (t *Table) dismiss(s seat) {
	t.zones[s.zone].count--
	t.head.count--
	t.count(s.holder, -1)
	left := t.memberRanks[s.member].count - 1
	t.zoneRankings[s.zone].set(t.memberRanks, s.member, left)
	if left == 0 {
		t.freeMember(s.member)
	}
}

// evictInZone ends a connection in a zone that is at its limit, to make room for a new
// one of quota holder h. It returns false if no connection may be evicted.
func (t *Table) evictInZone(zone uint16, h, limit uint32) bool {
	r := &t.zoneRankings[zone]
	heavy, own := r.heaviest(), t.findMember(zone, h)
	if heavy == none {
		return false
	}
	if own != none {
		heavy = r.holderToEvict(t.memberRanks, own)
		if heavy != own && t.members[own].lists[listUnreplied].count >= mostUnanswered(limit) {
			return t.evictOfMember(own, listUnreplied)
		}
	}
	return t.evictOfMember(heavy, listUnreplied) || t.evictOfMember(heavy, listClosing) ||
		heavy != own && t.evictOfMember(heavy, listEstablished)
}

// evictOfMember ends the oldest connection in one eviction list of member m (a quota holder within one
// zone). listKind is the kind of list, such as listUnreplied. It returns false if the list is empty.
func (t *Table) evictOfMember(m uint32, listKind uint8) bool {
	l := &t.members[m].lists[listKind%lists]
	if l.first == 0 {
		return false
	}
	t.evictFirst(l, inMember)
	return true
}

// forgetMembers clears all members (quota holders within zones) and their rankings. The function rebuild
// then adds the members that have connections.
func (t *Table) forgetMembers() {
	clear(t.memberChains)
	t.head.crowded, t.head.freeMember, t.head.freshMember = 0, 0, 0
	for i := range t.zones {
		// unused zones are skipped, because an access would allocate their pages
		if z := &t.zones[i]; z.begun {
			z.count, t.zoneRankings[i] = 0, ranking{}
		}
	}
}
