// SPDX-License-Identifier: Apache-2.0

// Package fdb is the forwarding database of the switch. It has the MAC and IP addresses that the action
// normal has learned from frames, that the operator has bound to ports, and that weft-central has
// declared. weft-central is the service that configures networks and ports on many hosts. MAC
// addresses are numbers of 48 bits. A port's number is the one that the data path uses.
//
//	table.go       looks addresses up, learns and expires them
//	segment.go     the segments (a bridge and a VNI) that separate addresses
//	neighbours.go  IP addresses that hosts have announced for their MAC addresses
//	declared.go    addresses that the operator has bound to ports
//	netaddress.go  addresses of weft-central's networks
//	services.go    the requests of these networks' guests that the host answers itself
//	groups.go      the sets of weft-central's groups that these addresses belong to
//	quota.go       quotas of ports and of remote VTEPs
//	bounds.go      limit, maximum age and counters of each bridge
//	move.go        rules for an address that moves to another port
//	changes.go     the addresses that have changed, which make translations of flows stale
//	question.go    addresses that the switch asks weft-central for
//	save.go        saves learned addresses across a restart of the control process
package fdb

import (
	"net/netip"
	"sync"
	"time"
)

// Table is the table of MAC and IP addresses. Each exported method locks mu, and takes no other lock while
// it holds mu. The caller of an unexported method holds mu.
type Table struct {
	mu    sync.RWMutex
	limit int
	ageNS uint64
	// entries has the newest entry of each address. macEntry.next links entries of the same
	// address in other segments.
	entries    map[macKey]*macEntry
	count      int
	ports      map[uint32]*macPort
	segments   map[Segment]int // number of addresses by segment
	tagged     int             // number of addresses in a VLAN
	bridges    bridges
	declared   declarations
	neighbours neighbours
	generation uint64
	changes    *Changes // addresses changed since the last TakeChanges

	// The networks that weft-central declares, and their addresses.
	nets         map[Segment]*netTable
	netAddresses int
	netLimit     int // MaxNetAddresses, except in tests
	netRefused   uint64
}

// Learn is a MAC address, and perhaps an IP address, that the action normal learns from a frame.
type Learn struct {
	Valid   bool
	Segment Segment
	VLAN    uint16
	Port    uint32
	MAC     uint64 // 48 bits
	// Tunnel is true if Port is a tunnel, so that MAC is behind another hypervisor.
	Tunnel bool
	// Announced is true if the frame is a broadcast or multicast. Such a frame reaches all hosts, so they learn
	// where the MAC address is.
	Announced bool
	// IP is the address that ARP or neighbour discovery announces for MAC.
	IP netip.Addr
	// Remote is the outer source address of a frame from a tunnel with several remote VTEPs; otherwise it is
	// invalid.
	Remote netip.Addr
}

// macKey has a VLAN ID in its upper 16 bits and a MAC address in its lower 48 bits.
type macKey uint64

// macPlace is the location of a MAC address: a port, and on a tunnel with several remote VTEPs the address
// of the VTEP.
type macPlace struct {
	port   uint32
	remote netip.Addr // Learn.Remote
}

type macEntry struct {
	key     macKey
	segment Segment
	macPlace
	tunnel       bool // the port is a tunnel
	announced    bool
	seenNS       uint64
	contest      contest
	holder       *macHolder
	next         *macEntry // the same address in another segment
	older, newer *macEntry // entries beside this one in the holder's list
}

const (
	// DefaultAge is the time after which an unused address expires.
	DefaultAge = 300 * time.Second
	// DefaultLimit is the largest number of addresses in a table. If the table is full, a new address evicts
	// one from the port with the most addresses.
	DefaultLimit = 65536
)

// New returns an empty table for at most limit addresses (0: DefaultLimit),
// which expire if unused for age (0: DefaultAge).
func New(limit int, age time.Duration) *Table {
	if limit == 0 {
		limit = DefaultLimit
	}
	if age == 0 {
		age = DefaultAge
	}
	changes := new(Changes)
	return &Table{changes: changes, limit: limit, ageNS: uint64(age), entries: map[macKey]*macEntry{}, ports: map[uint32]*macPort{},
		segments: map[Segment]int{}, neighbours: newNeighbours(limit, changes), nets: map[Segment]*netTable{}, netLimit: MaxNetAddresses}
}

// taggedKey returns 1 for a key with a VLAN, otherwise 0.
func taggedKey(k macKey) int {
	if k>>48 != 0 {
		return 1
	}
	return 0
}

func keyOf(vlan uint16, mac uint64) macKey { return macKey(uint64(vlan)<<48 | mac&(1<<48-1)) }

// Locate returns the port behind which a MAC address is. If the operator has bound the address to a port, it
// returns this port. Otherwise it returns the port behind which the address was learned in segment s or on a
// port without a VNI. For a frame of a port without a VNI, it searches all segments of the bridge. The
// segment that learned the address first wins, so that another one cannot divert the traffic. Locate does
// not check whether the address has expired.
func (t *Table) Locate(s Segment, vlan uint16, mac uint64) (port uint32, ok bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if e := t.find(s, vlan, mac); e != nil {
		return e.port, true
	}
	return 0, false
}

func (t *Table) find(s Segment, vlan uint16, mac uint64) *macEntry {
	if e := t.findDeclared(s, mac); e != nil {
		return e
	}
	var oldest *macEntry
	for e := t.entries[keyOf(vlan, mac)]; e != nil; e = e.next {
		if e.segment == s {
			return e
		}
		if t.overlap(e.segment, s) {
			oldest = e
		}
	}
	return oldest
}

// exact returns the entry of the address in this segment, or nil.
func (t *Table) exact(s Segment, key macKey) *macEntry {
	e := t.entries[key]
	for e != nil && e.segment != s {
		e = e.next
	}
	return e
}

func (l *Learn) place() macPlace { return macPlace{l.Port, l.Remote} }

// hasPlace reports whether entry e has the segment, the port and the remote VTEP of l.
func (e *macEntry) hasPlace(l *Learn) bool { return e.segment == l.Segment && e.macPlace == l.place() }

// Moved reports whether the table has the MAC address l.MAC behind another port or another remote VTEP. If
// so, the control process must learn from the next frame, and not wait until it reads the flow counters
// again.
func (t *Table) Moved(l *Learn) bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if !l.Valid || t.declaredElsewhere(l) {
		return false
	}
	if declared, _ := t.declaredInNet(l); declared {
		return false
	}
	e := t.find(l.Segment, l.VLAN, l.MAC)
	return e != nil && !e.hasPlace(l)
}

// Announced reports whether a broadcast or multicast frame with this source MAC address has arrived from the
// port.
func (t *Table) Announced(s Segment, vlan uint16, mac uint64, port uint32) bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	e := t.exact(s, keyOf(vlan, mac))
	return e != nil && e.port == port && e.announced
}

// VTEP returns the underlay address of the remote VTEP behind which the MAC address was learned. It returns
// an invalid address if there is none.
func (t *Table) VTEP(s Segment, vlan uint16, mac uint64) netip.Addr {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if e := t.find(s, vlan, mac); e != nil {
		return e.remote
	}
	return netip.Addr{}
}

// Learn records that a frame from the address in l arrived at nowNS (CLOCK_MONOTONIC). It reports whether
// frames may now be forwarded differently. It learns nothing if l.Valid is false, if the MAC address is in a
// declared network, or if a newer frame came from another location. It also learns nothing if the rules for
// moves or the quotas forbid it. The port's counters of refusals then count the address.
func (t *Table) Learn(l Learn, nowNS uint64) (changed bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !l.Valid {
		return false
	}
	if declared, elsewhere := t.declaredInNet(&l); declared {
		if elsewhere {
			t.portOf(l.Port).refused.Declared++
		}
		return false
	}
	if e := t.find(l.Segment, l.VLAN, l.MAC); e != nil && nowNS < e.seenNS && !e.hasPlace(&l) {
		return false
	}
	p := t.portOf(l.Port)
	key := keyOf(l.VLAN, l.MAC)
	e := t.exact(l.Segment, key)
	if e == nil {
		e = t.displaced(l.Segment, key)
	}
	if reason := t.refuses(p, e, &l, nowNS); reason != nil {
		*reason++
		return false
	}
	changed = t.enterSegment(e, &l)
	switch {
	case e == nil:
		t.makeRoom(p, l.Segment)
		e = &macEntry{key: key, segment: l.Segment, macPlace: l.place()}
		t.insert(e)
		t.bridgeOf(e.segment).Learned++
		changed = true
	case e.hasPlace(&l):
		t.unlink(e)
	default:
		t.unlink(e)
		if p.count >= t.PortLimit() {
			t.evict(p)
		}
		t.bridgeOf(e.segment).Moved++
		e.macPlace, e.announced, changed = l.place(), false, true
	}
	e.tunnel = l.Tunnel
	if l.Announced && !e.announced {
		changed, e.announced = true, true
	}
	e.seenNS = nowNS
	t.link(e, p)
	if changed {
		t.changes.add(RefOfMAC(l.MAC))
	}
	changed = t.learnIP(p, &l, nowNS) || changed
	if changed {
		t.generation++
	}
	return changed
}

// refuses returns nil if the table may learn the address in l. Otherwise it returns the counter of refusals
// that the caller increments. The argument e is the entry that the table would change: the entry of the
// address in the same segment, or one in another segment that cannot remain. It is nil for a new address.
func (t *Table) refuses(p *macPort, e *macEntry, l *Learn, nowNS uint64) *uint64 {
	switch {
	case t.declaredElsewhere(l):
		return &p.refused.Declared
	case t.crosses(l, nowNS):
		return &p.refused.OtherVNI
	case e == nil:
		if !p.holder(l.Remote).learns(p, nowNS) {
			return &p.refused.Rate
		}
	case !e.hasPlace(l):
		return p.refusesMove(e, l, nowNS)
	}
	return nil
}

// learnIP learns the IP address that a host announces in ARP or neighbour discovery.
func (t *Table) learnIP(p *macPort, l *Learn, nowNS uint64) (changed bool) {
	if !l.IP.IsValid() {
		return false
	}
	if _, declared := t.hostOf(l.Segment, l.IP); declared || t.declaredIPElsewhere(l) {
		p.refused.Declared++
		return false
	}
	key := neighbourKey{l.Segment, l.VLAN, l.IP}
	if contested, changed := t.neighbours.contest(key, l.MAC, nowNS, t.age(l.Segment)); contested {
		p.refused.Moves++
		return changed
	}
	if !t.neighbours.knows(key, l.MAC) && !p.holder(l.Remote).learns(p, nowNS) {
		p.refused.Rate++
		return false
	}
	return t.neighbours.learn(key, l.Port, l.MAC, nowNS, t.age(l.Segment))
}

// displaced returns an entry of the same address that must be removed when the address is learned in segment
// s, or nil. An entry of a port without a VNI and one of a VNI cannot both exist in a bridge.
func (t *Table) displaced(s Segment, key macKey) *macEntry {
	for e := t.entries[key]; e != nil; e = e.next {
		if e.segment != s && t.overlap(e.segment, s) {
			return e
		}
	}
	return nil
}

// enterSegment moves the entry e, if it is not nil, to segment l.Segment. It removes the other entries of
// the address that cannot exist together with an entry in this segment.
func (t *Table) enterSegment(e *macEntry, l *Learn) (changed bool) {
	key := keyOf(l.VLAN, l.MAC)
	for o := t.entries[key]; o != nil; {
		next := o.next
		if o != e && o.segment != l.Segment && t.overlap(l.Segment, o.segment) {
			t.remove(o)
			changed = true
		}
		o = next
	}
	if e == nil || e.segment == l.Segment {
		return changed
	}
	t.leaveSegment(e.segment)
	e.segment = l.Segment
	t.segments[e.segment]++
	return true
}

func (t *Table) leaveSegment(s Segment) {
	if t.segments[s]--; t.segments[s] == 0 {
		delete(t.segments, s)
	}
}

// Expire removes the MAC addresses that were unused for the maximum age of their bridge. It
// also removes the IP addresses that were not announced for that time. It returns the
// number of removed addresses.
func (t *Table) Expire(nowNS uint64) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := 0
	for _, p := range t.ports {
		for _, h := range p.holders {
			for h.oldest != nil && nowNS-min(nowNS, h.oldest.seenNS) >= t.age(h.oldest.segment) {
				t.bridgeOf(h.oldest.segment).Expired++
				t.remove(h.oldest)
				n++
			}
		}
	}
	if said := t.neighbours.expire(nowNS, t.age); said > 0 {
		t.generation++
		n += said
	}
	return n
}

// Flush removes the addresses learned on port and returns their number.
func (t *Table) Flush(port uint32) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.flush(port)
}

func (t *Table) flush(port uint32) int {
	p := t.ports[port]
	if p == nil {
		return 0
	}
	n := p.count
	for _, h := range p.holders {
		for h.oldest != nil {
			t.remove(h.oldest)
		}
	}
	return n
}

// Forget removes the addresses and counters of a port that no longer exists.
func (t *Table) Forget(port uint32) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.flush(port)
	delete(t.ports, port)
}

// Neighbour returns the MAC address that a host has announced for the IP address. It takes announcements
// from segment s and from ports without a VNI. If s is the segment of the ports without a VNI, it takes
// announcements from all segments of the bridge. If two announcements name different MAC addresses, ok is
// false.
func (t *Table) Neighbour(s Segment, vlan uint16, ip netip.Addr) (mac uint64, ok bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	key := neighbourKey{s, vlan, ip}
	if mac, ok = t.neighbours.find(key); t.neighbours.entries[key] != nil && !ok {
		return 0, false
	}
	agrees := func(otherSegment Segment) bool {
		key := neighbourKey{otherSegment, vlan, ip}
		if otherSegment == s || !t.overlap(otherSegment, s) || t.neighbours.entries[key] == nil {
			return true
		}
		one, sure := t.neighbours.find(key)
		if !sure || ok && one != mac {
			return false
		}
		mac, ok = one, true
		return true
	}
	if !agrees(s.trunk()) {
		return 0, false
	}
	if s.Local() == 0 {
		for any := range t.segments {
			if !agrees(any) {
				return 0, false
			}
		}
	}
	return mac, ok
}

// Generation returns a number that changes whenever a result of Locate or Neighbour may change.
func (t *Table) Generation() uint64 {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.generation
}

// Len returns the number of learned MAC addresses.
func (t *Table) Len() int {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.count
}

// Entry describes one address of the table, for display.
type Entry struct {
	Segment Segment
	VLAN    uint16 // VLAN ID; 0 for a declared address
	MAC     uint64
	Port    uint32
	SeenNS  uint64 // CLOCK_MONOTONIC
	// Remote is the remote VTEP of a tunnel with several VTEPs. For an address that weft-central has declared,
	// it is the address of the host. Otherwise it is invalid.
	Remote   netip.Addr
	Declared bool
}

// Entries returns all addresses. The learned addresses come first; those of each port and remote VTEP are in
// the order in which they were last seen, the oldest first. The declared addresses follow. A declared
// address behind another host has port 0.
func (t *Table) Entries() []Entry {
	t.mu.RLock()
	defer t.mu.RUnlock()
	list := make([]Entry, 0, t.count+t.netAddresses)
	for _, p := range t.ports {
		for _, h := range p.holders {
			for e := h.oldest; e != nil; e = e.newer {
				list = append(list, e.entry())
			}
		}
	}
	for _, entries := range t.declared.macs {
		for _, e := range entries {
			declared := e.entry()
			declared.Declared = true
			if t.netAddress(e.segment, declared.MAC) == nil {
				list = append(list, declared)
			}
		}
	}
	for s, net := range t.nets {
		for _, a := range net.macs {
			list = append(list, Entry{Segment: s, MAC: a.MAC, Port: a.Port, Remote: a.Remote, Declared: true})
		}
	}
	return list
}

func (e *macEntry) entry() Entry {
	return Entry{Segment: e.segment, VLAN: uint16(e.key >> 48), MAC: uint64(e.key) & (1<<48 - 1), Port: e.port,
		SeenNS: e.seenNS, Remote: e.remote}
}

// insert adds an address that the table does not have. The caller links it to its port.
func (t *Table) insert(e *macEntry) {
	e.next = t.entries[e.key]
	t.entries[e.key] = e
	t.count++
	t.bridgeOf(e.segment).Now++
	t.tagged += taggedKey(e.key)
	t.segments[e.segment]++
}

func (t *Table) remove(e *macEntry) {
	t.unlink(e)
	t.count--
	t.bridgeOf(e.segment).Now--
	t.tagged -= taggedKey(e.key)
	t.generation++
	t.changes.add(RefOfMAC(e.entry().MAC))
	t.leaveSegment(e.segment)
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
