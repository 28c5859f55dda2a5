package conntrack

import "weft/packet"

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

// Seek looks the connections of frames of the batch up in a zone, as far as
// fetching their records. It returns, for each frame in order, the number of the
// record that it may be; valid until the next call. Settle must follow for each.
func (tr *Tracker) Seek(b *packet.Batch, frames []uint8, zone uint16) *[packet.BatchSize]uint32 {
	t := tr.Table
	if tr.known == 0 {
		tr.created = t.head.counters.Created
	}
	for n, i := range frames {
		i %= packet.BatchSize
		p := &tr.probes[i]
		if !t.extractIPv4(&b.Frames[i], zone, p) {
			t.extract(b, &b.Frames[i], zone, p)
		}
		tr.lines[n%packet.BatchSize] = uint32(p.hash) & t.wrap
	}
	prefetchBuckets(&t.buckets[0], &tr.lines, len(frames))
	for n, i := range frames {
		i %= packet.BatchSize
		p := &tr.probes[i]
		likely, line := none, uint32(0)
		bucket := &t.buckets[uint32(p.hash)&t.wrap]
		if lo, hi := bucket.candidates(signature(p.hash)); lo|hi != 0 {
			likely = bucket.numbers[firstWay(lo, hi)%ways]
			line = likely
		} else if bucket.passed != 0 {
			likely = unsure
		}
		tr.numbers[i], tr.lines[n%packet.BatchSize] = likely, line
	}
	prefetchConns(&t.conns[0], &tr.lines, len(frames))
	return &tr.lines
}

// unsure is the number of a connection whose search has not come to its end.
const unsure = none - 1

// Settle ends for frame i what Seek has begun: it returns the frame's connection
// and direction; ok is false if it has none.
func (tr *Tracker) Settle(i int) (ref Ref, dir uint8, ok bool) {
	i %= packet.BatchSize
	t, p, n := tr.Table, &tr.probes[i], tr.numbers[i]
	tr.known |= 1 << i
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

// Found is the connection and direction of frame i as Settle found it; ok is
// false if the frame has none, or is not known.
func (tr *Tracker) Found(i int) (ref Ref, dir uint8, ok bool) {
	i %= packet.BatchSize
	n := tr.numbers[i]
	return Ref{n, tr.generations[i]}, tr.dirs[i], tr.known>>i&1 != 0 && n != none
}

// Known tells whether frame i has been looked up in the zone.
func (tr *Tracker) Known(i int, zone uint16) bool {
	i %= packet.BatchSize
	p := &tr.probes[i]
	return tr.known>>i&1 != 0 && p.kind != kindNone && p.zone() == zone
}
