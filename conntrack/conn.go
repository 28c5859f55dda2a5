// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"sync/atomic"

	"golang.org/x/sys/unix"

	"weft/internal/cpu"
	"weft/packet"
)

// conn is the part of a connection's record that each frame needs, in one cache line. The other parts are
// in arrays of the type Memory, at the same index.
type conn struct {
	// meta has two halves. The lower half is the generation, which is odd while the connection lives. The
	// upper half is 0 while the connection is not locked. Otherwise it is the epoch of the engine that has
	// locked the connection; each start of an engine increments the epoch.
	meta      atomic.Uint64
	tuples    [2]words // tuples that frames have before translation: original direction, reply direction
	expiresNS uint64   // CLOCK_MONOTONIC
	mark      uint32
	flags     uint16
	policy    uint8 // number of the timeout policy that the zone had when the connection began
	class     Class // timeout class; expiresNS follows from its timeout
	list      uint8 // kind of the connection's lists, such as listUnreplied
	_         uint8
	port      uint16 // input port of the first frame; see holder.go
	born      uint32 // generation when the connection began
}

// links are the neighbours of a connection in its two eviction lists: the list of its member (see
// member.go) and the list of its quota holder (see holder.go).
type links struct {
	in     [2]link
	member uint32 // number of the connection's member
}

// Indexes of links.in.
const (
	inMember = iota // free records use in[inMember].next as the link to the next free record
	inHolder
)

// link holds 1 + the number of the next and previous connection; 0: none.
type link struct{ prev, next uint32 }

// Flags of a connection.
const (
	connReplied    uint16 = 1 << iota // frames were seen in both directions
	connSNAT                          // NAT changes the source of the original direction
	connDNAT                          // NAT changes the destination of the original direction
	connTranslated                    // the reply tuple is not the reverse of the original one, so it has its own index entry
	connLabelled                      // mark or label was set at least once
	connRelated
	connSeen // more than one frame was seen
	connFTP  // gateway: FTP
	connTFTP
	connTunnel // the first frame came through a tunnel
)

// peer is the observed TCP or SCTP state of one side of a connection.
type peer struct {
	end    uint32 // TCP: sequence number after the last byte sent; SCTP: verification tag of its packets
	maxEnd uint32 // highest TCP sequence number allowed by the receiver's window
	maxWin uint32 // largest TCP window offered, in bytes, after scaling
	scale  uint8  // TCP window scale of this side
	flags  uint8
	phase  phase
	_      uint8
}

// hasPeers reports whether the tracker observes both sides of this protocol (TCP,
// SCTP).
func hasPeers(proto uint8) bool { return proto == packet.ProtoTCP || proto == packet.ProtoSCTP }

// Ref refers to a connection in one generation. The generation changes, and the Ref becomes invalid, when
// the connection ends or when its frames get other ct_* fields. The zero Ref refers to no connection.
type Ref struct {
	Number     uint32
	Generation uint32 // odd
}

func (c *conn) generation() uint32 { return uint32(c.meta.Load()) }

// hasGeneration reports whether the connection has generation g. It loads the generation after all earlier
// loads. If the result is true, fields that the caller has read before without a lock belong to this
// generation: a record is used for another connection only after the method kill has made the generation
// even.
func (c *conn) hasGeneration(g uint32) bool { return uint32(c.metaAfter()) == g }

// metaAfter loads meta after all earlier loads. On arm64, the processor may do an atomic load
// before earlier plain loads.
func (c *conn) metaAfter() uint64 {
	cpu.LoadBarrier() // pairs with the StoreBarrier of kill
	return c.meta.Load()
}

// The spin locks of the table and of its connections follow. An owner that is not
// preempted holds such a lock for at most a microsecond.

const maxLockPauses = 256

func wait(n int) {
	cpu.Pause(1)
	if n >= maxLockPauses {
		unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0)
	}
}

// lock takes the table's lock.
func (t *Table) lock() {
	for n := 0; !t.head.lock.CompareAndSwap(0, t.epoch); n++ { // pairs with unlock
		wait(n)
	}
}

func (t *Table) unlock() { cpu.StoreRelease(&t.head.lock, 0) }

// lockConn locks connection c. If c no longer has generation g, because it has ended or changed, lockConn
// does not lock it and returns false. An engine with one worker takes no locks; lockConn then only compares
// the generation.
func (t *Table) lockConn(c *conn, g uint32) bool {
	if t.solo {
		return c.generation() == g
	}
	for n := 0; ; n++ {
		meta := c.meta.Load()
		if uint32(meta) != g {
			return false
		}
		if meta>>32 == t.epoch {
			wait(n)
			continue
		}
		if c.meta.CompareAndSwap(meta, uint64(g)|t.epoch<<32) { // pairs with unlockConn
			return true
		}
	}
}

// unlockConn unlocks connection c and sets its generation to g. If g is another generation than before,
// earlier Refs become invalid.
func (t *Table) unlockConn(c *conn, g uint32) {
	if !t.solo || c.meta.Load() != uint64(g) {
		c.meta.Store(uint64(g))
	}
}

// kill makes the generation of connection c even, which hides c from look-ups. The
// caller holds the table's lock, but not the lock of c, because unlocking c would
// restore the odd generation.
func (t *Table) kill(c *conn) {
	for n := 0; ; n++ {
		meta := c.meta.Load()
		if meta>>32 == t.epoch {
			wait(n)
			continue
		}
		if c.meta.CompareAndSwap(meta, uint64(uint32(meta)+1)) { // pairs with lockConn
			cpu.StoreBarrier() // stores of the next connection's fields come after; pairs with metaAfter
			return
		}
	}
}

// view is a consistent copy of a connection. Workers may change or reuse the connection's own record
// at any time.
type view struct {
	flags  uint16
	mark   uint32
	born   uint32
	label  [2]uint64
	parent Ref // the parent: the connection that has announced this one; zero: none
	tuples [2]words
	long   addresses // of an IPv6 connection
}

func (v *view) addresses(dir uint8) *[4]uint64 {
	if dir == 0 {
		return (*[4]uint64)(v.long[:4])
	}
	return (*[4]uint64)(v.long[4:])
}

// read copies connection n to v without a lock. It returns false if n no longer has generation g, because
// it has ended or changed.
func (t *Table) read(n, g uint32, v *view) bool {
	c := &t.conns[n]
	for tries := 0; ; tries++ {
		before := c.meta.Load()
		if uint32(before) != g || g&1 == 0 {
			return false
		}
		v.flags, v.mark, v.born, v.tuples = c.flags, c.mark, c.born, c.tuples
		v.parent = Ref{}
		if v.flags&connRelated != 0 {
			v.parent = t.parents[n]
		}
		v.label = [2]uint64{}
		if v.flags&connLabelled != 0 {
			v.label = t.labels[n]
		}
		if v.tuples[0].ipv6() {
			v.long = t.addresses(n)
		}
		if t.solo || before>>32 != t.epoch && c.metaAfter() == before {
			return true
		}
		wait(tries)
	}
}

// readBorn copies a connection to v. ref has the generation in which the connection began; the connection
// may have changed its generation since. readBorn returns false if the connection has ended.
func (t *Table) readBorn(ref Ref, v *view) bool {
	return ref.Number < uint32(len(t.conns)) && t.read(ref.Number, t.conns[ref.Number].generation(), v) && v.born == ref.Generation
}
