// SPDX-License-Identifier: Apache-2.0

package replica

import "time"

// envelope is a message to send, with the number of the replica or client that gets it.
type envelope struct {
	to int
	m  Message
}

// againAfter is the time without an acknowledgement after which the leader sends a log entry
// again.
const againAfter = 20 * time.Millisecond

type entry struct {
	request uint64
	valid   bool
	acks    byte // bitmap of acknowledgements at the leader
	sentAt  time.Duration
}

// Node is a replica of the log. The replica with number 0 is the leader.
type Node struct {
	id  int
	log []entry
	// Only the leader uses these fields.
	position   []uint32 // for each request number: log index plus one; 0: the log has no such entry
	committed  uint64   // a majority has all entries below this index
	everywhere uint64   // every replica has all entries below this index
}

func newNode(id int) *Node {
	n := &Node{id: id}
	if id == 0 {
		n.position = make([]uint32, maxRequests)
	}
	return n
}

// receive handles a message, and appends the messages to send in answer to envelopes.
func (n *Node) receive(m *Message, now time.Duration, envelopes []envelope) []envelope {
	switch {
	case m.Kind == propose && n.id == 0:
		return n.propose(m.Request, now, envelopes)
	case m.Kind == ack && n.id == 0 && m.From < Replicas:
		return n.acked(int(m.From), m.Index, envelopes)
	case m.Kind == appendE && n.id != 0:
		for uint64(len(n.log)) <= m.Index {
			n.log = append(n.log, entry{})
		}
		n.log[m.Index] = entry{request: m.Request, valid: true}
		return append(envelopes, n.envelope(0, Message{Kind: ack, Index: m.Index}))
	}
	return envelopes
}

func (n *Node) envelope(to int, m Message) envelope {
	m.From = byte(n.id)
	return envelope{to, m}
}

// propose appends a new request to the leader's log. If the request is already
// committed, it only sends the reply again.
func (n *Node) propose(request uint64, now time.Duration, envelopes []envelope) []envelope {
	if place := n.position[request]; place != 0 {
		if index := uint64(place - 1); index < n.committed { // the client repeats the request because the reply was lost
			envelopes = append(envelopes, n.envelope(Client, Message{Kind: reply, Index: index, Request: request}))
		}
		return envelopes
	}
	index := uint64(len(n.log))
	n.log = append(n.log, entry{request: request, valid: true, acks: 1, sentAt: now})
	n.position[request] = uint32(index) + 1
	return n.spread(index, envelopes)
}

func (n *Node) spread(index uint64, envelopes []envelope) []envelope {
	e := &n.log[index]
	for to := 1; to < Replicas; to++ {
		if e.acks>>to&1 == 0 {
			envelopes = append(envelopes, n.envelope(to, Message{Kind: appendE, Index: index, Request: e.request}))
		}
	}
	return envelopes
}

// acked records that the replica "from" has stored the log entry at index. It then commits, in order,
// all entries that a majority has.
func (n *Node) acked(from int, index uint64, envelopes []envelope) []envelope {
	if index >= uint64(len(n.log)) {
		return envelopes
	}
	n.log[index].acks |= 1 << from
	for n.committed < uint64(len(n.log)) && n.log[n.committed].votes() >= majority {
		envelopes = append(envelopes, n.envelope(Client, Message{Kind: reply, Index: n.committed, Request: n.log[n.committed].request}))
		n.committed++
	}
	for n.everywhere < n.committed && n.log[n.everywhere].votes() == Replicas {
		n.everywhere++
	}
	return envelopes
}

func (e *entry) votes() (n int) {
	for i := range Replicas {
		n += int(e.acks >> i & 1)
	}
	return n
}

func (n *Node) tick(now time.Duration, envelopes []envelope) []envelope {
	if n.id != 0 {
		return envelopes
	}
	for i := n.everywhere; i < uint64(len(n.log)); i++ {
		if e := &n.log[i]; e.votes() < Replicas && now-e.sentAt >= againAfter {
			e.sentAt = now
			envelopes = n.spread(i, envelopes)
		}
	}
	return envelopes
}

// state returns the number of log entries before the first missing one, and the FNV-1a
// digest of these entries.
func (n *Node) state() (entries, digest uint64) {
	digest = 0xcbf29ce484222325
	for i := range n.log {
		if !n.log[i].valid {
			break
		}
		for shift := 0; shift < 64; shift += 8 {
			digest = (digest ^ n.log[i].request>>shift&0xff) * 0x100000001b3
		}
		entries++
	}
	return entries, digest
}
