// SPDX-License-Identifier: Apache-2.0

package hub

import (
	"net/netip"

	"weft/central/wire"
)

// question handles a host's question on which host an address is. The answer names the port with this
// address. From then on, the hub sends the host each change of this port.
func (h *Hub) question(s *session, q *wire.Question) {
	h.stats.Questions++
	h.answerQuestion(s, q, wire.Absence_ABSENCE_UNSPECIFIED)
}

// answerQuestion answers a host's question for an address. If no bound port has the address, the answer
// has absence as the reason. If absence is ABSENCE_UNSPECIFIED, the answer first waits until the hub
// has received all changes that are in the store now.
func (h *Hub) answerQuestion(s *session, q *wire.Question, absence wire.Absence) {
	n := h.fleet.nets[q.GetNet()]
	foreign := n == nil || s.nets[n] == 0 // the host has no port in the network
	if foreign || len(s.interests)+len(s.interest) >= maxInterests {
		h.stats.QuestionsRefused++
		h.answer(s, &wire.Answer{Number: q.GetNumber(), Absence: wire.Absence_ABSENCE_REFUSED})
		return
	}
	a := addressOf(q)
	if p := n.portAt(a); p != nil {
		h.addInterest(s, p)
		h.answer(s, &wire.Answer{Number: q.GetNumber(), Place: p.place()})
		return
	}
	if absence == wire.Absence_ABSENCE_UNSPECIFIED {
		h.fence(fenced{session: s, question: q})
		return
	}
	if absence == wire.Absence_ABSENCE_LATE {
		h.stats.QuestionsLate++
	}
	h.want(s, want{n, a})
	h.answer(s, &wire.Answer{Number: q.GetNumber(), Absence: absence})
}

// addressOf returns the address for which a question asks.
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

func (h *Hub) answer(s *session, answer *wire.Answer) {
	s.put(h.encode(&wire.ToHost{Message: &wire.ToHost_Answer{Answer: answer}}))
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

// forgetQuestions ends the updates of addresses in a network for which the host has asked, whether or
// not a port has the address.
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
