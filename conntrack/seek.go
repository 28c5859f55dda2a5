// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"math/bits"

	"weft/internal/cpu"
	"weft/packet"
)

// This file looks up the connections of a batch of frames. Independent memory accesses are prefetched
// together: first the index buckets of all frames, then the records of all connections. The
// results stay valid until the caller calls Forget.

// sought holds the look-up results of a batch, by frame.
type sought struct {
	known  uint32 // set of frames with valid results
	probes [packet.BatchSize]probe
	// numbers has the connection number of each frame. The value none (no connection) is
	// valid only until a worker creates a connection, that is, while Counters.Created equals the
	// field "created".
	numbers     [packet.BatchSize]uint32
	dirs        [packet.BatchSize]uint8
	generations [packet.BatchSize]uint32 // generations of the connections, read before their tuples were compared
	created     uint64
	lines       [packet.BatchSize]uint32
}

// Forget discards the look-up results of a set of frames, one bit each. The worker calls it for a new
// batch, and after actions that change headers.
func (tr *Tracker) Forget(frames uint32) { tr.known &^= frames }

// SeekFlows begins the look-up of the frames in set (one bit each) in a ct zone. For each frame it finds
// the connection to which the frame probably belongs, by 16 bits of the hash, and prefetches the
// connection's record. It skips fragments, frames that are neither TCP nor UDP, and frames that were
// already looked up. It returns the indexes of the other frames, and in the same order the numbers of their
// probable connections. The results are valid until the next call. The caller must call Settle for each
// returned frame.
func (tr *Tracker) SeekFlows(b *packet.Batch, set uint32, zone uint16) ([]uint8, *[packet.BatchSize]uint32) {
	t, n := tr.Table, 0
	for ; set != 0; set &= set - 1 {
		i := bits.TrailingZeros32(set) % packet.BatchSize
		f := &b.Frames[i]
		if f.L4 == 0 || f.Flags&packet.FrameFragment != 0 || f.Proto != packet.ProtoTCP && f.Proto != packet.ProtoUDP ||
			tr.known>>i&1 != 0 && tr.Known(i, zone) {
			continue
		}
		p := &tr.probes[i]
		t.extract(b, f, zone, p)
		tr.lines[n%packet.BatchSize] = uint32(p.hash) & t.wrap
		tr.order[n%packet.BatchSize] = uint8(i)
		n++
	}
	order := tr.order[:n]
	tr.prefetchLikely(order)
	return order, &tr.lines
}

// Ends has the addresses and ports of an unfragmented TCP or UDP datagram over IPv4.
type Ends struct {
	Addresses uint64 // source<<32 | destination
	Rest      uint64 // source port<<48 | destination port<<32 | protocol<<8
}

// SeekEnds does the work of SeekFlows for frames whose addresses and ports the caller knows, so that no
// header is read. ends has an entry for each frame of set. None of the frames may have been looked up
// before.
func (tr *Tracker) SeekEnds(set uint32, ends *[packet.BatchSize]Ends, zone uint16) ([]uint8, *[packet.BatchSize]uint32) {
	t, n := tr.Table, 0
	s, wrap, more := &t.head.seeds, t.wrap, uint64(zone)<<16|familyIPv4
	s6, s7, s8 := s[6], s[7], s[8]
	for ; set != 0; set &= set - 1 {
		i := bits.TrailingZeros32(set) % packet.BatchSize
		p, a, b := &tr.probes[i], ends[i].Addresses, ends[i].Rest|more
		p.a, p.b, p.kind, p.inner = a, b, kindFlow, 0
		p.hash = mix(a>>32^b>>48<<40, a&0xffffffff^b>>32&0xffff<<40, b&0xffffffff, s6, s7, s8) // the same value as hash
		tr.lines[n%packet.BatchSize] = uint32(p.hash) & wrap
		tr.order[n%packet.BatchSize] = uint8(i)
		n++
	}
	order := tr.order[:n]
	tr.prefetchLikely(order)
	return order, &tr.lines
}

// seek begins the look-up of a list of frames of any protocol. The caller must call Settle for each frame.
func (tr *Tracker) seek(b *packet.Batch, frames []uint8, zone uint16) {
	t := tr.Table
	for n, i := range frames {
		i %= packet.BatchSize
		p := &tr.probes[i]
		t.extract(b, &b.Frames[i], zone, p)
		tr.lines[n%packet.BatchSize] = uint32(p.hash) & t.wrap
	}
	tr.prefetchLikely(frames)
}

// prefetchLikely prefetches the index buckets of the frames; tr.lines has the numbers of the buckets. In
// each bucket it looks for a connection with the signature of the frame's hash, and prefetches its record.
// The numbers of these connections replace those of the buckets in tr.lines.
func (tr *Tracker) prefetchLikely(frames []uint8) {
	t := tr.Table
	if tr.known == 0 {
		tr.created = t.head.counters.Created
	}
	cpu.Prefetch(&t.buckets[0], tr.lines[:len(frames)])
	for n, i := range frames {
		i %= packet.BatchSize
		sig := signature(tr.probes[i].hash)
		bucket := &t.buckets[tr.lines[n%packet.BatchSize]]
		number, line := none, uint32(0)
		if lo := bucket.marks(0, sig); lo != 0 { // most entries are in the first word
			number = bucket.numbers[firstSlot(lo, 0)%slots]
			line = number
		} else if hi := bucket.marks(1, sig); hi != 0 {
			number = bucket.numbers[firstSlot(0, hi)%slots]
			line = number
		} else if bucket.passed != 0 {
			number = unsure
		}
		tr.known |= 1 << i
		tr.numbers[i], tr.lines[n%packet.BatchSize] = number, line
	}
	cpu.Prefetch(&t.conns[0], tr.lines[:len(frames)])
}

// unsure is a value of sought.numbers. It means that the first bucket of the hash has no connection with
// this signature, but that a later bucket may have one.
const unsure = none - 1

// Hint is a number (Tag) that a worker has stored for one direction of a connection, such as the serial
// number of a flow. It is valid only while the connection has the generation Generation.
type Hint struct{ Tag, Generation uint32 }

// Hints are the two hints of a connection, indexed by direction.
type Hints [2]Hint

// Settled is the result of SettleAll. Sets of frames have one bit per frame.
type Settled struct {
	Expected uint32 // the tag that the caller of SettleAll expected
	Hinted   uint32 // frames with a valid hint
	Usual    uint32 // frames of Hinted with the expected tag
	// Quick has the frames for which Fast would change nothing in the connection, and at most
	// rewrite the frame.
	Quick uint32
}

// SettleAll completes the look-up of the frames that SeekFlows has returned, and reads their hints. hints is
// indexed by connection number. tags[i] becomes the tag of the valid hint for frame i. now is
// CLOCK_MONOTONIC in nanoseconds.
func (tr *Tracker) SettleAll(frames []uint8, hints []Hints, tags *[packet.BatchSize]uint32, expected uint32, now uint64) Settled {
	conns := tr.Table.conns
	hints = hints[:len(conns)]
	policy := uint8(0)
	lasts, moves := tr.timeout(policy, udpMultiple)
	hinted, usual, quick := uint32(0), uint32(0), uint32(0)
	for _, i := range frames {
		i %= packet.BatchSize
		n, p := tr.numbers[i], &tr.probes[i]
		if n >= uint32(len(conns)) || p.ipv6() {
			h, u := tr.lookUpHint(i, hints, tags, expected)
			hinted, usual = hinted|h, usual|u
			continue
		}
		c := &conns[n]
		g := c.generation()
		dir := uint8(0)
		if c.tuples[0] != p.words {
			dir = 1
		}
		if g&1 == 0 || dir == 1 && c.tuples[1] != p.words {
			h, u := tr.lookUpHint(i, hints, tags, expected)
			hinted, usual = hinted|h, usual|u
			continue
		}
		tr.dirs[i], tr.generations[i] = dir, g
		h := hints[n][dir]
		// The hint is stale, or the tuple may belong to another connection.
		if h.Generation != g || !c.hasGeneration(g) {
			continue
		}
		tags[i] = h.Tag
		hinted |= 1 << i
		if h.Tag == expected {
			usual |= 1 << i
		}
		if c.policy != policy {
			policy = c.policy
			lasts, moves = tr.timeout(policy, udpMultiple)
		}
		// Fast would not write the expiry time, because it would change too little. A connection with such
		// an expiry time has not expired, unless its timeout is 0.
		if d := now + lasts - c.expiresNS; d <= moves && d < lasts && c.class == udpMultiple &&
			c.flags&(connFTP|connTFTP|connReplied) == connReplied && c.hasGeneration(g) {
			quick |= 1 << i
		}
	}
	return Settled{Expected: expected, Hinted: hinted, Usual: usual, Quick: quick}
}

// lookUpHint looks up the connection of frame i and reads its hint, a number that a worker has stored.
// SettleAll calls it for an IPv6 frame, and for a frame whose probable connection has another tuple. Each
// result is the bit of frame i or 0: hinted if the hint is valid, usual if it also is the expected number.
func (tr *Tracker) lookUpHint(i uint8, hints []Hints, tags *[packet.BatchSize]uint32, expected uint32) (hinted, usual uint32) {
	i %= packet.BatchSize
	ref, dir, ok := tr.Settle(int(i))
	if !ok {
		return 0, 0
	}
	h := hints[ref.Number][dir&1]
	if h.Generation != ref.Generation || !tr.conns[ref.Number].hasGeneration(ref.Generation) {
		return 0, 0
	}
	if tags[i] = h.Tag; h.Tag == expected {
		usual = 1 << i
	}
	return 1 << i, usual
}

// Settle completes the look-up of frame i, which SeekFlows has returned. It returns the
// frame's connection and direction; ok is false if the frame has no connection.
func (tr *Tracker) Settle(i int) (ref Ref, dir uint8, ok bool) {
	i %= packet.BatchSize
	t, p, n := tr.Table, &tr.probes[i], tr.numbers[i]
	if n == none || p.kind == kindNone {
		tr.numbers[i] = none
		return Ref{}, 0, false
	}
	if n != unsure {
		c := &t.conns[n]
		g := c.generation()
		if g&1 != 0 && !p.ipv6() {
			if c.tuples[0] == p.words {
				tr.dirs[i], tr.generations[i] = 0, g
				return Ref{n, g}, 0, true
			}
			if c.tuples[1] == p.words {
				tr.dirs[i], tr.generations[i] = 1, g
				return Ref{n, g}, 1, true
			}
		} else if dir, ok := t.matches(n, p); ok {
			tr.dirs[i], tr.generations[i] = dir, g
			return Ref{n, g}, dir, true
		}
	}
	n, dir, g := t.locate(p)
	tr.numbers[i], tr.dirs[i], tr.generations[i] = n, dir, g
	return Ref{n, g}, dir, n != none
}

// locate finds the connection with the tuple of p. The results are its number, or none, the direction of
// the tuple, and the connection's generation, read before the tuples were compared.
func (t *Table) locate(p *probe) (n uint32, dir uint8, g uint32) {
	if n, _ = t.find(p); n == none {
		return none, 0, 0
	}
	g = t.conns[n].generation()
	if d, ok := t.matches(n, p); ok {
		return n, d, g
	}
	return none, 0, 0
}

// Known reports whether frame i was already looked up in this zone.
func (tr *Tracker) Known(i int, zone uint16) bool {
	i %= packet.BatchSize
	p := &tr.probes[i]
	return tr.known>>i&1 != 0 && p.kind != kindNone && p.zone() == zone
}
