// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"slices"
	"time"

	"weft/central/wire"
)

// In a large network, the agent must ask the hub for each address. The hub sends
// changes of an address only if the host has asked for this address in the present
// session. The hub forgets the questions when it sends the network again
// (wire.NetReset), which it does at the beginning of a session. The agent then rechecks
// its places in the network: it asks for the address of each place, and removes the
// place if nobody has the address any more.
//
// Rechecks may be many, because a host keeps places over restarts. So the agent sends a
// further question only when one of recheckWindow questions is answered.

const (
	// recheckWindow limits the number of unanswered questions of rechecks. At the
	// limit, further questions wait.
	recheckWindow = 256
	// recheckPause is the pause before a place is rechecked again because the hub has
	// refused the question or could not ask the store. The switch keeps the place
	// meanwhile.
	recheckPause = 5 * time.Second
)

// recheck is a question for the address of a place that the agent already knows.
type recheck struct {
	net, port string // ids
	mac       uint64
}

// rechecks has the rechecks (questions about known places) of a session.
type rechecks struct {
	due        []recheck // not sent yet
	unanswered map[uint64]recheck
	undecided  []recheck // become due at the time repeatAt
	repeatAt   time.Time
}

func newRechecks() rechecks { return rechecks{unanswered: map[uint64]recheck{}} }

// recheckNet asks again for all places of a network whose addresses the hub sends only
// on request.
func (a *Agent) recheckNet(id string) {
	n := a.state.nets[id]
	if n == nil || !n.view.GetAsked() {
		return
	}
	ofNet := func(r recheck) bool { return r.net == id }
	rs := &a.rechecks
	rs.due = slices.DeleteFunc(rs.due, ofNet)
	rs.undecided = slices.DeleteFunc(rs.undecided, ofNet)
	for port, p := range n.places {
		rs.due = append(rs.due, recheck{id, port, p.mac})
	}
	a.sendRechecks()
}

// sendRechecks sends the questions that are due.
func (a *Agent) sendRechecks() {
	rs := &a.rechecks
	for len(rs.due) > 0 && len(rs.unanswered) < recheckWindow {
		r := rs.due[len(rs.due)-1]
		rs.due = rs.due[:len(rs.due)-1]
		if p, known := a.placeOf(r); !known || p.mac != r.mac {
			continue
		}
		q := question{net: r.net, mac: r.mac}
		a.questions.next++
		if !a.send(&wire.FromHost{Message: &wire.FromHost_Question{Question: q.message(a.questions.next)}}) {
			return // the session ends
		}
		a.stats.Rechecks++
		rs.unanswered[a.questions.next] = r
	}
	if len(rs.due) == 0 {
		rs.due = nil // releases the array
	}
}

// placeOf returns the known place that the question r is about.
func (a *Agent) placeOf(r recheck) (place, bool) {
	n := a.state.nets[r.net]
	if n == nil {
		return place{}, false
	}
	p, known := n.places[r.port]
	return p, known
}

// rechecked handles the answer to a recheck (a question about a known place). It
// returns false if no such question has the answer's number.
func (a *Agent) rechecked(m *wire.Answer, b *batch) bool {
	rs := &a.rechecks
	r, ok := rs.unanswered[m.GetNumber()]
	if !ok {
		return false
	}
	delete(rs.unanswered, m.GetNumber())
	if p, known := a.placeOf(r); known && p.mac == r.mac {
		a.decide(r, p, m, b)
	}
	a.sendRechecks()
	return true
}

// decide applies the answer to the question about the known place p.
func (a *Agent) decide(r recheck, p place, m *wire.Answer, b *batch) {
	n := a.state.nets[r.net]
	found := m.GetPlace()
	switch {
	case found == nil && m.GetAbsence() == wire.Absence_ABSENCE_NOBODY:
		a.stats.Stale++
		a.state.removePlace(n, r.port, b)
	case found == nil && m.GetAbsence() == wire.Absence_ABSENCE_UNSPECIFIED:
		// A hub of an earlier version does not say why it has no place. The address may still be
		// there.
	case found == nil, found.GetPort() != r.port && found.GetGeneration() < p.generation:
		// The hub is behind, or has not said anything.
		if len(a.rechecks.undecided) == 0 {
			a.rechecks.repeatAt = time.Now().Add(recheckPause)
		}
		a.rechecks.undecided = append(a.rechecks.undecided, r)
	default:
		if found.GetPort() != r.port { // the address has gone to another port
			a.stats.Stale++
			a.state.removePlace(n, r.port, b)
		}
		a.state.setPlace(n, &portPlace{found.GetPort(), placeOf(found)}, b)
	}
}

// repeatRechecks repeats questions about known places whose answers left open whether the place is
// still right. It does so after recheckPause. It is called for each message of the hub. The hub sends
// at least one message in each interval that it promises (wire.Welcome).
func (a *Agent) repeatRechecks() {
	rs := &a.rechecks
	if len(rs.undecided) == 0 || time.Now().Before(rs.repeatAt) {
		return
	}
	rs.due = append(rs.due, rs.undecided...)
	rs.undecided = nil
	a.sendRechecks()
}
