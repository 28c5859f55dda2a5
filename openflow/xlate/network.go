// SPDX-License-Identifier: Apache-2.0

package xlate

import (
	"weft/openflow/fdb"
	"weft/packet"
)

// This file has the action normal in networks that the central controller, weft-central, has declared.
// Such a network is a VNI for which weft-central says where each address is. It has the ports of its VNI
// on this switch and, behind weft-central's tunnel, the other hosts. Ports without a VNI and tunnels
// that users have configured do not belong to it.

// network returns the settings of the network that the central controller (weft-central) has declared
// for segment s. It returns nil if there is no such network, or if s has no VNI.
func (x *xlate) network(s fdb.Segment) *fdb.Network {
	if s.Local() == 0 {
		return nil
	}
	return x.env.Network(s)
}

// reaches reports whether normal, flood and all may send a frame of segment s to the port. network has
// the settings of the network that the central controller (weft-central) has declared for s; nil: there
// is no such network.
func (p *PortInfo) reaches(s fdb.Segment, network *fdb.Network) bool {
	if network != nil {
		return p.Kind == PortNormal && p.InVNI && fdb.SegmentOf(p.VNI) == s
	}
	return !p.Central && p.accepts(s)
}

func (p *PortInfo) isCentralTunnel() bool { return p.Central && p.Kind == PortTunnel }

// declaredSource reports whether the central controller (weft-central) has declared that the source
// address src is behind the frame's input port. The action normal then does not learn src. If src is on
// another host, declaredSource only checks that the frame is from the tunnel to the other hosts. So
// frames of different hosts share megaflows.
func (x *xlate) declaredSource(inPort *PortInfo, s fdb.Segment, src uint64) bool {
	x.depends(fdb.RefOfMAC(src))
	place, ok := x.env.Place(s, src)
	switch {
	case !ok:
		return false
	case place.Remote.IsValid():
		return inPort.isCentralTunnel()
	}
	return place.Port == inPort.At()
}

// sendToPlace sends the frame to the location that the central controller (weft-central) has declared
// for its destination. A frame from the tunnel never returns to the tunnel. Otherwise two hosts whose
// declarations differ would send it to each other forever.
func (x *xlate) sendToPlace(inPort uint32, s fdb.Segment, f *vlanFrame, place *fdb.Place) {
	x.usedPorts = true
	var port PortInfo
	ok := false
	if place.Remote.IsValid() {
		if x.hook != nil {
			x.note("declared by central: behind " + place.Remote.String())
		}
		port, ok = x.env.CentralTunnel()
	} else {
		port, ok = x.env.PortAt(place.Port)
		ok = ok && port.Kind == PortNormal && port.InVNI && fdb.SegmentOf(port.VNI) == s
		if ok && x.hook != nil {
			x.note("declared by central: at port " + port.Name)
		}
	}
	switch {
	case !ok:
		x.noteDrop(packet.DropNoPort)
		x.note("declared by central, but its port is not on this host now")
	case port.No == inPort:
		x.note("the destination is behind the input port")
	case !x.carries(&port, f):
		x.noteDrop(packet.DropWrongVLAN)
		x.note("declared by central, but its port does not carry the VLAN")
	case place.Remote.IsValid():
		x.inVLAN(&port, f, func() { x.sendWithin(port.towards(place.Remote), s) })
	default:
		x.inVLAN(&port, f, func() { x.deliver(&port) })
	}
}

// toMembers sends a copy of the frame to each other host of a network that the central controller
// (weft-central) has declared.
func (x *xlate) toMembers(s fdb.Segment, network *fdb.Network, f *vlanFrame) {
	port, ok := x.env.CentralTunnel()
	if !ok {
		return
	}
	for _, member := range network.Members {
		if x.halted {
			return
		}
		x.inVLAN(&port, f, func() { x.sendWithin(port.towards(member), s) })
	}
}
