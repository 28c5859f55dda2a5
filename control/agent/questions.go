// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"maps"
	"net/netip"
	"time"

	"weft/central/wire"
)

// In a large network, the hub sends an address only if the agent asks for it. After that, the hub sends
// every change of this address without being asked again. If nobody has the address, the agent does not
// repeat the question for the time absentFor. So a guest that scans addresses causes few messages.

const (
	// maxPortQuestions limits the questions to the hub that are unanswered and that frames of one port
	// have caused.
	maxPortQuestions = 64
	// questionTimeout is how long the agent waits for the hub's answer to a question.
	questionTimeout = time.Second
	// absentFor is how long the agent does not ask again for an address that nobody has.
	absentFor = time.Second
	// maxAbsent limits the addresses that the agent remembers as absent. At the limit
	// it forgets all of them.
	maxAbsent = 65536
)

// If the hub has answered that nobody has an address, it reports later when somebody gets the address. The
// hub of the next session does not know that it should. The agent therefore repeats the question in the
// next session, as long as the switch may drop frames to this address without asking.
const (
	// absentInSwitch is how long the switch does not ask again for an address that nobody has: askAgain
	// plus sweepInterval of package control/pipeline.
	absentInSwitch = 6 * time.Second
	// maxUnsettled limits the questions that the next session repeats. It is at most maxPortQuestions. For
	// other addresses, the switch asks again when a frame needs them.
	maxUnsettled = 64
)

// question asks for the location of the IP address ip. If ip is invalid, it asks for
// the MAC address mac.
type question struct {
	net string
	mac uint64
	ip  netip.Addr
}

type questions struct {
	next    uint64
	waiting map[uint64]waiting
	open    map[question]uint64 // newest unanswered question about each address
	ports   map[string]int      // number of unanswered questions by port
	absent  map[question]time.Time
}

type waiting struct {
	question question
	port     string
	since    time.Time
}

func newQuestions() questions {
	return questions{waiting: map[uint64]waiting{}, open: map[question]uint64{}, ports: map[string]int{},
		absent: map[question]time.Time{}}
}

// ask asks the hub for an address that a frame of this port needs, unless the same question is unanswered.
// It returns false if no answer will come.
func (a *Agent) ask(port string, q question) bool {
	now := time.Now()
	qs := &a.questions
	if until, absent := qs.absent[q]; absent && now.Before(until) {
		return false
	}
	if n := a.state.nets[q.net]; n != nil && !n.view.GetAsked() {
		return a.pull(q, now)
	}
	if n, asked := qs.open[q]; asked && now.Sub(qs.waiting[n].since) < questionTimeout {
		return true
	}
	qs.expire(now)
	if qs.ports[port] >= maxPortQuestions {
		a.stats.Refused++
		return false
	}
	qs.next++
	if !a.send(&wire.FromHost{Message: &wire.FromHost_Question{Question: q.message(qs.next)}}) {
		return false
	}
	a.stats.Asked++
	qs.waiting[qs.next] = waiting{q, port, now}
	qs.open[q] = qs.next
	qs.ports[port]++
	return true
}

func (q *question) message(number uint64) *wire.Question {
	m := &wire.Question{Number: number, Net: q.net}
	if q.ip.IsValid() {
		m.Of = &wire.Question_Address{Address: q.ip.AsSlice()}
	} else {
		m.Of = &wire.Question_Mac{Mac: wire.MACBytes(q.mac)}
	}
	return m
}

func (qs *questions) take(number uint64) (waiting, bool) {
	w, ok := qs.waiting[number]
	if !ok {
		return w, false
	}
	delete(qs.waiting, number)
	if qs.open[w.question] == number {
		delete(qs.open, w.question)
	}
	if qs.ports[w.port]--; qs.ports[w.port] == 0 {
		delete(qs.ports, w.port)
	}
	return w, true
}

func (qs *questions) expire(now time.Time) {
	for number, w := range qs.waiting {
		if now.Sub(w.since) >= questionTimeout {
			qs.take(number)
		}
	}
}

func (qs *questions) none(q question, now time.Time) {
	if len(qs.absent) >= maxAbsent {
		clear(qs.absent)
	}
	qs.absent[q] = now.Add(absentFor)
}

// keepUnsettled stores some questions of the session that has ended, for the next session: those without
// an answer, and those to which the hub answered that nobody has the address.
func (a *Agent) keepUnsettled(now time.Time) {
	qs := &a.questions
	maps.DeleteFunc(a.unsettled, func(_ question, until time.Time) bool { return now.After(until) })
	keep := func(q question, until time.Time) {
		if len(a.unsettled) < maxUnsettled && now.Before(until) {
			a.unsettled[q] = until
		}
	}
	for q, number := range qs.open {
		keep(q, qs.waiting[number].since.Add(absentInSwitch))
	}
	for q, until := range qs.absent {
		keep(q, until.Add(absentInSwitch-absentFor))
	}
}

// askUnsettled repeats those questions of earlier sessions, stored by keepUnsettled, that are about the
// network net.
func (a *Agent) askUnsettled(net string) {
	n := a.state.nets[net]
	for q := range a.unsettled {
		if q.net != net {
			continue
		}
		delete(a.unsettled, q)
		if n != nil && n.view.GetAsked() && !n.contains(q.mac, q.ip) {
			a.ask("", q)
		}
	}
}

// answer handles the hub's answer to a question or to a Pull message. It accepts a location even after
// questionTimeout, because the hub does not send it again unless it changes or the agent asks again.
func (a *Agent) answer(m *wire.Answer, b *batch) {
	if a.pulled(m.GetNumber(), b) || a.rechecked(m, b) {
		return
	}
	w, waits := a.questions.take(m.GetNumber())
	place := m.GetPlace()
	if place != nil {
		if n := a.state.nets[place.GetNet()]; n != nil {
			a.state.setPlace(n, &portPlace{place.GetPort(), placeOf(place)}, b)
		}
		return
	}
	if n := a.state.nets[w.question.net]; waits && n != nil {
		a.questions.none(w.question, time.Now())
		b.unknown = append(b.unknown, UnknownAddress{VNI: n.vni(), MAC: w.question.mac, IP: w.question.ip})
	}
}
