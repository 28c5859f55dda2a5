// SPDX-License-Identifier: Apache-2.0

package xlate

import (
	"weft/openflow"
	"weft/openflow/fdb"
)

// segment returns the segment (fdb.Segment) of a frame that arrived on port: its bridge and VNI.
func (x *xlate) segment(port *PortInfo) fdb.Segment {
	trunk := fdb.TrunkOf(x.p.Bridge())
	switch {
	case port.Kind == PortTunnel && port.FlowVNI:
		return trunk | fdb.SegmentOf(uint32(x.read(openflow.WholeField(openflow.FTunID))[1]))
	case port.Kind == PortTunnel || port.InVNI:
		return trunk | fdb.SegmentOf(port.VNI)
	}
	return trunk
}

// accepts reports whether the actions normal, flood and all may send frames of segment s of the port's
// bridge to the port. It is not for networks that the central controller (weft-central) has declared.
func (p *PortInfo) accepts(s fdb.Segment) bool {
	if s.Local() == 0 || p.Kind == PortTunnel && p.FlowVNI || p.Kind != PortTunnel && !p.InVNI {
		return true
	}
	return fdb.SegmentOf(p.VNI) == s.Local()
}

// MayTeach reports whether the MAC table may learn the address in l from a frame that arrived on the
// port.
func (p *PortInfo) MayTeach(l *fdb.Learn) bool {
	tunnel := p.Kind == PortTunnel
	if p.NoLearning || p.Kind == PortUplink || l.Segment.Bridge() != p.Bridge || l.Tunnel != tunnel && !l.IP.IsValid() {
		return false
	}
	s := l.Segment.Local()
	return tunnel && p.FlowVNI || s == 0 && !tunnel && !p.InVNI || (tunnel || p.InVNI) && s == fdb.SegmentOf(p.VNI)
}

// sendWithin sends the frame to a port of segment s. If the port takes its VNI from the flow, sendWithin
// uses the segment's VNI instead.
func (x *xlate) sendWithin(port *PortInfo, s fdb.Segment) {
	if vni, ok := s.VNI(); ok && port.FlowVNI {
		within := *port
		within.FlowVNI, within.VNI = false, vni
		port = &within
	}
	x.sendTo(port)
}
