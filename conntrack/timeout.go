// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"strings"
	"sync/atomic"
)

// Class is a timeout class: a state of connections that has a timeout of its own. The classes have the names
// in the table CT_Timeout_Policy of ovs-vswitchd.conf.db(5).
type Class uint8

// Timeout classes. Their order is part of the layout in shared memory, so new ones go
// to the end.
const (
	tcpSynSent Class = iota
	tcpSynRecv
	tcpEstablished
	tcpFinWait
	tcpCloseWait
	tcpLastAck
	tcpTimeWait
	tcpClose
	udpFirst    // one UDP datagram
	udpSingle   // several UDP datagrams, all in one direction
	udpMultiple // UDP datagrams in both directions
	icmpFirst
	icmpReply
	sctpInit
	sctpEstablished
	sctpShutdown
	otherFirst
	otherMultiple

	// classes is the number of classes.
	classes
)

var classNames = [classes]string{
	"tcp_syn_sent", "tcp_syn_recv", "tcp_established", "tcp_fin_wait", "tcp_close_wait", "tcp_last_ack",
	"tcp_time_wait", "tcp_close", "udp_first", "udp_single", "udp_multiple", "icmp_first", "icmp_reply",
	"sctp_init", "sctp_established", "sctp_shutdown", "other_first", "other_multiple",
}

// String returns the name of the timeout class in the configuration.
func (c Class) String() string {
	if c >= classes {
		return "unknown"
	}
	return classNames[c]
}

// ParseClass is the inverse of String. It returns false for an unknown name.
func ParseClass(name string) (Class, bool) {
	for i, n := range classNames {
		if n == name {
			return Class(i), true
		}
	}
	return 0, false
}

// Timeouts are timeouts in seconds, indexed by Class.
type Timeouts [classes]uint32

// DefaultTimeouts are the timeouts of policy 0 until SetPolicy. TCP, UDP and ICMP have the defaults of
// Linux's nf_conntrack, except that established TCP connections have one day, as in Open vSwitch's userspace
// datapath. The timeouts of SCTP and of other protocols are Weft's own.
var DefaultTimeouts = Timeouts{
	tcpSynSent: 120, tcpSynRecv: 60, tcpEstablished: 86400, tcpFinWait: 120, tcpCloseWait: 60, tcpLastAck: 30,
	tcpTimeWait: 120, tcpClose: 10, udpFirst: 30, udpSingle: 30, udpMultiple: 120, icmpFirst: 30, icmpReply: 30,
	sctpInit: 30, sctpEstablished: 86400, sctpShutdown: 30, otherFirst: 60, otherMultiple: 600,
}

// MaxTimeout is the longest timeout: one year, in seconds.
const MaxTimeout = 365 * 86400

// ClassNames returns the names of all timeout classes, separated by commas.
func ClassNames() string { return strings.Join(classNames[:], ", ") }

// policy holds the timeouts of a timeout policy in nanoseconds, indexed by Class. The control process writes
// them.
type policy [classes]atomic.Uint64

func (p *policy) set(t *Timeouts) {
	for i := range p {
		p[i].Store(uint64(min(t[i], MaxTimeout)) * 1_000_000_000)
	}
}

// SetPolicy sets the timeouts of timeout policy i. A connection of this policy uses the new timeouts from
// its next frame on.
func (m *Memory) SetPolicy(i uint8, t *Timeouts) { m.policies[i].set(t) }

// Policy returns the timeouts of timeout policy i, in seconds.
func (m *Memory) Policy(i uint8) (t Timeouts) {
	for c := range t {
		t[c] = uint32(m.policies[i][c].Load() / 1_000_000_000)
	}
	return t
}

// SetZonePolicy sets the timeout policy that future connections in the zone get.
func (m *Memory) SetZonePolicy(zone uint16, i uint8) { m.zones[zone].policy.Store(uint32(i)) }

// ZonePolicy returns the number of the timeout policy of a zone.
func (m *Memory) ZonePolicy(zone uint16) uint8 { return uint8(m.zones[zone].policy.Load()) }

// A connection's expiry is written only if it moves by more than 1/128 of the timeout (at most one second),
// because a write invalidates the cache lines of other workers. The stored expiry is later by this
// amount, so that no connection ends before its timeout (RFC 4787 REQ-5).
const (
	refreshShift = 7
	maxRefreshNS = 1_000_000_000
)

// timeout returns two times in nanoseconds. lasts is the time from now until the new
// expiry. moves is the smallest change of the expiry that is worth a write.
func (m *Memory) timeout(policy uint8, class Class) (lasts, moves uint64) {
	timeout := m.policies[policy][class%classes].Load()
	moves = min(timeout>>refreshShift, maxRefreshNS)
	return timeout + moves, moves
}

// refresh puts connection c into this timeout class and restarts its timeout. The caller holds the lock
// of c, or no other worker can see c yet.
func (t *Table) refresh(c *conn, class Class, now uint64) {
	c.class = class
	lasts, moves := t.timeout(c.policy, class)
	// The difference is unsigned. It is therefore large if the expiry moves to an earlier
	// time, and the expiry is written.
	if now+lasts-c.expiresNS > moves {
		c.expiresNS = now + lasts
	}
}

// due reports whether refresh would write the class or the expiry of connection c.
func (t *Table) due(c *conn, class Class, now uint64) bool {
	lasts, moves := t.timeout(c.policy, class)
	return c.class != class || now+lasts-c.expiresNS > moves
}

// keep does the work of refresh for a caller that does not hold the lock of connection c. It takes the lock
// only if there is something to write. It returns false if c no longer has generation g, because it has
// ended or changed.
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

// expired reports whether the timeout of c has passed. now is CLOCK_MONOTONIC in nanoseconds.
func (c *conn) expired(now uint64) bool { return int64(now-c.expiresNS) >= 0 }
