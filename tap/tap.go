// Package tap is the tap port: a network device of the kernel's whose frames
// the switch reads and writes. Control creates it (Create), the engine opens
// the queues (Open).
//
// The device is not persistent: it lives as long as some process holds one of
// its descriptors, and control and engine hold them both, so that either can be
// killed. A persistent tap of that name is attached to and survives.
//
// One frame is one system call each way, readv or writev. Reading puts the
// private header straight into the frame and the rest into a buffer of the
// queue, noted as a span; writing hands header and spans to the kernel as they
// lie. Nothing is copied in between. With offloads a virtio-net header comes
// before each frame, and a frame has up to 64 KiB.
package tap

import (
	"encoding/json"
	"fmt"

	"weft/packet"
)

// Limits.
const (
	// MaxQueues is the number of queues a tap can have (MAX_TAP_QUEUES of the
	// kernel's tun driver is 256); more than workers make no sense.
	MaxQueues = 64
	// buffers is the number of buffers of a receive queue, one a frame: what a
	// batch can take. Where the pass reads on, further frames wait in the kernel.
	buffers = packet.BatchSize
	// bufferLen is what a buffer takes of a frame, in bytes, after its private
	// header; largeBufferLen with offloads, more than packet.MaxFrameLen. Memory
	// is taken only as far as frames have filled it.
	bufferLen      = 10 << 10
	largeBufferLen = 64 << 10
	// headerLen is the private header read of each frame.
	headerLen = packet.InnerHeader
	// MaxMTU is the largest MTU of a tap the switch takes: Ethernet header and
	// two tags with it stay below what a buffer takes, so that a frame that
	// fills its buffer is known to have been cut.
	MaxMTU = 10000
	// minMTU is what IPv4 asks for (RFC 791); the kernel takes no less.
	minMTU = 68
	// overhead is what a frame may have beyond the MTU: the Ethernet header and
	// one VLAN tag, which Linux does not count.
	overhead = 14 + 4
)

// spec is what control tells the engine of a tap, in JSON. Its descriptors are
// the queues.
type spec struct {
	Dev    string `json:"dev"`
	Queues int    `json:"queues"`
	MTU    int    `json:"mtu"`
	// Vnet says that frames carry a virtio-net header, Takes what may be left
	// undone of them in both directions.
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
