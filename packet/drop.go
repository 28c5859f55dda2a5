package packet

// DropReason says why a frame went nowhere. Every drop has one, and each is
// counted: by worker and, where the port is known, by port.
type DropReason uint8

// Drop reasons. The order is part of the counters' layout in shared memory;
// append only, before dropReasonCount.
const (
	// DropNone: the frame lives.
	DropNone DropReason = iota
	// DropRuntFrame: shorter than an Ethernet header.
	DropRuntFrame
	// DropOversizeFrame: longer than MaxFrameLen, or than the output takes.
	DropOversizeFrame
	// DropBadVLAN: a VLAN tag cut off by the end of the frame.
	DropBadVLAN
	// DropBadARP: an ARP packet cut off, or not IPv4 over Ethernet where the
	// header claims it.
	DropBadARP
	// DropBadIPv4: version, header length or total length of an IPv4 header
	// contradict the frame.
	DropBadIPv4
	// DropBadIPv6: version or payload length of an IPv6 header contradict the
	// frame, or its extension headers do not end.
	DropBadIPv6
	// DropBadTransport: a TCP, UDP, SCTP or ICMP header cut off by the end of
	// the datagram, or lengths in it that contradict it.
	DropBadTransport
	// DropFlow: a flow said drop, or the frame's flows have no output.
	DropFlow
	// DropTableMiss: no flow matched.
	DropTableMiss
	// DropTTLExpired: dec_ttl of a TTL of 1 or 0.
	DropTTLExpired
	// DropNoHeadroom: tags or tunnels pushed beyond the frame's headroom.
	DropNoHeadroom
	// DropNoPort: an output to a port that is gone.
	DropNoPort
	// DropTxFull: the output's ring or device took no more.
	DropTxFull
	// DropTxFailed: the output's device refused the frame.
	DropTxFailed
	// DropMissRingFull: the miss could not be told to control.
	DropMissRingFull
	// DropHeldFull: no slot was free to hold a frame that had to wait, or it was too
	// long for one.
	DropHeldFull
	// DropHeldExpired: a held frame waited longer than HeldTimeout.
	DropHeldExpired
	// DropMissAgain: a resumed frame missed once more.
	DropMissAgain
	// DropNotTunnel: what came in through an uplink is no VXLAN datagram.
	DropNotTunnel
	// DropBadOuter: outer IP or UDP header of a tunnel contradicts the frame,
	// or its checksum is wrong.
	DropBadOuter
	// DropBadVXLAN: VXLAN flags other than a valid VNI (RFC 7348 section 5).
	DropBadVXLAN
	// DropNoTunnelPort: no vxlan port takes this VNI from this remote.
	DropNoTunnelPort
	// DropNoRoute: the kernel has no route to the tunnel's remote, or the
	// route leaves through a device that is no uplink of the switch.
	DropNoRoute
	// DropNoNeighbour: the next hop to the tunnel's remote did not answer.
	DropNoNeighbour
	// DropTooBigForTunnel: after encapsulation the frame exceeds the uplink's
	// MTU.
	DropTooBigForTunnel
	// DropLoop: a translation exceeded its limit of resubmits or depth.
	DropLoop
	// DropPortFault: lost with the port whose memory failed in mid-pass.
	DropPortFault
	// DropBadECN: a tunnel's outer header says congestion was experienced, the
	// inner one that its transport cannot be told so (RFC 6040 section 4.2).
	DropBadECN
	// DropDeepHeader: the headers up to the transport's reach beyond MaxHeader
	// bytes, further than the private header can grow.
	DropDeepHeader
	// DropBadOffload: what a virtio-net header says is left to do contradicts the
	// frame, or was not negotiated.
	DropBadOffload
	// DropConnLimit: a connection to be committed found its zone, or the table of
	// connections, full of such that may not be evicted for it.
	DropConnLimit
	// DropNATExhausted: a connection to be committed found no translation that
	// is free, or its own tuple in use by a translated one.
	DropNATExhausted
	// DropMeter: a meter's rate was exceeded.
	DropMeter
	// DropBadFragment: a fragment that overlaps another, comes twice, contradicts
	// the rest of its datagram, or belongs to one of too many.
	DropBadFragment
	// DropHeldShare: as many frames of the port, or for the neighbour, waited as
	// may, so that there is room for those of other ports.
	DropHeldShare
	// DropGateway: a segment of a translated control connection comes before what
	// it follows, announces while the announcement before is not acknowledged, or
	// repeats one cut otherwise: how its bytes are to be rewritten cannot be told. It
	// comes again.
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
