// SPDX-License-Identifier: Apache-2.0

package fdb

import "time"

// Rules for a MAC address that moves to another port or to another remote tunnel end (VTEP). An
// attacker that uses another machine's address would receive its frames. A migrating virtual machine
// looks the same, but moves only once. Therefore:
//
//   - If the address was silent for moveQuiet, it moves at once. Like a new address, it counts against
//     learnRate.
//   - Any other address also moves at once, as long as its new port has not exceeded movesRate.
//   - After maxMoves moves within moveWindow, the address returns to its first location with the next
//     frame from there. It cannot move elsewhere until its last move is moveWindow ago.
//   - An address in use behind a guest's port cannot move to another VNI, or between
//     a VNI and a port without one. This does not apply to frames from a tunnel, because
//     a machine without a VNI may migrate to another host.
const (
	// moveQuiet is longer than two intervals at which the control process reads the flow counters. If a frame
	// matches an existing megaflow, the control process learns of the frame only from these counters.
	moveQuiet  = 3 * time.Second
	moveWindow = 10 * time.Second
	maxMoves   = 2
	// movesBurst is the number of addresses that may move to one port at once although they are in use.
	// movesRate is the number per second.
	movesBurst = 64
	movesRate  = 8
	// An address that has sent no frame for the time vniQuiet may move to another VNI.
	vniQuiet = 30 * time.Second
)

// contest is the recent history of an address's moves between ports, or between the remote VTEPs of a
// tunnel.
type contest struct {
	home    macPlace // location before the first of the counted moves
	moves   int      // number of moves away from home
	movedNS uint64   // time of the last move
}

// silent reports whether the table has not seen a frame of the address for the time d.
func (e *macEntry) silent(d time.Duration, nowNS uint64) bool {
	return nowNS-min(nowNS, e.seenNS) >= uint64(d)
}

// refusesMove returns nil if the address of entry e may move to port p and to the remote VTEP in l.
// Otherwise it returns the counter of refusals that the caller increments. It updates the entry's history of
// moves and takes tokens from the port's rate limits.
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

// crosses reports whether learning l would move an address into a VNI or out of one, although a guest has
// used the address within vniQuiet. It returns false for frames from tunnels.
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
