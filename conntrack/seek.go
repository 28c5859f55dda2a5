package conntrack

import (
	"math/bits"

	"weft/internal/cpu"
	"weft/packet"
)

// Looking up a batch: what does not depend on each other is fetched together, the
// buckets of all frames first, then the records of all connections. Frames stay
// found until Forget, so that whoever looks a frame up first does it for all.

// sought is what a batch's look-ups have found, by frame.
type sought struct {
	known  uint32 // frames whose probe and number are right
	probes [packet.BatchSize]probe
	// numbers are the connections, none: none was there when created was
	// Counters.Created.
	numbers     [packet.BatchSize]uint32
	dirs        [packet.BatchSize]uint8
	generations [packet.BatchSize]uint32 // of numbers, when their tuple was compared
	created     uint64
	lines       [packet.BatchSize]uint32
}

// Forget says that frames, a bit each, are no longer what they were when they
// were looked up: another batch, or headers that were changed.
func (tr *Tracker) Forget(frames uint32) { tr.known &^= frames }

// SeekFlows looks those frames of set up in a zone that are whole and of TCP or UDP,
// and not known there, as far as fetching their connections' records. It returns
// them in order and, for each in order, the number of the record that it may be;
// both valid until the next call. Settle must follow for each.
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
	tr.likely(order)
	return order, &tr.lines
}

// Ends of a whole datagram of TCP or UDP over IPv4.
type Ends struct {
	Addresses uint64 // source<<32 | destination
	Rest      uint64 // source port<<48 | destination port<<32 | protocol<<8
}

// SeekEnds is SeekFlows for frames of which none is known and all have Ends.
func (tr *Tracker) SeekEnds(set uint32, ends *[packet.BatchSize]Ends, zone uint16) ([]uint8, *[packet.BatchSize]uint32) {
	t, n := tr.Table, 0
	s, wrap, more := &t.head.seeds, t.wrap, uint64(zone)<<16|familyIPv4
	s6, s7, s8 := s[6], s[7], s[8]
	for ; set != 0; set &= set - 1 {
		i := bits.TrailingZeros32(set) % packet.BatchSize
		p, a, b := &tr.probes[i], ends[i].Addresses, ends[i].Rest|more
		p.a, p.b, p.kind, p.inner = a, b, kindFlow, 0
		p.hash = mix(a>>32^b>>48<<40, a&0xffffffff^b>>32&0xffff<<40, b&0xffffffff, s6, s7, s8) // as hash has it
		tr.lines[n%packet.BatchSize] = uint32(p.hash) & wrap
		tr.order[n%packet.BatchSize] = uint8(i)
		n++
	}
	order := tr.order[:n]
	tr.likely(order)
	return order, &tr.lines
}

// seek is SeekFlows for all these frames.
func (tr *Tracker) seek(b *packet.Batch, frames []uint8, zone uint16) {
	t := tr.Table
	for n, i := range frames {
		i %= packet.BatchSize
		p := &tr.probes[i]
		t.extract(b, &b.Frames[i], zone, p)
		tr.lines[n%packet.BatchSize] = uint32(p.hash) & t.wrap
	}
	tr.likely(frames)
}

// likely fetches the buckets and then the records of frames, whose buckets are in
// lines.
func (tr *Tracker) likely(frames []uint8) {
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
		if lo := bucket.marks(0, sig); lo != 0 { // most are in the first word
			number = bucket.numbers[firstWay(lo, 0)%ways]
			line = number
		} else if hi := bucket.marks(1, sig); hi != 0 {
			number = bucket.numbers[firstWay(0, hi)%ways]
			line = number
		} else if bucket.passed != 0 {
			number = unsure
		}
		tr.known |= 1 << i
		tr.numbers[i], tr.lines[n%packet.BatchSize] = number, line
	}
	cpu.Prefetch(&t.conns[0], tr.lines[:len(frames)])
}

// unsure is the number of a connection whose search has not come to its end.
const unsure = none - 1

// Hint is what a worker remembers with one direction of a connection, as long as that
// is of this generation.
type Hint struct{ Tag, Generation uint32 }

// Hints are those of a connection, by direction.
type Hints [2]Hint

// Settled says of frames, a bit each, what SettleAll has found.
type Settled struct {
	Expected uint32 // tag
	Hinted   uint32 // have a connection with a hint, whose tag is known
	Usual    uint32 // of those: the tag is the one expected
	// Quick are those of which Fast says ok without writing anything, but for the
	// translation.
	Quick uint32
}

// SettleAll is Settle for frames that SeekFlows returned. Index of hints is the number
// of the connection.
func (tr *Tracker) SettleAll(frames []uint8, hints []Hints, tags *[packet.BatchSize]uint32, expected uint32, now uint64) Settled {
	conns := tr.Table.conns
	hints = hints[:len(conns)]
	policy := uint8(0)
	lasts, moves := tr.timeout(policy, UDPMultiple)
	hinted, usual, quick := uint32(0), uint32(0), uint32(0)
	for _, i := range frames {
		i %= packet.BatchSize
		n, p := tr.numbers[i], &tr.probes[i]
		if n >= uint32(len(conns)) || p.ipv6() {
			h, u := tr.settleHint(i, hints, tags, expected)
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
			h, u := tr.settleHint(i, hints, tags, expected)
			hinted, usual = hinted|h, usual|u
			continue
		}
		tr.dirs[i], tr.generations[i] = dir, g
		h := hints[n][dir]
		if h.Generation != g || c.generation() != g { // else the tuple may be another connection's
			continue
		}
		tags[i] = h.Tag
		hinted |= 1 << i
		if h.Tag == expected {
			usual |= 1 << i
		}
		if c.policy != policy {
			policy = c.policy
			lasts, moves = tr.timeout(policy, UDPMultiple)
		}
		// What is not due has not expired either, unless its timeout is 0.
		if d := now + lasts - c.expiresNS; d <= moves && d < lasts && c.class == UDPMultiple &&
			c.flags&(connFTP|connTFTP|connReplied) == connReplied && c.generation() == g {
			quick |= 1 << i
		}
	}
	return Settled{Expected: expected, Hinted: hinted, Usual: usual, Quick: quick}
}

// settleHint is SettleAll for a frame that is not the connection's that it may be, or
// of IPv6.
func (tr *Tracker) settleHint(i uint8, hints []Hints, tags *[packet.BatchSize]uint32, expected uint32) (hinted, usual uint32) {
	i %= packet.BatchSize
	ref, dir, ok := tr.Settle(int(i))
	if !ok {
		return 0, 0
	}
	h := hints[ref.Number][dir&1]
	if h.Generation != ref.Generation || tr.conns[ref.Number].generation() != ref.Generation {
		return 0, 0
	}
	if tags[i] = h.Tag; h.Tag == expected {
		usual = 1 << i
	}
	return 1 << i, usual
}

// Settle ends for frame i what SeekFlows has begun: it returns the frame's
// connection and direction; ok is false if it has none.
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
		} else if dir, ok := t.is(n, p); ok {
			tr.dirs[i], tr.generations[i] = dir, g
			return Ref{n, g}, dir, true
		}
	}
	n, dir, g := t.locate(p)
	tr.numbers[i], tr.dirs[i], tr.generations[i] = n, dir, g
	return Ref{n, g}, dir, n != none
}

// locate finds p's connection, with the generation that it had before its tuple
// was compared.
func (t *Table) locate(p *probe) (n uint32, dir uint8, g uint32) {
	if n, _ = t.find(p); n == none {
		return none, 0, 0
	}
	g = t.conns[n].generation()
	if d, ok := t.is(n, p); ok {
		return n, d, g
	}
	return none, 0, 0
}

// Known tells whether frame i has been looked up in the zone.
func (tr *Tracker) Known(i int, zone uint16) bool {
	i %= packet.BatchSize
	p := &tr.probes[i]
	return tr.known>>i&1 != 0 && p.kind != kindNone && p.zone() == zone
}
