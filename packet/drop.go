// SPDX-License-Identifier: Apache-2.0

package packet

// DropReason is the reason for which a frame was dropped. Every drop has a reason and
// is counted by worker and, if the port is known, by port.
type DropReason uint8

// Drop reasons. The order is part of the counters' layout in shared memory;
// append only, before dropReasonCount.
const (
	// DropNone: the frame is not dropped.
	DropNone DropReason = iota
	// DropRuntFrame: shorter than an Ethernet header.
	DropRuntFrame
	// DropOversizeFrame: longer than MaxFrameLen, or than the output takes.
	DropOversizeFrame
	// DropBadVLAN: the frame ends within a VLAN tag.
	DropBadVLAN
	// DropBadARP: the frame ends within an ARP packet, or the ARP packet claims IPv4
	// over Ethernet with other address lengths.
	DropBadARP
	// DropBadIPv4: version, header length or total length of an IPv4 header
	// contradict the frame.
	DropBadIPv4
	// DropBadIPv6: version or payload length of an IPv6 header contradict the frame,
	// or the chain of extension headers has no end.
	DropBadIPv6
	// DropBadTransport: the datagram ends within its TCP, UDP, SCTP or ICMP header,
	// or a length in that header contradicts the datagram.
	DropBadTransport
	// DropFlow: a flow has the action drop, or no flow of the frame has an output.
	DropFlow
	// DropTableMiss: no flow matched.
	DropTableMiss
	// DropTTLExpired: dec_ttl found a TTL of 1 or 0.
	DropTTLExpired
	// DropNoHeadroom: the tags or tunnel headers to push exceed the frame's headroom.
	DropNoHeadroom
	// DropNoPort: the output port does not exist.
	DropNoPort
	// DropTxFull: the output's ring or device is full.
	DropTxFull
	// DropTxFailed: the output's device refused the frame.
	DropTxFailed
	// DropMissRingFull: the ring to control is full, so control does not learn of the
	// miss.
	DropMissRingFull
	// DropHeldFull: no held slot is free, or the frame is longer than a slot.
	DropHeldFull
	// DropHeldExpired: a held frame waited longer than HeldTimeout.
	DropHeldExpired
	// DropMissAgain: a frame that was held and resumed missed again.
	DropMissAgain
	// DropNotTunnel: a frame received through an uplink is no VXLAN datagram.
	DropNotTunnel
	// DropBadOuter: the outer IP or UDP header of a tunnel contradicts the frame, or
	// its checksum is wrong.
	DropBadOuter
	// DropBadVXLAN: the VXLAN flags are not exactly "VNI valid" (RFC 7348 section 5).
	DropBadVXLAN
	// DropNoTunnelPort: no vxlan port has this VNI and remote.
	DropNoTunnelPort
	// DropNoRoute: the kernel has no route to the tunnel's remote, or the
	// route leaves through a device that is no uplink of the switch.
	DropNoRoute
	// DropNoNeighbour: the next hop to the tunnel's remote did not answer.
	DropNoNeighbour
	// DropTooBigForTunnel: the encapsulated frame exceeds the uplink's MTU.
	DropTooBigForTunnel
	// DropLoop: a translation exceeded its limit of resubmits or depth.
	DropLoop
	// DropPortFault: the memory of the frame's port failed during the pass.
	DropPortFault
	// DropBadECN: the outer header of a tunnel reports congestion, and the inner
	// header's transport does not support ECN (RFC 6040 section 4.2).
	DropBadECN
	// DropDeepHeader: the headers up to the transport header exceed MaxHeader bytes,
	// the most that the private header holds.
	DropDeepHeader
	// DropBadOffload: the virtio-net header contradicts the frame, or asks for an
	// offload that was not negotiated.
	DropBadOffload
	// DropConnLimit: a connection to be committed found its zone, or the table of
	// connections, full of such that may not be evicted for it.
	DropConnLimit
	// DropNATExhausted: the new connection finds no free translation, or a translated
	// connection uses its own tuple.
	DropNATExhausted
	// DropMeter: a meter's rate was exceeded.
	DropMeter
	// DropBadFragment: the fragment overlaps another, is a duplicate, contradicts the
	// rest of its datagram, or exceeds the limit of incomplete datagrams.
	DropBadFragment
	// DropHeldShare: the port, or the neighbour that the frame waits for, already has
	// its share of the held frames.
	DropHeldShare
	// DropGateway: the FTP helper cannot rewrite this segment of a translated control
	// connection: it arrived out of order, it announces an address while the previous
	// announcement is not acknowledged, or it retransmits with other boundaries. TCP
	// sends it again.
	DropGateway
	// DropSpoofed: the frame has an address that its port may not send as.
	DropSpoofed
	// DropReserved: normal got a frame to an address of IEEE 802.1Q table 8-1, which
	// stays on its link.
	DropReserved
	// DropBadSource: normal got a frame from a group address.
	DropBadSource

	dropReasonCount
)

// DropReasons is the number of reasons, DropNone included.
const DropReasons = int(dropReasonCount)

var dropNames = [DropReasons]string{
	"none", "runt-frame", "oversize-frame", "bad-vlan", "bad-arp", "bad-ipv4", "bad-ipv6", "bad-transport",
	"flow-drop", "table-miss", "ttl-expired", "no-headroom", "no-port", "tx-full", "tx-failed",
	"miss-ring-full", "held-full", "held-expired", "miss-again",
	"not-tunnel", "bad-outer", "bad-vxlan", "no-tunnel-port", "no-route", "no-neighbour", "too-big-for-tunnel",
	"loop", "port-fault", "bad-ecn", "deep-header",
	"bad-offload",
	"conn-limit", "nat-exhausted", "meter", "bad-fragment", "held-share", "gateway",
	"spoofed", "reserved-address", "bad-source",
}

// String is the name under which the reason is counted and shown.
func (r DropReason) String() string {
	if int(r) >= DropReasons {
		return "unknown"
	}
	return dropNames[r]
}
