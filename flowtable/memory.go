package flowtable

import "weft/internal/shm"

// Sizes are the limits of one worker's cache.
type Sizes struct {
	// Megaflows is the number of slots, Exact that of exact-match entries; both
	// powers of two.
	Megaflows int `json:"megaflows"`
	Exact     int `json:"exact"`
	// Masks is the number of different masks at one time.
	Masks int `json:"masks"`
	// Actions is the number of Action records of all megaflows together; equal
	// lists are stored once.
	Actions int `json:"actions"`
}

// DefaultSizes suit one worker of a host with some hundred guests.
var DefaultSizes = Sizes{Megaflows: 1 << 18, Exact: 1 << 17, Masks: 128, Actions: 1 << 19}

// NoSlot is the slot number that stands for no megaflow.
const NoSlot = ^uint32(0)

// Flow is what a hit touches of a megaflow, one cache line. Worker writes;
// control reads Packets, Bytes and UsedNS whenever it likes.
type Flow struct {
	Packets    uint64
	Bytes      uint64 // of frames as matched, Ethernet header included
	UsedNS     uint64 // CLOCK_MONOTONIC of the last hit, by the pass's clock
	Generation uint32 // odd while installed; changes with every install and remove
	Mask       uint32 // index of its mask
	ActionAt   uint32 // first Action, index into Memory.actions
	ActionLen  uint32
	_          [24]byte
}

// Memory is the cache's part of a worker's region. Pointer-free.
type Memory struct {
	sizes Sizes
	Flows []Flow // index: slot
	keys  []Key  // index: slot; masked
	masks []Key  // index: Flow.Mask

	// TODO(flowtable): exact-match entries, megaflow index, mask order, actions.
}

// CarveMemory lays the cache out; see shm.Layout.
func CarveMemory(l *shm.Layout, s Sizes) Memory {
	return Memory{
		sizes: s,
		Flows: shm.Carve[Flow](l, s.Megaflows),
		keys:  shm.Carve[Key](l, s.Megaflows),
		masks: shm.Carve[Key](l, s.Masks),
	}
}
