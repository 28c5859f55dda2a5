// SPDX-License-Identifier: Apache-2.0

package xlate

import (
	"weft/openflow"
	"weft/openflow/fdb"
	"weft/packet"
)

// A bond consists of several member ports. A flow can match a member as in_port and send to it. For the
// action normal, for floods, mirrors and outputs to the bond, all members together are one port.

// BondBuckets is the number of hash buckets of a bond. Each bucket belongs to one member.
const BondBuckets = 256

// BondSpread is how a bond chooses a member for a frame.
type BondSpread uint8

// Values of BondSpread, in the order of the modes in package control/bond.
const (
	SpreadNone    BondSpread = iota // all frames go to Bond.Active
	SpreadSources                   // the hash of source MAC address and VLAN selects one of Bond.Buckets
	SpreadFlows                     // the hash of the connection (xlate.connection) selects one of Bond.Buckets
)

// Bond is the state of a PortBond. It is immutable.
type Bond struct {
	Spread BondSpread
	// Aggregated is true if LACP decides which members the bond uses. The switch at the other end then
	// sends each frame on only one member. So the bond accepts the frames that arrive on any member in use.
	Aggregated bool
	// Active is the number in the data path of one member, or 0 if no member is enabled. It is the only
	// member on which the bond accepts frames to group addresses, unless Aggregated is set. With
	// SpreadNone, it is also the only member on which the bond sends, and, unless Aggregated is set, the
	// only one on which it accepts any frame.
	Active  uint32
	Buckets [BondBuckets]uint32 // by hash: the data path's port number of a member; 0: none
}

// asBond returns the bond to which the port belongs as a member. A port without a bond is returned as
// it is. ok is false for a member whose bond does not exist.
func (x *xlate) asBond(port *PortInfo) (p PortInfo, ok bool) {
	if port.Bond == 0 {
		return *port, true
	}
	x.usedPorts = true
	return x.env.PortAt(port.Bond)
}

// arrivedOn returns the port on which the frame arrived. If this port is a member of a bond, it
// returns the bond.
func (x *xlate) arrivedOn() (port PortInfo, ok bool) {
	if port, ok = x.env.Port(x.inPort()); ok {
		port, ok = x.asBond(&port)
	}
	return port, ok
}

// sendToBond sends the frame to the member that the bond selects for it. A frame that arrived on a
// member of the bond is not sent back.
func (x *xlate) sendToBond(port *PortInfo) {
	x.usedPorts = true
	if in, ok := x.env.Port(x.inPort()); ok && in.Bond == port.At() {
		x.note("not sent back to the bond of its input port")
		return
	}
	number := port.Members.Active
	switch port.Members.Spread {
	case SpreadSources:
		number = port.Members.Buckets[x.bondHash()]
	case SpreadFlows:
		number = port.Members.Buckets[x.connection()%BondBuckets]
	}
	member, ok := x.env.PortAt(number)
	if !ok {
		x.noteDrop(packet.DropNoPort)
		x.note("no member of the bond is enabled")
		return
	}
	x.sendTo(&member)
}

// isLACP reports whether the frame is an LACP frame from a member of a bond with LACP. The control
// process itself receives these frames, so the datapath drops them.
func (x *xlate) isLACP(port *PortInfo) bool {
	return port.LACP && x.read(openflow.WholeField(openflow.FEthType))[1] == slowProtocols &&
		x.read(openflow.WholeField(openflow.FEthDst))[1] == slowGroup
}

// EtherType and destination MAC address of LACP frames (IEEE 802.3 annex 57A).
const (
	slowProtocols = 0x8809
	slowGroup     = 0x0180c2000002
)

// bondHash returns the bucket of the frame's source MAC address and VLAN.
func (x *xlate) bondHash() uint64 {
	src := x.read(openflow.WholeField(openflow.FEthSrc))[1]
	return mix64(src<<12|uint64(x.tagVID(0))) % BondBuckets
}

// admitToBond reports whether a bond accepts a frame that arrived on a member, like
// bond_check_admissibility of Open vSwitch. Other switches flood the bond's own frames back to its other
// members, so the bond must drop these.
//
// With LACP, the bond accepts all frames on a member in use. Without LACP, it accepts frames to group
// addresses only on the active member. Unless its Spread is SpreadNone, it then also drops a frame whose
// source address is known behind another port. An ARP message to a group address is the exception,
// because a host that has moved announces itself with one.
func (x *xlate) admitToBond(bond, member *PortInfo, segment fdb.Segment, vlan uint16) bool {
	takes := true
	if bond.Members.Aggregated {
		takes = !member.Standby
	} else if group := x.read(openflow.WholeField(openflow.FEthDst))[1]&multicastBit != 0; group || bond.Members.Spread == SpreadNone {
		takes = bond.Members.Active == member.At()
	}
	if !takes {
		x.noteDrop(packet.DropBondBackup)
		x.note("the bond does not take the frame on this member")
		return false
	}
	if bond.Members.Aggregated || bond.Members.Spread == SpreadNone {
		return true
	}
	src := x.read(openflow.WholeField(openflow.FEthSrc))[1]
	x.depends(fdb.RefOfMAC(src))
	group := x.read(openflow.WholeField(openflow.FEthDst))[1]&multicastBit != 0
	if port, known := x.env.Locate(segment, vlan, src); !known || port == bond.At() || group && x.gratuitous() {
		return true
	}
	x.noteDrop(packet.DropBondBackup)
	x.note("the source is behind another port: the frame is the bond's own, or a copy of it")
	return false
}

// gratuitous reports whether the frame is an ARP message that announces its sender's address: a
// reply, or a request for the sender's own address.
func (x *xlate) gratuitous() bool {
	if !openflow.NeedARP.Met(x) {
		return false
	}
	const reply = 2
	return x.read(openflow.WholeField(openflow.FARPOp))[1] == reply ||
		x.read(openflow.WholeField(openflow.FARPSpa))[1] == x.read(openflow.WholeField(openflow.FARPTpa))[1]
}
