package conntrack

import "math/bits"

// The index finds connections by hash. A bucket is one cache line: the
// signatures of its entries in two words, compared at once, and the connections'
// numbers. An entry that finds its bucket full goes to the next, and every bucket
// it passed counts it, so that a search ends at the first bucket nothing passed.
// Entries never move.
//
// There are four buckets' ways for each connection and at most two entries: one
// for both directions, or two if it is translated, so half of the ways stay free.

const ways = 8

type bucket struct {
	signatures [ways / 4]uint64 // 16 bits an entry; 0: free
	numbers    [ways]uint32
	passed     uint32 // entries whose search begins at or before this bucket and which lie behind it
	_          [12]byte
}

// maxBuckets bounds a search; an entry that finds no room within it is refused.
const maxBuckets = 64

// none is the number of no connection.
const none = ^uint32(0)

func signature(hash uint64) uint64 { return hash>>48 | 1 }

// candidates marks the entries that have the signature: bit 15 of each 16 bits.
// Of each word the lowest mark is right; those above it may not be.
func (b *bucket) candidates(signature uint64) (lo, hi uint64) {
	return b.marks(0, signature), b.marks(1, signature)
}

// marks is one word of candidates.
func (b *bucket) marks(word int, signature uint64) uint64 {
	const ones, tops = 0x0001000100010001, 0x8000800080008000
	x := b.signatures[word] ^ signature*ones
	return (x - ones) &^ x & tops
}

// firstWay is the lowest marked entry.
func firstWay(lo, hi uint64) uint32 {
	if lo != 0 {
		return uint32(bits.TrailingZeros64(lo)) / 16
	}
	return ways/2 + uint32(bits.TrailingZeros64(hi))/16
}

// dropFirst takes the lowest mark off.
func dropFirst(lo, hi uint64) (uint64, uint64) {
	if lo != 0 {
		return lo & (lo - 1), hi
	}
	return 0, hi & (hi - 1)
}

// find returns the live connection that has p's tuple, in direction dir, or none.
// It may be expired.
func (t *Table) find(p *probe) (number uint32, dir uint8) {
	sig := signature(p.hash)
	at := uint32(p.hash) & t.wrap
	for range maxBuckets {
		b := &t.buckets[at&t.wrap]
		for lo, hi := b.candidates(sig); lo|hi != 0; lo, hi = dropFirst(lo, hi) {
			n := b.numbers[firstWay(lo, hi)%ways]
			if dir, ok := t.is(n, p); ok {
				return n, dir
			}
		}
		if b.passed == 0 {
			break
		}
		at++
	}
	return none, 0
}

// is tells whether connection n lives and has p's tuple, and in which direction.
func (t *Table) is(n uint32, p *probe) (dir uint8, ok bool) {
	c := &t.conns[n]
	if c.meta.Load()&1 == 0 {
		return 0, false
	}
	if c.tuples[0] == p.words {
		return 0, !p.ipv6() || t.longOf(n, 0) == p.long
	}
	if c.tuples[1] == p.words {
		return 1, !p.ipv6() || t.longOf(n, 1) == p.long
	}
	return 0, false
}

// insert adds an entry; it reports false if there is no room. Lock held.
func (t *Table) insert(hash uint64, n uint32) bool {
	home := uint32(hash)
	for i := range uint32(maxBuckets) {
		b := &t.buckets[(home+i)&t.wrap]
		lo, hi := b.candidates(0)
		if lo|hi == 0 {
			continue
		}
		way := firstWay(lo, hi)
		b.numbers[way%ways] = n
		b.signatures[way/4%2] |= signature(hash) << (way % 4 * 16)
		for j := range i {
			t.buckets[(home+j)&t.wrap].passed++
		}
		return true
	}
	return false
}

// remove takes one entry of this hash and connection out; there may be none.
// Lock held.
func (t *Table) remove(hash uint64, n uint32) {
	home := uint32(hash)
	for i := range uint32(maxBuckets) {
		b := &t.buckets[(home+i)&t.wrap]
		for lo, hi := b.candidates(signature(hash)); lo|hi != 0; lo, hi = dropFirst(lo, hi) {
			way := firstWay(lo, hi)
			if b.numbers[way%ways] != n {
				continue
			}
			shift := way % 4 * 16
			if b.signatures[way/4%2]>>shift&0xffff != signature(hash) {
				continue
			}
			b.signatures[way/4%2] &^= 0xffff << shift
			for j := range i {
				t.buckets[(home+j)&t.wrap].passed--
			}
			return
		}
		if b.passed == 0 {
			return
		}
	}
}
