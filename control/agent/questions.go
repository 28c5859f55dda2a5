// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"net/netip"
	"time"

	"weft/central/wire"
)

// Questions for addresses of networks that are not pushed. The hub answers each question
// once and sends changes of the address from then on. Known absences are remembered for
// a while, so that a scan of addresses costs the hub one question an address.

const (
	// maxPortQuestions bounds the questions of one port that wait for an answer.
	maxPortQuestions = 64
	// questionTimeout is the time after which a question without an answer counts as
	// unanswered.
	questionTimeout = time.Second
	// absentFor is how long an address without a place is not asked for again.
	absentFor = time.Second
	// maxAbsent bounds the remembered absences. Beyond it all are forgotten.
	maxAbsent = 65536
)

// question is an address of a network: a MAC address if ip is invalid.
type question struct {
	net string
	mac uint64
	ip  netip.Addr
}

type questions struct {
	next    uint64
	waiting map[uint64]waiting
	open    map[question]uint64 // number in waiting
	ports   map[string]int      // number of questions in waiting, by port
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

// ask sends a question unless the same one waits. The caller holds Agent.mu.
func (a *Agent) ask(port string, q question) bool {
	now := time.Now()
	qs := &a.questions
	if until, absent := qs.absent[q]; absent && now.Before(until) {
		return false
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
	message := &wire.Question{Number: qs.next, Net: q.net}
	if q.ip.IsValid() {
		message.Of = &wire.Question_Address{Address: q.ip.AsSlice()}
	} else {
		message.Of = &wire.Question_Mac{Mac: macBytes(q.mac)}
	}
	if !a.send(&wire.FromHost{Message: &wire.FromHost_Question{Question: message}}) {
		return false
	}
	a.stats.Asked++
	qs.waiting[qs.next] = waiting{q, port, now}
	qs.open[q] = qs.next
	qs.ports[port]++
	return true
}

// take removes the question of a number.
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

// none remembers that nobody has an address.
func (qs *questions) none(q question, now time.Time) {
	if len(qs.absent) >= maxAbsent {
		clear(qs.absent)
	}
	qs.absent[q] = now.Add(absentFor)
}

// answer takes the hub's answer to a question.
func (a *Agent) answer(m *wire.Answer, b *batch) {
	w, ok := a.questions.take(m.GetNumber())
	n := a.state.nets[w.question.net]
	switch {
	case !ok || n == nil:
	case m.GetPlace() == nil:
		a.questions.none(w.question, time.Now())
		b.unknown = append(b.unknown, UnknownAddress{VNI: n.vni(), MAC: w.question.mac, IP: w.question.ip})
	default:
		a.state.setPlace(n, m.GetPlace(), b)
	}
}

// reask asks for the places again that the host knows of networks which are not pushed:
// a new session knows nothing of the host's interest.
func (a *Agent) reask() {
	for id, n := range a.state.nets {
		if !n.view.GetAsked() {
			continue
		}
		for _, p := range n.places {
			if p.host == a.state.host {
				continue
			}
			qs := &a.questions
			qs.next++
			if !a.send(&wire.FromHost{Message: &wire.FromHost_Question{Question: &wire.Question{Number: qs.next, Net: id,
				Of: &wire.Question_Mac{Mac: macBytes(p.mac)}}}}) {
				return
			}
			qs.waiting[qs.next] = waiting{question{net: id, mac: p.mac}, "", time.Now()}
			qs.ports[""]++
		}
	}
}
