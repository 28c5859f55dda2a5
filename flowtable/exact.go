// SPDX-License-Identifier: Apache-2.0

package flowtable

import (
	"math/bits"

	"weft/internal/cpu"
	"weft/packet"
)

// The exact-match cache maps a key to a megaflow. It ignores key bits that are in no
// installed mask: keys that agree on the union of all masks have the same megaflow.
// The cache is set-associative. Each bucket has one word with the signatures of its
// entries. Finding an entry therefore reads one cache line of the small table of
// buckets and the line of one entry in the large table.
//
// An entry holds the generation of the megaflow's slot. Removing a megaflow thus
// invalidates exactly its own entries. A change of the union empties the cache.

// bucketEntries is the number of entries in a bucket.
const bucketEntries = 8

// bucket has an 8-bit signature for each of its entries. Signature 0 marks a free
// entry.
type bucket uint64

// baseWords is the number of key words that every entry stores: WPort to WIPv4. The
// other words are in groups. An entry stores a group only if the key has a bit in it.
const baseWords = WIPv4 + 1

// Groups of words.
const (
	groupIPv6    = 1 << iota // ipv6_src and ipv6_dst
	groupTun                 // tun_id, tun_src and tun_dst
	groupTunIPv6             // tun_ipv6_src and tun_ipv6_dst
	groupARP                 // words of ARP and neighbour discovery
	groupCT                  // words with ct_mark, ct_state, ct_nw_proto, ct_zone, ct ports and ct_label
	groupCTAddr              // ct addresses
	groupEnd                 // above the last group
)

// exactEntry fills one cache line.
type exactEntry struct {
	words      [baseWords]uint64
	slot       uint32
	generation uint32
	groups     uint32 // groups whose words are in exactMore
	_          uint32
}

// exactMore has the key words of all groups that an entry stores, in ascending order
// of the group number.
type exactMore [32]uint64

// The build fails unless the words of all groups fit into an exactMore.
const _ = uint(len(exactMore{}) - (KeyWords - baseWords))

// digest is the hash of a key and the groups in which the key has bits.
type digest struct {
	hash   uint64
	groups uint32
	n      uint32 // number of words in its exactMore
}

// signature returns the digest's 8-bit signature for a bucket. It is never 0.
func (d *digest) signature() uint64 { return max(d.hash>>56, 1) }

// digest hashes the bits of the key that are in the union of all masks. It writes the
// words of the key's groups to more.
func (c *Cache) digest(k *Key, d *digest, more *exactMore) {
	u, s := &c.union, &c.seeds
	acc := fold(k[WPort]&u[WPort]^s[0], k[WEthDst]&u[WEthDst]^s[1]) ^
		fold(k[WEthSrc]&u[WEthSrc]^s[2], k[WIP]&u[WIP]^s[3]) ^
		fold(k[WL4]&u[WL4]^s[4], k[WIPv4]&u[WIPv4]^s[5])
	d.groups, d.n = 0, 0
	if c.groups != 0 {
		acc ^= c.digestGroups(k, d, more)
	}
	d.hash = s.finish(acc)
}

// alike reports whether two keys are equal in the words behind the base words, under
// the union of all masks.
func (c *Cache) alike(k, o *Key) bool {
	diff := uint64(0)
	for at := baseWords; at < KeyWords; at++ {
		diff |= (k[at] ^ o[at]) & c.union[at]
	}
	return diff == 0
}

// digestGroups adds the words of the groups in which both the union of all masks and
// the key have bits. It returns the hash of these words.
func (c *Cache) digestGroups(k *Key, d *digest, more *exactMore) (acc uint64) {
	u := &c.union
	if c.groups&groupIPv6 != 0 {
		acc ^= c.group4(d, more, groupIPv6, k[WIPv6Src]&u[WIPv6Src], k[WIPv6Src+1]&u[WIPv6Src+1],
			k[WIPv6Dst]&u[WIPv6Dst], k[WIPv6Dst+1]&u[WIPv6Dst+1])
	}
	if c.groups&groupTun != 0 {
		a, b := k[WTunID]&u[WTunID], k[WTunIPv4]&u[WTunIPv4]
		if a|b != 0 {
			j := d.n & 31
			more[j], more[(j+1)&31] = a, b
			d.n += 2
			d.groups |= groupTun
			acc ^= fold(a^c.seeds[WTunID], b^c.seeds[WTunIPv4])
		}
	}
	if c.groups&groupTunIPv6 != 0 {
		acc ^= c.group4(d, more, groupTunIPv6, k[WTunIPv6Src]&u[WTunIPv6Src], k[WTunIPv6Src+1]&u[WTunIPv6Src+1],
			k[WTunIPv6Dst]&u[WTunIPv6Dst], k[WTunIPv6Dst+1]&u[WTunIPv6Dst+1])
	}
	if c.groups&groupARP != 0 {
		acc ^= c.group4(d, more, groupARP, k[WARPSha]&u[WARPSha], k[WARPTha]&u[WARPTha],
			k[WNDTarget]&u[WNDTarget], k[WNDTarget+1]&u[WNDTarget+1])
	}
	if c.groups&groupCT != 0 {
		acc ^= c.group4(d, more, groupCT, k[WCT]&u[WCT], k[WCTPorts]&u[WCTPorts], k[WCTLabel]&u[WCTLabel], k[WCTLabel+1]&u[WCTLabel+1])
	}
	if c.groups&groupCTAddr != 0 {
		acc ^= c.group4(d, more, groupCTAddr, k[WCTSrc]&u[WCTSrc], k[WCTSrc+1]&u[WCTSrc+1], k[WCTDst]&u[WCTDst], k[WCTDst+1]&u[WCTDst+1])
	}
	return acc
}

// group4 adds a group of four words to the digest, unless all words are 0. It returns
// their hash.
func (c *Cache) group4(d *digest, more *exactMore, group uint32, w0, w1, w2, w3 uint64) uint64 {
	if w0|w1|w2|w3 == 0 {
		return 0
	}
	j := d.n & 31
	more[j], more[(j+1)&31], more[(j+2)&31], more[(j+3)&31] = w0, w1, w2, w3
	d.n += 4
	d.groups |= group
	s := (*[4]uint64)(c.groupSeeds[group%uint32(len(c.groupSeeds))][:])
	return fold(w0^s[0], w1^s[1]) ^ fold(w2^s[2], w3^s[3])
}

// exactLookup is the progress of a batch in the exact-match cache. If the flows
// exceed the core's own cache, each frame needs one line of Cache.exact and one line
// of Memory.Flows from memory. A core can wait for only a few lines at once. The
// batch therefore advances in strides: while the lines of one stride arrive, the core
// works on other strides.
type exactLookup struct {
	asked    uint // number of frames whose bucket was prefetched
	chosen   uint // number of frames whose bucket was searched; each is now in the list found or in the list missed
	found    uint
	due      uint // number of frames in the list found whose entry was prefetched one stride ago
	compared uint // number of frames in the list found whose entry was compared and whose flow was prefetched
	missed   uint
}

// stride is the number of frames that advance together. It is small enough for lines
// to arrive in time, and large enough for few calls. A frame between two guests takes
// 62.6 ns with stride 8 and 62.0 ns with stride 12 at 100,000 flows (69.8 ns if
// entries are compared right after their prefetch). At 10,000 flows it takes 56.6 and
// 55.2 ns.
const stride = 12

// advance prefetches the buckets of frames[:to] that are not prefetched yet, and
// advances the earlier frames by one step. An entry is compared one stride after its
// prefetch.
func (c *Cache) advance(x *exactLookup, keys *[packet.BatchSize]Key, to uint) {
	from, entries := x.asked, x.found
	cpu.Prefetch(&c.buckets[0], c.homes[from:to])
	x.asked = to
	c.choose(x, from)
	cpu.Prefetch(&c.exact[0], c.entries[entries:x.found])
	c.compare(x, keys, x.due)
	x.due = entries
}

// choose searches the buckets of frames[:to] for an entry with the frame's signature.
func (c *Cache) choose(x *exactLookup, to uint) {
	buckets := c.buckets
	found, missed := x.found, x.missed
	for j := x.chosen; j < to; j++ {
		i, number := c.frames[j%packet.BatchSize], c.homes[j%packet.BatchSize]
		marks := buckets[number].candidates(c.digests[i%packet.BatchSize].signature())
		if marks == 0 {
			c.missed[missed%packet.BatchSize] = i
			missed++
			continue
		}
		c.entries[found%packet.BatchSize] = number*bucketEntries + first(marks)
		c.found[found%packet.BatchSize] = i
		found++
	}
	x.chosen, x.found, x.missed = to, found, missed
}

// compare compares the entries of found[:to] with the keys of their frames. If an
// entry has the frame's key, compare prefetches the entry's flow. If an entry has
// another key, endExact looks its frame up again.
func (c *Cache) compare(x *exactLookup, keys *[packet.BatchSize]Key, to uint) {
	exact, u := c.exact, &c.union
	from := x.compared
	for m := from; m < to; m++ {
		i, at := c.found[m%packet.BatchSize]%packet.BatchSize, c.entries[m%packet.BatchSize]
		d, k, e := &c.digests[i], &keys[i], &exact[at]
		diff := lowerDiffer(&e.words, k, u) | upperDiffer(&e.words, k, u) | uint64(e.groups^d.groups)
		if d.n != 0 {
			diff |= c.differMore(at, d, &c.more[i])
		}
		slot := e.slot
		if diff != 0 {
			slot = NoSlot
		}
		c.slots[m%packet.BatchSize], c.expects[m%packet.BatchSize] = slot, e.generation
	}
	x.compared = to
	cpu.Prefetch(&c.m.Flows[0], c.slots[from:to])
}

// endExact finishes the lookup of the batch, which has count frames, and writes the
// found slots to out. It returns the number n of frames that were not found. These
// frames are in missed[:n].
func (c *Cache) endExact(x *exactLookup, keys *[packet.BatchSize]Key, count uint, out *[packet.BatchSize]uint32) uint {
	if count <= fewLookups {
		return c.probeFew(keys, count, out)
	}
	for x.compared < x.found || x.chosen < count {
		c.advance(x, keys, count)
	}
	flows, missed := c.m.Flows, x.missed
	for m := range x.found {
		i, slot := c.found[m%packet.BatchSize]%packet.BatchSize, c.slots[m%packet.BatchSize]
		if slot >= uint32(len(flows)) || flows[slot].Generation != c.expects[m%packet.BatchSize] {
			if slot = c.probe(&c.digests[i], &c.more[i], &keys[i]); slot == NoSlot {
				c.missed[missed%packet.BatchSize] = i
				missed++
				continue
			}
		}
		out[i] = slot
	}
	return missed
}

// fewLookups is the number of frames up to which prefetching costs more than it
// saves.
const fewLookups = 2

// probeFew looks the frames of a small batch up one by one, without prefetching.
func (c *Cache) probeFew(keys *[packet.BatchSize]Key, count uint, out *[packet.BatchSize]uint32) (missed uint) {
	for j := range count {
		i := c.frames[j%packet.BatchSize] % packet.BatchSize
		if slot := c.probe(&c.digests[i], &c.more[i], &keys[i]); slot != NoSlot {
			out[i] = slot
			continue
		}
		c.missed[missed%packet.BatchSize] = i
		missed++
	}
	return missed
}

// lowerDiffer returns 0 if an entry equals the key k under the mask u in the lower
// half of the base words. upperDiffer does the same for the upper half. The compiler
// inlines them only as two functions.
func lowerDiffer(w *[baseWords]uint64, k, u *Key) uint64 {
	// In Go ^ and | have the same precedence: the parentheses keep each comparison
	// apart from the next word.
	return (w[0] ^ k[0]&u[0]) | (w[1] ^ k[1]&u[1]) | (w[2] ^ k[2]&u[2])
}

func upperDiffer(w *[baseWords]uint64, k, u *Key) uint64 {
	return (w[3] ^ k[3]&u[3]) | (w[4] ^ k[4]&u[4]) | (w[5] ^ k[5]&u[5])
}

// differMore compares the group words of an exact-match entry with the group words of
// a key. It returns 0 if they are equal. The argument at is the index of the entry, d
// is the digest of the key, and wanted has the group words of the key.
func (c *Cache) differMore(at uint32, d *digest, wanted *exactMore) (diff uint64) {
	more := &c.m.more[at]
	for j := uint32(0); j < d.n && j < uint32(len(more)); j += 2 {
		diff |= (more[j] ^ wanted[j]) | (more[j+1] ^ wanted[j+1])
	}
	return diff
}

// candidates marks the entries of bucket b that have the signature, with bit 7 of
// each byte. The lowest mark is always right; a higher one may be wrong.
func (b bucket) candidates(signature uint64) (marks uint64) {
	const ones, tops = 0x0101010101010101, 0x8080808080808080
	x := uint64(b) ^ signature*ones
	return (x - ones) &^ x & tops
}

// first returns the index within the bucket of the lowest marked entry.
func first(marks uint64) uint32 { return uint32(bits.TrailingZeros64(marks)) / 8 }

// holds reports whether an exact-match entry has the words of key k, whose digest is
// d. The argument at is the index of the entry. holds does not check whether the
// entry is stale.
func (c *Cache) holds(at uint32, d *digest, more *exactMore, k *Key) bool {
	e := &c.exact[at]
	diff := lowerDiffer(&e.words, k, &c.union) | upperDiffer(&e.words, k, &c.union) | uint64(e.groups^d.groups)
	if d.n != 0 {
		diff |= c.differMore(at, d, more)
	}
	return diff == 0
}

// probe compares the key with the entries of its bucket that have its signature. It
// returns the slot of the megaflow, or NoSlot.
func (c *Cache) probe(d *digest, more *exactMore, k *Key) uint32 {
	number := uint32(d.hash) & c.bucketWrap
	for marks := c.buckets[number].candidates(d.signature()); marks != 0; marks &= marks - 1 {
		at := number*bucketEntries + first(marks)
		e := &c.exact[at]
		if c.holds(at, d, more, k) && c.m.Flows[e.slot].Generation == e.generation {
			return e.slot
		}
	}
	return NoSlot
}

// replaceOneIn limits replacements: if a bucket is full, only one of replaceOneIn new
// entries replaces another. With more flows than entries a replacement gains nothing
// on average and costs a write: 124 instead of 109 ns a frame at 200,000 flows.
const replaceOneIn = 4

// enter adds key k, whose digest is d, with the slot of its megaflow to the
// exact-match cache. It overwrites an entry with the same key. Otherwise it takes a
// free entry of the bucket or replaces another entry.
func (c *Cache) enter(d *digest, more *exactMore, k *Key, slot uint32) {
	number := uint32(d.hash) & c.bucketWrap
	b := &c.buckets[number]
	way := uint32(bucketEntries)
	for marks := b.candidates(d.signature()); marks != 0; marks &= marks - 1 {
		if w := first(marks); c.holds(number*bucketEntries+w, d, more, k) {
			way = w
			break
		}
	}
	if way == bucketEntries {
		if free := b.candidates(0); free != 0 {
			way = first(free)
		} else {
			if c.victim++; c.victim%replaceOneIn != 0 {
				return
			}
			way = c.victim / replaceOneIn % bucketEntries
		}
	}
	*b = *b&^(0xff<<(8*way)) | bucket(d.signature()<<(8*way))
	at := number*bucketEntries + way
	e := &c.exact[at]
	e.slot, e.generation, e.groups = slot, c.m.Flows[slot].Generation, d.groups
	for i := range e.words {
		e.words[i] = k[i] & c.union[i]
	}
	if d.n != 0 {
		c.m.more[at] = *more
	}
}

// setUnion computes the union of all masks. If the union changed, setUnion empties
// the exact-match cache by clearing the signatures, which takes some microseconds.
func (c *Cache) setUnion() {
	c.unionStale = false
	var union Key
	for _, row := range c.order {
		for at, bits := range c.m.masks[row].key {
			union[at] |= bits
		}
	}
	if union == c.union {
		return
	}
	c.union, c.groups = union, 0
	for at, group := range wordGroups {
		if union[at] != 0 {
			c.groups |= group
		}
	}
	clear(c.buckets)
}

// wordGroups maps each key word to its group. Base words have group 0.
var wordGroups = [KeyWords]uint32{
	WIPv6Src: groupIPv6, WIPv6Src + 1: groupIPv6, WIPv6Dst: groupIPv6, WIPv6Dst + 1: groupIPv6,
	WTunID: groupTun, WTunIPv4: groupTun,
	WTunIPv6Src: groupTunIPv6, WTunIPv6Src + 1: groupTunIPv6, WTunIPv6Dst: groupTunIPv6, WTunIPv6Dst + 1: groupTunIPv6,
	WARPSha: groupARP, WARPTha: groupARP, WNDTarget: groupARP, WNDTarget + 1: groupARP,
	WCT: groupCT, WCTPorts: groupCT, WCTLabel: groupCT, WCTLabel + 1: groupCT,
	WCTSrc: groupCTAddr, WCTSrc + 1: groupCTAddr, WCTDst: groupCTAddr, WCTDst + 1: groupCTAddr,
}
