// SPDX-License-Identifier: Apache-2.0

// Package tap is the tap port: a network device of the kernel whose frames the switch reads and writes. The
// control process creates the device (Create). The engine process, which forwards frames, opens its queues
// (Open).
//
// The device lives as long as some process has one of its descriptors. The control process and the engine
// process both have them all, so either may be killed. Create also attaches to an existing persistent tap of
// the same name, which outlives the switch.
//
// The kernel counts the frames of taps that Create has made, so that looking for frames costs no system call
// (count.go). Each frame costs one system call in each direction, readv or writev. Reading puts the first
// bytes into the frame's header buffer and the rest into a buffer of the queue, to which the frame refers by
// a span. Writing passes header and spans to the kernel without copying. With offloads, a virtio-net header
// precedes each frame, and a frame may have up to 64 KiB.
package tap

import (
	"encoding/json"
	"fmt"

	"weft/packet"
)

const (
	// MaxQueues is the largest number of queues of a tap. The tun driver allows 256
	// (MAX_TAP_QUEUES), but queues beyond the number of workers have no use.
	MaxQueues = 64
	// buffers is the number of buffers of a receive queue: one for each frame of a
	// batch. Further frames wait in the kernel.
	buffers = packet.BatchSize
	// bufferLen is the length of a receive buffer in bytes, without the header
	// buffer. largeBufferLen is the length with offloads, more than
	// packet.MaxFrameLen.
	bufferLen      = 10 << 10
	largeBufferLen = 64 << 10
	// headerLen is the number of bytes of a frame that are read into its header buffer.
	headerLen = packet.InnerHeader
	// MaxMTU is the largest MTU in bytes. A frame with this MTU, an Ethernet header and
	// two VLAN tags is shorter than a buffer. A full buffer therefore means a truncated
	// frame.
	MaxMTU = 10000
	// minMTU is the smallest MTU in bytes for IPv4 (RFC 791).
	minMTU = 68
	// overhead is the number of bytes of a frame that Linux does not count in the
	// MTU: the Ethernet header and one VLAN tag.
	overhead = 14 + 4
)

// spec is the specification of a tap in JSON, which the control process sends to the engine process together
// with the queues' descriptors.
type spec struct {
	Dev    string `json:"dev"`
	Queues int    `json:"queues"`
	MTU    int    `json:"mtu"`
	// Vnet says that frames have a virtio-net header. Takes is the set of offloads that frames of both
	// directions may use.
	Vnet  bool            `json:"vnet,omitempty"`
	Takes packet.Offloads `json:"takes,omitempty"`
	// Counted says that the kernel counts the frames of each queue. The descriptor of the counts
	// follows those of the queues.
	Counted bool `json:"counted,omitempty"`
}

// descriptors returns the number of descriptors that Open needs with the specification.
func (s spec) descriptors() int {
	if s.Counted {
		return s.Queues + 1
	}
	return s.Queues
}

func parseSpec(text []byte, fds []int) (spec, error) {
	var s spec
	if err := json.Unmarshal(text, &s); err != nil {
		return s, fmt.Errorf("tap: specification: %w", err)
	}
	if s.Queues < 1 || s.Queues > MaxQueues || s.descriptors() != len(fds) {
		return s, fmt.Errorf("tap %s: %d descriptors for %d queues", s.Dev, len(fds), s.Queues)
	}
	if s.MTU < minMTU || s.MTU > MaxMTU {
		return s, fmt.Errorf("tap %s: MTU %d is not in %d to %d", s.Dev, s.MTU, minMTU, MaxMTU)
	}
	return s, nil
}
