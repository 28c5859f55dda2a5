package openflow

import "time"

// When an address changes its place. Whoever sends from another's address would have
// the other's frames; a virtual machine that has moved does the same, and once. So
//
//   - an address that was silent for moveQuiet moves at once, within learnRate;
//   - one that is not moves at once too, within movesRate of the port it moves to;
//   - one that has moved maxMoves times within moveWindow stays where it was before as
//     long as it is heard there, and goes back there with the first frame;
//   - one that is alive behind a guest's port stays in its VNI, or in none. A machine
//     without a VNI that moves to another host appears in a tunnel's: between a tunnel
//     and a port without a VNI the rules above hold.
const (
	moveQuiet  = 3 * time.Second // more than two sweeps of control, which notes hits
	moveWindow = 10 * time.Second
	maxMoves   = 2
	// movesBurst addresses move to a port at once, and movesRate a second.
	movesBurst = 64
	movesRate  = 8
	// vniQuiet is how long an address must be silent to be learnt in another VNI, where
	// that takes it from where it is.
	vniQuiet = 30 * time.Second
)

// contest is what is remembered of an address's moves.
type contest struct {
	home    macPlace // before the first of moves
	moves   int      // away from home
	movedNS uint64   // the last of moves
}

// silent tells whether e was not seen for a time.
func (e *macEntry) silent(d time.Duration, nowNS uint64) bool {
	return nowNS-min(nowNS, e.seenNS) >= uint64(d)
}

// refusesMove returns the counter of the reason why e does not move to where l was
// seen, a place on p; nil: it does.
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

// crosses tells whether l would take the address from guests of another VNI, or of
// none, where it is alive.
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
