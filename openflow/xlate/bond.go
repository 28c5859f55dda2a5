// SPDX-License-Identifier: Apache-2.0

package xlate

import (
	"weft/openflow"
	"weft/openflow/fdb"
	"weft/packet"
)

// A bond is a port of several members, which are ports of their own: a flow can match a member
// as in_port and send to it. The action normal, floods, mirrors and outputs to the bond take
// the members as one port.

// BondBuckets is the number of hashes of a bond.
const BondBuckets = 256

// Bond is the state of a PortBond. It is immutable.
type Bond struct {
	// Balance spreads frames over Buckets by their source MAC address and VLAN. Otherwise all
	// frames go to Active.
	Balance bool
	// Active is the member that gets frames to groups, by its number in the data path; 0: no
	// member is enabled.
	Active  uint32
	Buckets [BondBuckets]uint32 // member of each hash; 0: none
}

// asBond returns the bond of a member instead of the member, and other ports as they are. ok is
// false for a member whose bond does not exist.
func (x *xlate) asBond(port *PortInfo) (p PortInfo, ok bool) {
	if port.Bond == 0 {
		return *port, true
	}
	x.usedPorts = true
	return x.env.PortAt(port.Bond)
}

// arrivedOn returns the port on which the frame arrived, or its bond.
func (x *xlate) arrivedOn() (port PortInfo, ok bool) {
	if port, ok = x.env.Port(x.inPort()); ok {
		port, ok = x.asBond(&port)
	}
	return port, ok
}

// sendToBond sends the frame to a member of the bond.
func (x *xlate) sendToBond(port *PortInfo) {
	x.usedPorts = true
	if in, ok := x.env.Port(x.inPort()); ok && in.Bond == port.At() {
		x.note("not sent back to the bond of its input port")
		return
	}
	number := port.Members.Active
	if port.Members.Balance {
		number = port.Members.Buckets[x.bondHash()]
	}
	member, ok := x.env.PortAt(number)
	if !ok {
		x.noteDrop(packet.DropNoPort)
		x.note("no member of the bond is enabled")
		return
	}
	x.sendTo(&member)
}

// bondHash returns the bucket of the frame's source MAC address and VLAN.
func (x *xlate) bondHash() uint64 {
	src := x.read(openflow.WholeField(openflow.FEthSrc))[1]
	return mix64(src<<12|uint64(x.tagVID(0))) % BondBuckets
}

// admitToBond reports whether a bond takes a frame that arrived on a member, as in
// bond_check_admissibility of Open vSwitch: other switches flood the bond's own frames back to
// the other members. Of frames to groups the bond takes one copy, on the active member. With
// Balance it takes no frame from an address that is known behind another port, unless the
// address announces its move.
func (x *xlate) admitToBond(bond *PortInfo, member uint32, segment fdb.Segment, vlan uint16) bool {
	group := x.read(openflow.WholeField(openflow.FEthDst))[1]&multicastBit != 0
	if (group || !bond.Members.Balance) && bond.Members.Active != member {
		x.noteDrop(packet.DropBondBackup)
		x.note("the bond does not take the frame on this member")
		return false
	}
	if !bond.Members.Balance {
		return true
	}
	src := x.read(openflow.WholeField(openflow.FEthSrc))[1]
	x.depends(fdb.RefOfMAC(src))
	if port, known := x.env.Locate(segment, vlan, src); !known || port == bond.At() || group && x.gratuitous() {
		return true
	}
	x.noteDrop(packet.DropBondBackup)
	x.note("the source is behind another port: the frame is the bond's own, or a copy of it")
	return false
}

// gratuitous reports whether the frame is an ARP message that announces its sender's address.
func (x *xlate) gratuitous() bool {
	if !openflow.NeedARP.Met(x) {
		return false
	}
	const reply = 2
	return x.read(openflow.WholeField(openflow.FARPOp))[1] == reply ||
		x.read(openflow.WholeField(openflow.FARPSpa))[1] == x.read(openflow.WholeField(openflow.FARPTpa))[1]
}
