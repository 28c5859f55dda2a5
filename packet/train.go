// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"bytes"
	"encoding/binary"
)

// This file merges the datagrams of a train. A train is a sequence of tunnel datagrams that one sender
// passed to the kernel at once, and that the kernel passes on together (GRO). They are contiguous in
// memory and have the same size; only the last may be shorter. JoinTrain merges consecutive TCP segments
// that the datagrams contain into one large frame, without copying them, by the rules of Coalescer.

// trainShape has the offsets of the headers in each datagram of a train (equal
// datagrams in contiguous memory).
type trainShape struct {
	l3, l4, end int // offsets of the inner IP header, the TCP header and the TCP payload
	v4          bool
	partial     uint16 // sum over the TCP pseudo header without the length
}

// JoinTrain merges as many datagrams as possible from the start of a train (datagrams of equal size in
// contiguous memory) into the large frame f, and commits f. The caller has begun f with Next. JoinTrain
// returns the number of bytes of the train that it has merged. If not even two datagrams can be merged,
// it returns 0 and leaves f unchanged.
//
// addr and trainBytes are the address and the length of the train. segment is the length of each datagram.
// All lengths are in bytes. The header buffer of f has n bytes: outerBytes bytes for the outer headers, which
// the caller writes, and a copy of the train's first bytes. innerOffset is the offset in the header buffer of
// the inner Ethernet header.
//
// JoinTrain verifies the inner checksums, because a valid outer checksum says nothing
// about the sender of the inner frame.
func (b *Batch) JoinTrain(f *Frame, n, outerBytes, innerOffset int, addr, trainBytes, segment uintptr) (merged uintptr) {
	h := f.buf[f.start : int(f.start)+n]
	shape, ok := readTrain(h[outerBytes:], innerOffset-outerBytes, int(min(segment, trainBytes)))
	if !ok {
		return 0
	}
	mss := int(segment) - shape.end
	first := Foreign(addr, uint32(shape.end))
	flow := coalesceFlow{count: 1, size: mss, payload: mss}
	spans := b.spanUsed
	for merged = segment; flow.flags == 0 && merged < trainBytes; {
		m := min(segment, trainBytes-merged)
		if int(m) <= shape.end || shape.end-shape.l3+flow.payload+int(m) > maxIPLen || b.SpansLeft() < 2 {
			break
		}
		seg := Foreign(addr+merged, uint32(m))
		if !shape.continues(&flow, first, seg) || flow.count == 1 && !shape.valid(Foreign(addr, uint32(segment))) || !shape.valid(seg) {
			break
		}
		if flow.count == 1 {
			b.AddSpan(f, addr+uintptr(shape.end), uint32(mss))
		}
		b.AddSpan(f, addr+merged+uintptr(shape.end), uint32(int(m)-shape.end))
		merged += m
		flow.count++
		flow.payload += int(m) - shape.end
		flow.flags |= seg[shape.l4+13] & (tcpFIN | tcpPSH)
		if m < segment {
			break
		}
	}
	if flow.count == 1 {
		b.spanUsed = spans
		return 0
	}
	shape.finish(f, h[outerBytes:outerBytes+shape.end], outerBytes, &flow)
	b.Commit(f, outerBytes+shape.end)
	return merged
}

// readTrain finds the headers of the first datagram of a train (datagrams of equal size in contiguous
// memory). h is the beginning of the datagram, "inner" the offset of the inner Ethernet header in it, and
// segment the datagram's length in bytes. ok is false if no other datagram may be merged with this one.
func readTrain(h []byte, inner, segment int) (t trainShape, ok bool) {
	if len(h) < inner+EthernetLen+VLANLen {
		return t, false
	}
	etherType := Ethernet(h[inner:]).Type()
	t.l3 = inner + EthernetLen
	if IsVLAN(etherType) {
		etherType = binary.BigEndian.Uint16(h[t.l3+2:])
		t.l3 += VLANLen
	}
	switch {
	case etherType == EtherTypeIPv4 && len(h) >= t.l3+IPv4Len:
		t.v4, t.l4 = true, t.l3+IPv4Len
		ip := IPv4(h[t.l3:])
		ok = ip[0] == 0x45 && ip.Proto() == ProtoTCP && ip.FlagsFrag()&^0x4000 == 0 && ip.TotalLen() == segment-t.l3
		ok = ok && sumHeader((*[IPv4Len]byte)(ip)) == 0xffff
	case etherType == EtherTypeIPv6 && len(h) >= t.l3+IPv6Len:
		t.l4 = t.l3 + IPv6Len
		ip := IPv6(h[t.l3:])
		ok = ip.Version() == 6 && ip.NextHeader() == ProtoTCP && ip.PayloadLen() == segment-t.l4
	}
	if !ok || len(h) < t.l4+tcpMinLen {
		return t, false
	}
	tcp := TCP(h[t.l4:])
	t.end = t.l4 + tcp.HeaderLen()
	if ip := h[t.l3:]; t.v4 {
		t.partial = SumIPv4(IPv4(ip).Src(), IPv4(ip).Dst(), ProtoTCP, 0)
	} else {
		t.partial = SumIPv6(ip[8:], ip[24:], ProtoTCP, 0)
	}
	const ends = tcpFIN | tcpSYN | tcpRST | tcpPSH | tcpURG
	return t, tcp.HeaderLen() >= tcpMinLen && t.end <= len(h) && t.end < segment && tcp[13]&ends == 0
}

const tcpMinLen = 20

// continues reports whether the datagram "seg" has the next TCP segment of flow and may be merged.
// trainHead is the beginning of the train's first datagram.
func (t *trainShape) continues(flow *coalesceFlow, trainHead, seg []byte) bool {
	if !bytes.Equal(trainHead[:t.l3], seg[:t.l3]) {
		return false
	}
	o, ip := trainHead[t.l3:t.l4], seg[t.l3:t.l4]
	if t.v4 {
		v4 := IPv4(ip)
		if ip[0] != o[0] || v4.Proto() != ProtoTCP || v4.TotalLen() != len(seg)-t.l3 ||
			binary.BigEndian.Uint64(o[12:]) != binary.BigEndian.Uint64(ip[12:]) || sumHeader((*[IPv4Len]byte)(ip)) != 0xffff {
			return false
		}
	} else if v6 := IPv6(ip); v6.NextHeader() != ProtoTCP || v6.PayloadLen() != len(seg)-t.l4 || !bytes.Equal(o[8:], ip[8:]) {
		return false
	}
	otherTCP, tcp := trainHead[t.l4:], seg[t.l4:t.end]
	return flow.sameIP(o, ip) && binary.BigEndian.Uint32(otherTCP) == binary.BigEndian.Uint32(tcp) && flow.sameTCP(otherTCP, tcp)
}

// The method valid reports whether the TCP checksum in the datagram "seg" is right.
func (t *trainShape) valid(seg []byte) bool {
	return AddSums(t.pseudo(len(seg)-t.l4), Sum(seg[t.l4:])) == 0xffff
}

// pseudo returns the sum over the TCP pseudo header for a segment whose TCP header and payload have n bytes
// together.
func (t *trainShape) pseudo(n int) uint16 { return AddSums(t.partial, uint16(n)) }

// finish writes the headers of the large frame f to h. h is in f's header buffer and has the headers of
// the train's first datagram. "outer" is the length of the outer headers before h.
func (t *trainShape) finish(f *Frame, h []byte, outer int, flow *coalesceFlow) {
	length := t.end - t.l4 + flow.payload
	f.Offload = Offload{GSO: GSOTCPv6, Flags: OffloadPartial, Size: uint16(flow.size),
		CsumStart: uint16(outer + t.l4), CsumOffset: tcpCsumOffset}
	if t.v4 {
		f.Offload.GSO = GSOTCPv4
		ip := IPv4(h[t.l3:])
		before := uint16(ip.TotalLen())
		ip.SetTotalLen(IPv4Len + length)
		ip.SetChecksum(MendChecksum(ip.Checksum(), before, uint16(IPv4Len+length)))
	} else {
		IPv6(h[t.l3:]).SetPayloadLen(length)
	}
	if flow.fixedID {
		f.Offload.Flags |= OffloadFixedID
	}
	h[t.l4+13] |= flow.flags
	binary.BigEndian.PutUint16(h[t.l4+tcpCsumOffset:], t.pseudo(length))
}
