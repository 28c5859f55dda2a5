// SPDX-License-Identifier: Apache-2.0

package packet

// DropReason is the reason why a frame is dropped. The worker counts drops by reason, and so does the
// port if it is known.
type DropReason uint8

// Drop reasons. Their order is the layout of the drop counters in shared memory, so new reasons go to
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
	// DropBadIPv4: the version or the header length of an IPv4 header is invalid, or its total length
	// exceeds the frame. In the second case the frame is dropped only if it is so short that a device
	// pads it.
	DropBadIPv4
	// DropBadIPv6: the version of an IPv6 header is not 6, or the frame ends within its extension headers
	// or has too many of them, or the payload length exceeds the frame. In the last case the frame is
	// dropped only if it is so short that a device pads it.
	DropBadIPv6
	// DropBadTransport: the datagram ends within its TCP, UDP, SCTP or ICMP header,
	// or a length in that header contradicts the datagram.
	DropBadTransport
	// DropFlow: the flow that matched has the action drop, or no flow that matched sends the frame to
	// a port.
	DropFlow
	// DropTableMiss: no flow matched.
	DropTableMiss
	// DropTTLExpired: the action dec_ttl found a TTL or hop limit of 1 or 0.
	DropTTLExpired
	// DropNoHeadroom: the frame's headroom has no space for a tag or header that an action adds.
	DropNoHeadroom
	// DropNoPort: the output port of the action does not exist.
	DropNoPort
	// DropTxFull: the transmit ring or the device of the output port is full.
	DropTxFull
	// DropTxFailed: the device of the output port refused the frame.
	DropTxFailed
	// DropMissRingFull: the frame matches no megaflow, and the ring in which the worker reports this to the
	// control process is full.
	DropMissRingFull
	// DropHeldFull: the frame must wait in the worker's memory, for example until the control process has
	// found its actions. But the memory has no free slot, or the frame is longer than a slot.
	DropHeldFull
	// DropHeldExpired: the frame waited in the worker's memory for too long (datapath.heldTimeoutNS), for
	// example for an answer of the control process.
	DropHeldExpired
	// DropMissAgain: the frame matched no megaflow, waited for the control process, and then matched no
	// megaflow again.
	DropMissAgain
	// DropNotTunnel: a frame that an uplink received is not a datagram of a tunnel.
	DropNotTunnel
	// DropBadOuter: the outer IP or UDP header of a tunnel contradicts the frame, or
	// its checksum is wrong.
	DropBadOuter
	// DropBadVXLAN: a VXLAN header has no valid VNI (RFC 7348 section 5), or reserved bits
	// that the tunnel does not allow, or a VXLAN-GPE header has another version than 0 or
	// the flag O.
	DropBadVXLAN
	// DropNoTunnelPort: no tunnel has the datagram's VNI or key, and its sender as the remote.
	DropNoTunnelPort
	// DropNoRoute: the kernel has no route to the tunnel's remote, or the
	// route leaves through a device that is no uplink of the switch.
	DropNoRoute
	// DropNoNeighbour: the next hop to the tunnel's remote did not answer.
	DropNoNeighbour
	// DropTooBigForTunnel: the encapsulated frame exceeds the uplink's MTU.
	DropTooBigForTunnel
	// DropLoop: the actions of the frame exceeded the limit of resubmits, of nested actions or of
	// repeated look-ups.
	DropLoop
	// DropPortFault: an access to the memory that a guest shares with the frame's port caused a fault.
	DropPortFault
	// DropBadECN: the outer header of a tunnel reports congestion, and the inner
	// header's transport does not support ECN (RFC 6040 section 4.2).
	DropBadECN
	// DropDeepHeader: the headers up to the transport header exceed MaxHeader bytes.
	DropDeepHeader
	// DropBadOffload: the virtio-net header contradicts the frame, or asks for an
	// offload that was not negotiated.
	DropBadOffload
	// DropConnLimit: ct(commit) found as many connections as the table or the zone may have, and none
	// of them may be evicted.
	DropConnLimit
	// DropNATExhausted: ct(commit) found no free address and port for NAT, or another connection already
	// has the new connection's tuple.
	DropNATExhausted
	// DropMeter: the frame exceeded the rate of an OpenFlow meter.
	DropMeter
	// DropBadFragment: the fragment overlaps another, is a duplicate, contradicts its
	// datagram, or exceeds the limit of incomplete datagrams.
	DropBadFragment
	// DropHeldShare: the frame must wait in the worker's memory, but too many frames of the same sender, or
	// for the same next hop, are waiting already.
	DropHeldShare
	// DropGateway: connection tracking drops the segment, because it cannot handle an address and port that
	// the segment announces for a further connection. In an FTP control connection with NAT, it must
	// rewrite such an announcement. It cannot if the segment is out of order, if it has only a part of the
	// announcement, or if the receiver has not yet acknowledged an earlier rewritten one. TCP sends the
	// segment again. In FTP or TFTP with NAT, the address and the port may also have been announced by
	// another connection.
	DropGateway
	// DropSpoofed: the input port's binding does not allow the frame's sender address.
	DropSpoofed
	// DropReserved: the switch does not forward frames to this address, or the control process answers the
	// frame itself. The cases are: frames to a reserved address of IEEE 802.1Q table 8-1, in the action
	// normal; frames to the services of a network's host, such as DHCP, also if the control process answers
	// them; LACP frames on a member of a bond; and frames to tunnel.BFDAddress into a tunnel with BFD.
	DropReserved
	// DropBadSource: the source MAC address of a frame in the action normal is a group address.
	DropBadSource
	// DropNoAddress: the switch does not know on which host the destination is. It has asked weft-central,
	// the central controller, but weft-central did not answer in time. Or the input port exceeded its quota
	// of such requests.
	DropNoAddress
	// DropHeldLost: the engine process, which has the workers, ended while the frame waited in its memory.
	DropHeldLost
	// DropWrongVLAN: in the action normal, the input port does not carry the frame's VLAN. Or this is so
	// for the port that the central controller (weft-central) has declared for the destination.
	DropWrongVLAN
	// DropRxFull: the receive queue of an uplink's packet socket was full. The kernel then passed only the
	// start of a frame that is longer than a slot of the socket's ring.
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
	// DropPacketType: the action encap or decap is not for packets of this type, or an action outputs a
	// packet that has no Ethernet header.
	DropPacketType
	// DropQueue: the frame exceeded the rate of its queue at the output port.
	DropQueue
	// DropPoliced: the frame exceeded the rate of ingress policing at the input port.
	DropPoliced
	// DropBudget: the translation of the frame through the OpenFlow tables needs more steps than a limit in
	// package xlate allows.
	DropBudget
	// DropNotAttached: the output port exists, but the worker has no queue for it. The reason is that no
	// guest is connected, that the port's device is missing, or that the port has failed.
	DropNotAttached
	// DropSlowReceiver: copies into the memory of the receiving guest took more of the worker's time than
	// one guest may use, or the guest's descriptor chains consist of too many small buffers.
	DropSlowReceiver
	// DropManyPieces: the sending guest's descriptor chain has many more buffers than a frame of this
	// length needs.
	DropManyPieces
	// DropBondBackup: a bond does not accept the frame from this member, because another switch has
	// flooded it to several members, or because the bond has sent it itself.
	DropBondBackup
	// DropBadGRE: a GRE header has flags of RFC 1701, another version than 0 or a wrong checksum,
	// or an ERSPAN header has another version than 1 and 2, or the datagram is too short for them.
	DropBadGRE
	// DropBadNSH: a network service header has another version than 0, or its length
	// contradicts the frame or the MD type (RFC 8300 section 2).
	DropBadNSH
	// DropGroupRules: no rule in the security groups of the sending or of the receiving port allows the frame.
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
