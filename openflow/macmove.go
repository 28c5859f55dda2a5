// SPDX-License-Identifier: Apache-2.0

package openflow

import "time"

// Rules for an address that moves. A sender that uses another machine's address would
// receive that machine's frames. A virtual machine that migrates looks the same, but
// moves once. Therefore:
//
//   - An address that was silent for moveQuiet moves at once, within learnRate.
//   - An address that was not silent moves at once too, within movesRate of its new port.
//   - An address that has moved maxMoves times within moveWindow stays at its first place
//     as long as it is heard there. It returns there with the next frame from there.
//   - An address that is alive behind a guest's port stays in its VNI, or without one.
//     A machine without a VNI that migrates to another host appears in the VNI of a
//     tunnel. Between a tunnel and a port without a VNI only the other rules apply.
const (
	moveQuiet  = 3 * time.Second // longer than two sweeps of control, which record hits
	moveWindow = 10 * time.Second
	maxMoves   = 2
	// movesBurst addresses may move to a port at once, and movesRate a second.
	movesBurst = 64
	movesRate  = 8
	// vniQuiet is how long an address must be silent before it may move to another
	// VNI.
	vniQuiet = 30 * time.Second
)

// contest is the recent history of an address's moves.
type contest struct {
	home    macPlace // place before the first of moves
	moves   int      // number of moves away from home
	movedNS uint64   // time of the last move
}

// silent reports whether e was not seen for a time of d.
func (e *macEntry) silent(d time.Duration, nowNS uint64) bool {
	return nowNS-min(nowNS, e.seenNS) >= uint64(d)
}

// refusesMove returns the counter of the reason for refusing the move of e to l's
// place on p, or nil if e moves.
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

// crosses reports whether l would take the address from a guest in another VNI, or in
// none, where the address is alive.
func (t *MACTable) crosses(l *Learn, nowNS uint64) bool {
	if l.Tunnel {
		return false
	}
	for e := t.entries[keyOf(l.VLAN, l.MAC)]; e != nil; e = e.next {
		if e.segment != l.Segment && (l.Segment == 0 || e.segment == 0) && !e.tunnel && !e.silent(vniQuiet, nowNS) {
			return true
		}
	}
	return false
}
