package openflow

import (
	"net/netip"
	"time"
)

// MACTable is the table of addresses that normal has learnt, of all segments. The
// owner guards it: only Lookup, VTEP, Neighbour, Generation and Len may run
// concurrently with each other.
type MACTable struct {
	limit      int
	ageNS      uint64
	entries    map[macKey]*macEntry // chained by next over segments
	count      int
	ages       map[Segment]*ageList
	neighbours neighbours
	generation uint64
}

// macKey is VLAN 16 | MAC 48.
type macKey uint64

type macEntry struct {
	key          macKey
	segment      Segment
	port         uint32
	remote       netip.Addr // Learn.Remote
	announced    bool
	seenNS       uint64
	next         *macEntry // the same address in another segment
	older, newer *macEntry // in the segment's list
}

// ageList is the entries of a segment by when they were seen.
type ageList struct {
	oldest, newest *macEntry
	count          int
}

const (
	// DefaultMACAge is how long an address stays without being seen.
	DefaultMACAge = 300 * time.Second
	// DefaultMACs is the number of addresses a table takes. At the limit the one seen
	// longest ago makes room, of the segment that has most: addresses made up in one
	// VNI displace none of another that has fewer.
	DefaultMACs = 8192
)

// NewMACTable holds at most limit addresses, each for age after it was last
// seen; 0 stands for the default of either.
func NewMACTable(limit int, age time.Duration) *MACTable {
	if limit == 0 {
		limit = DefaultMACs
	}
	if age == 0 {
		age = DefaultMACAge
	}
	return &MACTable{limit: limit, ageNS: uint64(age), entries: map[macKey]*macEntry{}, ages: map[Segment]*ageList{},
		neighbours: newNeighbours(limit)}
}

func keyOf(vlan uint16, mac uint64) macKey { return macKey(uint64(vlan)<<48 | mac&(1<<48-1)) }

// Lookup is Env.MAC: the address as the segment knows it, or as a port without a
// VNI has it; for such a port's frames as any segment knows it, unless several do.
// It does not look at ages: an address stays until Expire.
func (t *MACTable) Lookup(s Segment, vlan uint16, mac uint64) (port uint32, ok bool) {
	if e := t.find(s, vlan, mac); e != nil {
		return e.port, true
	}
	return 0, false
}

func (t *MACTable) find(s Segment, vlan uint16, mac uint64) *macEntry {
	first := t.entries[keyOf(vlan, mac)]
	if first == nil {
		return nil
	}
	if first.next == nil && (s == 0 || first.segment == 0) {
		return first
	}
	return t.exact(s, first.key)
}

// exact is the entry of the segment itself.
func (t *MACTable) exact(s Segment, key macKey) *macEntry {
	e := t.entries[key]
	for e != nil && e.segment != s {
		e = e.next
	}
	return e
}

// at tells whether l is of the place that e is of.
func (e *macEntry) at(l *Learn) bool {
	return e.segment == l.Segment && e.port == l.Port && e.remote == l.Remote
}

// Moved tells whether the address that l is of is known elsewhere now. A frame that
// teaches l is to be learnt from at once when it comes again.
func (t *MACTable) Moved(l *Learn) bool {
	if !l.Valid {
		return false
	}
	e := t.find(l.Segment, l.VLAN, l.MAC)
	return e != nil && !e.at(l)
}

// Announced is Env.Announced.
func (t *MACTable) Announced(s Segment, vlan uint16, mac uint64, port uint32) bool {
	e := t.exact(s, keyOf(vlan, mac))
	return e != nil && e.port == port && e.announced
}

// VTEP is Env.VTEP.
func (t *MACTable) VTEP(s Segment, vlan uint16, mac uint64) netip.Addr {
	if e := t.find(s, vlan, mac); e != nil {
		return e.remote
	}
	return netip.Addr{}
}

// Learn notes that the address was seen at nowNS (CLOCK_MONOTONIC), and reports
// whether that changes forwarding: it is new, has moved to another port or remote,
// or says of an IP address that it is its own now. An l that is not valid changes
// nothing, nor does one of another place that is older than what is known.
func (t *MACTable) Learn(l Learn, nowNS uint64) (changed bool) {
	if !l.Valid {
		return false
	}
	key := keyOf(l.VLAN, l.MAC)
	if e := t.find(l.Segment, l.VLAN, l.MAC); e != nil && nowNS < e.seenNS && !e.at(&l) {
		return false
	}
	changed = t.displace(l.Segment, key)
	e := t.exact(l.Segment, key)
	if e == nil {
		t.makeRoom(l.Segment)
		e = &macEntry{key: key, segment: l.Segment, port: l.Port, remote: l.Remote, next: t.entries[key]}
		t.entries[key] = e
		t.count++
		changed = true
	} else {
		t.unlink(e)
		if !e.at(&l) {
			changed, e.announced = true, false
		}
		e.port, e.remote = l.Port, l.Remote
	}
	if l.Announced && !e.announced {
		changed, e.announced = true, true
	}
	e.seenNS = nowNS
	t.link(e)
	if l.IP.IsValid() {
		changed = t.neighbours.learn(neighbourKey{l.Segment, l.VLAN, l.IP}, l.MAC, nowNS) || changed
	}
	if changed {
		t.generation++
	}
	return changed
}

// displace removes what a new place of the address makes untrue: a port without a
// VNI is in all of them, so an address that is there is in none alone.
func (t *MACTable) displace(s Segment, key macKey) (changed bool) {
	for e := t.entries[key]; e != nil; {
		next := e.next
		if e.segment != s && (s == 0 || e.segment == 0) {
			t.remove(e)
			changed = true
		}
		e = next
	}
	return changed
}

// makeRoom removes an address if the table is full: of the segment that has most,
// the learner's own if it is one of these.
func (t *MACTable) makeRoom(own Segment) {
	if t.count < t.limit {
		return
	}
	most := t.ages[own]
	for _, l := range t.ages {
		if most == nil || l.count > most.count {
			most = l
		}
	}
	t.remove(most.oldest)
}

// Expire removes what was not seen or said for the table's age, addresses and what
// hosts have said of theirs, and returns the number of both.
func (t *MACTable) Expire(nowNS uint64) int {
	n := 0
	for _, l := range t.ages {
		for l.oldest != nil && nowNS-min(nowNS, l.oldest.seenNS) >= t.ageNS {
			t.remove(l.oldest)
			n++
		}
	}
	if said := t.neighbours.expire(nowNS, t.ageNS); said > 0 {
		t.generation++
		n += said
	}
	return n
}

// Flush removes the addresses learnt on port and returns their number; FlushAll those
// of all ports.
func (t *MACTable) Flush(port uint32) int {
	return t.flush(func(on uint32) bool { return on == port })
}

// FlushAll is with Flush.
func (t *MACTable) FlushAll() int { return t.flush(func(uint32) bool { return true }) }

func (t *MACTable) flush(pick func(port uint32) bool) int {
	n := 0
	for _, l := range t.ages {
		for e := l.oldest; e != nil; {
			next := e.newer
			if pick(e.port) {
				t.remove(e)
				n++
			}
			e = next
		}
	}
	return n
}

// Neighbour is Env.Neighbour, with segments as Lookup has them.
func (t *MACTable) Neighbour(s Segment, vlan uint16, ip netip.Addr) (mac uint64, ok bool) {
	if mac, ok = t.neighbours.find(neighbourKey{s, vlan, ip}); ok {
		return mac, ok
	}
	if s != 0 {
		return t.neighbours.find(neighbourKey{0, vlan, ip})
	}
	for any := range t.ages {
		one, there := t.neighbours.find(neighbourKey{any, vlan, ip})
		if there && ok && one != mac {
			return 0, false
		}
		if there {
			mac, ok = one, true
		}
	}
	return mac, ok
}

// Generation changes whenever a Lookup or Neighbour may answer otherwise than before.
func (t *MACTable) Generation() uint64 { return t.generation }

// Len is the number of addresses.
func (t *MACTable) Len() int { return t.count }

// MACEntry is one address, for showing the table.
type MACEntry struct {
	Segment Segment
	VLAN    uint16
	MAC     uint64
	Port    uint32
	SeenNS  uint64     // CLOCK_MONOTONIC
	Remote  netip.Addr // behind a tunnel with several; invalid otherwise
}

// Entries lists the table, of each segment the address seen longest ago first.
func (t *MACTable) Entries() []MACEntry {
	list := make([]MACEntry, 0, t.count)
	for s, l := range t.ages {
		for e := l.oldest; e != nil; e = e.newer {
			list = append(list, MACEntry{s, uint16(e.key >> 48), uint64(e.key) & (1<<48 - 1), e.port, e.seenNS, e.remote})
		}
	}
	return list
}

func (t *MACTable) remove(e *macEntry) {
	t.unlink(e)
	t.count--
	t.generation++
	if t.entries[e.key] == e {
		if t.entries[e.key] = e.next; e.next == nil {
			delete(t.entries, e.key)
		}
		return
	}
	before := t.entries[e.key]
	for before.next != e {
		before = before.next
	}
	before.next = e.next
}

func (t *MACTable) link(e *macEntry) {
	l := t.ages[e.segment]
	if l == nil {
		l = &ageList{}
		t.ages[e.segment] = l
	}
	e.older, e.newer = l.newest, nil
	if l.newest != nil {
		l.newest.newer = e
	} else {
		l.oldest = e
	}
	l.newest = e
	l.count++
}

func (t *MACTable) unlink(e *macEntry) {
	l := t.ages[e.segment]
	if e.older != nil {
		e.older.newer = e.newer
	} else {
		l.oldest = e.newer
	}
	if e.newer != nil {
		e.newer.older = e.older
	} else {
		l.newest = e.older
	}
	if l.count--; l.count == 0 {
		delete(t.ages, e.segment)
	}
}
