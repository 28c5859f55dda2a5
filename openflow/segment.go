// SPDX-License-Identifier: Apache-2.0

package openflow

// Segment is the domain in which normal, flood and all forward a frame. It is the VNI
// of the port that received the frame, plus one, or 0 if this port has no VNI. Frames
// of a VNI reach the ports of this VNI and the ports without a VNI, which act as
// trunks of all VNIs. Only an output to a named port crosses from one VNI to another.
type Segment uint32

func segmentOf(vni uint32) Segment { return Segment(vni&0xffffff) + 1 }

// SegmentOf returns the segment of a VNI.
func SegmentOf(vni uint32) Segment { return segmentOf(vni) }

// VNI returns the VNI of the segment. ok is false for the segment of ports without a
// VNI.
func (s Segment) VNI() (vni uint32, ok bool) { return uint32(s) - 1, s != 0 }

// segment returns the segment of a frame that arrived on port.
func (x *xlate) segment(port *PortInfo) Segment {
	switch {
	case port.Kind == PortTunnel && port.FlowVNI:
		return segmentOf(uint32(x.read(whole(FTunID))[1]))
	case port.Kind == PortTunnel || port.InVNI:
		return segmentOf(port.VNI)
	}
	return 0
}

// takes reports whether normal, flood and all may send frames of segment s to the
// port. The caller has checked that the segment is not a declared network; see the
// method reaches.
func (p *PortInfo) takes(s Segment) bool {
	if s == 0 || p.Kind == PortTunnel && p.FlowVNI || p.Kind != PortTunnel && !p.InVNI {
		return true
	}
	return segmentOf(p.VNI) == s
}

// MayTeach reports whether the MAC table may learn the address in l from a frame that
// arrived on the port.
func (p *PortInfo) MayTeach(l *Learn) bool {
	tunnel := p.Kind == PortTunnel
	if p.NoLearning || p.Kind == PortUplink || l.Tunnel != tunnel && !l.IP.IsValid() {
		return false
	}
	return tunnel && p.FlowVNI || l.Segment == 0 && !tunnel && !p.InVNI || (tunnel || p.InVNI) && l.Segment == segmentOf(p.VNI)
}

// sendWithin sends to a port that accepts frames of segment s. If the flow decides
// the port's VNI, the VNI of the segment is used instead.
func (x *xlate) sendWithin(port *PortInfo, s Segment) {
	if s != 0 && port.FlowVNI {
		within := *port
		within.FlowVNI, within.VNI = false, uint32(s-1)
		port = &within
	}
	x.sendTo(port)
}
