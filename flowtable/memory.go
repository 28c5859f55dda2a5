// SPDX-License-Identifier: Apache-2.0

package flowtable

import (
	"fmt"

	"weft/internal/shm"
)

// Sizes are the limits of one worker's cache. A page of its memory is allocated at its first use. Only
// the pages of the exact-match cache are allocated at once.
type Sizes struct {
	// Megaflows is the number of megaflow slots. Exact is the number of exact-match
	// entries. Both are powers of two; Exact is at least 8.
	Megaflows int `json:"megaflows"`
	Exact     int `json:"exact"`
	// Masks is the maximum number of different masks.
	Masks int `json:"masks"`
	// Actions is the number of Action records in which the lists of all megaflows must fit: a power
	// of two, at least 4. Equal lists are stored once. A list takes its length rounded up to a power
	// of two, at least 4.
	Actions int `json:"actions"`
}

// DefaultSizes are sizes for one worker of a host with some hundred virtual machines.
var DefaultSizes = SizesOf(leastDefault)

// Limits of the user's setting for Sizes.Megaflows.
const (
	LeastMegaflows = 1 << 14
	MostMegaflows  = 1 << 24
	// DefaultMegaflows returns a number from leastDefault to mostDefault.
	leastDefault = 1 << 18
	mostDefault  = 1 << 21
)

// SizesOf returns the sizes of a cache for this number of megaflows. They suit megaflows that have one
// or two actions, or whose action lists are equal to those of others.
func SizesOf(megaflows int) Sizes {
	return Sizes{Megaflows: megaflows, Exact: 1 << 18, Masks: 128, Actions: 2 * megaflows}
}

// Memory that one megaflow takes, in bytes, and the share of the machine's memory for all of them.
const (
	// controlBytes is the size of what one megaflow needs in the control process and in the shared
	// counters. It includes garbage that the Go runtime has not collected yet. It was measured with
	// 2,097,152 slots, while a guest sent frames with ever new MAC addresses ("mac-flood" in bench/attack).
	controlBytes = 1200
	workerBytes  = 384 // bytes in each worker
	// All megaflows may take 1/memoryPart of the machine's memory.
	memoryPart = 10
)

// DefaultMegaflows returns the default of Sizes.Megaflows, a power of two, for a machine with this
// memory in bytes and this number of workers. It is the largest number, up to mostDefault, for which all
// megaflows together take at most 1/memoryPart of the memory. It is never less than leastDefault.
func DefaultMegaflows(memory uint64, workers int) int {
	n := leastDefault
	for n < mostDefault && 2*uint64(n)*uint64(controlBytes+workers*workerBytes) <= memory/memoryPart {
		n *= 2
	}
	return n
}

// Check returns an error that names the first invalid size, or nil.
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

// Limits of Sizes. maxSize is small enough for the indexes of all tables to fit into 32 bits. maxMasks
// limits the time of a miss, which tries all masks.
const (
	maxSize  = 1 << 26
	maxMasks = 1 << 12
)

// NoSlot stands in place of a slot number if there is no megaflow.
const NoSlot = ^uint32(0)

// Flow is the part of a megaflow that the worker needs at each hit: its statistics and a reference to
// its actions. Only the worker writes it. The control process may read Packets, Bytes and UsedNS at any
// time.
type Flow struct {
	Packets    uint64
	Bytes      uint64 // bytes of matched frames before any action, with Ethernet header
	UsedNS     uint64 // time of the last hit (CLOCK_MONOTONIC)
	Generation uint32 // incremented by each Install and Remove in this slot; odd while the slot has a megaflow
	Actions    ActionRef
}

// megaflow is the part of a megaflow that does not change while it is installed. Only a search reads it.
type megaflow struct {
	mask uint32 // index in Memory.masks of its mask
	_    uint32
	key  Key // the masked key; its size makes the struct four cache lines
}

// Memory is the part of a worker's shared memory that its flow cache uses. The memory has no pointers.
// Only the worker writes it. The control process reads statistics and, with Read, installed megaflows.
type Memory struct {
	sizes Sizes
	head  []head     // one element
	Flows []Flow     // index: slot
	rows  []megaflow // index: slot
	masks []mask     // index: megaflow.mask

	// index has room for the tables of Cache.index. The table of n entries begins at index n.
	index []indexEntry

	// groupWords[i] has those words of exact-match entry i that are not base words. The signature of this
	// entry is in Cache.buckets[i/bucketEntries].
	groupWords []exactMore

	actions     []Action
	blocks      []actionBlock // index: first action of the block / blockActions
	actionIndex []indexEntry  // finds blocks by the hash of their list
}

// head is the start of the Memory. used is not 0 if a cache has used the memory before. NewCache clears
// only such memory. New memory is 0 already, and a write would allocate its pages.
type head struct {
	used uint32
	_    [60]byte
}

// CarveMemory assigns a part of the shared memory region l to each array of a flow cache with the sizes
// s.
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

// indexTable returns the memory for a table of Cache.index with this number of entries, or nil if there is
// none.
func (m *Memory) indexTable(entries int) Index {
	if 2*entries > len(m.index) {
		return nil
	}
	return m.index[entries : 2*entries : 2*entries]
}

// empty removes all megaflows if the memory was used before, and marks it as used.
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

// Read returns copies of the key, the mask and the actions of the megaflow in a slot. installed is false
// for a free slot. Only the control process calls Read. The result is right only if the worker does not
// change the slot meanwhile.
func (m *Memory) Read(slot uint32) (key, mask Key, actions []Action, installed bool) {
	if int(slot) >= len(m.Flows) {
		return
	}
	f, row := m.Flows[slot], m.rows[slot] // read once into locals, because the worker could change them after the check
	at, n := uint64(f.Actions.index()), uint64(0)
	if f.Actions != 0 && at/blockActions < uint64(len(m.blocks)) {
		n = uint64(m.blocks[at/blockActions].length)
	}
	if f.Generation&1 == 0 || int(row.mask) >= len(m.masks) || at+n > uint64(len(m.actions)) {
		return
	}
	return row.key, m.masks[row.mask].key, append([]Action(nil), m.actions[at:at+n]...), true
}
