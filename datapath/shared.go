// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"math/bits"

	"weft/flowtable"
	"weft/internal/shm"
	"weft/packet"
	"weft/port"
	"weft/tunnel"
)

// Sizes are the limits of one worker's memory. Control chooses them at start, the
// same for all workers. Control and engine compute the layout of the region from
// them.
type Sizes struct {
	Cache flowtable.Sizes `json:"cache"`
	// Held is the number of frames that can wait for control, each of up to HeldBytes
	// bytes. Further frames are dropped as DropHeldFull.
	Held int `json:"held"`
	// CommandRing and UpcallRing are sizes in bytes, powers of two. Frames whose
	// upcall finds the ring full are dropped as DropMissRingFull.
	CommandRing int `json:"command_ring"`
	UpcallRing  int `json:"upcall_ring"`
	// Templates is the number of tunnel templates.
	Templates int `json:"templates"`
}

// DefaultSizes has room for 256 Ki megaflows and 256 Ki exact-match entries a worker.
// The kernel allocates pages only when they are first used.
var DefaultSizes = Sizes{
	Cache:       flowtable.DefaultSizes,
	Held:        2048,
	CommandRing: 1 << 20,
	UpcallRing:  1 << 20,
	Templates:   16384,
}

// HeldBytes is the size of a held slot in bytes: the longest frame fits. A slot takes
// physical memory only as far as it was ever used, and the slot freed last is used
// next.
const HeldBytes = (packet.MaxFrameLen + 63) &^ 63

// Shared is one worker's region: the worker's tables, which control reads, and the
// rings between the two. The region holds no pointers; CarveShared lays it out in
// both processes.
type Shared struct {
	// Counters and Ports: the worker writes, control reads at any time.
	Counters *Counters
	// InHand: the worker writes, control reads at any time.
	InHand *InHand
	Ports  []PortCounters // counters of each port; index: datapath port
	// Commands: control produces, the worker consumes. Upcalls: the reverse.
	Commands shm.RingMem
	Upcalls  shm.RingMem
	// Cache: the worker owns it. Control reads statistics, and recovers the megaflows
	// from it after its own restart.
	Cache flowtable.Memory
	// Held frames: the worker owns them. Control may read the slot of a frame between
	// the upcall and its answer.
	Held      []HeldFrame
	HeldBytes []byte // the frames' bytes, HeldBytes for each slot
	// Templates: the worker owns them; commands change them.
	Templates []tunnel.Template
	// Meters: the worker owns them; commands change them, and control reads the
	// counts. All workers use the Due of the first worker's meters.
	Meters []Meter
	// Taps: the worker writes, control reads; index: tap. Captures: the worker
	// produces, control consumes.
	Taps     []TapCounters
	Captures shm.RingMem
}

// CarveShared lays the region out. If l.Mem is nil, it only measures: l.Off is then
// the size needed in bytes.
func CarveShared(l *shm.Layout, s Sizes) *Shared {
	counters := shm.Carve[Counters](l, 1)
	sh := &Shared{
		Ports:    shm.Carve[PortCounters](l, port.MaxPorts),
		Commands: shm.CarveRing(l, s.CommandRing),
		Upcalls:  shm.CarveRing(l, s.UpcallRing),
		Cache:    flowtable.CarveMemory(l, s.Cache),
		Held:     shm.Carve[HeldFrame](l, s.Held),
	}
	sh.HeldBytes = shm.Carve[byte](l, s.Held*HeldBytes)
	sh.Templates = shm.Carve[tunnel.Template](l, s.Templates)
	sh.Meters = shm.Carve[Meter](l, flowtable.MaxMeters)
	sh.Taps = shm.Carve[TapCounters](l, MaxTaps)
	sh.Captures = shm.CarveRing(l, CaptureRingBytes)
	hand := shm.Carve[InHand](l, 1)
	if l.Mem != nil {
		sh.Counters = &counters[0]
		sh.InHand = &hand[0]
	}
	return sh
}

// Counters are the counters of one worker. The worker writes with plain stores of
// aligned words; control reads at any time. New fields go to the end.
type Counters struct {
	Passes        uint64 // passes that found at least one frame
	IdlePasses    uint64 // passes that found no frame
	Sleeps        uint64 // number of times the worker slept
	BusyNS        uint64 // time in ns spent in passes that found frames
	Frames        uint64 // frames received
	ExactHits     uint64 // frames found in the exact-match cache
	MegaflowHits  uint64 // frames found by a search of the megaflows
	MasksSearched uint64 // masks tried in searches of the megaflows
	Misses        uint64 // frames sent to control
	Commands      uint64 // commands executed
	HeartbeatNS   uint64 // CLOCK_MONOTONIC of the last pass; updated at least every half second
	Syscalls      uint64 // system calls of the loop, without those of the queues
	// Drops counts by reason, over all ports. A frame with several outputs counts
	// once for each output that could not send it.
	Drops [packet.DropReasons]uint64
	// CommandsRefused counts invalid commands, for example for a slot whose frame has
	// expired. InstallsRefused counts megaflows for which there was no room; the
	// Flow.Generation of their slot stays even.
	CommandsRefused uint64
	InstallsRefused uint64
	Batches         uint64 // batches received with at least one frame
	// Gaps counts passes by the time since the previous one, without sleep, in the
	// buckets of GapBucket.
	Gaps [GapBuckets]uint64
}

// GapBuckets is the number of buckets: two for each power of two, up to 2 s.
const GapBuckets = 64

// GapBucket returns the bucket of a gap of ns nanoseconds. Gaps beyond the last
// bucket count there.
func GapBucket(ns uint64) int {
	n := bits.Len64(ns)
	return min(2*n+int(ns>>(max(n, 2)-2)&1), GapBuckets-1)
}

// GapLimit returns the exclusive upper limit of a bucket in nanoseconds: 1, 1, 1, 2,
// 3, 4, 6, 8, 12 and so on.
func GapLimit(bucket int) uint64 { return max(uint64(3+bucket&1)<<(bucket/2)>>2, 1) }

// PortCounters are the counters of one port in one worker. The rules of Counters
// apply.
type PortCounters struct {
	RxPackets, RxBytes uint64
	TxPackets, TxBytes uint64
	// RxDrops counts by reason the frames that came in on this port and were dropped
	// before they reached an output.
	RxDrops [packet.DropReasons]uint64
	// TxDrops counts the frames that this port could not send (ring full, frame too
	// long).
	TxDrops uint64
}

// HeldFrame describes one held slot. The frame's bytes are
// Shared.HeldBytes[slot*HeldBytes:][:Len].
type HeldFrame struct {
	Len     uint32
	State   uint32 // HeldFree or HeldWaiting
	InPort  uint32
	_       uint32
	SinceNS uint64 // CLOCK_MONOTONIC in ns when the frame was held
	// Tunnel holds the tunnel words of the key of a decapsulated frame.
	Tunnel [flowtable.TunnelWords]uint64
	// Then is the OpTunnel that CmdRetry executes on a frame that waits for a
	// neighbour; the flow's other actions have been executed. It is OpNone for a
	// frame that missed and must be looked up.
	Then flowtable.Action
	// Offload is the frame's unfinished offload.
	Offload packet.Offload
	// Track is the tracking state of the frame.
	Track HeldTrack
}

// Values of HeldFrame.State.
const (
	HeldFree uint32 = iota
	HeldWaiting
)

// HeldTimeoutNS is the longest time in ns for which a frame is held. Then it is
// dropped as DropHeldExpired.
const HeldTimeoutNS = 2_000_000_000
