// SPDX-License-Identifier: Apache-2.0

package openflow

// Segment is the domain in which normal, flood and all forward a frame. The bits from
// bridgeAt on have the bridge's number. The bits below have 1 + the VNI of the input
// port, or 0 for a port without a VNI. Ports without a VNI are trunks of all VNIs. Only
// an output to a named port crosses from one VNI to another, and only a patch port from
// one bridge to another.
type Segment uint32

const bridgeAt = 25

// Bridge returns the number of the segment's bridge.
func (s Segment) Bridge() uint8 { return uint8(s >> bridgeAt) }

// local returns the segment without its bridge.
func (s Segment) local() Segment { return s & (1<<bridgeAt - 1) }

// trunk returns the segment for ports without a VNI in the bridge of s.
func (s Segment) trunk() Segment { return s &^ (1<<bridgeAt - 1) }

// trunkOf returns the segment of a bridge's ports without a VNI.
func trunkOf(bridge uint8) Segment { return Segment(bridge) << bridgeAt }

func segmentOf(vni uint32) Segment { return Segment(vni&0xffffff) + 1 }

// SegmentOf returns the segment of a VNI in the first bridge.
func SegmentOf(vni uint32) Segment { return segmentOf(vni) }

// VNI returns the VNI of the segment. ok is false for ports without a VNI.
func (s Segment) VNI() (vni uint32, ok bool) { return uint32(s.local()) - 1, s.local() != 0 }

// segment returns the segment of a frame that arrived on port.
func (x *xlate) segment(port *PortInfo) Segment {
	trunk := trunkOf(x.p.bridge)
	switch {
	case port.Kind == PortTunnel && port.FlowVNI:
		return trunk | segmentOf(uint32(x.read(wholeField(FTunID))[1]))
	case port.Kind == PortTunnel || port.InVNI:
		return trunk | segmentOf(port.VNI)
	}
	return trunk
}

// accepts reports whether the actions normal, flood and all may send frames of a
// segment of the port's bridge to the port. The caller has checked that the segment is no
// declared network.
func (p *PortInfo) accepts(s Segment) bool {
	if s.local() == 0 || p.Kind == PortTunnel && p.FlowVNI || p.Kind != PortTunnel && !p.InVNI {
		return true
	}
	return segmentOf(p.VNI) == s.local()
}

// MayTeach reports whether the MAC table may learn the address in l from a frame of
// the port.
func (p *PortInfo) MayTeach(l *Learn) bool {
	tunnel := p.Kind == PortTunnel
	if p.NoLearning || p.Kind == PortUplink || l.Segment.Bridge() != p.Bridge || l.Tunnel != tunnel && !l.IP.IsValid() {
		return false
	}
	s := l.Segment.local()
	return tunnel && p.FlowVNI || s == 0 && !tunnel && !p.InVNI || (tunnel || p.InVNI) && s == segmentOf(p.VNI)
}

// sendWithin sends to a port of segment s. If the port takes its VNI from the flow,
// sendWithin sets the segment's VNI.
func (x *xlate) sendWithin(port *PortInfo, s Segment) {
	if vni, ok := s.VNI(); ok && port.FlowVNI {
		within := *port
		within.FlowVNI, within.VNI = false, vni
		port = &within
	}
	x.sendTo(port)
}
