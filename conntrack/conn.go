// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"sync/atomic"

	"golang.org/x/sys/unix"

	"weft/internal/cpu"
	"weft/packet"
)

// conn is the part of a connection that each of its frames needs: one cache line. The
// other parts are in separate arrays with the same index, so that a connection uses
// memory only for the parts that it needs.
type conn struct {
	// meta holds the generation in its lower half; the generation is odd while the
	// connection lives. The upper half is the epoch of the engine that holds the
	// connection's lock; 0: the lock is free.
	meta      atomic.Uint64
	tuples    [2]words // tuples of frames before translation: original direction, then reply direction
	expiresNS uint64   // CLOCK_MONOTONIC
	mark      uint32
	flags     uint16
	policy    uint8 // timeout policy that the zone had when the connection began
	class     Class // state whose timeout runs
	list      uint8 // kind of the lists that contain the connection: listUnreplied and so on
	_         uint8
	port      uint16 // port that received the connection's first frame; see holder.go
	born      uint32 // generation when the connection began
}

// links are the connection's neighbours in the lists of its member (member.go) and of
// its quota holder.
type links struct {
	in     [2]link
	member uint32 // number of the connection's member
}

// Indexes of links.in.
const (
	inMember = iota // the list of free records uses in[inMember].next, too
	inHolder
)

// link holds the numbers of the next and the previous connection of a list, each plus
// one; 0: none.
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
	end    uint32 // TCP: number after the last byte sent; SCTP: verification tag of this side's packets
	maxEnd uint32 // highest TCP sequence number that the other side's window allows
	maxWin uint32 // largest TCP window that this side has offered, in bytes, after scaling
	scale  uint8  // TCP window scale of this side
	flags  uint8
	phase  phase
	_      uint8
}

// hasPeers reports whether the tracker observes both sides of connections of this
// protocol (TCP and SCTP).
func hasPeers(proto uint8) bool { return proto == packet.ProtoTCP || proto == packet.ProtoSCTP }

// Ref names a connection in one generation. A Ref becomes stale when the connection
// ends, and when the ct_* fields of the connection's frames change. The zero Ref
// names no connection.
type Ref struct {
	Number     uint32
	Generation uint32 // odd
}

func (c *conn) generation() uint32 { return uint32(c.meta.Load()) }

// Spin locks of the table and of a connection. Spinning is short, because the owner
// releases a lock within a microsecond unless the kernel preempts it.

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

func (t *Table) unlock() { t.head.lock.Store(0) }

// lockConn locks connection c and reports true, if c has generation g. Otherwise it
// locks nothing and reports false. An engine with one worker needs no lock.
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

// unlockConn releases the lock of connection c and sets the generation to g.
func (t *Table) unlockConn(c *conn, g uint32) {
	if !t.solo || c.meta.Load() != uint64(g) {
		c.meta.Store(uint64(g))
	}
}

// kill makes c's generation even, so that no look-up finds c any more. The caller
// must not hold c's lock, because unlocking would restore the odd generation. Nobody
// takes the table's lock while holding a connection's lock.
func (t *Table) kill(c *conn) {
	for n := 0; ; n++ {
		meta := c.meta.Load()
		if meta>>32 == t.epoch {
			wait(n)
			continue
		}
		if c.meta.CompareAndSwap(meta, uint64(uint32(meta)+1)) { // pairs with lockConn
			return
		}
	}
}

// view is a consistent copy of a connection. Another connection may reuse a record at
// any time. Code that rewrites a frame by a connection, or adds an expectation,
// therefore uses a view or holds the connection's lock.
type view struct {
	flags  uint16
	mark   uint32
	born   uint32
	label  [2]uint64
	parent Ref // connection that has announced this one (FTP, TFTP); zero: none
	tuples [2]words
	long   addresses // of an IPv6 connection
}

// addresses returns the IPv6 addresses of the frames of one direction.
func (v *view) addresses(dir uint8) *[4]uint64 {
	if dir == 0 {
		return (*[4]uint64)(v.long[:4])
	}
	return (*[4]uint64)(v.long[4:])
}

// read copies connection n to v. It reports false if the connection has ended or has
// another generation than g.
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
		if t.solo || before>>32 != t.epoch && c.meta.Load() == before {
			return true
		}
		wait(tries)
	}
}

// readBorn copies a connection to v. ref has the number of the connection and the
// generation with which it began. It reports false if that connection has ended.
func (t *Table) readBorn(ref Ref, v *view) bool {
	return ref.Number < uint32(len(t.conns)) && t.read(ref.Number, t.conns[ref.Number].generation(), v) && v.born == ref.Generation
}
