package flowtable

import (
	"math/bits"

	"weft/internal/cpu"
	"weft/packet"
)

// The exact-match cache maps the bits of a key that any installed mask looks at
// (the union of all masks) to a megaflow: frames that agree in those agree in
// their megaflow. It is set-associative: a bucket has the signatures of its
// entries in one word, so that choosing among them costs one line of a small
// table, and only the entry itself is fetched from the large one.
//
// An entry holds the generation of the megaflow's slot, so that removing a
// megaflow ends its own entries and no others. A change of the union empties
// the cache.

// ways is the number of entries in a bucket.
const ways = 8

// bucket has the 8-bit signature of each of its entries; 0: free.
type bucket uint64

// baseWords is the number of words of a key that every entry has: WPort to
// WIPv4. The others come in groups, and only those of groups that have a bit
// set are kept.
const baseWords = WIPv4 + 1

// Groups of words.
const (
	groupIPv6    = 1 << iota // ipv6_src, ipv6_dst
	groupTun                 // tun_id, tun_src, tun_dst
	groupTunIPv6             // those of an IPv6 underlay
	groupARP                 // arp and nd
	groupCT                  // ct_state and what is in its word, ports, label
	groupCTAddr              // addresses of the original direction
)

// exactEntry is one line.
type exactEntry struct {
	words      [baseWords]uint64
	slot       uint32
	generation uint32
	groups     uint32 // groups of words in more
	_          uint32
}

// exactMore has the words of an entry's groups, those of the lowest group first.
type exactMore [32]uint64

// digest is a key as the exact-match cache sees it, one line.
type digest struct {
	words  [baseWords]uint64
	hash   uint64
	groups uint32
	n      uint32 // words in its exactMore
}

// signature is never 0.
func (d *digest) signature() uint64 { return max(d.hash>>56, 1) }

// digest masks the key with the union and hashes it. more takes the words of
// groups.
func (c *Cache) digest(k *Key, d *digest, more *exactMore) {
	u, s := &c.union, &c.seeds
	w0, w1 := k[WPort]&u[WPort], k[WEthDst]&u[WEthDst]
	w2, w3 := k[WEthSrc]&u[WEthSrc], k[WIP]&u[WIP]
	w4, w5 := k[WL4]&u[WL4], k[WIPv4]&u[WIPv4]
	// One by one: a literal is built aside and copied in wider pieces, which
	// waits for the narrow stores.
	d.words[0], d.words[1], d.words[2], d.words[3], d.words[4], d.words[5] = w0, w1, w2, w3, w4, w5
	d.groups, d.n = 0, 0
	acc := fold(w0^s[0], w1^s[1]) ^ fold(w2^s[2], w3^s[3]) ^ fold(w4^s[4], w5^s[5])
	if c.groups != 0 {
		acc ^= c.digestGroups(k, d, more)
	}
	d.hash = s.finish(acc)
}

// alike tells whether two keys agree in all bits of words beyond the base ones
// that any mask looks at.
func (c *Cache) alike(k, o *Key) bool {
	diff := uint64(0)
	for at := baseWords; at < KeyWords; at++ {
		diff |= (k[at] ^ o[at]) & c.union[at]
	}
	return diff == 0
}

// digestGroups adds the words of groups that any mask looks at and this key has.
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

// group4 adds a group of four words unless all are 0, and returns their hash.
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

// lookupExact looks up digests[:count] and writes what it finds to out. It
// returns how many it did not find, missed[:n]. Each loop works on lines that do
// not depend on each other, fetched by the loop before.
func (c *Cache) lookupExact(count int, out *[packet.BatchSize]uint32) (missed int) {
	buckets, exact, flows := c.buckets, c.exact, c.m.Flows
	found := 0
	if count > fewLookups {
		for j := range count {
			c.lines[j%packet.BatchSize] = uint32(c.digests[j%packet.BatchSize].hash) & c.bucketWrap
		}
		cpu.Prefetch(&buckets[0], c.lines[:count])
	}
	for j := range count {
		d := &c.digests[j%packet.BatchSize]
		number := uint32(d.hash) & c.bucketWrap
		marks := buckets[number].candidates(d.signature())
		if marks == 0 {
			c.missed[missed%packet.BatchSize] = uint8(j)
			missed++
			continue
		}
		c.lines[found%packet.BatchSize] = number*ways + first(marks)
		c.found[found%packet.BatchSize] = uint8(j)
		found++
	}
	if found > fewLookups {
		cpu.Prefetch(&exact[0], c.lines[:found])
		for m := range found {
			c.hashes[m%packet.BatchSize] = exact[c.lines[m%packet.BatchSize]].slot
		}
		cpu.Prefetch(&flows[0], c.hashes[:found])
	}
	for m := range found {
		j, at := c.found[m%packet.BatchSize]%packet.BatchSize, c.lines[m%packet.BatchSize]
		d, e := &c.digests[j], &exact[at]
		diff := wordsDiffer(&e.words, &d.words) | uint64(e.groups^d.groups)
		if d.n != 0 {
			diff |= c.differMore(at, d, &c.more[j])
		}
		slot := e.slot
		if diff != 0 || flows[slot].Generation != e.generation {
			if slot = c.probe(d, &c.more[j]); slot == NoSlot {
				c.missed[missed%packet.BatchSize] = j
				missed++
				continue
			}
		}
		out[c.frames[j]%packet.BatchSize] = slot
	}
	return missed
}

// fewLookups are not worth a fetch ahead.
const fewLookups = 2

// wordsDiffer is 0 if all words are equal.
func wordsDiffer(w, v *[baseWords]uint64) uint64 {
	// ^ and | bind alike in Go: without its parentheses a difference would hide.
	return (w[0] ^ v[0]) | (w[1] ^ v[1]) | (w[2] ^ v[2]) | (w[3] ^ v[3]) | (w[4] ^ v[4]) | (w[5] ^ v[5])
}

// differMore is 0 if entry number at has the words of d's groups, which are in of.
func (c *Cache) differMore(at uint32, d *digest, of *exactMore) (diff uint64) {
	more := &c.m.more[at]
	for j := uint32(0); j < d.n && j < uint32(len(more)); j += 2 {
		diff |= (more[j] ^ of[j]) | (more[j+1] ^ of[j+1])
	}
	return diff
}

// candidates marks the entries of b that have the signature: bit 7 of each byte.
// The lowest mark is right; one above it may not be.
func (b bucket) candidates(signature uint64) (marks uint64) {
	const ones, tops = 0x0101010101010101, 0x8080808080808080
	x := uint64(b) ^ signature*ones
	return (x - ones) &^ x & tops
}

// first is the lowest marked entry.
func first(marks uint64) uint32 { return uint32(bits.TrailingZeros64(marks)) / 8 }

// holds tells whether entry number at has the words of d; it may be stale.
func (c *Cache) holds(at uint32, d *digest, more *exactMore) bool {
	e := &c.exact[at]
	diff := wordsDiffer(&e.words, &d.words) | uint64(e.groups^d.groups)
	if d.n != 0 {
		diff |= c.differMore(at, d, more)
	}
	return diff == 0
}

// probe tries every candidate of d's bucket, and returns its slot or NoSlot.
func (c *Cache) probe(d *digest, more *exactMore) uint32 {
	number := uint32(d.hash) & c.bucketWrap
	for marks := c.buckets[number].candidates(d.signature()); marks != 0; marks &= marks - 1 {
		at := number*ways + first(marks)
		e := &c.exact[at]
		if c.holds(at, d, more) && c.m.Flows[e.slot].Generation == e.generation {
			return e.slot
		}
	}
	return NoSlot
}

// Of the new entries that find their bucket full, one in replaceOneIn replaces
// another. With more flows than entries a replacement gains nothing on average
// and costs the writing: 124 to 109 ns a frame at 200,000 flows.
const replaceOneIn = 4

// enter puts d into the cache as belonging to slot: over an entry of the same
// words, into a free one, or over one of those there are.
func (c *Cache) enter(d *digest, more *exactMore, slot uint32) {
	number := uint32(d.hash) & c.bucketWrap
	b := &c.buckets[number]
	way := uint32(ways)
	for marks := b.candidates(d.signature()); marks != 0; marks &= marks - 1 {
		if w := first(marks); c.holds(number*ways+w, d, more) {
			way = w
			break
		}
	}
	if way == ways {
		if free := b.candidates(0); free != 0 {
			way = first(free)
		} else {
			if c.victim++; c.victim%replaceOneIn != 0 {
				return
			}
			way = c.victim / replaceOneIn % ways
		}
	}
	*b = *b&^(0xff<<(8*way)) | bucket(d.signature()<<(8*way))
	at := number*ways + way
	e := &c.exact[at]
	e.slot, e.generation, e.groups = slot, c.m.Flows[slot].Generation, d.groups
	e.words = d.words
	if d.n != 0 {
		c.m.more[at] = *more
	}
}

// setUnion takes the union of all masks anew and, if it changed, empties the
// cache: a pass over the signatures alone, some microseconds.
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

// wordGroups is the group of each word, 0 for base words.
var wordGroups = [KeyWords]uint32{
	WIPv6Src: groupIPv6, WIPv6Src + 1: groupIPv6, WIPv6Dst: groupIPv6, WIPv6Dst + 1: groupIPv6,
	WTunID: groupTun, WTunIPv4: groupTun,
	WTunIPv6Src: groupTunIPv6, WTunIPv6Src + 1: groupTunIPv6, WTunIPv6Dst: groupTunIPv6, WTunIPv6Dst + 1: groupTunIPv6,
	WARPSha: groupARP, WARPTha: groupARP, WNDTarget: groupARP, WNDTarget + 1: groupARP,
	WCT: groupCT, WCTPorts: groupCT, WCTLabel: groupCT, WCTLabel + 1: groupCT,
	WCTSrc: groupCTAddr, WCTSrc + 1: groupCTAddr, WCTDst: groupCTAddr, WCTDst + 1: groupCTAddr,
}
