package flowtable

import "weft/packet"

// Cache is one worker's flow cache over its Memory: an exact-match cache in
// front of the megaflows. Worker owns; nothing in it allocates.
type Cache struct {
	m Memory
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

func (r InstallResult) String() string {
	names := [...]string{"installed", "bad slot", "slot in use", "too many actions", "masks full", "actions full"}
	if int(r) >= len(names) {
		return "unknown"
	}
	return names[r]
}

// LookupCounts are what lookups add to.
type LookupCounts struct {
	ExactHits     uint64 // frames the exact-match cache knew
	MegaflowHits  uint64 // frames found among the megaflows
	Misses        uint64 // frames found nowhere
	MasksSearched uint64 // masks tried for the frames of the two above
}

// NewCache opens an empty cache over m, emptying m if it was used before. seed
// is random, so that nobody outside can choose keys that collide.
func NewCache(m Memory, seed uint64) *Cache { return &Cache{m: m} }

// Install installs a megaflow in a free slot. key need not be masked. Its
// statistics start at 0. Megaflows that overlap must agree in their actions.
func (c *Cache) Install(slot uint32, key, mask *Key, actions []Action) InstallResult {
	return Installed
}

// Remove removes the megaflow of slot; it reports false if there is none. Its
// statistics stay readable until the slot is used again.
func (c *Cache) Remove(slot uint32) bool { return false }

// Lookup finds the megaflow of each frame i whose bit i is set in live, and
// writes its slot, or NoSlot, to out[i]. Other elements of out stay. Statistics
// of the flows are the caller's to count (Flow).
func (c *Cache) Lookup(keys *[packet.BatchSize]Key, live uint32, out *[packet.BatchSize]uint32, n *LookupCounts) {
	for i := range out {
		if live>>i&1 != 0 {
			out[i] = NoSlot
		}
	}
}

// Flow is the statistics of an installed slot.
func (c *Cache) Flow(slot uint32) *Flow { return &c.m.Flows[slot] }

// Actions is the action list of an installed slot, in place. Valid until the
// next Install or Remove.
func (c *Cache) Actions(slot uint32) []Action { return nil }

// Read returns copies of what is installed in slot; installed is false for a
// free slot. For control: it allocates, and must not race with a command that
// changes the slot.
func (m *Memory) Read(slot uint32) (key, mask Key, actions []Action, installed bool) {
	return
}
