// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"bytes"
	"encoding/binary"
)

// Coalescer merges consecutive segments of a connection within one batch into one large frame (GRO). It
// follows the rules of Linux's GRO (net/ipv4/tcp_offload.c, udp_offload.c, and gro_receive of both IP
// versions). Segmentation of a large frame restores exactly the merged segments. The frames of one
// connection keep their order: after a frame that cannot be merged, no later frame is added to the large
// frame before it.
//
// For a list of frames with the same outputs, the caller calls Begin, then Add for every frame in order,
// then Finish. A frame that Add has merged is part of an earlier frame and must not be sent.
type Coalescer struct {
	offloads Offloads
	count    int
	spans    int // number of spans that Finish will add to the batch; they must be free
	flows    [coalesceFlows]coalesceFlow
	next     [BatchSize]uint8 // next[i] is the frame that follows frame i in the same large frame
}

const (
	// coalesceFlows is the number of connections for which a Coalescer can build a large frame at the same
	// time. If a further connection needs one, the oldest large frame is finished.
	coalesceFlows = 8
	// maxIPLen is the length of the longest IPv4 datagram in bytes; IPv6 frames are kept as short.
	maxIPLen = 65535
)

// coalesceFlow is the current large frame of one connection.
type coalesceFlow struct {
	first, last uint8 // indexes in the batch of its first and last frame
	open        bool  // further segments may be merged
	fixedID     bool  // all segments are IPv4 and have the same identification
	flags       uint8 // TCP flags FIN and PSH that any later segment has
	count       int   // number of segments
	size        int   // payload of the first segment in bytes
	payload     int   // total payload of all segments in bytes
	tag         uint64
}

// segment describes one frame that Add tries to merge.
type segment struct {
	f       *Frame
	h       []byte
	tag     uint64
	headers int
	payload int
}

// Begin starts a list of frames. offloads is the set of offloads that all outputs of the frames accept.
func (c *Coalescer) Begin(offloads Offloads) { c.offloads, c.count, c.spans = offloads, 0, 0 }

// Add tries to merge frame i of the batch into an earlier frame of its connection, and reports whether
// it has done so. It never merges frames for which the caller passes different values of "tag".
func (c *Coalescer) Add(b *Batch, i int, tag uint64) bool {
	f := &b.Frames[i]
	if f.L4 == 0 || f.Proto != ProtoTCP && f.Proto != ProtoUDP {
		if f.Flags&FrameFragment != 0 { // the fragment's connection is unknown, so no order may change
			c.Finish(b)
		}
		return false
	}
	flow := c.find(b, f)
	s := segment{f: f, h: f.Header(), tag: tag}
	ok := s.read(c.offloads)
	switch {
	case flow == nil && !ok:
		return false
	case flow == nil:
		flow = c.make(b)
	case ok && c.extends(b, flow, &s):
		flow.add(&s)
		c.next[flow.last], flow.last = uint8(i), uint8(i)
		return true
	default:
		c.finish(b, flow)
	}
	flow.start(uint8(i), &s, ok, c.offloads)
	return false
}

// Finish completes the headers and the spans of all large frames. The caller may then send the frames.
func (c *Coalescer) Finish(b *Batch) {
	for i := range c.flows[:c.count] {
		c.finish(b, &c.flows[i])
	}
	c.count = 0
}

// find returns the coalesceFlow in use that has the addresses, protocol and ports of frame f, or nil.
func (c *Coalescer) find(b *Batch, f *Frame) *coalesceFlow {
	h := f.Header()
	v4 := h[f.L3]>>4 == 4
	for i := c.count - 1; i >= 0; i-- {
		first := &b.Frames[c.flows[i].first]
		o := first.Header()
		if first.Proto != f.Proto || binary.BigEndian.Uint32(o[first.L4:]) != binary.BigEndian.Uint32(h[f.L4:]) ||
			(o[first.L3]>>4 == 4) != v4 {
			continue
		}
		if v4 {
			if binary.BigEndian.Uint64(o[first.L3+12:]) == binary.BigEndian.Uint64(h[f.L3+12:]) {
				return &c.flows[i]
			}
		} else if bytes.Equal(o[first.L3+8:first.L3+40], h[f.L3+8:f.L3+40]) {
			return &c.flows[i]
		}
	}
	return nil
}

// The method make returns an unused coalesceFlow, for a connection that has none. If all are in use, it
// first finishes the oldest one.
func (c *Coalescer) make(b *Batch) *coalesceFlow {
	if c.count == coalesceFlows {
		c.finish(b, &c.flows[0])
		copy(c.flows[:], c.flows[1:])
		c.count--
	}
	c.count++
	return &c.flows[c.count-1]
}

// read fills s from the headers of s.f, and reports whether the frame can be a segment of a large frame
// that all outputs accept.
func (s *segment) read(offloads Offloads) bool {
	f, h := s.f, s.h
	if f.Flags&(FrameFragment|FrameRouted) != 0 || f.Undone() {
		return false
	}
	v4 := h[f.L3]>>4 == 4
	if v4 {
		ip := IPv4(h[f.L3:])
		// The datagram must be unfragmented and have no options and a valid header checksum.
		if f.L4 != f.L3+IPv4Len || ip.FlagsFrag()&^0x4000 != 0 || Sum(ip[:IPv4Len]) != 0xffff {
			return false
		}
	} else if f.L4 != f.L3+IPv6Len {
		return false
	}
	need := TakesUDP
	if f.Proto == ProtoTCP {
		if need = TakesTCPv6; v4 {
			need = TakesTCPv4
		}
	}
	s.headers = f.headersLen()
	s.payload = f.Len() - s.headers
	if offloads&need == 0 || offloads&TakesPartial == 0 || s.headers > len(h) || s.payload < 0 {
		return false
	}
	if f.Proto == ProtoUDP && (UDP(h[f.L4:]).Len() != s.payload+UDPLen || s.payload == 0) {
		return false
	}
	return len(h) == s.headers || f.origin != 0
}

// start makes frame i, which s describes, the first frame of a connection's large frame. If ok is false,
// frame i remains the only one, because it cannot be merged.
func (flow *coalesceFlow) start(i uint8, s *segment, ok bool, offloads Offloads) {
	*flow = coalesceFlow{first: i, last: i, count: 1, tag: s.tag, size: s.payload, payload: s.payload}
	flow.open = ok && s.payload > 0
	if s.f.Proto == ProtoTCP && flow.open {
		flags := s.h[s.f.L4+13]
		flow.open = flags&(tcpFIN|tcpSYN|tcpRST|tcpPSH|tcpURG) == 0 && (flags&tcpCWR == 0 || offloads&TakesECN != 0)
	}
}

// extends reports whether segment s may be merged into flow as its next segment. If so, it adds the
// number of spans that the merge needs to c.spans.
func (c *Coalescer) extends(b *Batch, flow *coalesceFlow, s *segment) bool {
	first := &b.Frames[flow.first]
	o, h, f := first.Header(), s.h, s.f
	if !flow.open || flow.tag != s.tag || s.payload == 0 || s.payload > flow.size ||
		int(first.L4-first.L3)+s.headers-int(f.L4)+flow.payload+s.payload > maxIPLen {
		return false
	}
	if first.L3 != f.L3 || !bytes.Equal(o[:f.L3], h[:f.L3]) || first.InPort != f.InPort ||
		!flow.sameIP(o[f.L3:], h[f.L3:]) {
		return false
	}
	if f.Proto == ProtoTCP && !flow.sameTCP(o[f.L4:first.headersLen()], h[f.L4:s.headers]) {
		return false
	}
	need := int(f.spanCount) + 1
	if flow.count == 1 {
		need += int(first.spanCount)
	}
	if c.spans+need > b.SpansLeft() || !b.ValidChecksum(first) || !b.ValidChecksum(f) {
		return false
	}
	c.spans += need
	return true
}

// sameIP reports whether "ip", the IP header of the next segment, allows a merge with the first segment,
// which has the same addresses. TTL, TOS, flow label and DF must be equal. Identifications must increase by
// one from segment to segment; with DF set, they may instead be equal.
func (flow *coalesceFlow) sameIP(first, ip []byte) bool {
	if ip[0]>>4 != 4 {
		return binary.BigEndian.Uint32(first) == binary.BigEndian.Uint32(ip) && first[7] == ip[7]
	}
	a, z := IPv4(first), IPv4(ip)
	if a.TOS() != z.TOS() || a.TTL() != z.TTL() || a.FlagsFrag() != z.FlagsFrag() {
		return false
	}
	step := z.ID() - a.ID()
	if flow.count == 1 && step == 0 && a.FlagsFrag()&0x4000 != 0 {
		flow.fixedID = true // this does no harm if the segment is not merged for another reason
		return true
	}
	if flow.fixedID {
		return step == 0
	}
	return int(step) == flow.count
}

// sameTCP reports whether tcp, the TCP header of the next segment, allows a merge with the first segment. The
// sequence number must be the next one. Acknowledgement, window, options, urgent pointer and all flags
// except FIN and PSH must be equal. Linux ignores the urgent pointer if URG is not set, but segmentation
// would then not restore it.
func (flow *coalesceFlow) sameTCP(first, tcp []byte) bool {
	const mayDiffer = (tcpFIN | tcpPSH) << 16
	if len(first) != len(tcp) || tcp[13]&tcpCWR != 0 ||
		(binary.BigEndian.Uint32(first[12:])^binary.BigEndian.Uint32(tcp[12:]))&^mayDiffer != 0 {
		return false
	}
	return TCP(first).Ack() == TCP(tcp).Ack() && TCP(tcp).Seq() == TCP(first).Seq()+uint32(flow.payload) &&
		bytes.Equal(first[18:], tcp[18:])
}

// add merges s into the flow.
func (flow *coalesceFlow) add(s *segment) {
	flow.count++
	flow.payload += s.payload
	if s.payload < flow.size {
		flow.open = false
	}
	if s.f.Proto == ProtoTCP {
		flags := s.h[s.f.L4+13]
		flow.flags |= flags & (tcpFIN | tcpPSH)
		if flags&(tcpFIN|tcpSYN|tcpRST|tcpPSH|tcpURG) != 0 {
			flow.open = false
		}
	}
}

// finish turns the merged frames of a flow into one large frame, with the headers of the first.
func (c *Coalescer) finish(b *Batch, flow *coalesceFlow) {
	if flow.count < 2 {
		return
	}
	f := &b.Frames[flow.first]
	c.joinSpans(b, flow, f)
	h := f.Header()
	length := f.Len() - int(f.L3)
	v4 := h[f.L3]>>4 == 4
	if v4 {
		ip := IPv4(h[f.L3:])
		before := uint16(ip.TotalLen())
		ip.SetTotalLen(length)
		ip.SetChecksum(MendChecksum(ip.Checksum(), before, uint16(length)))
	} else {
		IPv6(h[f.L3:]).SetPayloadLen(length - IPv6Len)
	}
	f.Offload = Offload{Flags: OffloadPartial, Size: uint16(flow.size), CsumStart: f.L4}
	switch {
	case f.Proto == ProtoUDP:
		f.Offload.GSO, f.Offload.CsumOffset = GSOUDP, udpCsumOffset
		UDP(h[f.L4:]).SetLen(f.Len() - int(f.L4))
	case v4:
		f.Offload.GSO, f.Offload.CsumOffset = GSOTCPv4, tcpCsumOffset
	default:
		f.Offload.GSO, f.Offload.CsumOffset = GSOTCPv6, tcpCsumOffset
	}
	if f.Proto == ProtoTCP {
		h[f.L4+13] |= flow.flags
	}
	if flow.fixedID {
		f.Offload.Flags |= OffloadFixedID
	}
	binary.BigEndian.PutUint16(h[f.L4+f.Offload.CsumOffset:], f.pseudoSum(f.Len()-int(f.L4)))
	flow.count, flow.open = 1, false
}

// joinSpans gives f, the first frame of the flow, new spans: its own, and those with the payload of the
// flow's other frames.
func (c *Coalescer) joinSpans(b *Batch, flow *coalesceFlow, f *Frame) {
	c.spans -= int(f.spanCount)
	first := b.spanUsed
	b.spanUsed += copy(b.spans[first:], b.Spans(f))
	f.spanFirst = uint16(first)
	for i := flow.first; i != flow.last; {
		i = c.next[i]
		g := &b.Frames[i]
		c.spans -= int(g.spanCount) + 1
		own := g.origin + uintptr(g.start) + uintptr(g.headersLen())
		if n := int(g.end-g.start) - g.headersLen(); n > 0 {
			b.AddSpan(f, own, uint32(n))
		}
		for _, s := range b.Spans(g) {
			if b.spanUsed > first { // a span that begins where the one before ends is joined with it
				if last := &b.spans[b.spanUsed-1]; last.Addr+uintptr(last.Len) == s.Addr {
					last.Len += s.Len
					f.tailLen += s.Len
					continue
				}
			}
			b.AddSpan(f, s.Addr, s.Len)
		}
	}
}
