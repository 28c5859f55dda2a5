// SPDX-License-Identifier: Apache-2.0

package flowtable

import (
	"weft/internal/cpu"
	"weft/packet"
)

// Megaflows are found by tuple-space search. One index maps the hash of a mask and a
// masked key to megaflows. A look-up tries one mask after the other. The masks that had the
// most hits recently come first.

// mask is a mask that megaflows use, in a form for fast hashes and comparisons.
type mask struct {
	key     Key
	refs    uint32 // number of megaflows with this mask; 0: free
	n       uint32 // number of non-zero words of the mask, rounded up to an even number
	hits    uint64 // number of hits; sortMasks halves it, so recent hits count more
	seed    uint64
	indexes [maskWords]uint8  // indexes in the Key of the words that are not zero
	bits    [maskWords]uint64 // values of the words that are not zero
}

// maskWords is KeyWords, rounded up to an even number because a hash takes words in pairs.
const maskWords = (KeyWords + 1) &^ 1

// sortEvery is the number of frames that are searched among the megaflows before the masks are sorted
// again.
const sortEvery = 1 << 14

// hash returns the hash of key k under mask m.
func (c *Cache) hash(m *mask, k *Key) uint32 {
	acc := m.seed
	for j := uint32(0); j < m.n && j < maskWords; j += 2 {
		a := k[m.indexes[j]] & m.bits[j]
		b := k[m.indexes[j+1]] & m.bits[j+1]
		acc ^= fold(a^c.seeds[j], b^c.seeds[j+1])
	}
	return uint32(c.seeds.finish(acc))
}

// matches reports whether the megaflow in a slot has mask m and matches key k. row is the index of m in
// Memory.masks.
func (c *Cache) matches(slot, row uint32, m *mask, k *Key) bool {
	r := &c.m.rows[slot]
	if r.mask != row {
		return false
	}
	stored := &r.key
	var diff uint64
	for j := uint32(0); j < m.n && j < maskWords; j++ {
		at := m.indexes[j]
		diff |= (k[at] ^ stored[at]) & m.bits[j]
	}
	return diff == 0
}

// search looks for the megaflows of the frames in "list", and writes their slots, or NoSlot, to "slots".
// It adds the keys that have a megaflow to the exact-match cache. The caller has computed the digests of
// these keys in c.digests.
func (c *Cache) search(keys *[packet.BatchSize]Key, list []uint8, slots *[packet.BatchSize]uint32, n *LookupCounts) {
	c.searched += uint32(len(list))
	wrap := uint32(len(c.index.table) - 1)
	for _, row := range c.order {
		if len(list) == 0 {
			break
		}
		m := &c.m.masks[row]
		n.MasksSearched += uint64(len(list))
		for at, i := range list {
			h := c.hash(m, &keys[i%packet.BatchSize])
			c.hashes[i%packet.BatchSize] = h
			c.homes[at%packet.BatchSize] = h & wrap
		}
		if len(list) > fewLookups {
			c.fetchRows(list)
		}
		left := list[:0]
		for _, i := range list {
			i %= packet.BatchSize
			slot := c.find(row, m, c.hashes[i], &keys[i])
			if slot == NoSlot {
				left = append(left, i)
				continue
			}
			slots[i] = slot
			m.hits++
			n.MegaflowHits++
			c.enter(&c.digests[i], &c.groupWords[i], &keys[i], slot)
		}
		list = left
	}
	for _, i := range list {
		slots[i%packet.BatchSize] = NoSlot
	}
	n.Misses += uint64(len(list))
	if c.searched >= sortEvery {
		c.searched = 0
		c.sortMasks()
	}
}

// fetchRows prefetches the cache lines that the method find will read for the frames in "list".
func (c *Cache) fetchRows(list []uint8) {
	index := c.index.table
	cpu.Prefetch(&index[0], c.homes[:len(list)])
	likely := uint(0)
	for at, i := range list {
		// Usually the first index entry is empty or has the frame's megaflow.
		if e := index[c.homes[at%packet.BatchSize]]; e.value != 0 && e.hash == c.hashes[i%packet.BatchSize] {
			c.slots[likely%packet.BatchSize] = e.value - 1
			likely++
		}
	}
	cpu.Prefetch(&c.m.rows[0], c.slots[:likely])
	cpu.Prefetch(&c.m.Flows[0], c.slots[:likely])
}

// find returns the slot of the megaflow with mask m that matches key k, or NoSlot.
// row is the index of m in Memory.masks, and h is the hash of k under m.
func (c *Cache) find(row uint32, m *mask, h uint32, k *Key) uint32 {
	slot := c.findIn(c.index.table, row, m, h, k)
	if slot == NoSlot && c.index.old != nil {
		slot = c.findIn(c.index.old, row, m, h, k)
	}
	return slot
}

// findIn is the method find for one table of the index.
func (c *Cache) findIn(index Index, row uint32, m *mask, h uint32, k *Key) uint32 {
	wrap := uint32(len(index) - 1)
	for pos := h & wrap; ; pos = (pos + 1) & wrap {
		e := index[pos&wrap]
		if e.value == 0 {
			return NoSlot
		}
		if e.hash == h && e.value != tombstone && c.matches(e.value-1, row, m, k) {
			return e.value - 1
		}
	}
}

// sortMasks sorts the masks by their hits, most hits first, and then halves these counts. If a mask was
// removed since the last call, it also computes the union of all masks again.
func (c *Cache) sortMasks() {
	masks := c.m.masks
	for i := 1; i < len(c.order); i++ { // insertion sort is fast here, because the masks are almost sorted
		for j := i; j > 0 && masks[c.order[j]].hits > masks[c.order[j-1]].hits; j-- {
			c.order[j], c.order[j-1] = c.order[j-1], c.order[j]
		}
	}
	for _, row := range c.order {
		masks[row].hits /= 2
	}
	if c.unionStale {
		c.setUnion()
	}
}

// acquireMask returns the index in Memory.masks of the mask with the bits "key", and increments the
// mask's reference count. It adds the mask if it is new. ok is false if there is no room for a new mask.
func (c *Cache) acquireMask(key *Key) (row uint32, ok bool) {
	for _, row := range c.order {
		if c.m.masks[row].key == *key {
			c.m.masks[row].refs++
			return row, true
		}
	}
	if len(c.order) == len(c.m.masks) {
		return 0, false
	}
	for c.m.masks[row].refs != 0 {
		row++
	}
	m := &c.m.masks[row]
	*m = mask{key: *key, refs: 1, seed: c.maskSeeds[row]}
	for at, bits := range key {
		if bits != 0 {
			m.indexes[m.n], m.bits[m.n] = uint8(at), bits
			m.n++
		}
	}
	m.n = (m.n + 1) &^ 1 // a word with an empty mask is added to an odd number of words
	c.order = append(c.order, row)
	for at := range key {
		if key[at]&^c.union[at] != 0 {
			c.setUnion()
			break
		}
	}
	return row, true
}

func (c *Cache) releaseMask(row uint32) {
	m := &c.m.masks[row]
	if m.refs--; m.refs != 0 {
		return
	}
	for i := range c.order {
		if c.order[i] == row {
			c.order = append(c.order[:i], c.order[i+1:]...)
			break
		}
	}
	c.unionStale = true
}
