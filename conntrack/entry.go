// SPDX-License-Identifier: Apache-2.0

package conntrack

import "weft/packet"

// Entry is a connection as the control process lists and flushes it.
type Entry struct {
	Ref         Ref
	Orig, Reply Tuple
	Mark        uint32
	Label       [2]uint64 // upper and lower half
	// TimeoutS is the number of seconds until the connection expires.
	TimeoutS uint32
	Replied  bool
	SNAT     bool
	DNAT     bool
	ALG      ALG
	// Class is the timeout class that determines the connection's present timeout.
	Class Class
	// State is the TCP state; 0 for other protocols.
	State TCPState
	// Tags are the verification tags of an SCTP association: original direction, then
	// reply direction.
	Tags [2]uint32
}

// readTries is the number of attempts to copy a connection while workers change it. If all
// fail, Each skips the connection.
const readTries = 100

// Each calls visit for every connection that has not expired, until visit returns
// false. now is CLOCK_MONOTONIC in nanoseconds. Workers continue meanwhile, so each entry is
// consistent, but entries may be from different times. visit may use the entry only during the call.
func (m *Memory) Each(now uint64, visit func(*Entry) bool) {
	m.EachIn(0, uint32(len(m.conns)), now, visit)
}

// EachIn calls visit as Each does, but only for the records with the numbers start to end-1. It returns
// true if the caller should continue at the number "end". It returns false if visit has returned false, or
// if the table has no records from there on.
func (m *Memory) EachIn(start, end uint32, now uint64, visit func(*Entry) bool) bool {
	fresh := min(m.head.fresh, uint32(len(m.conns)))
	var e Entry
	for n := start; n < min(end, fresh); n++ {
		if m.entry(n, now, &e) && !visit(&e) {
			return false
		}
	}
	return end < fresh
}

// entry copies connection n to e. It returns false if n has ended, or if n was changed
// during every attempt.
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
		switch {
		case c.flags&connFTP != 0:
			e.ALG = ALGFTP
		case c.flags&connTFTP != 0:
			e.ALG = ALGTFTP
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
		if c.metaAfter() == before {
			return true
		}
	}
	return false
}
