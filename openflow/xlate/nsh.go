// SPDX-License-Identifier: Apache-2.0

package xlate

import (
	"weft/flowtable"
	"weft/openflow"
	"weft/packet"
)

// This file has the actions on the network service header (RFC 8300): encap(nsh), decap() of an NSH,
// and dec_nsh_ttl. An NSH hides the headers behind it, as a label stack entry does (shim.go).

// Values of a new NSH, as in Open vSwitch and RFC 8300 sections 2.2 and 2.3.
const (
	nshTTL   = 63
	nshIndex = 255
)

// nshNext has the field Next Protocol of an NSH, by the EtherType of the packet behind the NSH.
var nshNext = map[uint16]packet.NSHFields{
	packet.EtherTypeIPv4: packet.NSHNextIPv4, packet.EtherTypeIPv6: packet.NSHNextIPv6, packet.EtherTypeNSH: packet.NSHNextNSH,
	packet.EtherTypeMPLS: packet.NSHNextMPLS, packet.EtherTypeMPLSMulticast: packet.NSHNextMPLS,
}

// nshTypes has the EtherType of the packet behind an NSH, by the field Next Protocol of the NSH.
var nshTypes = map[uint64]uint16{
	packet.NSHNextIPv4: packet.EtherTypeIPv4, packet.NSHNextIPv6: packet.EtherTypeIPv6, packet.NSHNextNSH: packet.EtherTypeNSH,
	packet.NSHNextMPLS: packet.EtherTypeMPLS,
}

// pushNSH puts an NSH with this MD type in front of the packet. Type 0 stands for type 1.
func (x *xlate) pushNSH(mdType uint8) {
	next := packet.NSHFields(packet.NSHNextEthernet)
	if x.bare {
		etherType := x.read(openflow.WholeField(openflow.FEthType))[1]
		var ok bool
		if next, ok = nshNext[uint16(etherType)]; !ok {
			x.note("no next protocol of an NSH means this packet")
			x.halt(packet.DropPacketType)
			return
		}
	}
	fields := packet.NSHFields(nshTTL)<<packet.NSHTTLShift | packet.NSHFields(max(mdType, packet.NSHType1))<<packet.NSHMDTypeShift |
		next<<packet.NSHNextShift | nshIndex
	x.commit()
	op := flowtable.OpEncapNSH
	if x.bare {
		op = flowtable.OpPushNSH
	}
	x.emit(flowtable.Action{Op: op, U64: uint64(fields)})
	x.hideInner(packet.EtherTypeNSH, 0)
	x.flow[flowtable.WIPv4], x.base[flowtable.WIPv4] = uint64(fields), uint64(fields)
	if !x.bare {
		x.newEthernet()
	}
	x.bare = true
}

// popNSH removes the NSH at the start of a packet. packetTypeBehind is the packet type that the
// action expects behind the NSH, or PacketNext for any. If the NSH has another type, the packet is
// dropped.
func (x *xlate) popNSH(packetTypeBehind uint32) {
	protocol := x.read(openflow.WholeField(openflow.FNSHNP))[1]
	etherType, ok := nshTypes[protocol]
	packetType := uint32(openflow.EtherTypeSpace<<16 | uint32(etherType))
	if protocol == packet.NSHNextEthernet {
		packetType, ok = openflow.PacketEthernet, true
	}
	if !ok || packetTypeBehind != openflow.PacketNext && packetTypeBehind != packetType {
		x.note("the NSH has another next protocol")
		x.halt(packet.DropPacketType)
		return
	}
	x.commit()
	if packetType != openflow.PacketEthernet {
		x.emit(flowtable.Action{Op: flowtable.OpPopNSH, U16: etherType})
		x.hideInner(etherType, 0)
		x.opaque = true
		return
	}
	x.emit(flowtable.Action{Op: flowtable.OpDecapNSH})
	x.hideInner(openflow.EtherTypeUnrevealed, 0)
	x.hideTags()
	x.bare, x.opaque = false, true
}

// decNSHTTL decrements the TTL of the NSH. It returns false if the TTL has expired, which ends the
// action list.
func (x *xlate) decNSHTTL() bool { return x.decHeaderTTL(openflow.NeedNSH, openflow.FNSHTTL) }
