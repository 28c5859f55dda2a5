package flowtable

import (
	"fmt"

	"weft/internal/shm"
)

// Sizes are the limits of one worker's cache.
type Sizes struct {
	// Megaflows is the number of slots, Exact that of exact-match entries; both
	// powers of two, Exact at least 8.
	Megaflows int `json:"megaflows"`
	Exact     int `json:"exact"`
	// Masks is the number of different masks at one time.
	Masks int `json:"masks"`
	// Actions is the number of Action records of all megaflows together, a power
	// of two, at least 4; equal lists are stored once, and a list takes a power
	// of two of records.
	Actions int `json:"actions"`
}

// DefaultSizes suit one worker of a host with some hundred guests.
var DefaultSizes = Sizes{Megaflows: 1 << 18, Exact: 1 << 18, Masks: 128, Actions: 1 << 19}

// Check names the first limit that a cache cannot be laid out with.
func (s Sizes) Check() error {
	for _, c := range []struct {
		name       string
		value, min int
	}{{"megaflows", s.Megaflows, 1}, {"exact", s.Exact, ways}, {"actions", s.Actions, blockActions}} {
		if c.value < c.min || c.value > maxSize || c.value&(c.value-1) != 0 {
			return fmt.Errorf("cache size %s: %d, want a power of two from %d to %d", c.name, c.value, c.min, maxSize)
		}
	}
	if s.Masks < 1 || s.Masks > maxMasks {
		return fmt.Errorf("cache size masks: %d, want 1 to %d", s.Masks, maxMasks)
	}
	return nil
}

// Limits of Sizes: hashes place by 32 bits, and a miss goes through all masks.
const (
	maxSize  = 1 << 26
	maxMasks = 1 << 12
)

// NoSlot is the slot number that stands for no megaflow.
const NoSlot = ^uint32(0)

// Flow is what a hit touches of a megaflow, half a cache line: what else is known
// of it is in its megaflow. Worker writes; control reads Packets, Bytes and UsedNS
// whenever it likes.
type Flow struct {
	Packets    uint64
	Bytes      uint64 // of frames as matched, Ethernet header included
	UsedNS     uint64 // CLOCK_MONOTONIC of the last hit, by the pass's clock
	Generation uint32 // odd while installed; changes with every install and remove
	Actions    ActionRef
}

// megaflow is what a search touches of one, from its first line on.
type megaflow struct {
	mask uint32 // index of its mask
	_    uint32
	key  Key // masked
	_    [24]byte
}

// Memory is the cache's part of a worker's region. Pointer-free. Worker owns;
// control reads statistics, and with Read what is installed.
type Memory struct {
	sizes Sizes
	head  []head     // one
	Flows []Flow     // index: slot
	rows  []megaflow // index: slot
	masks []mask     // index: megaflow.mask

	index []indexEntry // of megaflows, by masked key

	// Exact-match entry i has its signature in Cache.buckets[i/ways], the words
	// that few frames have in more[i].
	more []exactMore

	actions     []Action
	blocks      []actionBlock // index: number of the first action / blockActions
	actionIndex []indexEntry  // of lists, by content; values are blocks
}

// head tells a region that was used from a fresh one, whose pages must not be
// touched for nothing.
type head struct {
	used uint32
	_    [60]byte
}

// CarveMemory lays the cache out; see shm.Layout.
func CarveMemory(l *shm.Layout, s Sizes) Memory {
	return Memory{
		sizes:       s,
		head:        shm.Carve[head](l, 1),
		Flows:       shm.Carve[Flow](l, s.Megaflows),
		rows:        shm.Carve[megaflow](l, s.Megaflows),
		masks:       shm.Carve[mask](l, s.Masks),
		index:       shm.Carve[indexEntry](l, 2*s.Megaflows),
		more:        shm.Carve[exactMore](l, s.Exact),
		actions:     shm.Carve[Action](l, s.Actions),
		blocks:      shm.Carve[actionBlock](l, s.Actions/blockActions),
		actionIndex: shm.Carve[indexEntry](l, 2*s.Actions/blockActions),
	}
}

// empty makes used memory like fresh memory.
func (m *Memory) empty() {
	if m.head[0].used != 0 {
		clear(m.Flows)
		clear(m.masks)
		clear(m.index)
		clear(m.blocks)
		clear(m.actionIndex)
	}
	m.head[0].used = 1
}

// Read returns copies of what is installed in slot; installed is false for a
// free slot. For control: it allocates, and must not race with a command that
// changes the slot.
func (m *Memory) Read(slot uint32) (key, mask Key, actions []Action, installed bool) {
	if int(slot) >= len(m.Flows) {
		return
	}
	f, row := m.Flows[slot], m.rows[slot] // one read: what the worker made of it is checked below
	at, n := uint64(f.Actions.at()), uint64(0)
	if f.Actions != 0 && at/blockActions < uint64(len(m.blocks)) {
		n = uint64(m.blocks[at/blockActions].length)
	}
	if f.Generation&1 == 0 || int(row.mask) >= len(m.masks) || at+n > uint64(len(m.actions)) {
		return
	}
	return row.key, m.masks[row.mask].key, append([]Action(nil), m.actions[at:at+n]...), true
}
