// SPDX-License-Identifier: Apache-2.0

package hub

import (
	"context"
	"time"

	"weft/central/wire"
)

// This file limits the number of batches a second that a hub sends. A batch (wire.Batch) costs a hub
// and a host together some 50 µs of CPU time, nearly independent of the number of changes in it. After
// a change of a network with hundreds of hosts, each of them needs a batch. At the limit, hosts wait in
// a queue, in order of arrival. Further changes for a waiting host go into the same batch. Below the
// limit no host waits.
//
// Some messages are never delayed: messages about the host's own ports, messages about a port that has
// moved, answers, and all messages that a call of Sync waits for. A host that needs an address earlier
// sends a Pull, and the hub then sends everything that is queued for the host. If no port has the
// address yet, the hub sends it as soon as a port has it.

const (
	// batchRate is the number of batches a second above which hosts wait. With more than
	// batchRate*beatWithin hosts, the limit is higher: each host gets one batch in beatWithin. After a
	// quiet time, the hub may send a batch to every host at once.
	batchRate = 150
	// paceTick is the interval at which the hub sends batches to waiting hosts. To wake up costs the
	// hub about as much as a batch, so an interval is long enough for more than one batch at batchRate.
	paceTick = 12500 * time.Microsecond
	// beatTick is the interval at which the hub looks for hosts to which it has sent nothing for long.
	beatTick = 25 * time.Millisecond
	// A host to which the hub has sent nothing for beatTicks ticks gets its queued messages, or an
	// empty batch as a sign of life (a beat). The hub waits up to beatSpread-1 ticks more, a different
	// number for different hosts. So the beats are spread over time and do not delay changes.
	beatTicks, beatSpread = 64, 12
	// beatWithin is the longest time between two messages to a host. The hub announces it in the
	// message Welcome. A host that hears nothing for 1.5 times this time closes the connection.
	beatWithin = 2 * time.Second
	// beatDebt limits how far beats can bring the number of tokens below 0. The pacer is a token
	// bucket: a batch takes a token. A beat is sent even if no token is left. Batches of the queue then
	// wait until the number is positive again. Otherwise a hub with very many busy hosts would send
	// beats and queued batches at the full rate each.
	beatDebt = 16
)

// pacer is a token bucket that limits the rate of batches, with the queue of the sessions that wait for
// a token. Hub.mu guards it.
type pacer struct {
	rate  float64 // batches a second
	burst float64 // limit of tokens
	// waiting sessions in order of arrival; some may have got their batch in the meantime
	line   []*session
	tokens float64   // number of batches that may be sent at once
	filled time.Time // time up to which tokens are counted
}

// join appends a session to the queue, unless the session is already in it.
func (p *pacer) join(s *session) {
	if !s.inLine {
		s.inLine = true
		p.line = append(p.line, s)
	}
}

// nextSession returns the first session of the queue and takes a token, if there is a token. Otherwise
// it returns nil.
func (p *pacer) nextSession(now time.Time) *session {
	p.tokens = min(p.tokens+now.Sub(p.filled).Seconds()*p.rate, p.burst)
	p.filled = now
	for len(p.line) > 0 {
		s := p.line[0]
		if s.behind && p.tokens < 1 {
			return nil
		}
		p.line[0] = nil
		p.line = p.line[1:]
		s.inLine = false
		if s.behind {
			p.tokens--
			return s
		}
	}
	p.line = nil // releases the array
	return nil
}

// spend takes a token for a batch that did not wait in the queue.
func (p *pacer) spend() { p.tokens = max(-beatDebt, p.tokens-1) }

// pace sends batches to waiting sessions as long as the pacer has tokens. It reports whether sessions
// still wait. The caller holds mu.
func (h *Hub) pace(now time.Time) (waiting bool) {
	if !h.stalled {
		sessions := float64(len(h.sessions))
		h.pacer.rate, h.pacer.burst = max(batchRate, sessions/beatWithin.Seconds()), sessions
	}
	for s := h.pacer.nextSession(now); s != nil; s = h.pacer.nextSession(now) {
		h.endRevision(s, false)
	}
	return len(h.pacer.line) > 0
}

// beats sends a message to each host that has got none for about beatTicks ticks, so that the host
// knows that the hub is alive. It returns when ctx ends.
func (h *Hub) beats(ctx context.Context) {
	tick := time.NewTicker(beatTick)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		h.mu.Lock()
		h.beatAll()
		h.mu.Unlock()
	}
}

// beatAll sends a message to each session that has got none for about beatTicks ticks. The message has
// the changes that are queued for the session: they make it hardly more expensive than an empty
// message. The caller holds mu.
func (h *Hub) beatAll() {
	h.tick++
	if h.fleet.changed() { // a Revision sent before the round would overtake the changes
		h.round()
	}
	for _, s := range h.sessions {
		if h.tick-s.fed < beatTicks+int64(s.number%beatSpread) {
			continue
		}
		if !s.behind && !s.ask || h.stalled {
			s.beat()
			continue
		}
		h.pacer.spend()
		h.endRevision(s, false)
	}
}

// pull handles a host's message Pull. It sends everything that is queued for the host at once, followed
// by the answer.
func (h *Hub) pull(s *session, m *wire.Pull) {
	h.stats.Pulls++
	if h.fleet.changed() {
		h.round()
	}
	unknown := h.unknown(s, m.GetQuestions())
	if len(m.GetQuestions()) > 0 && len(unknown) == 0 {
		h.answerPull(s, m)
		return
	}
	if s.behind {
		h.endRevision(s, false)
	}
	for _, w := range unknown { // before the answer, which may wait for a slow store
		h.remember(s, w)
	}
	h.fence(fenced{session: s, pull: m})
}

// unknown returns those addresses in the questions that no bound port has. It leaves out networks in
// which the host has no port.
func (h *Hub) unknown(s *session, questions []*wire.Question) (list []want) {
	for _, q := range questions {
		n := h.fleet.nets[q.GetNet()]
		if n == nil || s.nets[n] == 0 {
			continue
		}
		if a := addressOf(q); n.portAt(a) == nil {
			list = append(list, want{n, a})
		}
	}
	return list
}

// remember notes that a host waits for an address that no port has yet. When a port gets the address,
// the hub sends it without waiting for the pacer.
func (h *Hub) remember(s *session, w want) {
	if _, known := s.interest[w]; known {
		return
	}
	h.want(s, w)
	s.overdue = append(s.overdue, w)
	if len(s.overdue) > maxLate {
		h.unwant(s, s.overdue[0])
		s.overdue = s.overdue[1:]
	}
}

// endWanting marks the sessions that wait for an address of port p as urgent. The hub sends their
// messages at the end of this round, without waiting for the pacer.
func (h *Hub) endWanting(n *network, p *port) {
	if len(n.waiting) == 0 {
		return
	}
	for _, a := range p.addresses() {
		for s := range n.waiting[a] {
			s.urgent = true
			h.unwant(s, want{n, a})
		}
	}
}

// answerPull sends a host all its queued messages and the answer to its Pull, in one batch. It does not
// wait for the pacer.
func (h *Hub) answerPull(s *session, m *wire.Pull) {
	if h.fleet.changed() {
		h.round()
	}
	if s.behind {
		h.putRevision(s, false)
	}
	h.answer(s, &wire.Answer{Number: m.GetNumber()})
}
