package flowtable

import (
	"math/bits"

	"weft/internal/shm"
	"weft/packet"
)

// Cache is one worker's flow cache over its Memory: an exact-match cache in
// front of the megaflows. Worker owns; nothing in it allocates.
type Cache struct {
	m Memory

	// Exact-match cache. Nobody else looks at it: its memory is the worker's own.
	buckets    []bucket
	exact      []exactEntry
	union      Key    // of all masks
	groups     uint32 // of words that the union has
	unionStale bool   // a mask is gone that the union may still have
	bucketWrap uint32
	victim     uint32
	seeds      seeds
	groupSeeds [2 * groupCTAddr][4]uint64 // index: group

	// Megaflows.
	order     []uint32 // rows of masks in use, in order of search
	maskSeeds []uint64
	searched  uint32 // frames since masks were sorted
	store     actionStore

	// Of the batch that is looked up.
	digests [packet.BatchSize]digest // index: frame
	more    [packet.BatchSize]exactMore
	hashes  [packet.BatchSize]uint32 // under the mask that is searched
	frames  [packet.BatchSize]uint8  // those that are live and no repeats
	homes   [packet.BatchSize]uint32 // the same index: their places in the table searched
	repeats [packet.BatchSize]repeat // the other live ones
	found   [packet.BatchSize]uint8  // frames that have an entry
	entries [packet.BatchSize]uint32 // the same index: that entry
	slots   [packet.BatchSize]uint32 // its megaflow
	expects [packet.BatchSize]uint32 // and the generation of this
	missed  [packet.BatchSize]uint8  // frames that have none
}

// InstallResult says how an Install went.
type InstallResult uint8

// Results of Install.
const (
	Installed InstallResult = iota
	// InstallBadSlot: the slot number is beyond Sizes.Megaflows.
	InstallBadSlot
	// InstallSlotInUse: Remove comes first.
	InstallSlotInUse
	// InstallTooManyActions: more than MaxActions.
	InstallTooManyActions
	// InstallMasksFull: Sizes.Masks different masks are in use.
	InstallMasksFull
	// InstallActionsFull: no room in the action store.
	InstallActionsFull
)

// LookupCounts are what lookups add to.
type LookupCounts struct {
	ExactHits     uint64 // frames the exact-match cache knew, and repeats of one found
	MegaflowHits  uint64 // frames found among the megaflows
	Misses        uint64 // frames found nowhere
	MasksSearched uint64 // masks tried for the frames of the two above
}

// Reserve makes the private memory of as many caches of these sizes, for NewCache to
// take: it is what takes the longest of it.
func Reserve(sizes Sizes, caches int) {
	for range caches {
		shm.Reserve[bucket](sizes.Exact / ways)
		shm.Reserve[exactEntry](sizes.Exact)
	}
}

// NewCache opens an empty cache over m, emptying m if it was used before. seed
// is random, so that nobody outside can choose keys that collide.
func NewCache(m Memory, seed uint64) *Cache {
	m.empty()
	c := &Cache{
		m:          m,
		buckets:    shm.Private[bucket](m.sizes.Exact / ways),
		exact:      shm.Private[exactEntry](m.sizes.Exact),
		bucketWrap: uint32(m.sizes.Exact/ways - 1),
		order:      make([]uint32, 0, len(m.masks)),
		maskSeeds:  make([]uint64, len(m.masks)),
		store:      newActionStore(&m, seed),
	}
	spread(seed+1, c.seeds[:])
	spread(seed+2, c.maskSeeds)
	for i := range c.groupSeeds {
		spread(seed+3+uint64(i), c.groupSeeds[i][:])
	}
	return c
}

// Install installs a megaflow in a free slot. key need not be masked. Its
// statistics start at 0. Megaflows that overlap must agree in their actions.
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
	index(c.m.index).insert(c.hash(&c.m.masks[row], key), slot)
	return Installed
}

// Remove removes the megaflow of slot; it reports false if there is none. Its
// statistics stay readable until the slot is used again.
func (c *Cache) Remove(slot uint32) bool {
	if int(slot) >= len(c.m.Flows) || c.m.Flows[slot].Generation&1 == 0 {
		return false
	}
	f, r := &c.m.Flows[slot], &c.m.rows[slot]
	index(c.m.index).remove(c.hash(&c.m.masks[r.mask], &r.key), slot)
	f.Generation++
	c.releaseMask(r.mask)
	c.store.release(f.Actions)
	return true
}

// Lookup finds the megaflow of each frame i whose bit i is set in live, and
// writes its slot, or NoSlot, to out[i]. Other elements of out stay. Statistics
// of the flows are the caller's to count (Flow).
func (c *Cache) Lookup(keys *[packet.BatchSize]Key, live uint32, out *[packet.BatchSize]uint32, n *LookupCounts) {
	count, repeated := uint(0), uint(0)
	var x exactLookup
	u := &c.union
	var before *Key // of the frame before: in a burst of one flow only the first is looked up
	for ; live != 0; live &= live - 1 {
		i := bits.TrailingZeros32(live) % packet.BatchSize
		k := &keys[i]
		// The words in which flows differ most come first.
		if before != nil && (k[WL4]^before[WL4])&u[WL4]|(k[WIPv4]^before[WIPv4])&u[WIPv4] == 0 &&
			(k[WPort]^before[WPort])&u[WPort]|(k[WEthDst]^before[WEthDst])&u[WEthDst]|
				(k[WEthSrc]^before[WEthSrc])&u[WEthSrc]|(k[WIP]^before[WIP])&u[WIP] == 0 &&
			(c.groups == 0 || c.alike(k, before)) {
			c.repeats[repeated%packet.BatchSize] = repeat{uint8(i), c.frames[(count-1)%packet.BatchSize]}
			repeated++
			continue
		}
		c.frames[count%packet.BatchSize] = uint8(i)
		d := &c.digests[i]
		c.digest(k, d, &c.more[i])
		c.homes[count%packet.BatchSize] = uint32(d.hash) & c.bucketWrap
		before = k
		if count++; count%stride == 0 {
			c.advance(&x, keys, count)
		}
	}
	missed := c.endExact(&x, keys, count, out)
	n.ExactHits += uint64(count) - uint64(missed)
	if missed != 0 {
		c.search(keys, c.missed[:missed], out, n)
	}
	for _, r := range c.repeats[:repeated] {
		slot := out[r.of%packet.BatchSize]
		out[r.frame%packet.BatchSize] = slot
		if slot == NoSlot {
			n.Misses++
		} else {
			n.ExactHits++
		}
	}
}

// repeat is a frame whose digest would be that of the frame before it.
type repeat struct{ frame, of uint8 }

// Flows are the statistics of all slots, in place. Index: slot.
func (c *Cache) Flows() []Flow { return c.m.Flows }

// Only is the one action of an installed slot, in place; nil if it has more, or
// none. Valid as Actions.
func (c *Cache) Only(f *Flow) *Action {
	at := f.Actions.at()
	if f.Actions&refOne == 0 || at >= uint32(len(c.m.actions)) {
		return nil
	}
	return &c.m.actions[at]
}

// Flow is the statistics of an installed slot.
func (c *Cache) Flow(slot uint32) *Flow { return &c.m.Flows[slot] }

// Actions is the action list of an installed slot, in place. Valid until the
// next Install or Remove.
func (c *Cache) Actions(slot uint32) []Action {
	return c.store.list(c.m.Flows[slot].Actions)
}
