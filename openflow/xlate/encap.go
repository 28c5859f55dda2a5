// SPDX-License-Identifier: Apache-2.0

package xlate

import (
	"weft/flowtable"
	"weft/openflow"
	"weft/packet"
)

// encapsulate executes the action encap (ovs-actions(7)): it puts an NSH, a label stack entry or an
// Ethernet header in front of the packet.
func (x *xlate) encapsulate(a *openflow.Action) {
	packetType := uint32(a.Value[1])
	switch {
	case packetType == openflow.PacketNSH:
		x.pushNSH(uint8(a.Value[0]))
	case packetType != openflow.PacketEthernet && x.bare:
		x.pushMPLS(uint16(packetType))
	case packetType != openflow.PacketEthernet:
		x.pushMPLSAndEthernet(uint16(packetType))
	case x.bare:
		x.bare = false
		x.set(openflow.WholeField(openflow.FEthDst), openflow.Value128{}, openflow.Ones(48))
		x.set(openflow.WholeField(openflow.FEthSrc), openflow.Value128{}, openflow.Ones(48))
	default:
		x.halt(packet.DropPacketType)
	}
}

// pushMPLSAndEthernet puts a label stack entry in front of an Ethernet frame. The datapath also adds
// a new Ethernet header in front of the entry.
func (x *xlate) pushMPLSAndEthernet(etherType uint16) {
	entry := x.firstEntry()
	x.commit()
	x.emit(flowtable.Action{Op: flowtable.OpEncapMPLS, U16: etherType, U32: entry})
	x.hideInner(etherType, entry)
	x.newEthernet()
	x.bare = true
}

// newEthernet records that the frame has a new Ethernet header without tags and with addresses of 0. It
// changes x.flow and x.base, because the datapath adds this header, too.
func (x *xlate) newEthernet() {
	x.hideTags()
	for _, word := range []int{flowtable.WEthDst, flowtable.WEthSrc} {
		const address = 0xffffffffffff << 16
		x.flow[word] &^= address
		x.base[word] &^= address
		x.keep[word] &^= address
		x.baseKeep[word] &^= address
	}
}

// decapsulate executes the action decap (ovs-actions(7)): it removes the outermost header. The
// argument "next" is the packet type that the action expects behind this header.
func (x *xlate) decapsulate(next uint32) {
	switch {
	case !x.bare && x.tagged():
		x.note("decap of a frame with a VLAN tag")
		x.halt(packet.DropPacketType)
	case !x.bare:
		x.bare = true
	case openflow.NeedNSH.Met(x):
		x.popNSH(next)
	case !openflow.NeedMPLS.Met(x):
		x.note("decap of a packet that is neither MPLS nor NSH")
		x.halt(packet.DropPacketType)
	case next == openflow.PacketEthernet:
		x.commit()
		x.emit(flowtable.Action{Op: flowtable.OpDecapMPLS})
		x.hideInner(openflow.EtherTypeUnrevealed, 0)
		x.hideTags()
		x.bare, x.opaque = false, true
	case next>>16 == openflow.EtherTypeSpace:
		x.popMPLS(uint16(next))
	default:
		x.note("MPLS does not say what follows")
		x.halt(packet.DropPacketType)
	}
}

// sendable reports whether the frame has an Ethernet header. A packet without one cannot be sent;
// sendable then records the drop reason.
func (x *xlate) sendable() bool {
	if x.bare {
		x.noteDrop(packet.DropPacketType)
		x.note("a packet without an Ethernet header is not sent")
	}
	return !x.bare
}
