// SPDX-License-Identifier: Apache-2.0

// Package afpacket is an uplink through packet sockets (AF_PACKET, packet(7)) with
// the virtio-net header. It serves devices on which AF_XDP copies each frame, above
// all a veth, and devices that segment UDP. Control sets the uplink up (Setup); the
// engine opens its queues (Open).
//
// # Why it can be faster
//
// AF_XDP in copy mode handles one datagram a frame. Each datagram costs the kernel 2
// µs on a veth, both ends counted. A packet socket takes 64 KiB at a time. VXLAN
// sends the segments of one connection as UDP datagrams of equal size between the
// same ports. Such a train is exactly the result of UDP segmentation (USO) of one
// large datagram. This package therefore hands the whole train to the kernel as one
// datagram; the VXLAN and inner headers of each segment are part of its payload. A
// device with tx-udp-segmentation cuts it in hardware, the kernel cuts it late for
// other devices, and a veth passes it on whole. The device need not know VXLAN.
//
// Receiving works the same way: a train arrives whole and is split again. A large
// frame that Linux's own vxlan device sends in a tunnel also arrives as a train.
//
// # What the kernel's stack sees
//
// A packet socket gets copies, and the kernel's stack sees the datagrams as well.
// Control binds a UDP socket with a filter that drops everything to every tunnel
// endpoint; without it the kernel would answer with ICMP errors.
package afpacket

import (
	"encoding/json"
	"fmt"

	"weft/packet"
)

const (
	// MaxQueues is the largest number of sockets of an uplink.
	MaxQueues = 64
	// MaxEndpoints is the largest number of tunnel endpoints of one uplink. That many
	// fit into a filter of 4096 instructions (BPF_MAXINSNS).
	MaxEndpoints = 512
	// buffers is the number of receive buffers of a queue; each read fills one.
	// bufferLen is their size in bytes, more than packet.MaxFrameLen. The kernel
	// allocates their pages at the first write.
	buffers   = packet.BatchSize
	bufferLen = 65 << 10
	// rxHeader is the number of bytes of each frame copied into its private header,
	// as in package xsk.
	rxHeader = 192
	// socketBytes is the size of a socket's kernel buffer in each direction, in
	// bytes.
	socketBytes = 16 << 20
	ethernetLen = 14
)

// spec is the specification of an uplink that control sends to the engine, in JSON.
// The descriptors sent with it are the sockets.
type spec struct {
	Dev    string `json:"dev"`
	Queues int    `json:"queues"`
	MTU    int    `json:"mtu"` // MTU of the device in bytes
	// Trains is set if the kernel accepts UDP segmentation from a packet socket
	// (Linux 6.2 and later).
	Trains bool `json:"trains"`
	// Feeder is set if the uplink has a feeder. Its descriptor follows the sockets.
	Feeder bool `json:"feeder,omitempty"`
}

// fds returns the number of descriptors that the engine gets.
func (s spec) fds() int {
	if s.Feeder {
		return s.Queues + 1
	}
	return s.Queues
}

func parseSpec(text []byte, fds []int) (spec, error) {
	var s spec
	if err := json.Unmarshal(text, &s); err != nil {
		return s, fmt.Errorf("af_packet: specification: %w", err)
	}
	if s.Queues < 1 || s.Queues > MaxQueues || len(fds) < s.fds() {
		return s, fmt.Errorf("af_packet on %s: %d descriptors for %d queues", s.Dev, len(fds), s.Queues)
	}
	if s.MTU < 68 || s.MTU > 65535 {
		return s, fmt.Errorf("af_packet on %s: MTU %d", s.Dev, s.MTU)
	}
	return s, nil
}
