// SPDX-License-Identifier: Apache-2.0

// Package tap is the tap port: a network device of the kernel whose frames the switch
// reads and writes. Control creates the device (Create); the engine opens its queues
// (Open).
//
// The device is not persistent: it lives as long as some process holds one of its
// descriptors. Control and engine both hold them all, so either may be killed. Create
// attaches to an existing persistent tap of the same name, which outlives the switch.
//
// Each frame costs one system call in each direction, readv or writev. Reading puts
// the private header straight into the frame and the rest into a buffer of the queue,
// which becomes a span of the frame. Writing passes header and spans to the kernel in
// place. Nothing is copied in between. With offloads a virtio-net header precedes
// each frame, and a frame may have up to 64 KiB.
package tap

import (
	"encoding/json"
	"fmt"

	"weft/packet"
)

const (
	// MaxQueues is the maximum number of queues of a tap. The tun driver allows 256
	// (MAX_TAP_QUEUES), but more queues than workers are useless.
	MaxQueues = 64
	// buffers is the number of buffers of a receive queue. Each frame uses one
	// buffer, so one batch fits. If a worker reads twice before Release, the frames
	// beyond this number wait in the kernel.
	buffers = packet.BatchSize
	// bufferLen is the length of a receive buffer in bytes. A frame's private header
	// is not in the buffer. largeBufferLen is the length with offloads; it exceeds
	// packet.MaxFrameLen. The kernel allocates the pages of a buffer at the first
	// write.
	bufferLen      = 10 << 10
	largeBufferLen = 64 << 10
	// headerLen is the number of bytes of each frame that are read into its private
	// header.
	headerLen = packet.InnerHeader
	// MaxMTU is the maximum MTU in bytes. A frame of this MTU with an Ethernet header
	// and two VLAN tags is shorter than a buffer. A frame that fills its buffer is
	// therefore truncated.
	MaxMTU = 10000
	// minMTU is the minimum MTU in bytes that IPv4 (RFC 791) and the kernel allow.
	minMTU = 68
	// overhead is the number of bytes by which a frame may exceed the MTU: the
	// Ethernet header and one VLAN tag. Linux does not count either in the MTU.
	overhead = 14 + 4
)

// spec is the specification of a tap that control sends to the engine, in JSON.
// Control sends the descriptors of the queues with it.
type spec struct {
	Dev    string `json:"dev"`
	Queues int    `json:"queues"`
	MTU    int    `json:"mtu"`
	// Vnet is true if frames carry a virtio-net header. Takes is the set of offloads
	// that may be unfinished in frames of both directions.
	Vnet  bool            `json:"vnet,omitempty"`
	Takes packet.Offloads `json:"takes,omitempty"`
}

func parseSpec(text []byte, fds []int) (spec, error) {
	var s spec
	if err := json.Unmarshal(text, &s); err != nil {
		return s, fmt.Errorf("tap: specification: %w", err)
	}
	if s.Queues < 1 || s.Queues > MaxQueues || s.Queues != len(fds) {
		return s, fmt.Errorf("tap %s: %d descriptors for %d queues", s.Dev, len(fds), s.Queues)
	}
	if s.MTU < minMTU || s.MTU > MaxMTU {
		return s, fmt.Errorf("tap %s: MTU %d is not in %d to %d", s.Dev, s.MTU, minMTU, MaxMTU)
	}
	return s, nil
}
