package openflow

// Segment is what normal, flood and all stay within: the VNI of the port that a
// frame came in on, plus one; 0 where that port has none. Frames of one VNI reach
// ports of that VNI and ports that have none, which take part in every VNI as a
// trunk does. From one VNI to another only an output that names a port leads.
type Segment uint32

func segmentOf(vni uint32) Segment { return Segment(vni&0xffffff) + 1 }

// VNI is the segment's; ok is false for that of ports without one.
func (s Segment) VNI() (vni uint32, ok bool) { return uint32(s) - 1, s != 0 }

// segment is that of a frame that came in on port.
func (x *xlate) segment(port *PortInfo) Segment {
	switch {
	case port.Kind == PortTunnel && port.FlowVNI:
		return segmentOf(uint32(x.read(whole(FTunID))[1]))
	case port.Kind == PortTunnel || port.InVNI:
		return segmentOf(port.VNI)
	}
	return 0
}

// takes tells whether a frame of the segment may reach the port without being sent
// there by name.
func (p *PortInfo) takes(s Segment) bool {
	if s == 0 || p.Kind == PortTunnel && p.FlowVNI || p.Kind != PortTunnel && !p.InVNI {
		return true
	}
	return segmentOf(p.VNI) == s
}

// sendWithin sends to a port that takes the segment: through a port whose VNI the
// flow decides, with the segment's.
func (x *xlate) sendWithin(port *PortInfo, s Segment) {
	if s != 0 && port.FlowVNI {
		within := *port
		within.FlowVNI, within.VNI = false, uint32(s-1)
		port = &within
	}
	x.sendTo(port)
}
