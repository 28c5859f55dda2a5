// SPDX-License-Identifier: Apache-2.0

package flowtable

import (
	"fmt"

	"weft/internal/shm"
)

// Sizes are the limits of one worker's cache. Pages of its memory are allocated when they are
// first used, except those of the exact-match cache.
type Sizes struct {
	// Megaflows is the number of megaflow slots. Exact is the number of exact-match
	// entries. Both are powers of two; Exact is at least 8.
	Megaflows int `json:"megaflows"`
	Exact     int `json:"exact"`
	// Masks is the maximum number of different masks.
	Masks int `json:"masks"`
	// Actions is the number of Action records of all megaflows: a power of two, at
	// least 4. Equal lists are stored once. The length of a list is rounded up to a
	// power of two.
	Actions int `json:"actions"`
}

// DefaultSizes suit one worker of a host with some hundred guests.
var DefaultSizes = SizesOf(leastDefault)

// Limits of the setting for the number of megaflows, which is a power of two.
const (
	LeastMegaflows = 1 << 14
	MostMegaflows  = 1 << 24
	// The default depends on the machine's memory: see DefaultMegaflows.
	leastDefault = 1 << 18
	mostDefault  = 1 << 21
)

// SizesOf returns the sizes of a cache for this number of megaflows, most of which have one or two
// actions.
func SizesOf(megaflows int) Sizes {
	return Sizes{Megaflows: megaflows, Exact: 1 << 18, Masks: 128, Actions: 2 * megaflows}
}

// Memory of one megaflow in bytes, for DefaultMegaflows.
const (
	// in control and in the counter region, with what control's garbage collector has not freed
	// yet: mac-flood of bench/attack with 2,097,152 slots
	controlBytes = 1200
	workerBytes  = 384 // in each worker
	// memoryPart is the divisor of the machine's memory that megaflows may use.
	memoryPart = 10
)

// DefaultMegaflows returns the default number of megaflows for a machine with this memory in bytes:
// a power of two. They all together take a tenth of the memory at most, unless leastDefault needs
// more.
func DefaultMegaflows(memory uint64, workers int) int {
	n := leastDefault
	for n < mostDefault && 2*uint64(n)*uint64(controlBytes+workers*workerBytes) <= memory/memoryPart {
		n *= 2
	}
	return n
}

// Check returns an error that names the first invalid size.
func (s Sizes) Check() error {
	for _, c := range []struct {
		name       string
		value, min int
	}{{"megaflows", s.Megaflows, 1}, {"exact", s.Exact, bucketEntries}, {"actions", s.Actions, blockActions}} {
		if c.value < c.min || c.value > maxSize || c.value&(c.value-1) != 0 {
			return fmt.Errorf("cache size %s: %d, want a power of two from %d to %d", c.name, c.value, c.min, maxSize)
		}
	}
	if s.Masks < 1 || s.Masks > maxMasks {
		return fmt.Errorf("cache size masks: %d, want 1 to %d", s.Masks, maxMasks)
	}
	return nil
}

// Limits of Sizes. maxSize keeps indexes within the 32 bits of a hash. maxMasks
// limits the cost of a miss, which tries all masks.
const (
	maxSize  = 1 << 26
	maxMasks = 1 << 12
)

// NoSlot is the slot number that means "no megaflow".
const NoSlot = ^uint32(0)

// Flow is the part of a megaflow that changes with each hit: its statistics. The worker
// writes a Flow; control may read Packets, Bytes and UsedNS at any time.
type Flow struct {
	Packets    uint64
	Bytes      uint64 // bytes of matched frames before any action, with Ethernet header
	UsedNS     uint64 // time of the last hit (CLOCK_MONOTONIC)
	Generation uint32 // incremented by every install and remove; odd while installed
	Actions    ActionRef
}

// megaflow is the constant part of a megaflow, which only a search reads.
type megaflow struct {
	mask uint32 // index of its mask
	_    uint32
	key  Key // the masked key; its size makes the struct four cache lines
}

// Memory is the flow cache's part of a worker's shared memory. It has no pointers.
// The worker owns it. Control reads statistics and, with Read, installed megaflows.
type Memory struct {
	sizes Sizes
	head  []head     // one element
	Flows []Flow     // index: slot
	rows  []megaflow // index: slot
	masks []mask     // index: megaflow.mask

	// index has the tables of Cache.index. The table with n entries begins at n.
	index []indexEntry

	// groupWords[i] has the group words of exact-match entry i. Its signature is in
	// Cache.buckets[i/bucketEntries].
	groupWords []exactMore

	actions     []Action
	blocks      []actionBlock // index: first action of the block / blockActions
	actionIndex []indexEntry  // block numbers by the hash of their list
}

// head is the start of the Memory. It marks memory that was used before. NewCache does
// not touch the pages of new memory.
type head struct {
	used uint32
	_    [60]byte
}

// CarveMemory places the cache in a shared memory region; see shm.Layout.
func CarveMemory(l *shm.Layout, s Sizes) Memory {
	return Memory{
		sizes:       s,
		head:        shm.Carve[head](l, 1),
		Flows:       shm.Carve[Flow](l, s.Megaflows),
		rows:        shm.Carve[megaflow](l, s.Megaflows),
		masks:       shm.Carve[mask](l, s.Masks),
		index:       shm.Carve[indexEntry](l, max(4*s.Megaflows, 2*smallestIndex)),
		groupWords:  shm.Carve[exactMore](l, s.Exact),
		actions:     shm.Carve[Action](l, s.Actions),
		blocks:      shm.Carve[actionBlock](l, s.Actions/blockActions),
		actionIndex: shm.Carve[indexEntry](l, 2*s.Actions/blockActions),
	}
}

// indexTable returns the table of Cache.index with this number of entries, or nil.
func (m *Memory) indexTable(entries int) Index {
	if 2*entries > len(m.index) {
		return nil
	}
	return m.index[entries : 2*entries : 2*entries]
}

// empty resets used memory.
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

// Read returns copies of the megaflow in slot. installed is false for a free slot.
// Only control calls Read, and never while the worker changes the slot.
func (m *Memory) Read(slot uint32) (key, mask Key, actions []Action, installed bool) {
	if int(slot) >= len(m.Flows) {
		return
	}
	f, row := m.Flows[slot], m.rows[slot] // read once into locals, because the worker may change them
	at, n := uint64(f.Actions.index()), uint64(0)
	if f.Actions != 0 && at/blockActions < uint64(len(m.blocks)) {
		n = uint64(m.blocks[at/blockActions].length)
	}
	if f.Generation&1 == 0 || int(row.mask) >= len(m.masks) || at+n > uint64(len(m.actions)) {
		return
	}
	return row.key, m.masks[row.mask].key, append([]Action(nil), m.actions[at:at+n]...), true
}
