// SPDX-License-Identifier: Apache-2.0

package fdb

import "net/netip"

// Question names an address of a declared network whose location the switch does not
// know. The switch asks weft-central for the location when a frame needs it. The switch
// lacks an address because the network sends addresses only on demand (Network.Asked),
// or because a new address has not arrived yet.
type Question struct {
	Segment Segment // 0: no question
	MAC     uint64  // if IP is invalid
	IP      netip.Addr
}

// Valid reports whether q asks for an address.
func (q Question) Valid() bool { return q.Segment != 0 }

// Knows reports whether the table has the answer to question q. It also returns true if
// the network of q was deleted, so that nobody waits any longer.
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
