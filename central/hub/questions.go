// SPDX-License-Identifier: Apache-2.0

package hub

import (
	"net/netip"

	"weft/central/wire"
)

// question answers a host's question for an address. The host then gets all changes
// of the address.
func (h *Hub) question(s *session, q *wire.Question) {
	h.stats.Questions++
	h.answerQuestion(s, q, false)
}

// answerQuestion answers a question. If nobody has the address and final is false, the
// answer waits until the hub has caught up with the store.
func (h *Hub) answerQuestion(s *session, q *wire.Question, final bool) {
	n := h.fleet.nets[q.GetNet()]
	if n == nil || s.nets[n] == 0 { // only for networks in which the host has ports
		h.stats.QuestionsRefused++
		h.answer(s, q.GetNumber(), nil)
		return
	}
	a := addressOf(q)
	p := n.portAt(a)
	if len(s.interests)+len(s.interest) >= maxInterests {
		h.stats.QuestionsRefused++
		h.answer(s, q.GetNumber(), nil)
		return
	}
	switch {
	case p != nil:
		h.addInterest(s, p)
		h.answer(s, q.GetNumber(), p.place())
	case final:
		h.want(s, want{n, a})
		h.answer(s, q.GetNumber(), nil)
	default:
		h.fence(fenced{session: s, question: q})
	}
}

// addressOf returns the address that a question is about.
func addressOf(q *wire.Question) address {
	if b := q.GetAddress(); b != nil {
		ip, _ := netip.AddrFromSlice(b)
		return address{ip: ip}
	}
	return address{mac: wire.MACNumber(q.GetMac())}
}

// portAt returns the bound port that has the address, or nil.
func (n *network) portAt(a address) *port {
	if a.ip.IsValid() {
		return n.byIP[a.ip]
	}
	return n.byMAC[a.mac]
}

func (h *Hub) answer(s *session, number uint64, place *wire.Place) {
	s.put(h.encode(&wire.ToHost{Message: &wire.ToHost_Answer{Answer: &wire.Answer{Number: number, Place: place}}}))
	s.flush()
}

func (h *Hub) addInterest(s *session, p *port) {
	if _, has := s.interests[p]; !has {
		s.interests[p] = struct{}{}
		p.interested.add(s)
		h.stats.Interests++
	}
}

func (h *Hub) dropInterest(s *session, p *port) {
	if _, has := s.interests[p]; has {
		delete(s.interests, p)
		p.interested.remove(s)
		h.stats.Interests--
	}
}

func (h *Hub) want(s *session, w want) {
	set := w.net.waiting[w.address]
	if set == nil {
		set = map[*session]struct{}{}
		w.net.waiting[w.address] = set
	}
	set[s] = struct{}{}
	s.interest[w] = struct{}{}
}

func (h *Hub) unwant(s *session, w want) {
	delete(s.interest, w)
	delete(w.net.waiting[w.address], s)
	if len(w.net.waiting[w.address]) == 0 {
		delete(w.net.waiting, w.address)
	}
}

// forgetQuestions forgets the host's interests in a network, and its questions there
// that nobody has answered.
func (h *Hub) forgetQuestions(s *session, n *network) {
	for p := range s.interests {
		if p.net == n {
			h.dropInterest(s, p)
		}
	}
	for w := range s.interest {
		if w.net == n {
			h.unwant(s, w)
		}
	}
}
