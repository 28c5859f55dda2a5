// SPDX-License-Identifier: Apache-2.0

package packet

// DropReason is the reason for a drop. The worker and, if known, the port count drops
// by reason.
type DropReason uint8

// The order is the layout of the drop counters in shared memory. New reasons go to
// the end.
const (
	// DropNone: the frame is not dropped.
	DropNone DropReason = iota
	// DropRuntFrame: the frame is shorter than an Ethernet header.
	DropRuntFrame
	// DropOversizeFrame: the frame is longer than MaxFrameLen, or longer than its
	// output accepts.
	DropOversizeFrame
	// DropBadVLAN: the frame ends within a VLAN tag.
	DropBadVLAN
	// DropBadARP: the frame ends within an ARP packet, or the ARP packet claims IPv4
	// over Ethernet with other address lengths.
	DropBadARP
	// DropBadIPv4: version or header length of an IPv4 header contradict the frame, or the
	// total length exceeds the frame, and a device could fill up the frame to this length.
	DropBadIPv4
	// DropBadIPv6: the version of an IPv6 header contradicts the frame, or the payload length
	// exceeds the frame, and a device could fill up the frame to this length; or the chain of
	// extension headers has no end.
	DropBadIPv6
	// DropBadTransport: the datagram ends within its TCP, UDP, SCTP or ICMP header,
	// or a length in that header contradicts the datagram.
	DropBadTransport
	// DropFlow: the matching flow has the action drop, or no matching flow has an
	// output.
	DropFlow
	// DropTableMiss: no flow matched.
	DropTableMiss
	// DropTTLExpired: dec_ttl met a TTL of 1 or 0.
	DropTTLExpired
	// DropNoHeadroom: the tags or tunnel headers to push exceed the frame's headroom.
	DropNoHeadroom
	// DropNoPort: the output port of the action does not exist.
	DropNoPort
	// DropTxFull: the transmit ring or the device of the output port is full.
	DropTxFull
	// DropTxFailed: the device of the output port refused the frame.
	DropTxFailed
	// DropMissRingFull: the upcall ring to control is full.
	DropMissRingFull
	// DropHeldFull: all slots for held frames are in use, or the frame is longer than
	// a slot. A frame is held during its upcall.
	DropHeldFull
	// DropHeldExpired: a held frame waited longer than datapath.HeldTimeoutNS.
	DropHeldExpired
	// DropMissAgain: a held frame missed again at its second look-up.
	DropMissAgain
	// DropNotTunnel: a frame received through an uplink is no datagram of a tunnel.
	DropNotTunnel
	// DropBadOuter: the outer IP or UDP header of a tunnel contradicts the frame, or
	// its checksum is wrong.
	DropBadOuter
	// DropBadVXLAN: a VXLAN header has no valid VNI (RFC 7348 section 5), or reserved bits
	// that the tunnel does not allow, or a VXLAN-GPE header has another version than 0 or
	// the flag O.
	DropBadVXLAN
	// DropNoTunnelPort: no tunnel has this VNI or key and remote.
	DropNoTunnelPort
	// DropNoRoute: the kernel has no route to the tunnel's remote, or the
	// route leaves through a device that is no uplink of the switch.
	DropNoRoute
	// DropNoNeighbour: the next hop to the tunnel's remote did not answer.
	DropNoNeighbour
	// DropTooBigForTunnel: the encapsulated frame exceeds the uplink's MTU.
	DropTooBigForTunnel
	// DropLoop: the frame exceeded the limit of resubmits, nesting or repeated
	// look-ups.
	DropLoop
	// DropPortFault: an access to the shared memory of the frame's port faulted.
	DropPortFault
	// DropBadECN: the outer header of a tunnel reports congestion, and the inner
	// header's transport does not support ECN (RFC 6040 section 4.2).
	DropBadECN
	// DropDeepHeader: the headers up to the transport header exceed MaxHeader bytes.
	DropDeepHeader
	// DropBadOffload: the virtio-net header contradicts the frame, or asks for an
	// offload that was not negotiated.
	DropBadOffload
	// DropConnLimit: ct(commit) found the connection table or the zone's quota full,
	// and no connection may be evicted.
	DropConnLimit
	// DropNATExhausted: no free NAT address and port, or another connection already
	// uses the new connection's tuple.
	DropNATExhausted
	// DropMeter: a meter's rate was exceeded.
	DropMeter
	// DropBadFragment: the fragment overlaps another, is a duplicate, contradicts its
	// datagram, or exceeds the limit of incomplete datagrams.
	DropBadFragment
	// DropHeldShare: the sender or the next hop has reached its quota of held frames.
	DropHeldShare
	// DropGateway: the FTP helper cannot rewrite this segment of a translated control
	// connection, because it is out of order, has new boundaries, or follows an
	// unacknowledged rewrite. TCP sends the segment again. Or the FTP or TFTP connection
	// announces what another one has announced.
	DropGateway
	// DropSpoofed: the input port's binding forbids the sender address.
	DropSpoofed
	// DropReserved: a frame to a reserved address of IEEE 802.1Q table 8-1, or one to the
	// service's MAC address of a declared network that is no request, in the action normal.
	DropReserved
	// DropBadSource: a frame from a group address, in the action normal.
	DropBadSource
	// DropNoAddress: weft-central did not resolve the destination in time, or the
	// port exceeded its quota of requests.
	DropNoAddress
	// DropHeldLost: the engine ended while it held the frame.
	DropHeldLost
	// DropWrongVLAN: the frame's input port, or the declared port of its destination,
	// does not carry the frame's VLAN, in the action normal.
	DropWrongVLAN
	// DropRxFull: the queue of an uplink's packet socket was full, so the kernel gave
	// only the start of a frame that is longer than a slot.
	DropRxFull
	// DropPortOff: the frame's input port, or its only output, has the option admin=down.
	DropPortOff
	// DropBadBFD: a frame to tunnel.BFDAddress from a tunnel with BFD is not a valid BFD
	// packet of a session, or exceeds the rate limit of its session.
	DropBadBFD
	// DropBadGeneve: a Geneve header has another version than 0, or its option lengths
	// contradict the datagram (RFC 8926 section 3.4).
	DropBadGeneve
	// DropTunnelPayload: the payload of a tunnel's datagram is not an Ethernet frame.
	DropTunnelPayload
	// DropPacketType: encap or decap does not fit the type of the packet, or the packet has
	// no Ethernet header at an output.
	DropPacketType
	// DropQueue: the rate of a queue of the output port was exceeded.
	DropQueue
	// DropPoliced: the rate of ingress policing of the input port was exceeded.
	DropPoliced
	// DropBudget: the translation of the frame's flow took more steps than one may
	// (xlate.MaxSteps).
	DropBudget
	// DropNotAttached: the output port exists, but the worker has no queue of it: no guest
	// is connected, its device is missing, or the port has failed.
	DropNotAttached
	// DropSlowReceiver: copies into the memory of the receiving guest took more than its part of the
	// worker's time, or its chains have too many pieces.
	DropSlowReceiver
	// DropManyPieces: the sending guest's descriptor chain has many more pieces than a frame of its length needs.
	DropManyPieces
	// DropBondBackup: a bond does not take the frame on this member. Another switch has flooded
	// it to several members, or the bond has sent it itself.
	DropBondBackup
	// DropBadGRE: a GRE header has flags of RFC 1701, another version than 0 or a wrong checksum,
	// or an ERSPAN header has another version than 1 and 2, or the datagram is too short for them.
	DropBadGRE
	// DropBadNSH: a network service header has another version than 0, or its length
	// contradicts the frame or the MD type (RFC 8300 section 2).
	DropBadNSH
	// DropGroupRules: no rule of the groups of the sending or the receiving port allows the frame.
	DropGroupRules

	dropReasonCount
)

// Consumed marks a frame whose receiver is the worker itself. The frame is not forwarded,
// and no drop counter counts it.
const Consumed DropReason = 0xff

// DropReasons is the number of drop reasons, DropNone included.
const DropReasons = int(dropReasonCount)

var dropNames = [DropReasons]string{
	"none", "runt-frame", "oversize-frame", "bad-vlan", "bad-arp", "bad-ipv4", "bad-ipv6", "bad-transport",
	"flow-drop", "table-miss", "ttl-expired", "no-headroom", "no-port", "tx-full", "tx-failed",
	"miss-ring-full", "held-full", "held-expired", "miss-again",
	"not-tunnel", "bad-outer", "bad-vxlan", "no-tunnel-port", "no-route", "no-neighbour", "too-big-for-tunnel",
	"loop", "port-fault", "bad-ecn", "deep-header",
	"bad-offload",
	"conn-limit", "nat-exhausted", "meter", "bad-fragment", "held-share", "gateway",
	"spoofed", "reserved-address", "bad-source", "no-address", "held-lost", "wrong-vlan",
	"rx-full", "port-off", "bad-bfd", "bad-geneve", "tunnel-payload", "packet-type", "queue", "policed", "budget",
	"not-attached", "slow-receiver", "many-pieces", "bond-backup", "bad-gre", "bad-nsh",
	"group-rules",
}

// String returns the reason's name in counters and output.
func (r DropReason) String() string {
	if int(r) >= DropReasons {
		return "unknown"
	}
	return dropNames[r]
}
