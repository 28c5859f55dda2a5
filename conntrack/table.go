// SPDX-License-Identifier: Apache-2.0

// Package conntrack tracks connections. It finds the connection to which a frame belongs and the
// connection's state, stores the connections that a flow commits, and translates addresses (NAT).
// The semantics follow ct() in ovs-actions(7) and the ct_* fields in ovs-fields(7). These
// are the package's files, in the order in which a frame meets them:
//
//	process.go    runs a batch of frames through one ct action
//	tuple.go      addresses, ports and zone of a frame, and their hash
//	seek.go       looks up the connections of a batch of frames
//	index.go      finds a connection by hash
//	table.go      the table and its settings
//	conn.go       the record of a connection, its generation and lock
//	tcp.go, sctp.go, simple.go   protocol states
//	nat.go        chooses the translation of a new connection; natsearch.go limits its cost
//	translate.go  translates a frame, also the datagram inside an ICMP error
//	commit.go     creates and ends connections; limits, eviction
//	victims.go    prefetches memory for the next evictions
//	holder.go, ranking.go   quotas of ports and zones, which decide about eviction
//	member.go     quotas within one zone
//	alg.go        reads announcements of connections; expect.go stores the announced ones
//	shift.go      rewrites announcements on translated control connections
//	fast.go       tracks a frame whose connection is known
//	lease.go      lends established connections to the kernel
//	fragment.go   collects the fragments of one datagram
//	timeout.go    timeout policies; sweep.go expires connections
//	pages.go      populates memory ahead of a growing table
//	recover.go    repairs a table that a killed process left
//	event.go      reports changes of connections to the control process
//	save.go       saves and loads a table between two daemons
//	entry.go, expected.go, format.go, filter.go   connections as the control process lists and flushes them
//
// Invariants:
//   - The table has no pointers. It is in memory that all workers of the engine share
//     and that outlives every process. It never grows.
//   - A look-up takes no lock. Adding, removing or relinking a connection needs the
//     table's single lock. Changing the state, mark or label of a live connection needs
//     the connection's lock. Both locks carry the epoch of the engine that took them, so
//     that a lock of a killed engine counts as free.
//   - A connection's generation is odd while the connection lives. It changes whenever
//     the ct_* fields change that a later frame of the same kind would get.
package conntrack

import (
	"math/bits"
	"sync/atomic"

	"weft/internal/shm"
)

// Limits of a table.
const (
	// DefaultConnections is the default number of records. With UDP over IPv4 they take 122 MB. TCP and
	// SCTP take 34 MB more, IPv6 addresses another 34 MB, translated IPv6 addresses another 34 MB, and
	// labels 17 MB. A zone with connections takes 1 KB, and each quota holder in it 84 bytes.
	DefaultConnections = 1 << 20
	// LeastConnections and MaxConnections are the bounds of Sizes.Connections.
	LeastConnections = 64
	MaxConnections   = 1 << 26
	// Zones is the number of zones: ct_zone has 16 bits.
	Zones = 1 << 16
	// MaxPolicies is the number of timeout policies. Policy 0 is the default.
	MaxPolicies = 256
)

// Sizes are the sizes of a table. All processes that map the table must use the same.
type Sizes struct {
	// Connections is the number of connections that the table accepts.
	Connections int `json:"connections"`
}

// Valid reports whether a table may have these sizes.
func (s Sizes) Valid() bool {
	return s.Connections >= LeastConnections && s.Connections <= MaxConnections
}

// Records returns the number of connection records: Connections, rounded up to a power of two.
func (s Sizes) Records() int { return 1 << bits.Len(uint(s.Connections-1)) }

// Memory is a table in shared memory. The control process writes only the settings, the policies, and the
// limits and policies of zones. Workers write everything else.
type Memory struct {
	head     *header
	settings *settings
	zones    []zone   // index: zone
	holders  []holder // index: number of the holder
	ranks    []rank   // for head.ranking, by number of connections; index: number of the holder
	policies []policy // index: number of the policy
	// Members (quota holders within zones), as many as connection records; see member.go.
	zoneRankings []ranking // each orders the members of a zone by number of connections; index: zone
	members      []member
	memberRanks  []rank   // index: number of the member
	memberChains []uint32 // 1 + the number of the first member, by hash

	buckets []bucket // index: hash

	// Parts of connections; index: number of the connection.
	conns   []conn
	links   []links
	parents []Ref       // parent (announcing connection), if connRelated is set
	peers   [][2]peer   // TCP and SCTP: both sides, by direction
	labels  [][2]uint64 // ct_label, if connLabelled is set
	long    [][4]uint64 // IPv6 addresses of the original direction
	replies [][4]uint64 // IPv6 addresses of the reply direction, if connTranslated is set
	shifts  [][2]shift  // shifts of sequence numbers, if connFTP is set

	expectations []expectation
	chains       []uint32    // 1 + the number of the first expectation, by hash
	expecters    []expecter  // index: number of the holder
	expectRanks  []rank      // for head.expects.ranking, by number of expectations; index: number of the holder
	events       shm.RingMem // event ring, written under the table's lock
}

// CarveMemory allocates a table with these sizes in the shared memory region of l; see shm.Layout. The
// region must be zeroed before Init.
func CarveMemory(l *shm.Layout, s Sizes) Memory {
	records := s.Records()
	head := shm.Carve[header](l, 1)
	set := shm.Carve[settings](l, 1)
	m := Memory{
		zones:    shm.Carve[zone](l, Zones),
		holders:  shm.Carve[holder](l, Holders),
		ranks:    shm.Carve[rank](l, Holders),
		policies: shm.Carve[policy](l, MaxPolicies),

		zoneRankings: shm.Carve[ranking](l, Zones),
		members:      shm.Carve[member](l, records),
		memberRanks:  shm.Carve[rank](l, records),
		memberChains: shm.Carve[uint32](l, records),

		buckets: shm.Carve[bucket](l, records/2),

		conns:   shm.Carve[conn](l, records),
		links:   shm.Carve[links](l, records),
		parents: shm.Carve[Ref](l, records),
		peers:   shm.Carve[[2]peer](l, records),
		labels:  shm.Carve[[2]uint64](l, records),
		long:    shm.Carve[[4]uint64](l, records),
		replies: shm.Carve[[4]uint64](l, records),
		shifts:  shm.Carve[[2]shift](l, records),

		expectations: shm.Carve[expectation](l, MaxExpectations),
		chains:       shm.Carve[uint32](l, MaxExpectations),
		expecters:    shm.Carve[expecter](l, Holders),
		expectRanks:  shm.Carve[rank](l, Holders),
		events:       shm.CarveRing(l, eventRingBytes),
	}
	if l.Mem != nil {
		m.head, m.settings = &head[0], &set[0]
	}
	return m
}

// magic marks an initialized table. Its number is incremented when the layout of the shared memory changes.
const magic = 0x7765667463740008

// header is the state of the whole table. The field "lock" is the table's lock, which guards the fields after
// it. The control process reads the counters without the lock.
type header struct {
	magic uint64
	seeds [14]uint64 // keys of the hashes
	epoch uint64     // epoch of the engine, 1 to 0xffff, incremented by Open
	_     [128 - 16*8]byte

	lock atomic.Uint64 // epoch of the engine that holds the table's lock; 0: not locked
	_    [56]byte

	count       uint32  // live connections
	fresh       uint32  // number of the first record that was never used
	free        uint32  // 1 + the number of the first free record; 0: none
	hand        uint32  // number of the record at which the next step of the sweep begins
	crowded     uint32  // member with the most unreplied connections
	freshMember uint32  // number of the first member that was never used
	freeMember  uint32  // 1 + the number of the first free member; 0: none
	ranking     ranking // holders by number of connections
	expects     expecting
	// expecting is the number of expectations, written under the table's lock.
	expecting atomic.Uint32
	sweptNS   uint64
	counters  Counters
	// eventsLost counts the events that were lost because the event ring was full.
	eventsLost atomic.Uint64
}

// Counters count events of connections since the table was made. Workers write them
// under the table's lock; the control process reads them without it. New fields go to
// the end, because the layout is shared.
type Counters struct {
	Created  uint64
	Expired  uint64 // ended by a timeout
	Evicted  uint64 // ended to make room for another
	Flushed  uint64 // ended by Flush, which the control process has requested
	Replaced uint64 // ended because a frame begins a new connection with the same tuple
	// RefusedLimit counts connections that were refused at a limit. RefusedNAT counts
	// connections that were refused because no translation was free.
	RefusedLimit, RefusedNAT uint64
}

// settings are words that the control process writes and workers read.
type settings struct {
	liberal     atomic.Uint32 // 1: TCP windows are not checked
	limit       atomic.Uint32 // limit of connections in the table; 0: as many as Room returns
	zoneDefault atomic.Uint32 // default limit of connections in a zone; 0: no limit
	events      atomic.Uint32 // see Watch
	room        atomic.Uint32 // upper bound of the limit of connections; 0: the number of records
	_           [44]byte
}

// Init makes an empty table in zeroed memory. It does nothing if the memory has a table already. The
// control process calls it before any engine gets the memory. seed must be random, so that no
// sender can choose connections whose hashes collide.
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

// Table is a connection table that an engine has opened. Its workers share it.
type Table struct {
	Memory
	epoch     uint64
	solo      bool // the engine has only one worker, so connections need no lock
	wrap      uint32
	eventRing *shm.Producer // writes the event ring, under the table's lock
	pages     pages
	victims   victimQueue
	seat      seat                   // seat of the connection that was just evicted, see member.go
	lent      atomic.Pointer[leases] // nil: no port lends connections to the kernel
}

// Open opens the table for an engine with n workers. The engine before must have ended. If that engine was
// killed while it held the table's lock, Open repairs the table.
func Open(m Memory, n int) *Table {
	t := &Table{Memory: m, solo: n == 1, wrap: uint32(len(m.buckets) - 1)}
	t.eventRing = shm.NewProducer(m.events, -1)
	t.pages.event = -1
	t.epoch = m.head.epoch%0xffff + 1
	m.head.epoch = t.epoch
	if m.head.lock.Load() != 0 {
		t.rebuild()
		m.head.lock.Store(0)
	}
	return t
}

// Known reports whether the table has this build's layout.
func (m *Memory) Known() bool { return m.head.magic == magic }

// Count returns the number of connections, including expired ones that the sweep has not ended yet.
func (m *Memory) Count() int { return int(m.head.count) }

// SetRoom makes s.Connections the upper bound of Limit. The table may have more records than that, because
// the number of records is a power of two. The control process calls SetRoom.
func (m *Memory) SetRoom(s Sizes) { m.settings.room.Store(uint32(s.Connections)) }

// Room returns the upper bound of Limit, in connections.
func (m *Memory) Room() int {
	if n := m.settings.room.Load(); n != 0 && int(n) < len(m.conns) {
		return int(n)
	}
	return len(m.conns)
}

// Capacity returns the number of connection records, which is at least Room.
func (m *Memory) Capacity() int { return len(m.conns) }

// Counters returns a copy of the table's counters. Workers may change them meanwhile, so the copy may have
// counters of different times.
func (m *Memory) Counters() Counters { return m.head.counters }

// SetLiberal switches the check of TCP sequence numbers off if liberal is true, and on
// otherwise.
func (m *Memory) SetLiberal(liberal bool) {
	v := uint32(0)
	if liberal {
		v = 1
	}
	m.settings.liberal.Store(v)
}

// Liberal reports whether the check of TCP sequence numbers is off.
func (m *Memory) Liberal() bool { return m.settings.liberal.Load() != 0 }

// SetLimit limits the table to n connections, or to as many as Room returns if n is 0 or larger than that.
// Existing connections stay.
func (m *Memory) SetLimit(n uint32) { m.settings.limit.Store(n) }

// Limit returns the largest number of connections that the table accepts.
func (m *Memory) Limit() int {
	room := m.Room()
	if n := m.settings.limit.Load(); n != 0 && int(n) < room {
		return int(n)
	}
	return room
}
