// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"net/netip"
	"time"

	"weft/central/wire"
)

// A hub sends the addresses of a normal network without being asked, but under load it may be late. If the
// switch needs an address that has not come yet, the agent sends a Pull message. The hub then sends
// everything that it has queued for this host, and after that an answer with the number of the Pull. An
// address that has not come before the answer belongs to nobody. The agent waits for one Pull at a time.
// Further look-ups of addresses wait for the next one.

const (
	// pullRate limits the Pull messages of a host, in messages a second on average. pullBurst limits how
	// many it may send at once. Beyond the limits, the agent returns false for the switch's look-ups of
	// addresses. A guest that scans addresses therefore causes a limited number of messages.
	pullRate  = 50
	pullBurst = 50
	// maxPulled limits the look-ups of addresses that wait for one Pull message. The agent returns false
	// for further ones.
	maxPulled = 4096
)

// pulls has the switch's look-ups of addresses that wait for the answer to a Pull message.
type pulls struct {
	sent    *pull // unanswered; nil: none
	next    *pull // the next Pull, which is sent after the answer to sent; nil: no question waits for it
	tokens  float64
	counted time.Time // time up to which tokens are counted
}

type pull struct {
	number    uint64
	since     time.Time
	questions map[question]struct{}
}

func newPull() *pull { return &pull{questions: map[question]struct{}{}} }

func (p *pull) contains(q question) bool {
	if p == nil {
		return false
	}
	_, ok := p.questions[q]
	return ok
}

// spend reports whether pullRate allows one more Pull message now. If so, it counts the message.
func (ps *pulls) spend(now time.Time) bool {
	ps.tokens = min(ps.tokens+now.Sub(ps.counted).Seconds()*pullRate, pullBurst)
	ps.counted = now
	if ps.tokens < 1 {
		return false
	}
	ps.tokens--
	return true
}

// pull makes the look-up q wait for the answer to a Pull message. It returns false if no answer will come.
func (a *Agent) pull(q question, now time.Time) bool {
	ps := &a.pulls
	if ps.sent != nil && now.Sub(ps.sent.since) >= questionTimeout {
		ps.sent, ps.next = nil, nil // the switch does not wait for these questions any longer
	}
	switch {
	case ps.sent.contains(q) || ps.next.contains(q):
		return true
	case ps.sent == nil:
		p := newPull()
		p.questions[q] = struct{}{}
		return a.sendPull(p, now)
	case ps.next == nil:
		ps.next = newPull()
	case len(ps.next.questions) >= maxPulled:
		a.refusePull()
		return false
	}
	ps.next.questions[q] = struct{}{}
	return true
}

func (a *Agent) refusePull() {
	a.stats.Refused++
	a.stats.PullsRefused++
}

// sendPull sends a Pull message to the hub. It returns false if pullRate does not allow the message now,
// or if the session cannot take it.
func (a *Agent) sendPull(p *pull, now time.Time) bool {
	qs := &a.questions
	if !a.pulls.spend(now) {
		a.refusePull()
		return false
	}
	qs.next++
	p.number, p.since = qs.next, now
	m := &wire.Pull{Number: p.number}
	for q := range p.questions {
		m.Questions = append(m.Questions, q.message(0))
	}
	if !a.send(&wire.FromHost{Message: &wire.FromHost_Pull{Pull: m}}) {
		return false
	}
	a.stats.Pulls++
	a.pulls.sent = p
	return true
}

// pulled handles the hub's answer to the Pull message with this number, and sends the next one if look-ups
// wait for it. It returns false if the unanswered Pull has another number, or if there is none.
func (a *Agent) pulled(number uint64, b *batch) bool {
	ps := &a.pulls
	p, now := ps.sent, time.Now()
	if p == nil || p.number != number {
		return false
	}
	ps.sent = nil
	a.stats.PullsAnswered++
	a.absent(p, now, b)
	if next := ps.next; next != nil {
		ps.next = nil
		if !a.sendPull(next, now) {
			a.absent(next, now, b)
		}
	}
	return true
}

// absent handles those look-ups that waited for the Pull p and whose address the hub has not sent. It
// tells the switch, through the batch, that nobody has these addresses.
func (a *Agent) absent(p *pull, now time.Time, b *batch) {
	for q := range p.questions {
		n := a.state.nets[q.net]
		if n == nil || n.contains(q.mac, q.ip) {
			continue
		}
		a.questions.none(q, now)
		b.unknown = append(b.unknown, UnknownAddress{VNI: n.vni(), MAC: q.mac, IP: q.ip})
	}
}

func (n *network) contains(mac uint64, ip netip.Addr) bool {
	for _, p := range n.places {
		if !ip.IsValid() {
			if p.mac == mac {
				return true
			}
			continue
		}
		for _, other := range p.ips {
			if other == ip {
				return true
			}
		}
	}
	return false
}
