package conntrack

import (
	"sync/atomic"

	"golang.org/x/sys/unix"

	"weft/internal/cpu"
	"weft/packet"
)

// conn is what each frame of a connection needs: one cache line. The rest lies in
// arrays of its own, by the same number, so that only who has it takes memory for it.
type conn struct {
	// meta is the generation in the lower half, odd while the connection lives,
	// and above it the epoch of the engine that holds its lock, 0 if none does.
	meta      atomic.Uint64
	tuples    [2]words // original direction, reply direction as its frames arrive
	expiresNS uint64   // CLOCK_MONOTONIC
	mark      uint32
	flags     uint16
	policy    uint8 // of the zone, when it began
	class     Class // timeout that runs
	list      uint8 // of zone and holder, that it is in
	_         uint8
	port      uint16 // on which its first frame came in; see holder.go
	born      uint32 // generation with which it began
}

// links are a connection's neighbours in the lists that it is in.
type links [2]link

// Links of a connection.
const (
	inZone = iota // next of a free record: the next free one
	inHolder
)

// link is two numbers of connections, plus one.
type link struct{ prev, next uint32 }

// Flags of a connection.
const (
	connReplied    uint16 = 1 << iota // frames were seen in both directions
	connSNAT                          // the original direction's source is translated
	connDNAT                          // its destination
	connTranslated                    // the reply tuple is not the reverse: it has an entry of its own
	connLabelled                      // mark and label were ever set
	connRelated
	connSeen // more than one frame was seen
	connFTP  // its gateway
	connTFTP
	connTunnel // its first frame came through a tunnel
)

// peer is what is known of one side of a connection.
type peer struct {
	end    uint32 // TCP: first sequence number behind all that was sent; SCTP: tag of what goes to the other side
	maxEnd uint32 // highest sequence number the other side's window allowed
	maxWin uint32 // largest window it offered, scaled
	scale  uint8  // of its window
	flags  uint8
	phase  phase
	_      uint8
}

// hasPeers tells whether connections of a protocol have peers.
func hasPeers(proto uint8) bool { return proto == packet.ProtoTCP || proto == packet.ProtoSCTP }

// Ref names a connection for as long as its generation stays: neither its end
// nor a change of what frames get to see of it goes unnoticed. The zero Ref
// names none.
type Ref struct {
	Number     uint32
	Generation uint32 // odd
}

func (c *conn) generation() uint32 { return uint32(c.meta.Load()) }

// Locks. Both spin: a holder is done within a microsecond unless it lost its core.

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

// lockConn takes the lock of c as long as its generation is g; it reports false
// if that has changed. A worker alone takes none.
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

// unlockConn gives the lock back, with the generation the connection has now.
func (t *Table) unlockConn(c *conn, g uint32) {
	if !t.solo || c.meta.Load() != uint64(g) {
		c.meta.Store(uint64(g))
	}
}

// kill makes c's generation even: nobody finds it any more. Whoever holds its lock
// gives it back first, for that would bring it to life again; nobody takes the
// table's lock with a connection's in hand.
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

// view is a connection as it was at one moment. Whatever rewrites a frame by a
// connection, or expects another one of it, goes by a view or holds the lock: the
// record may be another connection's with the next instruction.
type view struct {
	flags  uint16
	mark   uint32
	born   uint32
	label  [2]uint64
	parent Ref // as it began
	tuples [2]words
	long   addresses // of IPv6
}

// addresses of a direction.
func (v *view) addresses(dir uint8) *[4]uint64 {
	if dir == 0 {
		return (*[4]uint64)(v.long[:4])
	}
	return (*[4]uint64)(v.long[4:])
}

// read reads connection n, which must live and be of generation g: it reports false
// otherwise.
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

// readBorn reads the connection that began as ref, as long as it lives.
func (t *Table) readBorn(ref Ref, v *view) bool {
	return ref.Number < uint32(len(t.conns)) && t.read(ref.Number, t.conns[ref.Number].generation(), v) && v.born == ref.Generation
}
