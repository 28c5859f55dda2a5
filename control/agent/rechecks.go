// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"slices"
	"time"

	"weft/central/wire"
)

// In a large network, the agent must ask the hub for each address. The hub sends changes of an address
// only if the host has asked for this address in the present session. The hub forgets what a host has
// asked when it sends the network again (wire.NetReset), as at the start of a session. The agent then asks
// again for each address whose location it has recorded (a recheck). It removes the location if nobody has
// the address any more.
//
// There may be many rechecks, because a host keeps recorded locations across restarts. So at most
// recheckWindow of them are unanswered at the same time.

const (
	// recheckWindow is the largest number of rechecks (repeated questions about recorded locations) that
	// may wait for the hub's answer at the same time. The agent sends further ones as answers arrive.
	recheckWindow = 256
	// recheckPause is the pause before the agent asks weft-central again for the host of an
	// address, if the first answer decided nothing: weft-central refused it, could not read
	// its store in time, or knows only an older location. The switch keeps the location meanwhile.
	recheckPause = 5 * time.Second
)

// recheck is a question to the hub: is a MAC address still where the agent has recorded it?
type recheck struct {
	net, port string // ids
	mac       uint64
}

// rechecks has the rechecks (questions about recorded locations of addresses) of a session with the hub.
type rechecks struct {
	due        []recheck // not sent yet
	unanswered map[uint64]recheck
	undecided  []recheck // become due at the time repeatAt
	repeatAt   time.Time
}

func newRechecks() rechecks { return rechecks{unanswered: map[uint64]recheck{}} }

// recheckNet asks the hub again for all recorded locations of addresses in a network. It does
// nothing if the hub sends the network's addresses without being asked.
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

// sendRechecks sends the rechecks (repeated questions about recorded locations) that are due, until
// recheckWindow of them wait for an answer.
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

// placeOf returns the recorded location of the port that the question r is about, if any.
func (a *Agent) placeOf(r recheck) (place, bool) {
	n := a.state.nets[r.net]
	if n == nil {
		return place{}, false
	}
	p, known := n.places[r.port]
	return p, known
}

// rechecked handles the hub's answer to a recheck (a question about the recorded location of an
// address). It returns false if no recheck has the answer's number.
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

// decide handles the hub's answer m to the recheck r of an address with the recorded location p. It
// updates or removes the location, or notes that the agent must ask again.
func (a *Agent) decide(r recheck, p place, m *wire.Answer, b *batch) {
	n := a.state.nets[r.net]
	found := m.GetPlace()
	switch {
	case found == nil && m.GetAbsence() == wire.Absence_ABSENCE_NOBODY:
		a.stats.Stale++
		a.state.removePlace(n, r.port, b)
	case found == nil && m.GetAbsence() == wire.Absence_ABSENCE_UNSPECIFIED:
		// A hub of an earlier version does not say why it knows no location. The recorded one may
		// still be right.
	case found == nil, found.GetPort() != r.port && found.GetGeneration() < p.generation:
		// The hub has refused the question, could not ask the store in time, or knows only an older location.
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

// repeatRechecks asks the hub again about addresses if its answers did not show whether their recorded
// locations are still right. It waits for recheckPause after the first of these answers. The agent calls
// it for each message of the hub, which sends at least one in each interval that it promises (wire.Welcome).
func (a *Agent) repeatRechecks() {
	rs := &a.rechecks
	if len(rs.undecided) == 0 || time.Now().Before(rs.repeatAt) {
		return
	}
	rs.due = append(rs.due, rs.undecided...)
	rs.undecided = nil
	a.sendRechecks()
}
