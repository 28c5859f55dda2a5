// SPDX-License-Identifier: Apache-2.0

package hub

import (
	"context"
	"time"

	"weft/central/wire"
)

// This file limits the rate of batches. A batch costs a hub and a host some 50 µs of
// CPU time together, nearly independent of the number of changes in it. A change of a
// network with hundreds of hosts needs hundreds of batches. A hub therefore sends a
// limited number of batches a second. At the limit, sessions wait in a queue, in order
// of arrival, and their further changes join their batch. Below the limit no session
// waits.
//
// Some messages are sent at once, whatever the load: messages about the host's own
// ports, messages about a port that has moved, answers, and all batches that a call of
// Sync waits for. A host that needs another address before its batch arrives asks for
// it with a Pull. If nobody has the address yet, the hub sends it as soon as a port has
// it.

const (
	// batchRate is the number of batches a second beyond which sessions wait. A hub
	// with more than batchRate*beatWithin sessions sends each session one batch in
	// beatWithin. After a quiet time, a hub sends as many batches at once as it has
	// sessions.
	batchRate = 150
	// paceTick is the interval at which the hub serves waiting sessions. A tick wakes the hub, which costs
	// about as much as a batch, so a tick serves more than one session at batchRate.
	paceTick = 12500 * time.Microsecond
	// beatTick is the interval at which the hub looks for sessions that have been sent nothing for long.
	beatTick = 25 * time.Millisecond
	// A session that has been sent nothing for beatTicks ticks gets a beat: its queued messages, or an
	// empty batch. Each session waits up to beatSpread-1 ticks more, a number of its own. So the beats of
	// many sessions are spread over time and do not delay changes.
	beatTicks, beatSpread = 64, 12
	// beatWithin is the longest time between two messages to a host, which the hub promises in its
	// Welcome. A host leaves a hub that is silent for 1.5 times this time.
	beatWithin = 2 * time.Second
	// beatDebt limits a debt of tokens. Beats do not wait for the rate: a beat takes a token even if none
	// is left, and sessions in the queue wait until this debt is paid. Without it, a hub with very many
	// busy sessions would send beats at the full rate, and batches of the queue at the same rate.
	beatDebt = 16
)

// pacer has the queue of sessions that wait until the rate allows a batch. Hub.mu
// guards it.
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

// nextSession returns the first session of the queue if the rate allows a batch now,
// otherwise nil.
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

// spend counts a batch that did not wait in the queue.
func (p *pacer) spend() { p.tokens = max(-beatDebt, p.tokens-1) }

// pace sends batches to waiting sessions as far as the rate allows. It reports whether
// further sessions wait. The caller holds mu.
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

// beats shows hosts that the hub is alive: it sends batches to sessions that get nothing else, until
// ctx ends.
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

// beatAll sends a message to each session that has got none for about beatTicks ticks.
// If changes of the session wait, the message has them, because it then costs hardly
// more than an empty one. The caller holds mu.
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

// pull handles a host's Pull: it sends everything that is queued for the host at once,
// followed by the answer.
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

// unknown returns the addresses in questions that nobody has, as far as they concern
// networks of the host.
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

// remember notes that a host waits for an address of a pushed network. As soon as a
// port has the address, the hub sends it without delay.
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

// endWanting marks the sessions that wait for an address of port p as urgent, so that they get it in
// this round, whatever the load.
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

// answerPull sends a host everything that is queued for it, without waiting for the rate, and
// the answer to its Pull, in one batch.
func (h *Hub) answerPull(s *session, m *wire.Pull) {
	if h.fleet.changed() {
		h.round()
	}
	if s.behind {
		h.putRevision(s, false)
	}
	h.answer(s, &wire.Answer{Number: m.GetNumber()})
}
