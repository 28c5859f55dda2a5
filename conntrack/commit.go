// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"sync/atomic"

	"weft/internal/cpu"
	"weft/packet"
)

// Kinds of eviction lists. A connection is in two lists of the same kind: one of its quota holder (the port
// or ct zone for which it counts, see holder.go), and one of its member (the quota holder within one ct
// zone, see member.go). A list is in the order in which the connections joined it. Eviction begins with the
// oldest.
const (
	listUnreplied = iota // no reply so far
	listClosing          // TCP connections that both sides have closed
	listEstablished
	lists
	listNone = lists
)

// zone is the state of one ct zone, in one cache line. The control process writes
// the fields limit and policy. The table's lock guards the other fields.
type zone struct {
	limit     atomic.Uint32 // 1 + the limit of connections; 0: the default limit of all zones applies
	policy    atomic.Uint32
	count     uint32
	tunnelled bool // some connection of the zone began through a tunnel
	begun     bool // some connection began in the zone
	_         [2]byte
	evicted   uint64 // connections evicted because of the zone's limit
	refused   uint64 // connections refused because of the zone's limit
	_         [32]byte
}

// list is the head of a linked list of connections. The fields first and last are 1 + the number of
// a connection's record. The field count is the length of the list.
type list struct{ first, last, count uint32 }

// SetZoneLimit limits a zone to n connections. If n is 0, no new connection begins in the zone.
// Existing connections stay.
func (m *Memory) SetZoneLimit(zone uint16, n uint32) {
	m.zones[zone].limit.Store(min(n, 1<<32-2) + 1)
}

// ClearZoneLimit makes the default limit apply to a zone.
func (m *Memory) ClearZoneLimit(zone uint16) { m.zones[zone].limit.Store(0) }

// SetDefaultZoneLimit sets the limit in connections for each zone without a limit of its own; 0: no limit.
func (m *Memory) SetDefaultZoneLimit(n uint32) { m.settings.zoneDefault.Store(n) }

// DefaultZoneLimit returns the limit in connections for each zone without a limit of its own; 0: no limit.
func (m *Memory) DefaultZoneLimit() uint32 { return m.settings.zoneDefault.Load() }

// ZoneLimit returns the zone's own limit in connections. set is false if the default limit applies.
func (m *Memory) ZoneLimit(zone uint16) (n uint32, set bool) {
	v := m.zones[zone].limit.Load()
	return max(v, 1) - 1, v != 0
}

// ZoneCount returns the number of connections in a zone, including expired ones that the sweep has
// not ended yet.
func (m *Memory) ZoneCount(zone uint16) int { return int(m.zones[zone].count) }

// ZoneLosses returns how many connections were evicted and refused because of the
// zone's limit.
func (m *Memory) ZoneLosses(zone uint16) (evicted, refused uint64) {
	return m.zones[zone].evicted, m.zones[zone].refused
}

// zoneLimit returns the limit of a zone; limited is false if the zone has no limit. A
// limit of 0 is possible only if it was set for this zone.
func (m *Memory) zoneLimit(z *zone) (n uint32, limited bool) {
	if v := z.limit.Load(); v != 0 {
		return v - 1, true
	}
	n = m.settings.zoneDefault.Load()
	return n, n != 0
}

// join adds connection n to the end of its two eviction lists of this kind, such as listUnreplied: the list
// of its quota holder (a port or ct zone) and the list of its member (the quota holder within one ct zone).
// The caller holds the table's lock.
func (t *Table) join(n uint32, kind uint8) {
	t.conns[n].list = kind
	m := t.links[n].member
	l := &t.members[m].lists[kind%lists]
	t.push(l, n, inMember)
	if kind == listUnreplied && l.count > t.members[t.head.crowded].lists[listUnreplied].count {
		t.head.crowded = m
	}
	t.push(&t.holders[t.holderOf(n)].lists[kind%lists], n, inHolder)
}

func (t *Table) push(l *list, n uint32, level int) {
	t.links[n].in[level] = link{prev: l.last}
	if l.last != 0 {
		t.links[l.last-1].in[level].next = n + 1
	} else {
		l.first = n + 1
	}
	l.last = n + 1
	l.count++
}

// leave removes connection n from its two eviction lists. It does not change c.list, because workers read
// this field without the lock.
func (t *Table) leave(n uint32) {
	c := &t.conns[n]
	kind := c.list
	if kind >= lists {
		return
	}
	t.pull(&t.members[t.links[n].member].lists[kind], n, inMember)
	t.pull(&t.holders[t.holderOf(n)].lists[kind], n, inHolder)
}

func (t *Table) pull(l *list, n uint32, level int) {
	k := t.links[n].in[level]
	if k.prev != 0 {
		t.links[k.prev-1].in[level].next = k.next
	} else {
		l.first = k.next
	}
	if k.next != 0 {
		t.links[k.next-1].in[level].prev = k.prev
	} else {
		l.last = k.prev
	}
	l.count--
}

// relist moves connection n to the eviction lists of another kind. It does nothing if n no longer has
// generation g, because it has ended or changed. The caller does not hold the table's lock.
func (t *Table) relist(n, g uint32, kind uint8) {
	t.lock()
	if c := &t.conns[n]; c.generation() == g && c.list != kind {
		t.leave(n)
		t.join(n, kind)
	}
	t.unlock()
}

// makeRoom makes room for a new connection of quota holder h. If the zone is at its limit, it evicts a
// connection of the zone. If the table is at its limit, it evicts a connection of the table. It returns
// false if no connection may be evicted.
func (t *Table) makeRoom(zone uint16, h uint32) bool {
	z := &t.zones[zone]
	if limit, limited := t.zoneLimit(z); limited && z.count >= limit {
		if limit == 0 || !t.evictInZone(zone, h, limit) {
			z.refused++
			return false
		}
		z.evicted++
		if t.head.count <= uint32(t.Limit()) {
			return true // the count still includes the evicted connection
		}
		t.settleSeat()
	}
	return t.head.count < uint32(t.Limit()) || t.evictFor(h)
}

// evictFirst ends the first connection of list l. The counts of connections still include it until the
// caller calls enrol, which puts a new connection in its place, or settleSeat, which subtracts it.
func (t *Table) evictFirst(l *list, level int) {
	n := l.first - 1
	t.holders[t.holderOf(n)].evicted++
	t.strike(n, endEvicted)
	t.keepSeat(n)
	t.prefetchVictims(l, level)
}

// newConn is the initial state of a connection to create.
type newConn struct {
	peers   [2]peer
	class   Class
	mark    uint32
	label   [2]uint64
	marked  bool
	related Ref // the parent: the connection that has announced this one; zero: none
	// announcer is the direction, in the parent connection, of the frame with the announcement. announced
	// is the announced port.
	announcer uint8
	announced uint16
	alg       ALG
	sender    sender
}

// create creates a connection for the frame of probe p (its tuple with a hash), with
// the translation nat. It returns a Ref to the connection, or the reason for refusing
// it. created is false if the connection was refused, or if it already exists.
func (tr *Tracker) create(p *probe, nat *NAT, g *newConn, now uint64) (ref Ref, created bool, reason packet.DropReason) {
	tr.lock()
	ref, created, reason = tr.createLocked(p, nat, g, now)
	tr.settleSeat()
	tr.unlock() // not deferred, because a defer costs more than the unlock
	return ref, created, reason
}

// createLocked does the work of create for a caller that holds the table's lock. The caller must then call
// settleSeat, because the counts may still include a connection that createLocked has evicted.
func (tr *Tracker) createLocked(p *probe, nat *NAT, g *newConn, now uint64) (ref Ref, created bool, reason packet.DropReason) {
	t := tr.Table
	if n, _ := t.find(p); n != none {
		if !t.conns[n].expired(now) {
			return Ref{}, false, packet.DropNone
		}
		t.erase(n, endExpired)
	}
	h := g.sender.holder(p.zone())
	if !t.makeRoom(p.zone(), h) {
		return t.refuse(h)
	}
	var reply probe
	flags, followed := tr.translationOfParent(p, nat, g, &reply, now)
	if !followed {
		flags = tr.translation(p, nat, &reply, now)
	}
	if flags&connClash != 0 {
		t.head.counters.RefusedNAT++
		return Ref{}, false, packet.DropNATExhausted
	}
	n := t.allocRecord()
	if n == none {
		return t.refuse(h)
	}
	t.fill(n, p, &reply, flags, g, now)
	if !t.insert(p.hash, n) {
		t.freeRecord(n)
		return t.refuse(h)
	}
	if flags&connTranslated != 0 && !t.insert(reply.hash, n) {
		t.remove(p.hash, n)
		t.freeRecord(n)
		return t.refuse(h)
	}
	c := &t.conns[n]
	c.born = c.generation() + 1
	cpu.StoreRelease(&c.meta, uint64(c.born)) // this odd generation makes the connection visible to workers
	t.head.counters.Created++
	t.enrol(n)
	t.join(n, listUnreplied)
	t.emitEvent(n, eventNew, 0)
	return Ref{n, c.born}, true, packet.DropNone
}

// fill writes the record of a new connection with the tuple p and the reply tuple replyTuple.
// No worker can see the connection yet.
func (t *Table) fill(n uint32, p, replyTuple *probe, flags uint16, g *newConn, now uint64) {
	c := &t.conns[n]
	// copied word by word: a wider load would wait until the two words, which were just written
	// separately, are in the cache (no store forwarding)
	c.tuples[0].a, c.tuples[0].b = p.a, p.b
	c.tuples[1].a, c.tuples[1].b = replyTuple.a, replyTuple.b
	if p.ipv6() {
		t.setAddresses(n, flags, &p.long, &replyTuple.long)
	}
	if g.sender.tunnel {
		flags |= connTunnel
	}
	if g.marked {
		flags |= connLabelled
		t.labels[n] = g.label
	}
	if g.related.Generation != 0 {
		flags |= connRelated
		t.parents[n] = g.related
	}
	switch {
	case g.alg == ALGFTP && p.proto() == packet.ProtoTCP:
		flags |= connFTP
		t.shifts[n] = [2]shift{}
	case g.alg == ALGTFTP && p.proto() == packet.ProtoUDP:
		flags |= connTFTP
	}
	c.mark, c.flags, c.port = g.mark, flags, g.sender.port
	c.list = listUnreplied // written before the connection becomes visible, because workers read it without the lock
	c.policy = t.ZonePolicy(p.zone())
	if hasPeers(p.proto()) {
		t.peers[n] = g.peers
	}
	c.expiresNS = now
	t.refresh(c, g.class, now)
}

// refuse counts a refused connection of quota holder h. It returns the results that createLocked must then
// return.
func (t *Table) refuse(h uint32) (Ref, bool, packet.DropReason) {
	t.head.counters.RefusedLimit++
	t.holders[h].refused++
	return Ref{}, false, packet.DropConnLimit
}

// allocRecord allocates a record. It returns none if no record is free.
func (t *Table) allocRecord() uint32 {
	if n := t.head.free; n != 0 {
		t.head.free = t.links[n-1].in[inMember].next
		return n - 1
	}
	if t.usedRecords() == uint32(len(t.conns)) {
		return none
	}
	t.head.fresh++
	return t.head.fresh - 1
}

func (t *Table) freeRecord(n uint32) {
	t.conns[n].list, t.links[n].in[inMember].next = listNone, t.head.free
	t.head.free = n + 1
}

// erase ends live connection n and counts the reason for its end. The caller holds
// the table's lock.
func (t *Table) erase(n uint32, reason Reason) {
	t.strike(n, reason)
	t.dismiss(t.seatOf(n))
}

// strike ends live connection n as erase does, but does not subtract it from the counts of the table, the
// zone, the quota holder and the member.
func (t *Table) strike(n uint32, reason Reason) {
	c := &t.conns[n]
	t.emitEvent(n, eventDestroy, reason)
	*t.head.counters.ended(reason)++
	t.takeBoth(n)
	t.kill(c)
	t.remove(t.hashOf(n, 0), n)
	if c.flags&connTranslated != 0 {
		t.remove(t.hashOf(n, 1), n)
	}
	t.leave(n)
	t.freeRecord(n)
}

// hashOf returns the hash of the tuple that connection n has in direction dir.
func (t *Table) hashOf(n uint32, dir uint8) uint64 {
	long := t.longOf(n, dir)
	return t.head.hash(t.conns[n].tuples[dir&1], &long)
}

// end ends connection n, unless it has ended or changed since it had generation g. It reports whether it
// has ended the connection.
func (t *Table) end(n, g uint32, reason Reason) bool {
	t.lock()
	defer t.unlock()
	c := &t.conns[n]
	if g&1 == 0 || c.generation() != g {
		return false
	}
	t.erase(n, reason)
	return true
}

// Flush ends the connection that ref names. It returns false if the connection has
// already ended or changed. Only workers call it; they get the Refs from the control
// process.
func (t *Table) Flush(ref Ref) bool {
	return ref.Number < uint32(len(t.conns)) && t.end(ref.Number, ref.Generation, endFlushed)
}
