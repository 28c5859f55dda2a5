// Package afpacket is an uplink through packet sockets (AF_PACKET, packet(7)) with
// the virtio-net header: for devices on which AF_XDP has to copy, a veth above
// all, and wherever the device segments UDP. Control sets it up (Setup), the
// engine opens the queues (Open).
//
// # Why it can be faster
//
// An AF_XDP frame has one datagram, and in copy mode costs the kernel what a
// datagram costs: 2 µs on a veth, both ends counted. A packet socket takes 64 KiB
// at a time. What VXLAN sends of one connection are UDP datagrams of equal size
// between the same ports, and such a train is what UDP segmentation (USO) makes
// of one large datagram: so the train goes to the kernel as one, with the VXLAN
// and inner headers of each segment as part of its payload. A device that has
// tx-udp-segmentation cuts it in hardware, others have it cut late, and a veth
// hands it over whole. No device need know VXLAN.
//
// What is received comes whole in the same way: trains are taken apart again, and
// what Linux's own vxlan device sends as a large frame in a tunnel is one.
//
// # What the kernel's stack sees
//
// A packet socket gets copies. For the kernel not to answer datagrams that nobody
// takes with ICMP errors, control binds a UDP socket to every tunnel endpoint,
// whose filter takes nothing.
package afpacket

import (
	"encoding/json"
	"fmt"

	"weft/packet"
)

// Limits.
const (
	// MaxQueues is the number of sockets of an uplink.
	MaxQueues = 64
	// MaxEndpoints is the number of tunnel endpoints of one uplink: what a filter
	// of at most 4096 instructions (BPF_MAXINSNS) has room for.
	MaxEndpoints = 512
	// buffers is the number of receive buffers of a queue, one a read, of bufferLen
	// bytes: more than packet.MaxFrameLen. Memory is taken as far as it was used.
	buffers   = packet.BatchSize
	bufferLen = 65 << 10
	// rxHeader is the private header copied of each frame: as in package xsk.
	rxHeader = 192
	// socketBytes is what the kernel may hold for a socket each way.
	socketBytes = 16 << 20
	ethernetLen = 14
)

// spec is what control tells the engine of an uplink, in JSON. Its descriptors are
// the sockets.
type spec struct {
	Dev    string `json:"dev"`
	Queues int    `json:"queues"`
	MTU    int    `json:"mtu"` // of the device
	// Trains says that the kernel takes UDP segmentation from a packet socket,
	// which it does from Linux 6.2.
	Trains bool `json:"trains"`
	// Feeder says that there is one; its descriptor follows the sockets.
	Feeder bool `json:"feeder,omitempty"`
}

// fds is the number of descriptors that the engine gets.
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
