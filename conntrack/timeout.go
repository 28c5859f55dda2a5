package conntrack

import (
	"strings"
	"sync/atomic"
)

// Class is a state of a connection that has a timeout of its own. The names are
// those of the keys of CT_Timeout_Policy in ovs-vswitchd.conf.db(5).
type Class uint8

// Classes. The order is part of the layout in shared memory; append only.
const (
	TCPSynSent Class = iota
	TCPSynRecv
	TCPEstablished
	TCPFinWait
	TCPCloseWait
	TCPLastAck
	TCPTimeWait
	TCPClose
	UDPFirst    // one datagram was seen
	UDPSingle   // more, all in one direction
	UDPMultiple // both directions
	ICMPFirst
	ICMPReply
	SCTPInit
	SCTPEstablished
	SCTPShutdown
	OtherFirst
	OtherMultiple

	// Classes is the number of classes.
	Classes
)

var classNames = [Classes]string{
	"tcp_syn_sent", "tcp_syn_recv", "tcp_established", "tcp_fin_wait", "tcp_close_wait", "tcp_last_ack",
	"tcp_time_wait", "tcp_close", "udp_first", "udp_single", "udp_multiple", "icmp_first", "icmp_reply",
	"sctp_init", "sctp_established", "sctp_shutdown", "other_first", "other_multiple",
}

// String is the name under which the timeout is set.
func (c Class) String() string {
	if c >= Classes {
		return "unknown"
	}
	return classNames[c]
}

// ParseClass is the inverse of String.
func ParseClass(name string) (Class, bool) {
	for i, n := range classNames {
		if n == name {
			return Class(i), true
		}
	}
	return 0, false
}

// Timeouts in seconds, by class.
type Timeouts [Classes]uint32

// DefaultTimeouts are those of Linux's nf_conntrack, but for an established
// connection of TCP: a day, as in Open vSwitch's userspace datapath.
var DefaultTimeouts = Timeouts{
	TCPSynSent: 120, TCPSynRecv: 60, TCPEstablished: 86400, TCPFinWait: 120, TCPCloseWait: 60, TCPLastAck: 30,
	TCPTimeWait: 120, TCPClose: 10, UDPFirst: 30, UDPSingle: 30, UDPMultiple: 120, ICMPFirst: 30, ICMPReply: 30,
	SCTPInit: 30, SCTPEstablished: 86400, SCTPShutdown: 30, OtherFirst: 60, OtherMultiple: 600,
}

// MaxTimeout bounds a timeout in seconds: a year.
const MaxTimeout = 365 * 86400

// ClassNames lists the names of the classes.
func ClassNames() string { return strings.Join(classNames[:], ", ") }

// policy has timeouts in nanoseconds. Control writes, workers read.
type policy [Classes]atomic.Uint64

func (p *policy) set(t *Timeouts) {
	for i := range p {
		p[i].Store(uint64(min(t[i], MaxTimeout)) * 1_000_000_000)
	}
}

// SetPolicy sets the timeouts of policy number i, 0 being that of zones without
// one of their own. Connections take it up with their next frame.
func (m *Memory) SetPolicy(i uint8, t *Timeouts) { m.policies[i].set(t) }

// Policy returns the timeouts of policy i.
func (m *Memory) Policy(i uint8) (t Timeouts) {
	for c := range t {
		t[c] = uint32(m.policies[i][c].Load() / 1_000_000_000)
	}
	return t
}

// SetZonePolicy has connections that begin in the zone use policy i.
func (m *Memory) SetZonePolicy(zone uint16, i uint8) { m.zones[zone].policy.Store(uint32(i)) }

// ZonePolicy is the policy of a zone.
func (m *Memory) ZonePolicy(zone uint16) uint8 { return uint8(m.zones[zone].policy.Load()) }

// An expiry is written where it moves by the 128th part of its timeout, or a second:
// other workers read its cache line, and where there are many connections it leaves
// the processor's caches between two frames of one. It is that much later than the
// timeout says, so that none that was not written comes too early: RFC 4787 REQ-5
// forbids to end a translation of UDP before.
const (
	refreshShift = 7
	maxRefreshNS = 1_000_000_000
)

// timeout tells for a class how far ahead an expiry is written, the timeout and moves,
// and by how much it must move to be written.
func (m *Memory) timeout(policy uint8, class Class) (lasts, moves uint64) {
	timeout := m.policies[policy][class%Classes].Load()
	moves = min(timeout>>refreshShift, maxRefreshNS)
	return timeout + moves, moves
}

// refresh starts the timeout of class anew. The lock of c is held, or nobody knows
// of it yet.
func (t *Table) refresh(c *conn, class Class, now uint64) {
	c.class = class
	lasts, moves := t.timeout(c.policy, class)
	if now+lasts-c.expiresNS > moves { // also where it comes earlier than before
		c.expiresNS = now + lasts
	}
}

// due tells whether refresh would write anything.
func (t *Table) due(c *conn, class Class, now uint64) bool {
	lasts, moves := t.timeout(c.policy, class)
	return c.class != class || now+lasts-c.expiresNS > moves
}

// keep is refresh for whoever does not hold the lock, which is taken where refresh is
// due; it reports false if c is not of generation g any more.
func (t *Table) keep(c *conn, g uint32, class Class, now uint64) bool {
	if !t.due(c, class, now) {
		return c.generation() == g
	}
	if !t.lockConn(c, g) {
		return false
	}
	t.refresh(c, class, now)
	t.unlockConn(c, g)
	return true
}

// expired tells whether c's time has run out.
func (c *conn) expired(now uint64) bool { return int64(now-c.expiresNS) >= 0 }
