// SPDX-License-Identifier: Apache-2.0

package conntrack

import "math/bits"

// The index is a hash table that finds connections by tuple. A bucket is one cache line with eight slots. A
// slot has the number of a connection and a signature (16 bits of the hash). Four signatures are in one
// word, so that one operation compares all four. If a bucket is full, an entry goes into the next bucket
// with a free slot. Each full bucket before that one counts the entry in its field "passed". A search ends
// at the first bucket whose "passed" is 0. Entries never move.
//
// At least half of the slots stay free: there are four slots for each connection, and a connection takes
// one entry, or two if it is translated.

const slots = 8

type bucket struct {
	signatures [slots / 4]uint64 // 16 bits for each slot; 0: free slot
	numbers    [slots]uint32
	passed     uint32 // number of entries that went to a later bucket because this bucket was full
	_          [12]byte
}

// maxBuckets is the largest number of buckets in a search. If all are full, the
// connection is refused.
const maxBuckets = 64

// none stands in place of a connection's number if there is no connection.
const none = ^uint32(0)

func signature(hash uint64) uint64 { return hash>>48 | 1 }

// candidates compares the signature with those of all slots of the bucket. It returns two words with 16
// bits for each slot. The highest of the 16 bits, the mark, is set if the slot has this signature. The
// lowest mark that is set in a word is always right. The others may be wrong, so the caller compares the
// tuple.
func (b *bucket) candidates(signature uint64) (lo, hi uint64) {
	return b.marks(0, signature), b.marks(1, signature)
}

// marks returns the first or the second word that candidates returns; word is 0 or 1.
func (b *bucket) marks(word int, signature uint64) uint64 {
	const ones, tops = 0x0001000100010001, 0x8000800080008000
	x := b.signatures[word] ^ signature*ones
	return (x - ones) &^ x & tops
}

func firstSlot(lo, hi uint64) uint32 {
	if lo != 0 {
		return uint32(bits.TrailingZeros64(lo)) / 16
	}
	return slots/2 + uint32(bits.TrailingZeros64(hi))/16
}

// dropFirst clears the lowest mark in the two words that candidates has returned: in lo if lo has a mark,
// otherwise in hi.
func dropFirst(lo, hi uint64) (uint64, uint64) {
	if lo != 0 {
		return lo & (lo - 1), hi
	}
	return 0, hi & (hi - 1)
}

// find looks for the live connection with the tuple of p. It returns the connection's
// number, or none, and the direction of the tuple. The connection may have expired.
func (t *Table) find(p *probe) (number uint32, dir uint8) {
	sig := signature(p.hash)
	at := uint32(p.hash) & t.wrap
	for range maxBuckets {
		b := &t.buckets[at&t.wrap]
		for lo, hi := b.candidates(sig); lo|hi != 0; lo, hi = dropFirst(lo, hi) {
			n := b.numbers[firstSlot(lo, hi)%slots]
			if dir, ok := t.matches(n, p); ok {
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

// matches reports whether connection n is alive and has the tuple of p. It also returns
// the direction of the tuple.
func (t *Table) matches(n uint32, p *probe) (dir uint8, ok bool) {
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

// insert adds an index entry for connection n. It returns false if the first maxBuckets buckets for this
// hash are full. The caller holds the table's lock.
func (t *Table) insert(hash uint64, n uint32) bool {
	home := uint32(hash)
	for i := range uint32(maxBuckets) {
		b := &t.buckets[(home+i)&t.wrap]
		lo, hi := b.candidates(0)
		if lo|hi == 0 {
			continue
		}
		slot := firstSlot(lo, hi)
		b.numbers[slot%slots] = n
		b.signatures[slot/4%2] |= signature(hash) << (slot % 4 * 16)
		for j := range i {
			t.buckets[(home+j)&t.wrap].passed++
		}
		return true
	}
	return false
}

// remove deletes the index entry of connection n for this hash, if it exists. The caller holds the
// table's lock.
func (t *Table) remove(hash uint64, n uint32) {
	home := uint32(hash)
	for i := range uint32(maxBuckets) {
		b := &t.buckets[(home+i)&t.wrap]
		for lo, hi := b.candidates(signature(hash)); lo|hi != 0; lo, hi = dropFirst(lo, hi) {
			slot := firstSlot(lo, hi)
			if b.numbers[slot%slots] != n {
				continue
			}
			shift := slot % 4 * 16
			if b.signatures[slot/4%2]>>shift&0xffff != signature(hash) {
				continue
			}
			b.signatures[slot/4%2] &^= 0xffff << shift
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
