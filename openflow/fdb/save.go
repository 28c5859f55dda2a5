// SPDX-License-Identifier: Apache-2.0

package fdb

// Saved is a learned address in the form in which the control process saves it across a restart. If Learn.IP
// is valid, it is an IP address that the host with Learn.MAC has announced. Otherwise it is the MAC address
// with its port and its remote VTEP.
type Saved struct {
	Learn  Learn
	SeenNS uint64 // CLOCK_MONOTONIC
	// ContestedNS is the time at which another MAC address last announced Learn.IP;
	// 0: never.
	ContestedNS uint64
}

// Saved returns all learned addresses, first the MAC addresses, then the IP addresses. The MAC addresses of
// each port and remote VTEP, and the IP addresses of each port, are in the order in which they were last
// seen, the oldest first.
func (t *Table) Saved() []Saved {
	t.mu.RLock()
	defer t.mu.RUnlock()
	all := make([]Saved, 0, t.count+len(t.neighbours.entries))
	for _, p := range t.ports {
		for _, h := range p.holders {
			for e := h.oldest; e != nil; e = e.newer {
				all = append(all, Saved{Learn{Valid: true, Segment: e.segment, VLAN: uint16(e.key >> 48), MAC: uint64(e.key) & (1<<48 - 1),
					Port: e.port, Tunnel: e.tunnel, Announced: e.announced, Remote: e.remote}, e.seenNS, 0})
			}
		}
	}
	for _, said := range t.neighbours.ages {
		for e := said.Front(); e != nil; e = e.Next() {
			all = append(all, e.Value.(*neighbour).saved())
		}
	}
	return all
}

func (n *neighbour) saved() Saved {
	return Saved{Learn{Valid: true, Segment: n.segment, VLAN: n.vlan, MAC: n.mac, Port: n.port, IP: n.ip}, n.seenNS, n.contestedNS}
}

// Restore adds those of the saved addresses that have not expired at nowNS, and returns their number. The
// limits of the table and of its ports apply, but not the rate limits. Restore skips an address that the
// table already has, that is in a declared network, or that the operator has bound to another port.
func (t *Table) Restore(saved []Saved, nowNS uint64) (n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range saved {
		s := &saved[i]
		if !s.Learn.Valid || s.SeenNS > nowNS || nowNS-s.SeenNS >= t.age(s.Learn.Segment) {
			continue
		}
		if s.Learn.IP.IsValid() && t.restoreIP(s) || !s.Learn.IP.IsValid() && t.restoreMAC(s) {
			n++
		}
	}
	if n > 0 {
		t.generation++
	}
	return n
}

func (t *Table) restoreMAC(s *Saved) bool {
	l, p := &s.Learn, t.portOf(s.Learn.Port)
	key := keyOf(l.VLAN, l.MAC)
	declared, _ := t.declaredInNet(l)
	if declared || t.declaredElsewhere(l) {
		return false
	}
	if t.count >= t.limit || p.count >= t.PortLimit() || t.exact(l.Segment, key) != nil || t.displaced(l.Segment, key) != nil {
		return false
	}
	e := &macEntry{key: key, segment: l.Segment, macPlace: l.place(), tunnel: l.Tunnel, announced: l.Announced, seenNS: s.SeenNS}
	t.insert(e)
	t.link(e, p)
	return true
}

func (t *Table) restoreIP(s *Saved) bool {
	l, n := &s.Learn, &t.neighbours
	key := neighbourKey{l.Segment, l.VLAN, l.IP}
	own := n.ages[l.Port]
	if n.entries[key] != nil || len(n.entries) >= n.limit || own != nil && own.Len() >= max(n.limit/2, 1) {
		return false
	}
	if _, declared := t.hostOf(l.Segment, l.IP); declared || t.declaredIPElsewhere(l) {
		return false
	}
	n.learn(key, l.Port, l.MAC, s.SeenNS, t.age(l.Segment))
	n.entries[key].Value.(*neighbour).contestedNS = s.ContestedNS
	return true
}
