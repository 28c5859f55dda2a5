// SPDX-License-Identifier: Apache-2.0

// Package xsk is the uplink: AF_XDP sockets on the queues of a NIC that the kernel
// still owns. Control sets the uplink up (Setup: memory, sockets, XDP program). The
// engine opens the queues (Open) and moves frames.
//
// # Memory
//
// One memfd holds the UMEM of all queues and, behind it, a record for each queue. A
// queue has 2*RingSize frames of its own. The first half only receives and the second
// half only sends. So different workers can own the two directions of a queue, and
// each list of free frames has one owner. The rings are kernel memory, mapped through
// the socket.
//
// # Who owns a frame, and what a killed engine leaves behind
//
// Receiving frames need no list. Set-up puts RingSize frames on the fill ring. From
// then on each frame is in the fill ring, with the kernel, or in the rx ring. Frames
// that a worker is processing stay in the rx ring until Release, which first publishes
// them on the fill ring and then consumes them on the rx ring. So
//
//	fill.producer - rx.consumer == RingSize
//
// holds whenever no Release is in progress. If the engine is killed inside a Release,
// the difference is larger by the released frames, and Open corrects the rx consumer.
// The record has one word, the rx index up to which workers got frames. Open discards
// these frames instead of passing them on a second time, because one of them may have
// killed the engine.
//
// Each sending frame has one byte in the record: free or given. Send writes the slots
// of the tx ring, then the index up to which it wrote (sent), then the marks; Flush
// publishes. Frames between the ring's producer and sent are marked given but unknown
// to the kernel: Open marks them free again. Completed frames are marked free before
// the ring's consumer moves. Marking them twice is harmless, and no completed frame
// is used before the consumer has moved.
//
// A killed process has executed all stores before some point of its program and none
// after it. So it is enough to keep the program's order of stores, which atomics do.
package xsk

import (
	"encoding/json"
	"fmt"
	"math/bits"
	"sync/atomic"

	"weft/internal/shm"
)

// Limits of an uplink.
const (
	// MaxQueues is the maximum number of NIC queues that an uplink serves. Tunnel
	// traffic on further queues goes to the kernel.
	MaxQueues = 64
	// MaxEndpoints is the maximum number of tunnel endpoints of one uplink.
	// SetEndpoints refuses more.
	MaxEndpoints = 1024
	// DefaultFrameSize is the default size of a UMEM frame in bytes: one page. A size
	// of 2048 would halve both the memory and the maximum MTU.
	DefaultFrameSize = 4096
	// DefaultRingSize is the default number of entries of each of a queue's four
	// rings. It is also the number of UMEM frames for each direction: 1.6 ms of full
	// frames at 10 Gbit/s.
	DefaultRingSize = 2048
	minRingSize     = 64
	maxRingSize     = 8192
	// kernelHeadroom is the number of bytes that the kernel keeps free before a
	// received frame (XDP_PACKET_HEADROOM).
	kernelHeadroom = 256
	ethernetLen    = 14
	vlanLen        = 4
)

// spec is the specification of an uplink that control sends to the engine, in JSON.
// Control sends the descriptors with it: the memfd and one socket for each queue.
type spec struct {
	Dev    string `json:"dev"`
	Queues int    `json:"queues"`
	// TxQueues is the number of queues that can send, counted from queue 0. A NIC may
	// have fewer transmit queues than receive queues.
	TxQueues  int  `json:"tx_queues"`
	FrameSize int  `json:"frame_size"`
	RingSize  int  `json:"ring_size"`
	MTU       int  `json:"mtu"` // device's MTU in bytes, without the Ethernet header
	ZeroCopy  bool `json:"zero_copy"`
	// Pieces is true if a frame may span several UMEM frames (XDP_USE_SG). The MTU
	// may then be up to maxPiecesMTU.
	Pieces bool `json:"pieces,omitempty"`
	// BusyPoll is the maximum time of a busy poll in µs. 0 means no busy polling.
	BusyPoll int `json:"busy_poll,omitempty"`
}

func parseSpec(text []byte, fds []int) (spec, error) {
	var s spec
	if err := json.Unmarshal(text, &s); err != nil {
		return s, fmt.Errorf("af_xdp: specification: %w", err)
	}
	return s, s.check(len(fds))
}

// check returns an error if Open cannot use the specification with this number of
// descriptors.
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

// maxPiecesMTU is the maximum MTU for frames in several pieces, the usual MTU of
// jumbo frames. Such a frame fits into maxPieces UMEM frames of 2048 bytes.
const (
	maxPiecesMTU = 9216
	maxPieces    = 8
)

// maxMTU returns the maximum MTU of the uplink's device.
func (s *spec) maxMTU() int {
	if s.Pieces {
		return maxPiecesMTU
	}
	return maxMTU(s.FrameSize)
}

// maxMTU returns the maximum MTU without pieces. A frame of this MTU, with a VLAN tag
// and the kernel's headroom, fits into one UMEM frame.
func maxMTU(frameSize int) int { return frameSize - kernelHeadroom - ethernetLen - vlanLen }

// record is the fixed part of a queue's record in shared memory; the marks follow it.
// Each direction has its own cache line. A record has no pointers and is initially
// zero.
type record struct {
	lent atomic.Uint32 // rx index up to which the engine has received frames; written by the owner of the receive queue
	_    [60]byte
	sent atomic.Uint32 // tx index up to which the engine has written slots; written by the owner of the transmit queue
	_    [60]byte
}

// Values of a sending frame's mark.
const (
	markFree  uint8 = iota
	markGiven       // the sending frame is in the tx ring, with the kernel, or in the completion ring
)

// queueMemory is one queue's part of the shared memory region.
type queueMemory struct {
	record *record
	marks  []uint8 // one mark for each sending frame; written by the owner of the transmit queue
	rx, tx uint64  // UMEM offsets of the receiving frames and of the sending frames
}

// umemBytes returns the size of the UMEM in bytes. The UMEM is at the start of the
// shared memory region.
func (s *spec) umemBytes() int { return s.Queues * 2 * s.RingSize * s.FrameSize }

// carve returns each queue's part of the shared memory region, and the region's size
// in bytes. If mem is nil, it only computes the size.
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
