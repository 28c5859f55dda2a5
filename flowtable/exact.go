// SPDX-License-Identifier: Apache-2.0

package flowtable

import (
	"math/bits"

	"weft/internal/cpu"
	"weft/packet"
)

// The exact-match cache maps a key to a megaflow. It ignores key bits that are in no
// installed mask. The cache is set-associative. A bucket is one word with the
// signatures of its entries. The hash of a key chooses a bucket and one entry of the
// bucket, the key's likely entry. Most keys are in their likely entries; finding them
// reads one cache line. Finding any other key also reads a cache line of the small table
// of buckets.
//
// An entry has the generation of the megaflow's slot, so removing a megaflow
// invalidates its entries. A change of the union of all masks empties the cache.

// bucketEntries is the number of entries in a bucket.
const bucketEntries = 8

// bucket has an 8-bit signature for each of its entries; 0: a free entry.
type bucket uint64

// baseWords is the number of words (WPort to WIPv4) in every entry. Further words are
// in groups, which an entry stores only if the key needs them.
const baseWords = WIPv4 + 1

// Groups of words.
const (
	groupIPv6    = 1 << iota // ipv6_src and ipv6_dst
	groupTun                 // tun_id, tun_src and tun_dst
	groupTunIPv6             // tun_ipv6_src and tun_ipv6_dst
	groupARP                 // words of ARP and neighbour discovery
	groupCT                  // WCT, WCTPorts and WCTLabel
	groupCTAddr              // ct addresses
	groupND                  // WND
	groupTunOpts             // WTunOpts and WTunMeta
	groupEnd                 // above the last group
)

// exactEntry fills one cache line.
type exactEntry struct {
	words [baseWords]uint64
	flow  uint64 // megaflow: slot in the low 32 bits, generation in the high 32 bits
	form  form   // 0: never written
}

// form says which words a key has, and under which union of masks. From the high bits to the
// low: Cache.unionNumber (32 bits), number of words in its exactMore (16), groups of these
// words (16). An entry has the form of its key.
type form uint64

// The build fails unless a set of groups fits into the 16 bits that a form has for it.
const _ = uint(1<<16 - groupEnd)

// moreWords is the number of words in the key's exactMore.
func (f form) moreWords() uint32 { return uint32(f) >> 16 }

// exactMore has the words of an entry's groups, in ascending order of the groups.
type exactMore [32]uint64

// The build fails unless the words of all groups fit into an exactMore.
const _ = uint(len(exactMore{}) - (KeyWords - baseWords))

// digest is the hash and the form of a key.
type digest struct {
	hash uint64
	form form
}

// signature returns the digest's 8-bit signature for a bucket. It is never 0.
func (d *digest) signature() uint64 { return max(d.hash>>56, 1) }

// way returns the entry of a bucket at which the search for a free entry begins. A
// look-up reads this entry first. The search begins at different entries, so that the
// entries of half-empty buckets use all sets of the processor's caches. If every search
// began at entry 0, most entries in use would share an eighth of these sets, because a
// bucket's entries take eight cache lines.
func (d *digest) way() uint32 { return uint32(d.hash>>48) % bucketEntries }

// digest hashes the key under the union of all masks, and collects the words of the
// key's groups.
func (c *Cache) digest(k *Key, d *digest, words *exactMore) {
	acc := c.foldWords(k, WPort) ^ c.foldWords(k, WEthSrc) ^ c.foldWords(k, WL4)
	d.form = form(c.unionNumber) << 32
	if c.groups != 0 {
		acc ^= c.digestGroups(k, d, words)
	}
	d.hash = c.seeds.finish(acc)
}

// foldWords hashes the words w and w+1 of key k under the union of all masks. Both are below baseWords:
// every entry of the cache stores them.
func (c *Cache) foldWords(k *Key, w int) uint64 {
	return fold(k[w]&c.union[w]^c.seeds[w], k[w+1]&c.union[w+1]^c.seeds[w+1])
}

// equalUnderMasks reports whether two keys are equal under the union of all masks. The caller has already
// compared the first baseWords words.
func (c *Cache) equalUnderMasks(k, o *Key) bool {
	diff := uint64(0)
	for _, at := range c.groupIndexes[:c.groupCount] {
		diff |= (k[at%KeyWords] ^ o[at%KeyWords]) & c.union[at%KeyWords]
	}
	return diff == 0
}

// digestGroups adds all word groups of the key that are not zero to digest d. It
// considers only bits in the union of all masks. It returns the hash of these groups.
func (c *Cache) digestGroups(k *Key, d *digest, words *exactMore) (acc uint64) {
	u := &c.union
	if c.groups&groupIPv6 != 0 {
		acc ^= c.group4(d, words, groupIPv6, k[WIPv6Src]&u[WIPv6Src], k[WIPv6Src+1]&u[WIPv6Src+1],
			k[WIPv6Dst]&u[WIPv6Dst], k[WIPv6Dst+1]&u[WIPv6Dst+1])
	}
	if c.groups&groupTun != 0 {
		a, b := k[WTunID]&u[WTunID], k[WTunIPv4]&u[WTunIPv4]
		if a|b != 0 {
			j := d.form.moreWords() & 31
			words[j], words[(j+1)&31] = a, b
			d.form += 2<<16 | groupTun
			acc ^= fold(a^c.seeds[WTunID], b^c.seeds[WTunIPv4])
		}
	}
	if c.groups&groupTunIPv6 != 0 {
		acc ^= c.group4(d, words, groupTunIPv6, k[WTunIPv6Src]&u[WTunIPv6Src], k[WTunIPv6Src+1]&u[WTunIPv6Src+1],
			k[WTunIPv6Dst]&u[WTunIPv6Dst], k[WTunIPv6Dst+1]&u[WTunIPv6Dst+1])
	}
	if c.groups&groupARP != 0 {
		acc ^= c.group4(d, words, groupARP, k[WARPSha]&u[WARPSha], k[WARPTha]&u[WARPTha],
			k[WNDTarget]&u[WNDTarget], k[WNDTarget+1]&u[WNDTarget+1])
	}
	if c.groups&groupCT != 0 {
		acc ^= c.group4(d, words, groupCT, k[WCT]&u[WCT], k[WCTPorts]&u[WCTPorts], k[WCTLabel]&u[WCTLabel], k[WCTLabel+1]&u[WCTLabel+1])
	}
	if c.groups&groupCTAddr != 0 {
		acc ^= c.group4(d, words, groupCTAddr, k[WCTSrc]&u[WCTSrc], k[WCTSrc+1]&u[WCTSrc+1], k[WCTDst]&u[WCTDst], k[WCTDst+1]&u[WCTDst+1])
	}
	if c.groups&groupND != 0 {
		if a := k[WND] & u[WND]; a != 0 {
			j := d.form.moreWords() & 31
			words[j], words[(j+1)&31] = a, 0 // the words of an entry are compared in pairs
			d.form += 2<<16 | groupND
			acc ^= fold(a^c.seeds[WND], c.seeds[KeyWords])
		}
	}
	if c.groups&groupTunOpts != 0 {
		a, b := k[WTunOpts]&u[WTunOpts], k[WTunMeta]&u[WTunMeta]
		if a|b != 0 {
			j := d.form.moreWords() & 31
			words[j], words[(j+1)&31] = a, b
			d.form += 2<<16 | groupTunOpts
			acc ^= fold(a^c.seeds[WTunOpts], b^c.seeds[WTunMeta])
		}
	}
	return acc
}

// group4 adds a group of four words to digest d, unless all words are 0. It returns the
// hash of the group.
func (c *Cache) group4(d *digest, words *exactMore, group uint32, w0, w1, w2, w3 uint64) uint64 {
	if w0|w1|w2|w3 == 0 {
		return 0
	}
	j := d.form.moreWords() & 31
	words[j], words[(j+1)&31], words[(j+2)&31], words[(j+3)&31] = w0, w1, w2, w3
	d.form += 4<<16 | form(group)
	s := (*[4]uint64)(c.groupSeeds[group%uint32(len(c.groupSeeds))][:])
	return fold(w0^s[0], w1^s[1]) ^ fold(w2^s[2], w3^s[3])
}

// exactLookup is the progress of a batch in the exact-match cache. With many flows,
// each frame needs two cache lines from memory: an entry and a megaflow. The batch
// therefore advances in strides (groups of frames): the core works on one stride while
// the cache lines of other strides arrive.
type exactLookup struct {
	prefetched uint // number of frames whose first line was prefetched
	chosen     uint // number of frames whose entry is known
	compared   uint // number of frames that were compared with their entry
}

// stride is the number of frames that advance together in exactLookup. It is small
// enough to overlap with memory accesses, and large enough for few function calls. With
// look-ups that read buckets first, a frame at 100,000 flows took 62.0 ns with stride 12,
// 62.6 ns with stride 8, and 69.8 ns without strides.
const stride = 12

// likely returns the entry in which a key with digest d is stored unless another key took
// it first. In a cache of 262,144 entries, 96 % of 20,000 flows are in their likely entries,
// and 83 % of 100,000 flows.
func (c *Cache) likely(d *digest) uint32 {
	return uint32(d.hash)&c.bucketWrap*bucketEntries + d.way()
}

// bucketBatches is the number of batches for which look-ups read buckets before entries,
// after a batch in which more than a fifth of the frames were not in their likely entries.
// Such batches are common from 100,000 flows on.
const bucketBatches = 64

// advance prefetches cache lines of the next frames, and advances earlier frames by one
// step. Usually it prefetches the likely entries, and compares them in the next step. If
// bucketsFirst is not 0, it prefetches buckets, then the entries that they name, and then
// compares, one step after the other.
func (c *Cache) advance(x *exactLookup, keys *[packet.BatchSize]Key, end uint) {
	from, chosen := x.prefetched, x.chosen
	x.prefetched, x.chosen = end, from
	if c.bucketsFirst == 0 {
		cpu.Prefetch(&c.exact[0], c.entries[from:end])
		c.compare(x, keys, from)
		return
	}
	cpu.Prefetch(&c.buckets[0], c.homes[from:end])
	c.choose(chosen, from)
	cpu.Prefetch(&c.exact[0], c.entries[chosen:from])
	c.compare(x, keys, chosen)
}

// choose searches the buckets of frames for the frames' signatures, and stores the entries
// to compare in c.entries. A frame whose bucket lacks its signature gets entry 0, which
// compare rejects.
func (c *Cache) choose(from, end uint) {
	for m := from; m < end; m++ {
		i, number, entry := c.frames[m%packet.BatchSize], c.homes[m%packet.BatchSize], uint32(0)
		if marks := c.buckets[number].candidates(c.digests[i%packet.BatchSize].signature()); marks != 0 {
			entry = number*bucketEntries + firstMarked(marks)
		}
		c.entries[m%packet.BatchSize] = entry
	}
}

// compare compares the chosen entries of frames with the frames' keys. For equal keys it
// prefetches the megaflow.
func (c *Cache) compare(x *exactLookup, keys *[packet.BatchSize]Key, end uint) {
	from := x.compared
	if x.compared = end; from >= end || end > packet.BatchSize {
		return
	}
	if hasCompareAssembly {
		compareEntries(end-from, &c.frames[from], &c.entries[from], &keys[0], &c.union, &c.digests[0], &c.exact[0],
			&c.m.Flows[0], &c.slots[from], &c.expects[from])
	} else {
		c.compareBase(keys, from, end)
		cpu.Prefetch(&c.m.Flows[0], c.slots[from:end])
	}
	if c.groups != 0 {
		c.compareMore(from, end)
	}
}

// compareBase compares the forms and the base words. It writes the slot and the generation of
// each entry to c.slots and c.expects, or NoSlot and 0 if the entry has another key.
func (c *Cache) compareBase(keys *[packet.BatchSize]Key, from, end uint) {
	exact, u := c.exact, &c.union
	for m := from; m < end; m++ {
		i, at := c.frames[m%packet.BatchSize]%packet.BatchSize, c.entries[m%packet.BatchSize]
		k, e := &keys[i], &exact[at]
		flow := e.flow
		if lowerDiffer(&e.words, k, u)|upperDiffer(&e.words, k, u)|uint64(e.form^c.digests[i].form) != 0 {
			flow = uint64(NoSlot)
		}
		c.slots[m%packet.BatchSize], c.expects[m%packet.BatchSize] = uint32(flow), uint32(flow>>32)
	}
}

// compareMore compares the words of groups. It writes NoSlot to c.slots for an entry whose
// words differ.
func (c *Cache) compareMore(from, end uint) {
	for m := from; m < end; m++ {
		i := c.frames[m%packet.BatchSize] % packet.BatchSize
		if c.differMore(c.entries[m%packet.BatchSize], &c.digests[i], &c.groupWords[i]) != 0 {
			c.slots[m%packet.BatchSize] = NoSlot
		}
	}
}

// endExact finishes the lookup of a batch of count frames, and writes the found slots
// to slots. It returns the number of frames that were not found, which are listed in
// c.missed.
func (c *Cache) endExact(x *exactLookup, keys *[packet.BatchSize]Key, count uint, slots *[packet.BatchSize]uint32) uint {
	if count <= fewLookups {
		return c.probeAll(keys, c.frames[:count], slots)
	}
	for x.compared < count {
		c.advance(x, keys, count)
	}
	flows, others := c.m.Flows, uint(0)
	for m := range count {
		i, slot := c.frames[m%packet.BatchSize]%packet.BatchSize, c.slots[m%packet.BatchSize]
		if slot >= uint32(len(flows)) || flows[slot].Generation != c.expects[m%packet.BatchSize] {
			c.missed[others%packet.BatchSize] = i
			others++
			continue
		}
		slots[i] = slot
	}
	if c.bucketsFirst > 0 {
		c.bucketsFirst--
	} else if others*5 > count {
		c.bucketsFirst = bucketBatches
	}
	if others == 0 {
		return 0
	}
	return c.probeAll(keys, c.missed[:others], slots)
}

// probeAll searches all entries of the buckets of the frames in list. It returns the
// number of frames without an entry, and lists them in c.missed. list may be a part of
// c.missed.
func (c *Cache) probeAll(keys *[packet.BatchSize]Key, list []uint8, slots *[packet.BatchSize]uint32) (missed uint) {
	if len(list) > fewLookups {
		c.fetchBuckets(list)
	}
	for _, i := range list {
		i %= packet.BatchSize
		if slot := c.probe(&c.digests[i], &c.groupWords[i], &keys[i]); slot != NoSlot {
			slots[i] = slot
			continue
		}
		c.missed[missed%packet.BatchSize] = i
		missed++
	}
	return missed
}

// fetchBuckets prefetches the cache lines that the method probe will read for a list of
// frames.
func (c *Cache) fetchBuckets(list []uint8) {
	for at, i := range list {
		c.homes[at%packet.BatchSize] = uint32(c.digests[i%packet.BatchSize].hash) & c.bucketWrap
	}
	cpu.Prefetch(&c.buckets[0], c.homes[:len(list)])
	found := uint(0)
	for at, i := range list {
		number := c.homes[at%packet.BatchSize]
		if marks := c.buckets[number].candidates(c.digests[i%packet.BatchSize].signature()); marks != 0 {
			c.slots[found%packet.BatchSize] = number*bucketEntries + firstMarked(marks)
			found++
		}
	}
	cpu.Prefetch(&c.exact[0], c.slots[:found])
}

// fewLookups is the largest number of frames for which prefetching costs more than it
// saves.
const fewLookups = 2

// lowerDiffer returns 0 if the first base words of an entry equal key k under mask u.
// upperDiffer compares the remaining base words. One function for both would be too
// large for inlining.
func lowerDiffer(w *[baseWords]uint64, k, u *Key) uint64 {
	// In Go ^ and | have the same precedence.
	return (w[0] ^ k[0]&u[0]) | (w[1] ^ k[1]&u[1]) | (w[2] ^ k[2]&u[2])
}

func upperDiffer(w *[baseWords]uint64, k, u *Key) uint64 {
	return (w[3] ^ k[3]&u[3]) | (w[4] ^ k[4]&u[4]) | (w[5] ^ k[5]&u[5])
}

// differMore returns 0 if the group words of an entry equal the words in groupWords, which
// belong to digest d.
func (c *Cache) differMore(entry uint32, d *digest, groupWords *exactMore) (diff uint64) {
	words := &c.m.groupWords[entry]
	for j := uint32(0); j < d.form.moreWords() && j < uint32(len(words)); j += 2 {
		diff |= (words[j] ^ groupWords[j]) | (words[j+1] ^ groupWords[j+1])
	}
	return diff
}

// candidates returns a mark (bit 7) for each byte of bucket b that equals the
// signature. The lowest mark is always right; a higher one may be wrong.
func (b bucket) candidates(signature uint64) (marks uint64) {
	const ones, tops = 0x0101010101010101, 0x8080808080808080
	x := uint64(b) ^ signature*ones
	return (x - ones) &^ x & tops
}

// firstMarked returns the index within the bucket of the lowest marked entry.
func firstMarked(marks uint64) uint32 { return uint32(bits.TrailingZeros64(marks)) / 8 }

// The method holds reports whether an entry has key k, whose digest is d. It does not
// check whether the entry is stale.
func (c *Cache) holds(entry uint32, d *digest, words *exactMore, k *Key) bool {
	e := &c.exact[entry]
	diff := lowerDiffer(&e.words, k, &c.union) | upperDiffer(&e.words, k, &c.union) | uint64(e.form^d.form)
	if d.form.moreWords() != 0 {
		diff |= c.differMore(entry, d, words)
	}
	return diff == 0
}

// probe looks up one key and returns the slot of the megaflow, or NoSlot.
func (c *Cache) probe(d *digest, words *exactMore, k *Key) uint32 {
	number := uint32(d.hash) & c.bucketWrap
	for marks := c.buckets[number].candidates(d.signature()); marks != 0; marks &= marks - 1 {
		at := number*bucketEntries + firstMarked(marks)
		e := &c.exact[at]
		if slot := uint32(e.flow); c.holds(at, d, words, k) && c.m.Flows[slot].Generation == uint32(e.flow>>32) {
			return slot
		}
	}
	return NoSlot
}

// replaceOneIn limits replacements: only one of replaceOneIn new entries for a full
// bucket replaces an old entry. If every new entry did, a frame would take 124 instead
// of 109 ns with more flows than entries (200,000 flows).
const replaceOneIn = 4

// enter adds key k with digest d and the slot of its megaflow. It overwrites the key's
// old entry, or takes a free entry, or replaces another entry of the bucket.
func (c *Cache) enter(d *digest, words *exactMore, k *Key, slot uint32) {
	number := uint32(d.hash) & c.bucketWrap
	b := &c.buckets[number]
	way := uint32(bucketEntries)
	for marks := b.candidates(d.signature()); marks != 0; marks &= marks - 1 {
		if w := firstMarked(marks); c.holds(number*bucketEntries+w, d, words, k) {
			way = w
			break
		}
	}
	if way == bucketEntries {
		begin := d.way()
		if free := bucket(bits.RotateLeft64(uint64(*b), -8*int(begin))).candidates(0); free != 0 {
			way = (firstMarked(free) + begin) % bucketEntries
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
	e.flow, e.form = uint64(slot)|uint64(c.m.Flows[slot].Generation)<<32, d.form
	for i := range e.words {
		e.words[i] = k[i] & c.union[i]
	}
	if d.form.moreWords() != 0 {
		c.m.groupWords[at] = *words
	}
}

// setUnion computes the union of all masks, and empties the exact-match cache if the
// union has changed.
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
	c.union, c.groups, c.groupCount = union, 0, 0
	if c.unionNumber++; c.unionNumber == 0 {
		clear(c.exact)
		c.unionNumber = 1
	}
	for at, group := range wordGroups {
		if union[at] != 0 && group != 0 {
			c.groups |= group
			c.groupIndexes[c.groupCount] = uint8(at)
			c.groupCount++
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
	WND:      groupND,
	WTunOpts: groupTunOpts, WTunMeta: groupTunOpts,
	WCT: groupCT, WCTPorts: groupCT, WCTLabel: groupCT, WCTLabel + 1: groupCT,
	WCTSrc: groupCTAddr, WCTSrc + 1: groupCTAddr, WCTDst: groupCTAddr, WCTDst + 1: groupCTAddr,
}
