// SPDX-License-Identifier: Apache-2.0

package conntrack

import "weft/packet"

// Entry is a connection as control shows it.
type Entry struct {
	Ref         Ref
	Orig, Reply Tuple
	Mark        uint32
	Label       [2]uint64 // upper and lower half
	// TimeoutS is the time until it expires in seconds, at most the timeout.
	TimeoutS uint32
	Replied  bool
	SNAT     bool
	DNAT     bool
	// Class is the state whose timeout runs.
	Class Class
	// State is the state of a TCP connection.
	State TCPState
	// Tags are the verification tags of an SCTP association, by direction.
	Tags [2]uint32
}

// readTries bounds how often Each rereads a connection that changes meanwhile.
const readTries = 100

// Each calls visit for every connection that has not expired, until visit returns
// false. Workers continue meanwhile: each entry is consistent, the whole table is
// not. The entry is valid during the call.
func (m *Memory) Each(now uint64, visit func(*Entry) bool) {
	m.EachIn(0, uint32(len(m.conns)), now, visit)
}

// EachIn visits the records numbered from to to-1 like Each. It reports whether more
// records follow; it reports false too once visit has returned false.
func (m *Memory) EachIn(from, to uint32, now uint64, visit func(*Entry) bool) bool {
	fresh := min(m.head.fresh, uint32(len(m.conns)))
	var e Entry
	for n := from; n < min(to, fresh); n++ {
		if m.entry(n, now, &e) && !visit(&e) {
			return false
		}
	}
	return to < fresh
}

// entry copies connection n to e. It reports false if no connection lives there, or
// if it kept changing.
func (m *Memory) entry(n uint32, now uint64, e *Entry) bool {
	c := &m.conns[n]
	for range readTries {
		before := c.meta.Load()
		if before&1 == 0 || c.expired(now) {
			return false
		}
		long := m.addresses(n)
		_, moves := m.timeout(c.policy, c.class)
		*e = Entry{
			Ref:      Ref{n, uint32(before)},
			Orig:     c.tuples[0].tuple((*[4]uint64)(long[:4])),
			Reply:    c.tuples[1].tuple((*[4]uint64)(long[4:])),
			TimeoutS: uint32(max(int64(c.expiresNS-moves-now), 0) / 1_000_000_000),
			Replied:  c.flags&connReplied != 0,
			SNAT:     c.flags&connSNAT != 0,
			DNAT:     c.flags&connDNAT != 0,
			Class:    c.class,
		}
		if c.flags&connLabelled != 0 {
			e.Mark, e.Label = c.mark, m.labels[n]
		}
		switch e.Orig.Proto {
		case packet.ProtoTCP:
			e.State, _ = stateOf(m.peers[n][0].phase, m.peers[n][1].phase)
		case packet.ProtoSCTP:
			e.Tags = [2]uint32{m.peers[n][0].end, m.peers[n][1].end}
		}
		if c.meta.Load() == before {
			return true
		}
	}
	return false
}
