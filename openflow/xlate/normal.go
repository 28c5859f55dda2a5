// SPDX-License-Identifier: Apache-2.0

package xlate

import (
	"weft/openflow"
	"weft/openflow/fdb"
	"weft/packet"
)

const multicastBit = 1 << 40

// BPDUForwarder is an optional interface of an Env, for a bridge whose action normal may forward frames
// to reserved addresses, as other_config:forward-bpdu of Open vSwitch does.
type BPDUForwarder interface {
	// ForwardsBPDUs reports whether normal forwards frames to reserved addresses.
	ForwardsBPDUs() bool
}

// reserved reports whether normal drops frames to the MAC address dst, because bridges and their
// neighbours use it among themselves: the group 01:80:c2:00:00:00 to 01:80:c2:00:00:0f (IEEE
// 802.1Q-2022 table 8-1), and the same addresses of Extreme and Cisco as in Open vSwitch's
// ovs-vswitchd.conf.db(5), other_config:forward-bpdu. A flow with an output to a named port still
// forwards them.
func reserved(dst uint64) bool {
	switch {
	case dst&^0xf == 0x0180c2000000, dst&^7 == 0x01000cccccc0: // the latter is CFM of Cisco
		return true
	}
	switch dst {
	case 0x00e02b000000, 0x00e02b000004, 0x00e02b000006, // EDP and EAPS of Extreme
		0x01000c000000, 0x01000ccccccc, 0x01000ccccccd, 0x01000ccdcdcd: // ISL, CDP, PVST+ and FlexLink of Cisco
		return true
	}
	return false
}

// flood sends the frame to all ports of its segment except the input port and uplinks. If withFlags
// is set, flood respects the ports' settings NoFlood and NoSplitHorizon. If f is not nil, flood sends
// only within the frame's VLAN.
func (x *xlate) flood(withFlags bool, f *vlanFrame) {
	x.usedPorts = true
	in := x.inPort()
	fromTunnel, segment := false, fdb.TrunkOf(x.p.Bridge())
	if port, ok := x.arrivedOn(); ok {
		in = port.No
		fromTunnel, segment = port.Kind == PortTunnel, x.segment(&port)
	}
	network := x.network(segment)
	if network != nil {
		x.depends(fdb.RefOfNetwork(segment))
	}
	ports := x.env.Ports()
	for i := range ports {
		p := &ports[i]
		if x.halted || !x.step() {
			return
		}
		if p.No == in || p.Kind == PortUplink || p.Bond != 0 || p.Off || p.MirrorOut || !p.reaches(segment, network) {
			continue
		}
		if withFlags && (p.NoFlood || fromTunnel && p.Kind == PortTunnel && !p.NoSplitHorizon) {
			continue
		}
		if f != nil && !x.carries(p, f) {
			continue
		}
		if network != nil {
			x.inVLAN(p, f, func() { x.deliver(p) })
			continue
		}
		x.inVLAN(p, f, func() { x.sendWithin(p, segment) })
	}
	if network != nil && network.Flood && !fromTunnel {
		x.toMembers(segment, network, f)
	}
}

// normal forwards like a learning switch with one address table for each segment and
// VLAN.
func (x *xlate) normal() {
	in := x.inPort()
	if ofNoPort(in) {
		x.normalOfNoPort()
		return
	}
	from, ok := x.arrivedOn()
	if !ok || from.Kind == PortUplink {
		x.usedPorts = true
		x.noteDrop(packet.DropNoPort)
		return
	}
	dst := x.read(openflow.WholeField(openflow.FEthDst))[1]
	if reserved(dst) && !x.forwardsBPDUs() {
		x.noteDrop(packet.DropReserved)
		x.note("a frame to a reserved address is not forwarded")
		return
	}
	src := x.read(openflow.WholeField(openflow.FEthSrc))[1]
	if src&multicastBit != 0 {
		x.noteDrop(packet.DropBadSource)
		x.note("a frame from a group address is not forwarded")
		return
	}
	f, ok := x.enterVLAN(&from)
	if !ok {
		return
	}
	segment := x.segment(&from)
	if from.Kind == PortBond {
		member, _ := x.env.Port(in)
		if !x.admitToBond(&from, &member, segment, f.vid) {
			return
		}
		in = from.No
	}
	network := x.network(segment)
	if from.Central && network == nil {
		x.noteDrop(packet.DropNoPort)
		x.note("the VNI is no network that weft-central has declared on this host")
		return
	}
	var l fdb.Learn
	if !from.NoLearning && !(network != nil && x.declaredSource(&from, segment, src)) {
		// if src moves, this megaflow is translated again, and the control process learns the new location
		// from the next frame
		x.depends(fdb.RefOfMAC(src))
		l = fdb.Learn{Valid: true, Segment: segment, VLAN: f.vid, Port: from.At(), MAC: src,
			Tunnel: from.Kind == PortTunnel, Remote: x.origin(&from), IP: x.announcement(&f, src)}
	}
	if x.serves(&from, network, &f, dst) {
		return
	}
	if dst&multicastBit != 0 {
		answered := x.answer(&from, segment, &f, src)
		l.Announced = !answered
		x.teach(&l)
		if !answered && x.maySend(network, &from) {
			x.flood(true, &f)
		}
		return
	}
	x.teach(&l)
	if x.maySend(network, &from) {
		x.normalTo(in, segment, &f, dst)
	}
}

func (x *xlate) forwardsBPDUs() bool {
	forwarder, ok := x.env.(BPDUForwarder)
	return ok && forwarder.ForwardsBPDUs()
}

// teach records an address that the control process learns after the translation. If normal runs several
// times in a bridge, it learns only the last one.
func (x *xlate) teach(l *fdb.Learn) {
	if !l.Valid {
		return
	}
	for i := range x.learns {
		if x.learns[i].Segment.Bridge() == l.Segment.Bridge() {
			x.learns[i] = *l
			return
		}
	}
	x.learns = append(x.learns, *l)
}

// normalTo sends to the learned port of the unicast address dst, or floods.
func (x *xlate) normalTo(inPort uint32, segment fdb.Segment, f *vlanFrame, dst uint64) {
	x.depends(fdb.RefOfMAC(dst))
	network := x.network(segment)
	if network != nil {
		if place, ok := x.env.Place(segment, dst); ok {
			x.sendToPlace(inPort, segment, f, &place)
			return
		}
	}
	no, known := x.env.Locate(segment, f.vid, dst)
	if network != nil && (network.Asked || !known) {
		x.ask(network, fdb.Question{Segment: segment, MAC: dst})
	}
	if !known {
		x.flood(true, f)
		return
	}
	port, ok := x.env.PortAt(no)
	if ok && port.No == inPort {
		x.note("the destination is behind the input port")
		return
	}
	x.usedPorts = true
	reaches := ok && port.Kind != PortUplink && (port.reaches(segment, network) || network != nil && port.isCentralTunnel())
	if reaches && x.carries(&port, f) {
		if network != nil && port.Policy != nil {
			x.inVLAN(&port, f, func() { x.deliver(&port) })
			return
		}
		x.inVLAN(&port, f, func() { x.sendLearned(&port, segment, f.vid, dst) })
		return
	}
	x.flood(true, f)
}

// ofNoPort reports whether in_port says that the frame came from a controller.
func ofNoPort(inPort uint32) bool {
	return inPort == openflow.PortNone || inPort == openflow.PortController
}

// normalOfNoPort is normal for a frame from a controller, without learning and with
// any source and destination. Open vSwitch does the same (xlate_normal).
func (x *xlate) normalOfNoPort() {
	dst := x.read(openflow.WholeField(openflow.FEthDst))[1]
	f := vlanFrame{vid: x.tagVID(0)}
	if dst&multicastBit != 0 {
		x.flood(true, &f)
		return
	}
	x.normalTo(x.inPort(), fdb.TrunkOf(x.p.Bridge()), &f, dst)
}
