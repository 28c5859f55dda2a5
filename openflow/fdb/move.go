// SPDX-License-Identifier: Apache-2.0

package fdb

import "time"

// Rules for a MAC address that moves to another port or remote. An attacker that uses
// another machine's address would receive its frames. A migrating virtual machine
// looks the same, but moves only once. Therefore:
//
//   - An address that was silent for moveQuiet moves at once, within learnRate.
//   - Any other address also moves at once, within movesRate of its new port.
//   - An address that has moved maxMoves times within moveWindow stays at its first
//     location as long as frames arrive from there, and returns with the next such frame.
//   - An address in use behind a guest's port cannot move to another VNI, or between
//     a VNI and a port without one. This does not apply to frames from a tunnel, because
//     a machine without a VNI may migrate to another host.
const (
	// moveQuiet exceeds two intervals of control's sweep, which reads the flow counters. Control
	// notices a frame of a known flow only in the sweep.
	moveQuiet  = 3 * time.Second
	moveWindow = 10 * time.Second
	maxMoves   = 2
	// movesBurst is the number of addresses in use that may move to a port at once. movesRate is
	// the number a second.
	movesBurst = 64
	movesRate  = 8
	// vniQuiet is the time of silence after which an address may move to another VNI.
	vniQuiet = 30 * time.Second
)

// contest is the recent history of an address's moves between ports or remotes.
type contest struct {
	home    macPlace // location before the first of the counted moves
	moves   int      // number of moves away from home
	movedNS uint64   // time of the last move
}

// silent reports whether the table has learned no frame of the address for the time d.
func (e *macEntry) silent(d time.Duration, nowNS uint64) bool {
	return nowNS-min(nowNS, e.seenNS) >= uint64(d)
}

// refusesMove returns the counter of the refusal if entry e may not move to port p and the
// remote in l, or nil if it may. It updates the entry's history of moves and the port's rates.
func (p *macPort) refusesMove(e *macEntry, l *Learn, nowNS uint64) *uint64 {
	c := &e.contest
	if e.silent(moveQuiet, nowNS) {
		if !p.holder(l.Remote).learns(p, nowNS) {
			return &p.refused.Rate
		}
		*c = contest{}
		return nil
	}
	if c.moves == 0 || nowNS-min(nowNS, c.movedNS) >= uint64(moveWindow) {
		*c = contest{home: e.macPlace}
	}
	if l.place() == c.home {
		return nil
	}
	if c.moves >= maxMoves || !p.moves.take(nowNS) {
		return &p.refused.Moves
	}
	c.moves++
	c.movedNS = nowNS
	return nil
}

// crosses reports whether learning l would move an address that a guest is using into
// or out of a VNI.
func (t *Table) crosses(l *Learn, nowNS uint64) bool {
	if l.Tunnel {
		return false
	}
	for e := t.entries[keyOf(l.VLAN, l.MAC)]; e != nil; e = e.next {
		if e.segment != l.Segment && t.overlap(l.Segment, e.segment) && !e.tunnel && !e.silent(vniQuiet, nowNS) {
			return true
		}
	}
	return false
}
