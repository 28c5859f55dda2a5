// SPDX-License-Identifier: Apache-2.0

package flowtable

import (
	"math/bits"

	"weft/internal/shm"
	"weft/packet"
)

// Cache is the flow cache of one worker: an exact-match cache in front of the
// megaflows in a Memory. The worker owns the Cache. No method allocates memory.
type Cache struct {
	m Memory

	// Fields of the exact-match cache, which only the worker can access.
	buckets []bucket
	exact   []exactEntry
	union   Key    // union of all masks: bits that at least one mask has
	groups  uint32 // set of word groups that have a bit in the union
	// groupIndexes has the indexes of the key words that belong to a group, such as groupIPv6, and of which
	// the field union has at least one bit.
	groupIndexes [KeyWords - baseWords]uint8
	groupCount   int // number of indexes in groupIndexes
	// unionNumber counts the changes of the field union. It is never 0. An entry of the exact-match cache
	// with another number is invalid, because the words of its key were masked with an earlier union.
	unionNumber  uint32
	unionStale   bool // a mask was removed after union was computed
	bucketWrap   uint32
	bucketsFirst uint32 // number of batches to come whose look-ups read buckets before entries
	victim       uint32
	seeds        seeds
	groupSeeds   [groupEnd][4]uint64 // index: group

	// Fields for the search among the megaflows.
	index     GrowingIndex // finds megaflows by the hash of mask and masked key
	order     []uint32     // indexes of the used masks in search order
	maskSeeds []uint64
	searched  uint32 // number of frames searched among the megaflows since the masks were last sorted
	store     actionStore

	// Arrays for the batch of frames that Lookup is working on.
	digests    [packet.BatchSize]digest // index: frame
	groupWords [packet.BatchSize]exactMore
	hashes     [packet.BatchSize]uint32 // hash of each frame's key under the current mask
	frames     [packet.BatchSize]uint8  // frames that need a look-up: not dropped, and with another key than the frame before
	homes      [packet.BatchSize]uint32 // bucket or index position at which the search begins; parallel to frames
	repeats    [packet.BatchSize]repeat // frames that have the same key as the frame before them
	entries    [packet.BatchSize]uint32 // the entry to compare; parallel to frames
	slots      [packet.BatchSize]uint32 // slot of the megaflow in that entry; parallel to frames
	expects    [packet.BatchSize]uint32 // generation in that entry; parallel to frames
	missed     [packet.BatchSize]uint8  // frames without an entry in the exact-match cache
}

// InstallResult is the outcome of an Install.
type InstallResult uint8

// Results of Install.
const (
	Installed InstallResult = iota
	// InstallBadSlot means that the slot number is not below Sizes.Megaflows.
	InstallBadSlot
	// InstallSlotInUse means that the slot already has a megaflow, which must be removed first.
	InstallSlotInUse
	// InstallTooManyActions means that the megaflow has more than MaxActions actions.
	InstallTooManyActions
	// InstallMasksFull means that the mask is new and Sizes.Masks masks are already in use.
	InstallMasksFull
	// InstallActionsFull means that the action store has no free block that is large enough for the action
	// list.
	InstallActionsFull
)

// LookupCounts has the counters that Lookup increments.
type LookupCounts struct {
	ExactHits     uint64 // frames found in the exact-match cache, or with the same key as the frame before
	MegaflowHits  uint64 // frames found among the megaflows
	Misses        uint64 // frames without a megaflow
	MasksSearched uint64 // number of masks tried, summed over all frames
}

// Reserve allocates in advance the private memory that several calls of NewCache will use. Without
// Reserve, this allocation is the slowest part of NewCache.
func Reserve(sizes Sizes, caches int) {
	for range caches {
		shm.Reserve[bucket](sizes.Exact / bucketEntries)
		shm.Reserve[exactEntry](sizes.Exact)
	}
}

// NewCache returns an empty cache whose megaflows are in m. It clears m if m was used before. seed
// must be random, so that no sender can choose keys whose hashes collide.
func NewCache(m Memory, seed uint64) *Cache {
	m.empty()
	c := &Cache{
		m:           m,
		buckets:     shm.Private[bucket](m.sizes.Exact / bucketEntries),
		exact:       shm.Private[exactEntry](m.sizes.Exact),
		bucketWrap:  uint32(m.sizes.Exact/bucketEntries - 1),
		unionNumber: 1,
		index:       NewGrowingIndex(m.indexTable),
		order:       make([]uint32, 0, len(m.masks)),
		maskSeeds:   make([]uint64, len(m.masks)),
		store:       newActionStore(&m, seed),
	}
	spread(seed+1, c.seeds[:])
	spread(seed+2, c.maskSeeds)
	for i := range c.groupSeeds {
		spread(seed+3+uint64(i), c.groupSeeds[i][:])
	}
	return c
}

// Install installs a megaflow in a free slot and clears the slot's statistics. It copies key, mask and
// actions. It ignores key bits outside the mask. If two installed megaflows match the same frame, they
// must have equal actions.
func (c *Cache) Install(slot uint32, key, mask *Key, actions []Action) InstallResult {
	if int(slot) >= len(c.m.Flows) {
		return InstallBadSlot
	}
	f := &c.m.Flows[slot]
	if f.Generation&1 != 0 {
		return InstallSlotInUse
	}
	if len(actions) > MaxActions {
		return InstallTooManyActions
	}
	at, ok := c.store.acquire(actions)
	if !ok {
		return InstallActionsFull
	}
	row, ok := c.acquireMask(mask)
	if !ok {
		c.store.release(at)
		return InstallMasksFull
	}
	r := &c.m.rows[slot]
	r.mask = row
	for i := range key {
		r.key[i] = key[i] & mask[i]
	}
	*f = Flow{Generation: f.Generation + 1, Actions: at}
	c.index.Insert(c.hash(&c.m.masks[row], key), slot)
	return Installed
}

// Remove removes the megaflow in a slot. It returns false if the slot has no megaflow.
// The statistics stay readable until the slot is used again.
func (c *Cache) Remove(slot uint32) bool {
	if int(slot) >= len(c.m.Flows) || c.m.Flows[slot].Generation&1 == 0 {
		return false
	}
	f, r := &c.m.Flows[slot], &c.m.rows[slot]
	c.index.Remove(c.hash(&c.m.masks[r.mask], &r.key), slot)
	f.Generation++
	c.releaseMask(r.mask)
	c.store.release(f.Actions)
	return true
}

// Lookup finds the megaflow that matches keys[i], for each frame i whose bit is set in "live". It writes
// the megaflow's slot, or NoSlot, to slots[i], and adds its hits and misses to n. The caller updates the
// statistics of the megaflows.
func (c *Cache) Lookup(keys *[packet.BatchSize]Key, live uint32, slots *[packet.BatchSize]uint32, n *LookupCounts) {
	count, repeated := uint(0), uint(0)
	var x exactLookup
	u := &c.union
	// in a burst of one flow, only the first frame needs a look-up, because the other
	// frames have the same key
	var before *Key
	for ; live != 0; live &= live - 1 {
		i := bits.TrailingZeros32(live) % packet.BatchSize
		k := &keys[i]
		// compare first the words in which flows differ most often
		if before != nil && (k[WL4]^before[WL4])&u[WL4]|(k[WIPv4]^before[WIPv4])&u[WIPv4] == 0 &&
			(k[WPort]^before[WPort])&u[WPort]|(k[WEthDst]^before[WEthDst])&u[WEthDst]|
				(k[WEthSrc]^before[WEthSrc])&u[WEthSrc]|(k[WIP]^before[WIP])&u[WIP] == 0 &&
			(c.groups == 0 || c.equalUnderMasks(k, before)) {
			c.repeats[repeated%packet.BatchSize] = repeat{uint8(i), c.frames[(count-1)%packet.BatchSize]}
			repeated++
			continue
		}
		c.frames[count%packet.BatchSize] = uint8(i)
		d := &c.digests[i]
		c.digest(k, d, &c.groupWords[i])
		c.homes[count%packet.BatchSize] = uint32(d.hash) & c.bucketWrap
		c.entries[count%packet.BatchSize] = c.likely(d)
		before = k
		if count++; count%stride == 0 {
			c.advance(&x, keys, count)
		}
	}
	missed := c.endExact(&x, keys, count, slots)
	n.ExactHits += uint64(count) - uint64(missed)
	if missed != 0 {
		c.search(keys, c.missed[:missed], slots, n)
	}
	for _, r := range c.repeats[:repeated] {
		slot := slots[r.original%packet.BatchSize]
		slots[r.frame%packet.BatchSize] = slot
		if slot == NoSlot {
			n.Misses++
		} else {
			n.ExactHits++
		}
	}
}

// repeat is a frame with the same key as an earlier frame, the "original", of the batch.
type repeat struct{ frame, original uint8 }

// Flows returns the Flow of each slot, which has the statistics of the slot's megaflow. The result is
// not a copy. Its index is the slot.
func (c *Cache) Flows() []Flow { return c.m.Flows }

// Only returns the action of megaflow f if f has exactly one action. Otherwise it returns nil. It does not
// copy the action; the result is valid until the next Install or Remove.
func (c *Cache) Only(f *Flow) *Action {
	at := f.Actions.index()
	if f.Actions&refOne == 0 || at >= uint32(len(c.m.actions)) {
		return nil
	}
	return &c.m.actions[at]
}

// Flow returns the Flow of one slot, which has the statistics of the slot's megaflow, without copying.
func (c *Cache) Flow(slot uint32) *Flow { return &c.m.Flows[slot] }

// Actions returns the action list of the megaflow in a slot without copying. The list is valid
// until the next Install or Remove.
func (c *Cache) Actions(slot uint32) []Action {
	return c.store.list(c.m.Flows[slot].Actions)
}
