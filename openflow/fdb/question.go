// SPDX-License-Identifier: Apache-2.0

package fdb

import "net/netip"

// Question is an address of a declared network that the switch needs for a frame, but whose location it does
// not know. The switch asks weft-central for the location. There are two causes: weft-central sends the
// addresses of this network only on demand (Network.Asked), or a new address has not arrived yet.
type Question struct {
	Segment Segment // 0: no question
	MAC     uint64  // if IP is invalid
	IP      netip.Addr
}

// Valid reports whether q names an address. The zero Question does not.
func (q Question) Valid() bool { return q.Segment != 0 }

// Knows reports whether the table has the address that question q asks for. It also returns true if the
// network of q was deleted, so that no frame waits for an answer.
func (t *Table) Knows(q Question) (ok bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if t.nets[q.Segment] == nil {
		return true
	}
	if q.IP.IsValid() {
		_, ok = t.hostOf(q.Segment, q.IP)
		return ok
	}
	return t.netAddress(q.Segment, q.MAC) != nil
}
