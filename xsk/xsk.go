// Package xsk is the uplink: AF_XDP sockets on the queues of a NIC that stays
// the kernel's. Control sets it up (Setup: memory, sockets, XDP program); the
// engine opens the queues (Open) and moves frames.
//
// # Memory
//
// One memfd holds the UMEM of all queues and, behind it, a record for each. A
// queue has 2*RingSize frames of its own: the first half only ever receives,
// the second half only ever sends, so that the two directions of a queue can be
// different workers' and each list of free frames has one owner. The rings are
// kernel memory, mapped through the socket.
//
// # Who owns a frame, and what is left when the engine is killed
//
// Receiving frames need no list. Set-up puts RingSize frames on the fill ring;
// from then on each lies in the fill ring, with the kernel, or in the rx ring.
// What the engine lends to a pass stays in the rx ring until Release, which
// first publishes the frames on the fill ring and then lets go of them on the
// rx ring. So
//
//	fill.producer - rx.consumer == RingSize
//
// holds whenever no Release is in progress; after a kill in the middle of one
// the difference is larger by the frames released, and Open corrects the rx
// consumer. The record has one word, the rx index up to which frames were lent:
// Open throws these away instead of passing them on a second time, for one of
// them may be what killed the engine.
//
// Sending frames have one byte each in the record, free or given. Send writes
// the slots of the tx ring, then the index up to which it wrote (sent), then
// the marks; Flush publishes. Frames between the ring's producer and sent are
// given by mark and unknown to the kernel: Open marks them free again.
// Completions are marked free before the ring's consumer moves, which is
// harmless to do twice, and none is used before it has moved.
//
// A process that is killed has made all stores before a point of its program
// and none after it, so order in the program, kept by atomics, is all this
// needs.
package xsk

import (
	"encoding/json"
	"fmt"
	"math/bits"
	"sync/atomic"

	"weft/internal/shm"
)

// Limits.
const (
	// MaxQueues is the number of a NIC's queues an uplink can serve.
	MaxQueues = 64
	// MaxEndpoints is the number of tunnel endpoints of one uplink.
	MaxEndpoints = 1024
	// DefaultFrameSize is one page; 2048 halves the memory and the MTU.
	DefaultFrameSize = 4096
	// DefaultRingSize is the number of entries of each of a queue's four rings,
	// and of frames each way: at 10 Gbit/s of full frames, 1.6 ms of traffic.
	DefaultRingSize = 2048
	minRingSize     = 64
	maxRingSize     = 8192
	// kernelHeadroom is what the kernel keeps free before a received frame
	// (XDP_PACKET_HEADROOM).
	kernelHeadroom = 256
	ethernetLen    = 14
	vlanLen        = 4
)

// spec is what control tells the engine of an uplink, in JSON. Its descriptors
// are the memfd and one socket a queue.
type spec struct {
	Dev    string `json:"dev"`
	Queues int    `json:"queues"`
	// TxQueues is the number of queues that can send, the first of them: a NIC
	// may have fewer transmit queues than receive queues.
	TxQueues  int  `json:"tx_queues"`
	FrameSize int  `json:"frame_size"`
	RingSize  int  `json:"ring_size"`
	MTU       int  `json:"mtu"` // of the device
	ZeroCopy  bool `json:"zero_copy"`
	// Pieces: a frame may lie in several of the UMEM's (XDP_USE_SG), which takes an
	// MTU of up to maxPiecesMTU.
	Pieces bool `json:"pieces,omitempty"`
	// BusyPoll: the device is served in our system calls, in µs; 0: not.
	BusyPoll int `json:"busy_poll,omitempty"`
}

func parseSpec(text []byte, fds []int) (spec, error) {
	var s spec
	if err := json.Unmarshal(text, &s); err != nil {
		return s, fmt.Errorf("af_xdp: specification: %w", err)
	}
	return s, s.check(len(fds))
}

// check refuses what cannot be opened with so many descriptors.
func (s *spec) check(fds int) error {
	fail := func(format string, args ...any) error {
		return fmt.Errorf("af_xdp on %s: %s", s.Dev, fmt.Sprintf(format, args...))
	}
	if err := checkSizes(s.FrameSize, s.RingSize); err != nil {
		return fail("%v", err)
	}
	switch {
	case s.Queues < 1 || s.Queues > MaxQueues || fds != 1+s.Queues:
		return fail("%d descriptors for %d queues", fds, s.Queues)
	case s.TxQueues < 1 || s.TxQueues > s.Queues:
		return fail("%d of %d queues send", s.TxQueues, s.Queues)
	case s.MTU < 1 || s.MTU > s.maxMTU():
		return fail("MTU %d with frames of %d bytes", s.MTU, s.FrameSize)
	}
	return nil
}

func checkSizes(frame, ring int) error {
	if frame != 2048 && frame != 4096 {
		return fmt.Errorf("frame size %d: expected 2048 or 4096", frame)
	}
	if ring < minRingSize || ring > maxRingSize || bits.OnesCount(uint(ring)) != 1 {
		return fmt.Errorf("ring size %d: expected a power of two from %d to %d", ring, minRingSize, maxRingSize)
	}
	return nil
}

// maxPiecesMTU is the largest MTU with frames in several pieces, as jumbo frames
// have it; maxPieces is enough for that with frames of 2048 bytes.
const (
	maxPiecesMTU = 9216
	maxPieces    = 8
)

// maxMTU is the largest MTU of the uplink's device.
func (s *spec) maxMTU() int {
	if s.Pieces {
		return maxPiecesMTU
	}
	return maxMTU(s.FrameSize)
}

// maxMTU is the largest MTU whose frames, with a VLAN tag, fit one UMEM frame
// as the kernel fills it.
func maxMTU(frameSize int) int { return frameSize - kernelHeadroom - ethernetLen - vlanLen }

// record is the part of a queue's record that is not the marks. Each direction
// has a cache line of its own. Pointer-free, zero at first.
type record struct {
	lent atomic.Uint32 // rx index up to which frames were lent; Rx owner writes
	_    [60]byte
	sent atomic.Uint32 // tx index up to which slots were written; Tx owner writes
	_    [60]byte
}

// Values of a sending frame's mark.
const (
	markFree  uint8 = iota
	markGiven       // in the tx ring, with the kernel, or in the completion ring
)

// queueMemory is one queue's part of the region.
type queueMemory struct {
	record *record
	marks  []uint8 // one a sending frame; Tx owner writes
	rx, tx uint64  // first byte of receiving and of sending frames in the UMEM
}

// umemBytes is the size of the UMEM, which is the front of the region.
func (s *spec) umemBytes() int { return s.Queues * 2 * s.RingSize * s.FrameSize }

// carve lays the region out; mem nil only measures.
func (s *spec) carve(mem []byte) (queues []queueMemory, size int) {
	l := &shm.Layout{Mem: mem, Off: s.umemBytes()}
	half := uint64(s.RingSize) * uint64(s.FrameSize)
	for i := range uint64(s.Queues) {
		r := shm.Carve[record](l, 1)
		q := queueMemory{marks: shm.Carve[uint8](l, s.RingSize), rx: 2 * i * half, tx: (2*i + 1) * half}
		if mem != nil {
			q.record = &r[0]
		}
		queues = append(queues, q)
	}
	return queues, l.Off
}
