// Package conntrack follows connections: it tells of a frame which connection it
// belongs to and in which state that is, remembers connections that a flow
// commits, and translates addresses. Semantics are those of ct() in
// ovs-actions(7) and of the ct_* fields in ovs-fields(7). The files come in the
// order in which a frame meets them:
//
//	process.go    a batch of frames through one ct action
//	tuple.go      addresses, ports, zone of a frame, and their hash
//	index.go      from a hash to a connection
//	conn.go       the record of a connection, its generation and lock
//	tcp.go, sctp.go, simple.go   protocol states
//	nat.go        which translation a new connection gets; natsearch.go: at whose cost
//	translate.go  translating a frame, ICMP errors included
//	commit.go     connections come and go; limits, eviction
//	holder.go, ranking.go   who has how many, and who makes room
//	alg.go        connections that others announce; expect.go: until they begin
//	shift.go      control connections whose announcements are translated
//	fast.go       a frame whose connection is known
//	fragment.go   fragments of one datagram
//	timeout.go    policies; sweep.go: expiry
//	pages.go      memory ahead of a table that grows
//	recover.go    a table that a killed process left behind
//	event.go      what control is told of connections, if it asks
//	save.go       the time between two daemons
//	entry.go, format.go, filter.go   what control shows and flushes
//
// Invariants:
//   - The table is pointer-free and lies in memory that all workers of the engine
//     share, and that outlives either process. It never grows.
//   - Looking up takes no lock. Whatever adds, removes or relinks connections
//     holds the table's one lock; what changes a live connection's state, mark or
//     label holds the connection's. Both locks carry the epoch of the engine that
//     took them, so that those of a killed engine count as free.
//   - A connection's generation is odd while it lives, and changes with whatever
//     changes the ct_* fields of a frame that leaves its state as it is.
package conntrack

import (
	"sync/atomic"

	"weft/internal/shm"
)

// Limits of a table.
const (
	// DefaultConnections take 118 MB of UDP over IPv4 when all are in use; 34 MB more
	// each with peers (TCP and SCTP), with IPv6 addresses, and if those are translated;
	// 17 MB more with labels.
	DefaultConnections = 1 << 20
	// MaxConnections is what the index's 32-bit values and a reasonable machine
	// allow.
	MaxConnections = 1 << 26
	// Zones is every value of ct_zone.
	Zones = 1 << 16
	// MaxPolicies bounds timeout policies; 0 is the default one.
	MaxPolicies = 256
)

// Sizes are the limits of a table, the same for all who open it.
type Sizes struct {
	// Connections is the number of records, a power of two from 64 on.
	Connections int `json:"connections"`
}

// Valid tells whether a table can have these sizes.
func (s Sizes) Valid() bool {
	n := s.Connections
	return n >= 64 && n <= MaxConnections && n&(n-1) == 0
}

// Memory is a table's place in a region. Workers write; control writes the
// settings and reads the rest.
type Memory struct {
	head     *header
	settings *settings
	zones    []zone   // index: zone
	holders  []holder // index: number of the holder
	ranks    []rank   // the same
	policies []policy // index: zone.policy
	buckets  []bucket // index: hash

	// Index: number of the connection.
	conns   []conn
	links   []links
	parents []Ref       // of those with connRelated: the connection they are related to, as it began
	peers   [][2]peer   // of TCP and SCTP: by direction
	labels  [][2]uint64 // of those with connLabelled
	long    [][4]uint64 // of IPv6: addresses of the original direction
	replies [][4]uint64 // and of the reply direction, of those with connTranslated
	shifts  [][2]shift  // of those with connFTP

	expectations []expectation
	chains       []uint32    // of expectations, by hash: number plus one
	expecters    []expecter  // index: number of the holder
	expectRanks  []rank      // the same
	events       shm.RingMem // workers produce under the lock, control consumes
}

// CarveMemory lays a table out; see shm.Layout. The region begins zeroed.
func CarveMemory(l *shm.Layout, s Sizes) Memory {
	head := shm.Carve[header](l, 1)
	set := shm.Carve[settings](l, 1)
	m := Memory{
		zones:    shm.Carve[zone](l, Zones),
		holders:  shm.Carve[holder](l, Holders),
		ranks:    shm.Carve[rank](l, Holders),
		policies: shm.Carve[policy](l, MaxPolicies),
		buckets:  shm.Carve[bucket](l, s.Connections/2),

		conns:   shm.Carve[conn](l, s.Connections),
		links:   shm.Carve[links](l, s.Connections),
		parents: shm.Carve[Ref](l, s.Connections),
		peers:   shm.Carve[[2]peer](l, s.Connections),
		labels:  shm.Carve[[2]uint64](l, s.Connections),
		long:    shm.Carve[[4]uint64](l, s.Connections),
		replies: shm.Carve[[4]uint64](l, s.Connections),
		shifts:  shm.Carve[[2]shift](l, s.Connections),

		expectations: shm.Carve[expectation](l, MaxExpectations),
		chains:       shm.Carve[uint32](l, MaxExpectations),
		expecters:    shm.Carve[expecter](l, Holders),
		expectRanks:  shm.Carve[rank](l, Holders),
		events:       shm.CarveRing(l, EventRingBytes),
	}
	if l.Mem != nil {
		m.head, m.settings = &head[0], &set[0]
	}
	return m
}

// magic marks a region that Init has filled; it changes with the layout.
const magic = 0x7765667463740007

// header is what workers share besides the connections. The fields behind lock
// are guarded by it; control reads counters whenever it likes.
type header struct {
	magic uint64
	seeds [14]uint64 // of the hashes
	epoch uint64     // of the engine: 1 to 0xffff; Open takes the next
	_     [128 - 16*8]byte

	lock atomic.Uint64 // epoch of the holder; 0: free
	_    [56]byte

	count   uint32  // live connections
	fresh   uint32  // records from here on were never used
	free    uint32  // first free record, plus one
	hand    uint32  // where the next sweep begins
	crowded uint32  // a zone with many unreplied connections
	ranking ranking // of holders, by their connections
	expects expecting
	// expecting is the number of expectations. The lock guards it for writing.
	expecting atomic.Uint32
	sweptNS   uint64
	counters  Counters
	// eventsLost are events for which the ring had no room.
	eventsLost atomic.Uint64
}

// Counters of a table since it began. Workers write under the lock; control reads
// whenever it likes. Append only.
type Counters struct {
	Created  uint64
	Expired  uint64 // ended by a timeout
	Evicted  uint64 // ended to make room
	Flushed  uint64 // ended by control
	Replaced uint64 // ended by a new connection of the same addresses and ports
	// Refused are connections that were not made: by a limit with nothing to
	// evict, for want of a free translation.
	RefusedLimit, RefusedNAT uint64
}

// settings are control's to write, one word each, and the workers' to read.
type settings struct {
	liberal     atomic.Uint32 // 1: TCP windows are not checked
	limit       atomic.Uint32 // connections of the table; 0: all records
	zoneDefault atomic.Uint32 // connections of a zone that has no limit of its own; 0: unlimited
	events      atomic.Uint32 // see Watch
	_           [48]byte
}

// Init makes an empty table of a zeroed region, and does nothing to one in use.
// Control calls it before any engine has the region. seed is random, so that
// nobody outside can choose connections that collide.
func Init(m Memory, seed uint64) {
	if m.head.magic == magic {
		return
	}
	for i := range m.head.seeds {
		seed += 0x9e3779b97f4a7c15
		z := seed
		z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
		z = (z ^ z>>27) * 0x94d049bb133111eb
		m.head.seeds[i] = z ^ z>>31
	}
	m.policies[0].set(&DefaultTimeouts)
	m.head.magic = magic
}

// Table is a table as an engine has it, shared by its workers.
type Table struct {
	Memory
	epoch uint64
	solo  bool // one worker: no connection is locked
	wrap  uint32
	told  *shm.Producer // of events; the lock guards it
	pages pages
}

// Open takes the table over for an engine of n workers, putting in order what an
// engine killed in the middle of a change has left. The engine before is gone.
func Open(m Memory, n int) *Table {
	t := &Table{Memory: m, solo: n == 1, wrap: uint32(len(m.buckets) - 1)}
	t.told = shm.NewProducer(m.events, -1)
	t.pages.event = -1
	t.epoch = m.head.epoch%0xffff + 1
	m.head.epoch = t.epoch
	if m.head.lock.Load() != 0 {
		t.rebuild()
		m.head.lock.Store(0)
	}
	return t
}

// Count is the number of connections, those that nobody has noticed to be
// expired included.
func (m *Memory) Count() int { return int(m.head.count) }

// Capacity is the number of records.
func (m *Memory) Capacity() int { return len(m.conns) }

// Counters returns a copy of the counters.
func (m *Memory) Counters() Counters { return m.head.counters }

// SetLiberal switches the checking of TCP sequence windows off or on.
func (m *Memory) SetLiberal(on bool) {
	v := uint32(0)
	if on {
		v = 1
	}
	m.settings.liberal.Store(v)
}

// Liberal tells whether the checking is off.
func (m *Memory) Liberal() bool { return m.settings.liberal.Load() != 0 }

// SetLimit limits the table to n connections; 0: to its records. Those there are
// stay.
func (m *Memory) SetLimit(n uint32) { m.settings.limit.Store(n) }

// Limit is the number of connections the table takes.
func (m *Memory) Limit() int {
	if n := m.settings.limit.Load(); n != 0 && int(n) < len(m.conns) {
		return int(n)
	}
	return len(m.conns)
}
