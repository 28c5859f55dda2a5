// SPDX-License-Identifier: Apache-2.0

package packet

import "encoding/binary"

// Segmenter cuts a large frame into segments. Each segment gets a copy of the headers with its own lengths,
// sequence number, identification, flags and checksums; this is also true for the outer headers of a tunnel.
// Next makes a Frame of a segment, whose spans refer to the large frame's memory, so that no payload is
// copied. Write copies a segment to a buffer.
//
// The large frame must neither change nor be dropped until all its segments are sent.
type Segmenter struct {
	large *Batch
	f     *Frame

	headers int // length of all headers in bytes
	payload int // payload of the large frame in bytes
	size    int // payload of each segment but the last in bytes
	cut     int // payload of the segments so far in bytes
	index   int // number of segments so far

	span   int    // index of the span with the next payload byte
	offset uint32 // offset into that span in bytes

	// sum is the sum over the inner IPv4 header, without the fields that differ between segments. outerSum
	// is the same for the outer IPv4 header.
	sum, outerSum uint32
	id, outerID   uint16
	seq           uint32
	partial       uint16 // sum over the transport protocol's pseudo header, without the length
}

// Segments returns a Segmenter for a large frame f that CheckOffload has accepted or that a Coalescer has
// made. If the path has a smaller MTU, the caller first calls f.LimitSegments.
func (b *Batch) Segments(f *Frame) Segmenter {
	h := f.Header()
	s := Segmenter{large: b, f: f, headers: f.headersLen(), size: int(f.Offload.Size)}
	s.payload = f.Len() - s.headers
	if ip := IPv4(h[f.L3:]); ip.Version() == 4 {
		s.id = ip.ID()
		s.sum = sumWithout(ip[:ip.HeaderLen()])
	}
	if f.OuterL3 != 0 {
		if ip := IPv4(h[f.OuterL3:f.OuterL4]); ip.Version() == 4 {
			s.outerID = ip.ID()
			s.outerSum = sumWithout(ip)
		}
	}
	if f.Proto == ProtoTCP {
		s.seq = TCP(h[f.L4:]).Seq()
	}
	sum := binary.BigEndian.Uint16(h[f.L4+f.Offload.CsumOffset:])
	s.partial = AddSums(sum, ^uint16(f.Len()-int(f.L4)))
	return s
}

// sumWithout returns the sum over an IPv4 header without the fields that differ between segments: total
// length, identification and checksum.
func sumWithout(ip IPv4) uint32 {
	without := uint32(ip.TotalLen()) + uint32(ip.ID()) + uint32(ip.Checksum())
	return uint32(AddSums(Sum(ip), ^uint16(fold(uint64(without)))))
}

// Done reports whether Next and Write have returned all segments.
func (s *Segmenter) Done() bool { return s.cut >= s.payload }

// Next appends the next segment to dst, as a frame with a partial checksum. It returns false if no segment is
// left or dst has too little space.
func (s *Segmenter) Next(dst *Batch) bool {
	if s.Done() || dst.Full() {
		return false
	}
	f := s.f
	n := min(s.size, s.payload-s.cut)
	seg := &dst.Frames[dst.N]
	seg.start, seg.end = f.start, f.start+uint16(s.headers)
	seg.spanFirst, seg.spanCount, seg.tailLen = uint16(dst.spanUsed), 0, 0
	seg.InPort, seg.L3, seg.L4, seg.Flags, seg.Held, seg.Drop, seg.Proto = f.InPort, f.L3, f.L4, f.Flags, 0, DropNone, f.Proto
	seg.OuterL3, seg.OuterL4, seg.Offload, seg.origin = f.OuterL3, f.OuterL4, f.Offload, 0
	seg.Offload.GSO, seg.Offload.Size = GSONone, 0
	copy(seg.buf[seg.start:seg.end], f.buf[f.start:])
	if !s.addPayload(dst, seg, n) {
		dst.Abandon(seg)
		return false
	}
	s.finish(seg.buf[seg.start:seg.end], n, true)
	dst.N++
	return true
}

// Write copies the next segment to dst and finishes its inner checksum, in one pass over the payload.
// dst must have space for a whole segment. If withOuter is false, Write leaves the first bytes of dst as
// they are, up to the end of the outer UDP header. The result is the length of the segment in bytes,
// with the outer headers.
func (s *Segmenter) Write(dst []byte, withOuter bool) int {
	f := s.f
	payload, skip := min(s.size, s.payload-s.cut), 0
	if !withOuter && f.OuterL3 != 0 {
		skip = int(f.OuterL4) + UDPLen
	}
	n := skip + copy(dst[skip:], f.buf[int(f.start)+skip:int(f.start)+s.headers])
	left := payload
	if have := int(f.end-f.start) - s.headers - s.cut; have > 0 {
		first := int(f.start) + s.headers + s.cut
		m := copy(dst[n:], f.buf[first:first+min(have, left)])
		n, left = n+m, left-m
	}
	inBuffer := n
	from := s.large.Spans(f)
	sum, odd := uint16(0), (n-int(f.L4))&1 != 0
	at, offset := s.span, s.offset
	for left > 0 {
		m := min(uint32(left), from[at].Len-offset)
		part := CopySum(dst[n:], Foreign(from[at].Addr+uintptr(offset), m))
		if odd { // RFC 1071 section 2(B)
			part = part>>8 | part<<8
		}
		sum, odd = AddSums(sum, part), odd != (m&1 != 0)
		n, left = n+int(m), left-int(m)
		if offset += m; offset == from[at].Len {
			at, offset = at+1, 0
		}
	}
	s.span, s.offset = at, offset
	s.finish(dst[:inBuffer], payload, withOuter)
	l4 := dst[f.L4:inBuffer]
	putChecksum(l4[f.Offload.CsumOffset:], AddSums(Sum(l4), sum), f.Offload.CsumOffset)
	return n
}

// addPayload adds the next n bytes of payload to the segment seg, a frame of dst. It copies bytes that are in
// the large frame's header buffer, and adds spans for all others. If dst has too few spans left, it
// returns false, and the next call begins with the same bytes.
func (s *Segmenter) addPayload(dst *Batch, seg *Frame, n int) bool {
	f := s.f
	if have := int(f.end-f.start) - s.headers - s.cut; have > 0 {
		have = min(have, n)
		first := int(f.start) + s.headers + s.cut
		copy(seg.buf[seg.end:], f.buf[first:first+have])
		seg.end += uint16(have)
		n -= have
	}
	spans := s.large.Spans(f)
	at, offset := s.span, s.offset
	for n > 0 {
		from := &spans[at]
		m := min(uint32(n), from.Len-offset)
		if !dst.AddSpan(seg, from.Addr+uintptr(offset), m) {
			return false
		}
		n -= int(m)
		if offset += m; offset == from.Len {
			at, offset = at+1, 0
		}
	}
	s.span, s.offset = at, offset
	return true
}

// finish adjusts h, a copy of the large frame's headers, to a segment with n bytes of payload. It adjusts the
// outer headers only if withOuter is true. It then advances s to the next segment.
func (s *Segmenter) finish(h []byte, n int, withOuter bool) {
	f := s.f
	length := s.headers + n
	if withOuter && f.OuterL3 != 0 {
		s.finishIP(h[f.OuterL3:], length-int(f.OuterL3), s.outerSum, s.outerID, h[f.OuterL3+6]&0x40 != 0)
		if f.Offload.Flags&OffloadGRE != 0 {
			GRE(h[f.OuterL4:]).addSequence(uint32(s.index))
		} else {
			UDP(h[f.OuterL4:]).SetLen(length - int(f.OuterL4))
		}
	}
	s.finishIP(h[f.L3:], length-int(f.L3), s.sum, s.id, f.Offload.Flags&OffloadFixedID != 0)
	l4 := h[f.L4:]
	if f.Proto == ProtoTCP {
		binary.BigEndian.PutUint32(l4[4:], s.seq+uint32(s.cut))
		if s.index > 0 {
			l4[13] &^= tcpCWR // only the first segment has CWR (RFC 3168 section 6.1.2)
		}
		if s.cut+n < s.payload {
			l4[13] &^= tcpFIN | tcpPSH
		}
	} else {
		UDP(l4).SetLen(length - int(f.L4))
	}
	binary.BigEndian.PutUint16(l4[f.Offload.CsumOffset:], AddSums(s.partial, uint16(length-int(f.L4))))
	s.cut += n
	s.index++
}

// finishIP writes the fields of a segment's IP header "ip" that depend on the segment. "length" is the
// length of the datagram in bytes. For IPv4, sum is the result of sumWithout for this header, id is the
// large frame's identification, and fixed is true if all segments get this identification.
func (s *Segmenter) finishIP(ip []byte, length int, sum uint32, id uint16, fixed bool) {
	if ip[0]>>4 != 4 {
		IPv6(ip).SetPayloadLen(length - IPv6Len)
		return
	}
	if !fixed {
		id += uint16(s.index)
	}
	v4 := IPv4(ip)
	v4.SetTotalLen(length)
	v4.SetID(id)
	v4.SetChecksum(^fold(uint64(sum) + uint64(length) + uint64(id)))
}
