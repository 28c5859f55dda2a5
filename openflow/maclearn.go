package openflow

import (
	"net/netip"
	"time"
)

// MACTable is the table of addresses that normal has learnt. The owner guards
// it: only Lookup, Generation and Len may run concurrently with each other.
type MACTable struct {
	limit   int
	ageNS   uint64
	entries map[macKey]*macEntry
	// oldest and newest end the list of entries by when they were seen.
	oldest, newest *macEntry
	generation     uint64
}

// macKey is VLAN 16 | MAC 48.
type macKey uint64

type macEntry struct {
	key          macKey
	port         uint32
	remote       netip.Addr // Learn.Remote
	seenNS       uint64
	older, newer *macEntry
}

const (
	// DefaultMACAge is how long an address stays without being seen.
	DefaultMACAge = 300 * time.Second
	// DefaultMACs is the number of addresses a table takes. At the limit the
	// one seen longest ago makes room.
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
	return &MACTable{limit: limit, ageNS: uint64(age), entries: make(map[macKey]*macEntry)}
}

func keyOf(vlan uint16, mac uint64) macKey { return macKey(uint64(vlan)<<48 | mac&(1<<48-1)) }

// Lookup is Env.MAC. It does not look at ages: an address stays until Expire.
func (t *MACTable) Lookup(vlan uint16, mac uint64) (port uint32, ok bool) {
	e := t.entries[keyOf(vlan, mac)]
	if e == nil {
		return 0, false
	}
	return e.port, true
}

// VTEP is Env.VTEP.
func (t *MACTable) VTEP(vlan uint16, mac uint64) netip.Addr {
	if e := t.entries[keyOf(vlan, mac)]; e != nil {
		return e.remote
	}
	return netip.Addr{}
}

// Learn notes that the address was seen at nowNS (CLOCK_MONOTONIC), and reports
// whether that changes forwarding: it is new, or has moved to another port or remote. An
// l that is not valid changes nothing.
func (t *MACTable) Learn(l Learn, nowNS uint64) (changed bool) {
	if !l.Valid {
		return false
	}
	key := keyOf(l.VLAN, l.MAC)
	e := t.entries[key]
	if e == nil {
		if len(t.entries) >= t.limit {
			t.remove(t.oldest)
		}
		e = &macEntry{key: key, port: l.Port, remote: l.Remote}
		t.entries[key] = e
		changed = true
	} else {
		t.unlink(e)
		changed = e.port != l.Port || e.remote != l.Remote
		e.port, e.remote = l.Port, l.Remote
	}
	e.seenNS = nowNS
	t.link(e)
	if changed {
		t.generation++
	}
	return changed
}

// Expire removes the addresses not seen for the table's age and returns their
// number.
func (t *MACTable) Expire(nowNS uint64) int {
	n := 0
	for t.oldest != nil && nowNS-min(nowNS, t.oldest.seenNS) >= t.ageNS {
		t.remove(t.oldest)
		n++
	}
	return n
}

// Flush removes the addresses learnt on port and returns their number.
func (t *MACTable) Flush(port uint32) int {
	n := 0
	for e := t.oldest; e != nil; {
		next := e.newer
		if e.port == port {
			t.remove(e)
			n++
		}
		e = next
	}
	return n
}

// Generation changes whenever a Lookup may answer otherwise than before.
func (t *MACTable) Generation() uint64 { return t.generation }

// Len is the number of addresses.
func (t *MACTable) Len() int { return len(t.entries) }

// MACEntry is one address, for showing the table.
type MACEntry struct {
	VLAN   uint16
	MAC    uint64
	Port   uint32
	SeenNS uint64     // CLOCK_MONOTONIC
	Remote netip.Addr // behind a tunnel with several; invalid otherwise
}

// Entries lists the table, the address seen longest ago first.
func (t *MACTable) Entries() []MACEntry {
	list := make([]MACEntry, 0, len(t.entries))
	for e := t.oldest; e != nil; e = e.newer {
		list = append(list, MACEntry{uint16(e.key >> 48), uint64(e.key) & (1<<48 - 1), e.port, e.seenNS, e.remote})
	}
	return list
}

func (t *MACTable) remove(e *macEntry) {
	t.unlink(e)
	delete(t.entries, e.key)
	t.generation++
}

func (t *MACTable) link(e *macEntry) {
	e.older, e.newer = t.newest, nil
	if t.newest != nil {
		t.newest.newer = e
	} else {
		t.oldest = e
	}
	t.newest = e
}

func (t *MACTable) unlink(e *macEntry) {
	if e.older != nil {
		e.older.newer = e.newer
	} else {
		t.oldest = e.newer
	}
	if e.newer != nil {
		e.newer.older = e.older
	} else {
		t.newest = e.older
	}
}
