// SPDX-License-Identifier: Apache-2.0

package openflow

// Segment is the domain of normal, flood and all: the VNI of the port that received
// the frame, plus one, or 0 if that port has none. Frames of a VNI reach the ports of
// this VNI and ports without a VNI, which take part in every VNI as a trunk does.
// Only an output that names a port leads from one VNI to another.
type Segment uint32

func segmentOf(vni uint32) Segment { return Segment(vni&0xffffff) + 1 }

// VNI returns the segment's VNI; ok is false for the segment of ports without one.
func (s Segment) VNI() (vni uint32, ok bool) { return uint32(s) - 1, s != 0 }

// segment returns the segment of a frame that came in on port.
func (x *xlate) segment(port *PortInfo) Segment {
	switch {
	case port.Kind == PortTunnel && port.FlowVNI:
		return segmentOf(uint32(x.read(whole(FTunID))[1]))
	case port.Kind == PortTunnel || port.InVNI:
		return segmentOf(port.VNI)
	}
	return 0
}

// takes reports whether normal, flood and all may send a frame of the segment to the
// port.
func (p *PortInfo) takes(s Segment) bool {
	if s == 0 || p.Kind == PortTunnel && p.FlowVNI || p.Kind != PortTunnel && !p.InVNI {
		return true
	}
	return segmentOf(p.VNI) == s
}

// sendWithin sends to a port that takes the segment. If the flow decides the port's
// VNI, it uses the segment's.
func (x *xlate) sendWithin(port *PortInfo, s Segment) {
	if s != 0 && port.FlowVNI {
		within := *port
		within.FlowVNI, within.VNI = false, uint32(s-1)
		port = &within
	}
	x.sendTo(port)
}
