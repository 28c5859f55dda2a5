// SPDX-License-Identifier: Apache-2.0

package conntrack

import "math/bits"

// Quotas within a zone that has a limit. A member is a pair of a zone and a quota
// holder (holder.go). It counts the connections that the quota holder has in the
// zone. If the zone is at its limit, the member with the most connections loses one,
// by the rules for a full table in holder.go. A port in a zone may therefore always
// have the zone's limit divided by the number of the zone's members, to within an
// eighth. All tunnels into a zone are one member.
//
// Members exist in zones without a limit too, so a limit takes effect as soon as the
// control process sets it. A member without connections is freed. There are as many
// members as records, so allocating a member never fails.

// member is one cache line: the lists of a quota holder's connections in one zone.
// The table's lock guards it.
type member struct {
	key   uint32 // zone and quota holder, see memberKey
	next  uint32 // number, plus one, of the next member with the same hash, or of the next free member
	lists [lists]list
	_     [20]byte
}

// memberKey returns the key of the member of quota holder h in a zone.
func memberKey(zone uint16, h uint32) uint32 { return uint32(zone)<<11 | min(h, Ports) }

// memberChain returns the head of the hash chain for a member's key. The multiplier
// of the hash is secret, so nobody outside can put many members into one chain.
func (t *Table) memberChain(key uint32) *uint32 {
	hash := uint64(key+1) * (t.head.seeds[0] | 1)
	return &t.memberChains[hash>>(64-bits.TrailingZeros(uint(len(t.memberChains))))]
}

// findMember returns the number of quota holder h's member in a zone, or none if h
// has no connection in the zone.
func (t *Table) findMember(zone uint16, h uint32) uint32 {
	key := memberKey(zone, h)
	for at := *t.memberChain(key); at != 0; at = t.members[at-1].next {
		if t.members[at-1].key == key {
			return at - 1
		}
	}
	return none
}

// addMember returns the number of quota holder h's member in a zone. It allocates the
// member if h has no connection in the zone.
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

// freeMember frees member m, which has no connections.
func (t *Table) freeMember(m uint32) {
	at := t.memberChain(t.members[m].key)
	for *at != m+1 {
		at = &t.members[*at-1].next
	}
	*at = t.members[m].next
	t.members[m].next, t.head.freeMember = t.head.freeMember, m+1
}

// enrol counts new connection n in the table, its zone, its quota holder and its
// member. The caller then calls join.
func (t *Table) enrol(n uint32) {
	c, h := &t.conns[n], t.holderOf(n)
	zone := c.tuples[0].zone()
	z := &t.zones[zone]
	z.begun = true // set before the counts change, because rebuild clears only the zones with begun set
	z.tunnelled = z.tunnelled || c.flags&connTunnel != 0
	z.count++
	t.head.count++
	t.count(h, 1)
	m := t.addMember(zone, h)
	t.links[n].member = m
	t.zoneRankings[zone].set(t.memberRanks, m, t.memberRanks[m].count+1)
}

// dismiss subtracts connection n from all counts to which enrol added it. The
// connection is in no list.
func (t *Table) dismiss(n uint32) {
	zone, m := t.conns[n].tuples[0].zone(), t.links[n].member
	t.zones[zone].count--
	t.head.count--
	t.count(t.holderOf(n), -1)
	left := t.memberRanks[m].count - 1
	t.zoneRankings[zone].set(t.memberRanks, m, left)
	if left == 0 {
		t.freeMember(m)
	}
}

// evictInZone ends a connection of a zone at its limit, so that quota holder h can
// begin another in the zone. It reports false if no connection may be evicted. The
// rules are those of evictFor.
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

// evictOfMember ends the oldest connection in one of the lists of member m. It
// reports false if the list is empty.
func (t *Table) evictOfMember(m uint32, kind uint8) bool {
	l := &t.members[m].lists[kind%lists]
	if l.first == 0 {
		return false
	}
	t.evictFirst(l, inMember)
	return true
}

// forgetMembers clears all members and the rankings of all zones, for rebuild.
func (t *Table) forgetMembers() {
	clear(t.memberChains)
	t.head.crowded, t.head.freeMember, t.head.freshMember = 0, 0, 0
	for i := range t.zones {
		if z := &t.zones[i]; z.begun { // skips unused zones, because an access would allocate the pages of their rankings
			z.count, t.zoneRankings[i] = 0, ranking{}
		}
	}
}
