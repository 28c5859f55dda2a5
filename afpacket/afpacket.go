// SPDX-License-Identifier: Apache-2.0

// Package afpacket is an uplink through packet sockets (AF_PACKET, packet(7)) with
// the virtio-net header. It serves devices on which AF_XDP copies each frame, above
// all a veth, and devices that segment UDP. The control process sets the uplink up
// (Setup). The engine process, which forwards frames, opens its queues (Open).
//
// The kernel copies received frames into a mapped ring, from which the engine process
// takes them without a system call (ring.go). Frames that are longer than a slot of the
// ring are read from the socket, one call each.
//
// # Trains of datagrams
//
// In copy mode AF_XDP handles every datagram as a frame of its own. On a veth each
// datagram costs the kernel 2 µs in total for both ends. A packet socket takes up to
// 64 KiB at a time. A tunnel sends the segments of one connection as UDP datagrams of
// equal size between the same ports. Such a sequence of datagrams is called a train
// in this package. It is exactly the result of UDP segmentation (USO) of one large
// datagram. This package therefore hands the whole train to the kernel as one
// datagram; the tunnel and inner headers of each segment are part of its payload. The
// device segments it (tx-udp-segmentation), or the kernel does right before the
// driver. A veth passes it on unsegmented. The device need not know the kind of tunnel.
//
// A received train also arrives as one datagram, and this package splits it. A large
// frame from Linux's own vxlan device arrives as a train, too.
//
// # Datagrams in the kernel's stack
//
// A packet socket gets copies. A BPF program on the device's ingress drops the datagrams
// behind the packet sockets, so the kernel's stack sees only fragments (ingress.go). For
// every tunnel endpoint, the control process also binds a UDP socket whose filter drops
// everything. The UDP socket reserves the port and lets the kernel merge datagrams (GRO). It
// also keeps the kernel from answering fragments with ICMP errors. The BPF program needs
// Linux 6.6 and CAP_BPF. Without the program, the UDP socket keeps the kernel from answering
// any datagram.
package afpacket

import (
	"encoding/json"
	"fmt"

	"weft/offload"
	"weft/packet"
)

const (
	// MaxQueues is the maximum number of packet sockets of an uplink.
	MaxQueues = 64
	// maxEndpoints is the largest number of tunnel endpoints. A filter for more would
	// exceed the 4096 instructions of a socket filter (BPF_MAXINSNS).
	maxEndpoints = 512
	// buffers is the number of receive buffers of a queue; each read uses one.
	// bufferLen is the length of a buffer in bytes. It exceeds packet.MaxFrameLen.
	buffers   = packet.BatchSize
	bufferLen = 65 << 10
	// rxHeader is the number of bytes of a received frame that are copied into its
	// header buffer, as in package xsk.
	rxHeader = 192
	// socketBytes is the size in bytes of a socket's buffer in the kernel, for each
	// direction.
	socketBytes = 16 << 20
	ethernetLen = 14
)

// spec is the specification of an uplink in JSON, which the control process sends to the engine process
// together with the sockets' descriptors.
type spec struct {
	Dev string `json:"dev"`
	// Rings is the number of sockets that have a ring of Slots slots. They come first. Queues is the number of
	// the other sockets. An engine process of a version without rings refuses an uplink whose sockets have
	// rings.
	Rings  int `json:"rings,omitempty"`
	Slots  int `json:"slots,omitempty"`
	Queues int `json:"queues"`
	MTU    int `json:"mtu"` // MTU of the device in bytes
	// Trains says that the kernel accepts a train (datagrams of equal size) from a packet socket as
	// one large datagram, which needs Linux 6.2. The sender then sends a train with one system call.
	Trains bool `json:"trains"`
	// Feeder says that the uplink has a feeder, a tap for large tunnelled frames (feeder.go). Its
	// descriptor follows those of the sockets.
	Feeder bool `json:"feeder,omitempty"`
	// All says that the sockets take every frame of the device, see Config.All.
	All bool `json:"all,omitempty"`
	// Offload is offload.Version if flows of the port may be forwarded by the kernel (package offload),
	// otherwise 0. The descriptors of the flows' counters follow those of the sockets and the feeder.
	Offload int `json:"offload,omitempty"`
}

// sockets returns the number of packet sockets.
func (s spec) sockets() int { return s.Rings + s.Queues }

// fds returns the number of descriptors that belong to the specification.
func (s spec) fds() int {
	n := s.sockets()
	if s.Feeder {
		n++
	}
	if s.Offload != 0 {
		n += offload.CountFDs
	}
	return n
}

func parseSpec(text []byte, fds []int) (spec, error) {
	var s spec
	if err := json.Unmarshal(text, &s); err != nil {
		return s, fmt.Errorf("af_packet: specification: %w", err)
	}
	if min(s.Rings, s.Queues) < 0 || s.sockets() < 1 || s.sockets() > MaxQueues || len(fds) < s.fds() {
		return s, fmt.Errorf("af_packet on %s: %d descriptors for %d queues", s.Dev, len(fds), s.sockets())
	}
	if s.Offload != 0 && s.Offload != offload.Version {
		return s, fmt.Errorf("af_packet on %s: flows in the kernel of version %d: expected %d", s.Dev, s.Offload, offload.Version)
	}
	if s.MTU < 68 || s.MTU > 65535 {
		return s, fmt.Errorf("af_packet on %s: MTU %d is not in 68 to 65535", s.Dev, s.MTU)
	}
	return s, nil
}
