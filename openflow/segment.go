// SPDX-License-Identifier: Apache-2.0

package openflow

// Segment is the domain in which normal, flood and all forward a frame: 1 + the VNI
// of the input port, or 0 for a port without a VNI. Ports without a VNI are trunks of
// all VNIs. Only an output to a named port crosses from one VNI to another.
type Segment uint32

func segmentOf(vni uint32) Segment { return Segment(vni&0xffffff) + 1 }

// SegmentOf returns the segment of a VNI.
func SegmentOf(vni uint32) Segment { return segmentOf(vni) }

// VNI returns the VNI of the segment. ok is false for segment 0.
func (s Segment) VNI() (vni uint32, ok bool) { return uint32(s) - 1, s != 0 }

// segment returns the segment of a frame that arrived on port.
func (x *xlate) segment(port *PortInfo) Segment {
	switch {
	case port.Kind == PortTunnel && port.FlowVNI:
		return segmentOf(uint32(x.read(wholeField(FTunID))[1]))
	case port.Kind == PortTunnel || port.InVNI:
		return segmentOf(port.VNI)
	}
	return 0
}

// accepts reports whether the actions normal, flood and all may send frames of a
// segment to the port. The caller has checked that the segment is no declared network.
func (p *PortInfo) accepts(s Segment) bool {
	if s == 0 || p.Kind == PortTunnel && p.FlowVNI || p.Kind != PortTunnel && !p.InVNI {
		return true
	}
	return segmentOf(p.VNI) == s
}

// MayTeach reports whether the MAC table may learn the address in l from a frame of
// the port.
func (p *PortInfo) MayTeach(l *Learn) bool {
	tunnel := p.Kind == PortTunnel
	if p.NoLearning || p.Kind == PortUplink || l.Tunnel != tunnel && !l.IP.IsValid() {
		return false
	}
	return tunnel && p.FlowVNI || l.Segment == 0 && !tunnel && !p.InVNI || (tunnel || p.InVNI) && l.Segment == segmentOf(p.VNI)
}

// sendWithin sends to a port of segment s. If the port takes its VNI from the flow,
// sendWithin sets the segment's VNI.
func (x *xlate) sendWithin(port *PortInfo, s Segment) {
	if s != 0 && port.FlowVNI {
		within := *port
		within.FlowVNI, within.VNI = false, uint32(s-1)
		port = &within
	}
	x.sendTo(port)
}
