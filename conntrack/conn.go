// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"sync/atomic"

	"golang.org/x/sys/unix"

	"weft/internal/cpu"
	"weft/packet"
)

// conn is the part of a connection that each of its frames needs: one cache line. The
// other parts lie in arrays of their own, indexed by the same number, so that a
// connection takes memory only for the parts it uses.
type conn struct {
	// meta holds the generation in the lower half; it is odd while the connection
	// lives. The upper half is the epoch of the engine that holds the connection's
	// lock, 0 if nobody does.
	meta      atomic.Uint64
	tuples    [2]words // original direction, then reply direction, each as its frames arrive
	expiresNS uint64   // CLOCK_MONOTONIC
	mark      uint32
	flags     uint16
	policy    uint8 // timeout policy of the zone when the connection began
	class     Class // state whose timeout runs
	list      uint8 // list of member and holder that has the connection
	_         uint8
	port      uint16 // port that received its first frame; see holder.go
	born      uint32 // generation at its begin
}

// links are a connection's neighbours in the lists of its member and its holder.
type links struct {
	in     [2]link
	member uint32 // number of the member
}

// Indexes of links.in.
const (
	inMember = iota // in a free record, next links the free records
	inHolder
)

// link holds two numbers of connections, each plus one; 0: none.
type link struct{ prev, next uint32 }

// Flags of a connection.
const (
	connReplied    uint16 = 1 << iota // frames were seen in both directions
	connSNAT                          // the original direction's source is translated
	connDNAT                          // the original direction's destination is translated
	connTranslated                    // the reply tuple is not the reverse of the original: it has its own entry in the index
	connLabelled                      // mark or label was set at least once
	connRelated
	connSeen // more than one frame was seen
	connFTP  // gateway: FTP
	connTFTP
	connTunnel // the first frame came through a tunnel
)

// peer is the observed state of one side of a connection.
type peer struct {
	end    uint32 // TCP: sequence number behind the last byte sent; SCTP: verification tag that this side's packets carry
	maxEnd uint32 // highest sequence number allowed by the other side's window
	maxWin uint32 // largest window this side offered in bytes, scaled
	scale  uint8  // window scale
	flags  uint8
	phase  phase
	_      uint8
}

// hasPeers reports whether connections of a protocol have peers.
func hasPeers(proto uint8) bool { return proto == packet.ProtoTCP || proto == packet.ProtoSCTP }

// Ref names a connection in one generation. It becomes stale when the connection
// ends, and when the ct_* fields of its frames change. The zero Ref names none.
type Ref struct {
	Number     uint32
	Generation uint32 // odd
}

func (c *conn) generation() uint32 { return uint32(c.meta.Load()) }

// Locks. Both spin: the owner releases a lock within a microsecond unless the kernel
// preempts it.

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

// lockConn takes the lock of c if c has generation g; otherwise it reports false. A
// single worker takes no lock.
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

// unlockConn releases the lock and sets the generation to g.
func (t *Table) unlockConn(c *conn, g uint32) {
	if !t.solo || c.meta.Load() != uint64(g) {
		c.meta.Store(uint64(g))
	}
}

// kill makes c's generation even, so that no look-up finds c. The caller must not
// hold c's lock: unlocking would restore the odd generation. Nobody takes the table's
// lock while holding a connection's.
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

// view is a copy of a connection at one moment. Code that rewrites a frame by a
// connection, or adds an expectation, uses a view or holds the lock: without either,
// another connection may reuse the record at any time.
type view struct {
	flags  uint16
	mark   uint32
	born   uint32
	label  [2]uint64
	parent Ref // the parent, with the generation of its begin
	tuples [2]words
	long   addresses // of an IPv6 connection
}

// addresses returns the IPv6 addresses of a direction.
func (v *view) addresses(dir uint8) *[4]uint64 {
	if dir == 0 {
		return (*[4]uint64)(v.long[:4])
	}
	return (*[4]uint64)(v.long[4:])
}

// read copies connection n to v. It reports false unless the connection lives and has
// generation g.
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

// readBorn copies the connection that began as ref to v. It reports false if that
// connection has ended.
func (t *Table) readBorn(ref Ref, v *view) bool {
	return ref.Number < uint32(len(t.conns)) && t.read(ref.Number, t.conns[ref.Number].generation(), v) && v.born == ref.Generation
}
