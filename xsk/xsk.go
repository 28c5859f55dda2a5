// SPDX-License-Identifier: Apache-2.0

// Package xsk is the uplink through AF_XDP: sockets on the queues of a NIC whose driver is the
// kernel's. The control process sets the uplink up (Setup: memory, sockets, XDP program). The engine
// process opens the queues (Open) and moves frames.
//
// # Memory
//
// One memfd holds the UMEM of all queues, followed by a record for each queue. A
// queue has 2*RingSize UMEM frames. The first half only receives and the second half
// only sends, so different workers can own the two directions of a queue. The rings
// are kernel memory, mapped through the socket.
//
// # Recovery after a killed engine process
//
// Set-up puts RingSize receiving frames on the fill ring. From then on each frame is
// in the fill ring, in the kernel, or in the rx ring. Frames that a worker is
// processing stay in the rx ring until Release, which first publishes them on the
// fill ring and then consumes them on the rx ring. The equation
//
//	fill.producer - rx.consumer == RingSize
//
// holds except during a Release. If the engine process is killed inside a Release,
// Open advances the rx consumer index until the equation holds again. The record has
// the rx index up to which workers have received frames. Open discards the frames
// before this index that were not released, because one of them may have killed the
// engine process.
//
// Each UMEM frame for sending has a mark in the record: it is free, or it is given to
// the kernel. Send writes the slots of the tx ring, then the index after these slots
// (record.sent), then the marks. Flush advances the ring's producer index. If the
// engine process is killed before, the kernel does not know the frames between the
// producer index and record.sent, and Open marks them as free. A completed frame is
// first marked as free. Then the consumer index of the completion ring advances, and
// only then the frame is used again.
//
// A killed process has executed all stores before some point of its program and none
// after it. So it is enough to keep the program's order of stores. Atomic operations
// keep this order.
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
	// MaxQueues is the largest number of NIC queues that an uplink serves. Tunnel
	// traffic on further queues goes to the kernel.
	MaxQueues = 64
	// maxEndpoints is the largest number of entries in the XDP program's map of tunnel endpoints. SetEndpoints
	// refuses more. An endpoint takes one entry for UDP, and one for each protocol type for GRE.
	maxEndpoints = 1024
	// DefaultFrameSize is the default size of a UMEM frame in bytes. The size 2048 would halve the largest MTU.
	DefaultFrameSize = 4096
	// DefaultRingSize is the default number of entries of each ring, and of UMEM frames
	// for each direction. 2048 full frames take 1.6 ms at 10 Gbit/s.
	DefaultRingSize = 2048
	minRingSize     = 64
	maxRingSize     = 8192
	// kernelHeadroom is the space in bytes that the kernel leaves before each received
	// frame (XDP_PACKET_HEADROOM).
	kernelHeadroom = 256
	ethernetLen    = 14
	vlanLen        = 4
)

// spec is the specification of an uplink in JSON, which the control process sends to the engine process. The
// memfd and a socket for each queue come with it.
type spec struct {
	Dev    string `json:"dev"`
	Queues int    `json:"queues"`
	// TxQueues is the number of queues that can send, from queue 0 on. A NIC may have
	// fewer transmit queues than receive queues.
	TxQueues  int  `json:"tx_queues"`
	FrameSize int  `json:"frame_size"`
	RingSize  int  `json:"ring_size"`
	MTU       int  `json:"mtu"` // device's MTU in bytes, without the Ethernet header
	ZeroCopy  bool `json:"zero_copy"`
	// Pieces allows frames that take several UMEM frames (XDP_USE_SG), up to an MTU of
	// maxPiecesMTU.
	Pieces bool `json:"pieces,omitempty"`
	// BusyPoll is the longest time of one busy poll in µs; 0: no busy polling.
	BusyPoll int `json:"busy_poll,omitempty"`
}

func parseSpec(text []byte, fds []int) (spec, error) {
	var s spec
	if err := json.Unmarshal(text, &s); err != nil {
		return s, fmt.Errorf("af_xdp: specification: %w", err)
	}
	return s, s.check(len(fds))
}

// check returns an error if Open cannot use the specification with fds descriptors.
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

// maxPiecesMTU is the largest MTU in bytes if a frame may take several UMEM frames (pieces). maxPieces
// is the largest number of pieces of one frame.
const (
	maxPiecesMTU = 9216
	maxPieces    = 8
)

// maxMTU returns the largest MTU of the device, in bytes, that the uplink allows.
func (s *spec) maxMTU() int {
	if s.Pieces {
		return maxPiecesMTU
	}
	return maxMTU(s.FrameSize)
}

// maxMTU returns the largest MTU in bytes with which a frame fits into one UMEM frame, together with a
// VLAN tag and the kernel's headroom.
func maxMTU(frameSize int) int { return frameSize - kernelHeadroom - ethernetLen - vlanLen }

// record is the fixed part of a queue's record in shared memory. It begins as zeros. The marks of the
// UMEM frames for sending follow it. Each direction has a cache line of its own.
type record struct {
	// rx index up to which workers have received frames; written by the receive queue's worker
	lent atomic.Uint32
	_    [60]byte
	// tx index up to which slots were written; written by the transmit queue's worker
	sent atomic.Uint32
	_    [60]byte
}

// Values of the mark of a UMEM frame for sending.
const (
	markFree  uint8 = iota
	markGiven       // the frame is in the tx ring, in the kernel, or in the completion ring
)

// queueMemory is one queue's part of the shared memory region.
type queueMemory struct {
	record *record
	marks  []uint8 // one mark for each UMEM frame for sending; written by the transmit queue's worker
	rx, tx uint64  // UMEM offsets of the first frame for receiving and of the first one for sending
}

// umemBytes returns the size in bytes of the UMEM, with which the shared memory begins.
func (s *spec) umemBytes() int { return s.Queues * 2 * s.RingSize * s.FrameSize }

// carve returns the memory of each queue within the shared memory mem, and the total size in bytes. If
// mem is nil, only the size is valid.
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
