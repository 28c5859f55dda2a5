// SPDX-License-Identifier: Apache-2.0

package flowtable

// Agrees reports whether the megaflow in a slot matches key k, apart from the key bits in ignoredBits.
// It returns false if the slot now has another megaflow, or none. generation is the Flow.Generation that
// the slot had when the caller found the megaflow there.
func (c *Cache) Agrees(slot, generation uint32, k, ignoredBits *Key) bool {
	if slot >= uint32(len(c.m.Flows)) || generation&1 == 0 || c.m.Flows[slot].Generation != generation {
		return false
	}
	m, stored := &c.m.masks[c.m.rows[slot].mask], &c.m.rows[slot].key
	var diff uint64
	for j := uint32(0); j < m.n && j < maskWords; j++ {
		at := m.indexes[j] % KeyWords
		diff |= (k[at] ^ stored[at]) & m.bits[j] &^ ignoredBits[at]
	}
	return diff == 0
}

// MaskOf returns the mask of the megaflow in a slot without copying. The mask is valid until the
// next Install or Remove.
func (c *Cache) MaskOf(slot uint32) *Key { return &c.m.masks[c.m.rows[slot].mask].key }
