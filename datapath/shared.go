package datapath

import (
	"math/bits"

	"weft/flowtable"
	"weft/internal/shm"
	"weft/packet"
	"weft/port"
	"weft/tunnel"
)

// Sizes are the limits of one worker's memory, chosen by control at start and
// the same for all workers. Both processes lay the region out from them.
type Sizes struct {
	Cache flowtable.Sizes `json:"cache"`
	// Held is the number of frames that can wait for control, each of up to
	// HeldBytes.
	Held int `json:"held"`
	// CommandRing and UpcallRing are sizes in bytes, powers of two.
	CommandRing int `json:"command_ring"`
	UpcallRing  int `json:"upcall_ring"`
	// Templates is the number of tunnel templates.
	Templates int `json:"templates"`
}

// DefaultSizes hold 256 Ki megaflows and 256 Ki exact-match entries a worker.
// The memory is taken only as it is used.
var DefaultSizes = Sizes{
	Cache:       flowtable.DefaultSizes,
	Held:        2048,
	CommandRing: 1 << 20,
	UpcallRing:  1 << 20,
	Templates:   16384,
}

// HeldBytes is the longest frame that can be held: any. A slot takes memory only
// as far as it was ever used, and the slot freed last is the one used next.
const HeldBytes = (packet.MaxFrameLen + 63) &^ 63

// Shared is one worker's region: what the worker owns and control reads, and
// the rings between them. Pointer-free; laid out by Carve in both processes.
type Shared struct {
	// Counters and Ports: worker writes, control reads without asking.
	Counters *Counters
	// InHand: worker writes, control reads without asking.
	InHand *InHand
	Ports  []PortCounters // index: datapath port
	// Commands: control produces, worker consumes. Upcalls: the reverse.
	Commands shm.RingMem
	Upcalls  shm.RingMem
	// Cache: worker owns. Control reads statistics, and recovers the megaflows
	// from it after its own restart.
	Cache flowtable.Memory
	// Held frames: worker owns; control may read the slots of frames it was
	// told of and has not answered for.
	Held      []HeldFrame
	HeldBytes []byte // HeldBytes a slot
	// Templates: worker owns (commands change them).
	Templates []tunnel.Template
	// Meters: worker owns (commands change them), control reads counts; of the
	// first worker's all workers use Due.
	Meters []Meter
	// Taps: worker writes, control reads; index: tap. Captures: worker produces,
	// control consumes.
	Taps     []TapCounters
	Captures shm.RingMem
}

// CarveShared lays the region out; with l.Mem nil it only measures, l.Off then
// being the size needed.
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

// Counters of one worker. Worker writes with plain stores of aligned words;
// control reads whenever it likes. Append only.
type Counters struct {
	Passes        uint64 // passes that found at least one frame
	IdlePasses    uint64 // passes that found none
	Sleeps        uint64 // times the worker slept
	BusyNS        uint64 // time spent in passes that found frames
	Frames        uint64 // frames received
	ExactHits     uint64 // frames whose flow the exact-match cache knew
	MegaflowHits  uint64 // frames found by a megaflow lookup
	MasksSearched uint64 // masks tried in megaflow lookups
	Misses        uint64 // frames sent to control
	Commands      uint64 // commands executed
	HeartbeatNS   uint64 // CLOCK_MONOTONIC of the last pass; one comes every half second at least
	Syscalls      uint64 // system calls of the loop; queues make theirs uncounted
	// Drops by reason, whatever the port. A frame that several ports were to send
	// is counted for each that could not.
	Drops [packet.DropReasons]uint64
	// CommandsRefused are commands that made no sense (a slot that holds no
	// frame, say because it expired), InstallsRefused megaflows that found no
	// room: their slot's Flow.Generation stays even.
	CommandsRefused uint64
	InstallsRefused uint64
	Batches         uint64 // received, of at least one frame
	// Gaps counts passes by the time since the one before, sleep not included, in
	// the buckets of GapBucket.
	Gaps [GapBuckets]uint64
}

// GapBuckets go up to 2 s, two to each power of two.
const GapBuckets = 64

// GapBucket is where a gap of so many nanoseconds is counted, the last one if it is
// longer than all.
func GapBucket(ns uint64) int {
	n := bits.Len64(ns)
	return min(2*n+int(ns>>(max(n, 2)-2)&1), GapBuckets-1)
}

// GapLimit is what the gaps of a bucket are less than, in nanoseconds: 1, 1, 1, 2, 3,
// 4, 6, 8, 12 and so on.
func GapLimit(bucket int) uint64 { return max(uint64(3+bucket&1)<<(bucket/2)>>2, 1) }

// PortCounters of one port in one worker. Same rules as Counters.
type PortCounters struct {
	RxPackets, RxBytes uint64
	TxPackets, TxBytes uint64
	// RxDrops by reason: frames that came in on this port and were dropped
	// before they reached an output.
	RxDrops [packet.DropReasons]uint64
	// TxDrops: frames this port was to send and could not (ring full, too long).
	TxDrops uint64
}

// HeldFrame describes one held slot. Its bytes are
// Shared.HeldBytes[slot*HeldBytes:][:Len].
type HeldFrame struct {
	Len     uint32
	State   uint32 // HeldFree, HeldWaiting
	InPort  uint32
	_       uint32
	SinceNS uint64 // CLOCK_MONOTONIC
	// Tunnel words of its key, for a frame that was decapsulated.
	Tunnel [flowtable.TunnelWords]uint64
	// Then is the OpTunnel that CmdRetry executes, on a frame that waits for a
	// neighbour; its flow's other actions have been executed. OpNone on a frame
	// that missed and is to be looked up.
	Then flowtable.Action
	// Offload is what is left to do to the frame.
	Offload packet.Offload
	// Track is what a ct action has found of it.
	Track HeldTrack
}

// Values of HeldFrame.State.
const (
	HeldFree uint32 = iota
	HeldWaiting
)

// HeldTimeoutNS is how long a frame is held at most before it is dropped as
// DropHeldExpired.
const HeldTimeoutNS = 2_000_000_000
