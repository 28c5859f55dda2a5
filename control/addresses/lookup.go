// SPDX-License-Identifier: Apache-2.0

package addresses

import (
	"net/netip"

	"weft/openflow/fdb"
	"weft/openflow/xlate"
)

// This file has the look-ups of translations. Table implements a part of xlate.Env
// and xlate.Networks.

func (t *Table) MAC(s fdb.Segment, vlan uint16, mac uint64) (port uint32, ok bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.table.Lookup(s, vlan, mac)
}

func (t *Table) VTEP(s fdb.Segment, vlan uint16, mac uint64) netip.Addr {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.table.VTEP(s, vlan, mac)
}

func (t *Table) Announced(s fdb.Segment, vlan uint16, mac uint64, port uint32) bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.table.Announced(s, vlan, mac, port)
}

func (t *Table) Neighbour(s fdb.Segment, vlan uint16, ip netip.Addr) (mac uint64, ok bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.table.Neighbour(s, vlan, ip)
}

func (t *Table) Network(s fdb.Segment) *fdb.Network {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.table.Network(s)
}

func (t *Table) Place(s fdb.Segment, mac uint64) (fdb.Place, bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.table.Place(s, mac)
}

func (t *Table) HostOf(s fdb.Segment, ip netip.Addr) (mac uint64, ok bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.table.HostOf(s, ip)
}

// Knows reports whether the table has the answer to question q. It also returns true if
// the network of q was deleted, so that nobody waits any longer.
func (t *Table) Knows(q xlate.Question) (ok bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if t.table.Network(q.Segment) == nil {
		return true
	}
	if q.IP.IsValid() {
		_, ok = t.table.HostOf(q.Segment, q.IP)
	} else {
		_, ok = t.table.Place(q.Segment, q.MAC)
	}
	return ok
}
