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

// Sizes has the sizes of the tables and rings in one worker's shared memory. The control process chooses them
// at its start, equal for all workers. The control process and the engine process both compute the layout of
// the memory from them.
type Sizes struct {
	Cache flowtable.Sizes `json:"cache"`
	// Held is the number of slots for frames that wait, for example for an answer of the control process. It is
	// at most 65,536. If all slots are in use, frames that need one are dropped as DropHeldFull.
	Held int `json:"held"`
	// CommandRing and UpcallRing are the sizes of the rings in bytes, powers of two.
	// If the upcall ring is full, frames that need an upcall are dropped as
	// DropMissRingFull.
	CommandRing int `json:"command_ring"`
	UpcallRing  int `json:"upcall_ring"`
	// Templates is the largest number of tunnel templates.
	Templates int `json:"templates"`
}

// DefaultSizes are the sizes for a small machine. Large sizes cost no memory until it is used, because the
// kernel allocates pages only when they are first used.
var DefaultSizes = Sizes{
	Cache:       flowtable.DefaultSizes,
	Held:        2048,
	CommandRing: 1 << 20,
	UpcallRing:  1 << 20,
	Templates:   16384,
}

// HeldBytes is the size in bytes of a slot for a waiting frame, enough for the longest frame. The worker
// reuses the slot that it has freed last, so that few slots occupy physical memory.
const HeldBytes = (packet.MaxFrameLen + 63) &^ 63

// Shared is the memory that one worker shares with the control process: the worker's
// tables, and the command and upcall rings. It has no pointers into the memory of
// either process. CarveShared computes its layout in both processes.
type Shared struct {
	// Counters and Ports are written by the worker. The control process reads them at
	// any time.
	Counters *Counters
	// InHand is written by the worker. The control process reads it at any time.
	InHand *InHand
	Ports  []PortCounters // counters of each port; index: datapath port number
	// SpentNS is the time in nanoseconds that the worker has spent on each port since it got the port;
	// index: datapath port number. The time of a slow copy counts for the receiver. The worker writes
	// it. Without measurements (account.go), it is an estimate by the number of frames.
	SpentNS []uint64
	// Commands is the ring from the control process to the worker. Upcalls is the
	// ring in the opposite direction.
	Commands shm.RingMem
	Upcalls  shm.RingMem
	// Cache belongs to the worker. The control process reads its statistics and,
	// after a restart, its megaflows.
	Cache flowtable.Memory
	// Held has the slots of waiting frames. They belong to the worker. The control process may read the slot of
	// a frame from the time of the frame's upcall until it sends its answer.
	Held      []HeldFrame
	HeldBytes []byte // bytes of the held frames, HeldBytes for each slot
	// HeldOptions has the Geneve options with which a waiting frame arrived; index: slot. An entry is valid if
	// the word WTunOpts of the frame's key is not 0.
	HeldOptions []flowtable.TunOptions
	// HeldFields has the Geneve options with which a frame that waits for the next hop of a tunnel will be sent;
	// index: slot. An entry is valid if HeldFrame.Then is an OpTunnel.
	HeldFields []flowtable.TunOptions
	// Templates belong to the worker, which changes them by CmdTemplate; index: template.
	Templates []tunnel.Template
	// Meters belong to the worker; the control process reads their counts. All workers share the field
	// Due of the first worker's meters. Due of the other workers' meters is unused.
	Meters []Meter
	// CaptureCounters are the counters of the captures; the index is the capture. Captures is
	// the ring of captured frames. The worker writes both, and the control process reads them.
	CaptureCounters []CaptureCounters
	Captures        shm.RingMem
	// BFD are the BFD sessions with the remotes of tunnels, MaxBFD records. All workers
	// share the first worker's records, under the lock of BFDTable. Other workers' records
	// are unused.
	BFD []BFDSession
}

// CarveShared lays out a worker's shared memory in l. If l.Mem is nil, it only
// computes the size: l.Off is then the number of bytes needed.
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
	sh.HeldOptions = shm.Carve[flowtable.TunOptions](l, s.Held)
	sh.HeldFields = shm.Carve[flowtable.TunOptions](l, s.Held)
	sh.Templates = shm.Carve[tunnel.Template](l, s.Templates)
	sh.Meters = shm.Carve[Meter](l, flowtable.MaxMeters)
	sh.CaptureCounters = shm.Carve[CaptureCounters](l, MaxCaptures)
	sh.Captures = shm.CarveRing(l, CaptureRingBytes)
	sh.BFD = shm.Carve[BFDSession](l, MaxBFD)
	hand := shm.Carve[InHand](l, 1)
	sh.SpentNS = shm.Carve[uint64](l, port.MaxPorts)
	if l.Mem != nil {
		sh.Counters = &counters[0]
		sh.InHand = &hand[0]
	}
	return sh
}

// Counters are the counters of one worker. The worker writes them with plain stores of aligned words; the
// control process reads them at any time. New fields go to the end, because the next engine process,
// perhaps of a later version, uses the same memory.
type Counters struct {
	Passes        uint64 // passes that found at least one frame
	IdlePasses    uint64 // passes that found no frame
	Sleeps        uint64 // number of times the worker slept
	BusyNS        uint64 // time in nanoseconds spent in passes that found frames
	Frames        uint64 // frames received
	ExactHits     uint64 // frames found in the exact-match cache, or by a hint (sweep.go)
	MegaflowHits  uint64 // frames found among the megaflows, not in the exact-match cache
	MasksSearched uint64 // masks tried in searches of the megaflows
	Misses        uint64 // frames that matched no megaflow and were reported to control
	Commands      uint64 // commands executed
	HeartbeatNS   uint64 // CLOCK_MONOTONIC of the last pass; updated at least twice a second
	// number of system calls of the worker itself, not including the system calls of
	// its queues
	Syscalls uint64
	// Drops counts dropped frames by reason, over all ports. If a frame has several outputs, Drops counts it
	// once for each output that could not send it.
	Drops [packet.DropReasons]uint64
	// CommandsRefused counts invalid commands, such as a command for a frame that no longer waits.
	// InstallsRefused counts megaflows that the cache has refused, see flowtable.InstallResult.
	CommandsRefused uint64
	InstallsRefused uint64
	Batches         uint64 // batches received, each with at least one frame
	// Gaps is a histogram of the time from the beginning of one pass of the worker's loop to that of the next,
	// without sleep. The index is the result of GapBucket.
	Gaps [GapBuckets]uint64
	// ParkedQueues is the number of receive queues that are parked now (park.go). It is no running total.
	ParkedQueues uint64
	// OffloadedFrames counts frames that the kernel has forwarded (package offload). Frames and
	// MegaflowHits count them, too.
	OffloadedFrames uint64
	// Samples counts the frames that OpSample has chosen and copied. SamplesRefused counts the chosen frames
	// that were not copied, because they exceeded the rate limit.
	Samples, SamplesRefused uint64
}

// GapBuckets is the number of buckets of Counters.Gaps: two for each power of two, up to 2 s.
const GapBuckets = 64

// GapBucket returns the bucket of Counters.Gaps for a gap of ns nanoseconds. The last bucket also counts
// all longer gaps.
func GapBucket(ns uint64) int {
	n := bits.Len64(ns)
	return min(2*n+int(ns>>(max(n, 2)-2)&1), GapBuckets-1)
}

// GapLimit returns the exclusive upper limit of a bucket in nanoseconds. The limits
// are 1, 1, 1, 2, 3, 4, 6, 8, 12 and so on.
func GapLimit(bucket int) uint64 { return max(uint64(3+bucket&1)<<(bucket/2)>>2, 1) }

// PortCounters are the counters of one port in one worker. The worker writes them,
// and the control process reads them at any time. New fields go to the end.
type PortCounters struct {
	RxPackets, RxBytes uint64
	TxPackets, TxBytes uint64
	// RxDrops counts, by reason, the frames received on this port that were dropped
	// before they reached an output. Copies that an output refused are in the output's
	// TxDrops.
	RxDrops [packet.DropReasons]uint64
	// TxDrops counts the frames that this port could not send, for example because
	// its ring was full or the frame too long. TxReasons counts them by reason.
	TxDrops   uint64
	TxReasons [packet.DropReasons]uint64
}

// HeldFrame describes a frame that waits in a slot. The bytes of the frame are
// Shared.HeldBytes[slot*HeldBytes:][:Len].
type HeldFrame struct {
	Len     uint32
	State   uint32 // HeldFree or HeldWaiting
	InPort  uint32
	Number  uint32 // number of frames that the slot has held before
	SinceNS uint64 // time when the frame was held: CLOCK_MONOTONIC in nanoseconds
	// Tunnel holds the tunnel fields of the frame's key; 0: no tunnel.
	Tunnel [flowtable.TunnelWords]uint64
	// Then is the tunnel action of a frame that waits for the next hop of a tunnel. The actions before it have
	// already been executed. For a frame that has matched no megaflow, Then is OpNone.
	Then flowtable.Action
	// ThenMeta is the word WTunMeta (group policy and flags) with which a frame that waits for the next hop of a
	// tunnel will be sent.
	ThenMeta uint64
	// Offload is the frame's unfinished checksum or segmentation. The frame has it again when the worker handles
	// the frame after the wait.
	Offload packet.Offload
	// L3, L4 and Proto are copies of fields of the waiting packet.Frame. They are set only if the frame has
	// packet.FrameHidden, because extraction will not find its IP header again. Otherwise L3 is 0.
	L3, L4 uint16
	Proto  uint8
	_      [3]byte
	// Track is the connection tracking state of the frame.
	Track HeldTrack
}

// Values of HeldFrame.State.
const (
	HeldFree uint32 = iota
	HeldWaiting
)

// heldTimeoutNS is the longest time in nanoseconds for which a frame waits in a slot. Older frames are
// dropped as DropHeldExpired.
const heldTimeoutNS = 2_000_000_000
