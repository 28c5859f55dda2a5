// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"encoding/binary"
	"math/bits"

	"weft/packet"
)

// Tuple is what identifies one direction of a connection: addresses, ports, ct zone and protocol.
type Tuple struct {
	Src, Dst [2]uint64 // upper and lower 64 bits; an IPv4 address is in the lower 32 bits
	// SrcPort and DstPort are the ports of TCP, UDP and SCTP. For ICMP and ICMPv6,
	// SrcPort is the identifier and DstPort is type<<8 | code. For other protocols
	// both are 0.
	SrcPort, DstPort uint16
	Zone             uint16
	Proto            uint8
	IPv6             bool
}

// words is a tuple in the form that look-ups compare. For IPv6, the word a is a keyed digest of the
// addresses. Memory.long and Memory.replies have the addresses themselves, in four words.
//
//	a   src 32 | dst 32
//	b   src port 16 | dst port 16 | zone 16 | protocol 8 | family 8
type words struct{ a, b uint64 }

// addresses are the addresses of an IPv6 connection, two words each: source and
// destination of the original direction, then of the reply direction.
type addresses [8]uint64

// longOf returns the IPv6 addresses of connection n in one direction. For IPv4 it
// returns zeros.
func (m *Memory) longOf(n uint32, dir uint8) [4]uint64 {
	c := &m.conns[n]
	if !c.tuples[0].ipv6() {
		return [4]uint64{}
	}
	a := &m.long[n]
	if dir == 0 {
		return *a
	}
	if c.flags&connTranslated != 0 {
		return m.replies[n]
	}
	return [4]uint64{a[2], a[3], a[0], a[1]}
}

// addresses returns the IPv6 addresses of both directions of connection n.
func (m *Memory) addresses(n uint32) (a addresses) {
	orig, reply := m.longOf(n, 0), m.longOf(n, 1)
	copy(a[:4], orig[:])
	copy(a[4:], reply[:])
	return a
}

// setAddresses stores the addresses of IPv6 connection n.
func (m *Memory) setAddresses(n uint32, flags uint16, orig, reply *[4]uint64) {
	if m.long[n] = *orig; flags&connTranslated != 0 {
		m.replies[n] = *reply
	}
}

// Values of the address family in the lowest 8 bits of words.b.
const (
	familyIPv4 = 4
	familyIPv6 = 6
)

func (w words) srcPort() uint16 { return uint16(w.b >> 48) }
func (w words) dstPort() uint16 { return uint16(w.b >> 32) }
func (w words) zone() uint16    { return uint16(w.b >> 16) }
func (w words) proto() uint8    { return uint8(w.b >> 8) }
func (w words) ipv6() bool      { return uint8(w.b) == familyIPv6 }

// isICMP reports whether the protocol is ICMP or ICMPv6. A tuple then has the identifier, type and code in
// place of ports.
func isICMP(proto uint8) bool { return proto == packet.ProtoICMP || proto == packet.ProtoICMPv6 }

// hasPorts reports whether NAT may change the ports of this protocol. The identifier
// of ICMP counts as a port.
func hasPorts(proto uint8) bool {
	switch proto {
	case packet.ProtoTCP, packet.ProtoUDP, packet.ProtoSCTP, packet.ProtoICMP, packet.ProtoICMPv6:
		return true
	}
	return false
}

func (t *Tuple) words(h *header) words {
	w := words{b: uint64(t.SrcPort)<<48 | uint64(t.DstPort)<<32 | uint64(t.Zone)<<16 | uint64(t.Proto)<<8}
	if t.IPv6 {
		w.a = h.digest(t.Src, t.Dst)
		w.b |= familyIPv6
	} else {
		w.a = t.Src[1]<<32 | t.Dst[1]
		w.b |= familyIPv4
	}
	return w
}

// tuple converts w to a Tuple. "long" has the addresses if w is IPv6.
func (w words) tuple(long *[4]uint64) (t Tuple) {
	w.setTuple(&t, long)
	return t
}

// setTuple converts w to a Tuple in place, at t. "long" has the addresses if w is IPv6.
func (w words) setTuple(t *Tuple, long *[4]uint64) {
	t.SrcPort, t.DstPort, t.Zone, t.Proto, t.IPv6 = w.srcPort(), w.dstPort(), w.zone(), w.proto(), w.ipv6()
	if t.IPv6 {
		t.Src[0], t.Src[1], t.Dst[0], t.Dst[1] = long[0], long[1], long[2], long[3]
	} else {
		t.Src[0], t.Src[1], t.Dst[0], t.Dst[1] = 0, w.a>>32, 0, w.a&0xffffffff
	}
}

// reversed returns the tuple of the answers to frames with tuple w, and its addresses if it is IPv6. It
// must not be used for ICMP, whose answers have another type.
func (w words) reversed(h *header, long *[4]uint64) (words, [4]uint64) {
	r := words{a: bits.RotateLeft64(w.a, 32), b: w.b&0xffffffff | uint64(w.dstPort())<<48 | uint64(w.srcPort())<<32}
	if !w.ipv6() {
		return r, [4]uint64{}
	}
	other := [4]uint64{long[2], long[3], long[0], long[1]}
	r.a = h.digest([2]uint64(other[:2]), [2]uint64(other[2:]))
	return r, other
}

// Reverse returns the tuple of the answers to frames with tuple t. For ICMP, it has the type of the
// answer.
func (t Tuple) Reverse() Tuple {
	t.Src, t.Dst = t.Dst, t.Src
	if isICMP(t.Proto) {
		t.DstPort = uint16(answerType(t.Proto, uint8(t.DstPort>>8)))<<8 | t.DstPort&0xff
	} else {
		t.SrcPort, t.DstPort = t.DstPort, t.SrcPort
	}
	return t
}

// Types of ICMP (RFC 792) and ICMPv6 (RFC 4443).
const (
	icmpEchoReply      = 0
	icmpUnreachable    = 3
	icmpSourceQuench   = 4
	icmpRedirect       = 5
	icmpEcho           = 8
	icmpTimeExceeded   = 11
	icmpParameter      = 12
	icmpTimestamp      = 13
	icmpTimestampReply = 14
	icmpInfo           = 15
	icmpInfoReply      = 16
	icmpMask           = 17
	icmpMaskReply      = 18

	icmp6Unreachable  = 1
	icmp6TooBig       = 2
	icmp6TimeExceeded = 3
	icmp6Parameter    = 4
	icmp6Echo         = 128
	icmp6EchoReply    = 129
)

// answerType returns the ICMP type of the answer if kind is the type of a query, and the type of the query
// if kind is that of an answer.
func answerType(proto, kind uint8) uint8 {
	if proto == packet.ProtoICMPv6 {
		return kind ^ 1 // 128 and 129
	}
	switch kind {
	case icmpEchoReply, icmpEcho:
		return kind ^ 8
	case icmpTimestamp, icmpInfo, icmpMask:
		return kind + 1
	}
	return kind - 1
}

// queryClass is the role of an ICMP or ICMPv6 message.
type queryClass uint8

const (
	queryNone    queryClass = iota // the message belongs to no connection
	queryAsks                      // a query, which may begin a connection
	queryAnswers                   // answer to a query of an existing connection
	queryError                     // an error, which carries the beginning of a datagram
)

func classOf(proto, kind uint8) queryClass {
	if proto == packet.ProtoICMPv6 {
		switch kind {
		case icmp6Echo:
			return queryAsks
		case icmp6EchoReply:
			return queryAnswers
		case icmp6Unreachable, icmp6TooBig, icmp6TimeExceeded, icmp6Parameter:
			return queryError
		}
		return queryNone
	}
	switch kind {
	case icmpEcho, icmpTimestamp, icmpInfo, icmpMask:
		return queryAsks
	case icmpEchoReply, icmpTimestampReply, icmpInfoReply, icmpMaskReply:
		return queryAnswers
	case icmpUnreachable, icmpSourceQuench, icmpRedirect, icmpTimeExceeded, icmpParameter:
		return queryError
	}
	return queryNone
}

// The functions that hash tuples follow. Both directions of an untranslated connection have the same
// hash, a product of its two endpoints, so one index entry serves both.

// fold multiplies a and b to 128 bits and returns the XOR of both halves.
func fold(a, b uint64) uint64 {
	hi, lo := bits.Mul64(a, b)
	return hi ^ lo
}

// digest returns a keyed digest of two IPv6 addresses in this order.
func (h *header) digest(src, dst [2]uint64) uint64 {
	s := &h.seeds
	return fold(src[0]^s[0], src[1]^s[1]) ^ fold(dst[0]^s[2], dst[1]^s[3])
}

// hash returns the hash by which the index finds a connection with tuple w. "long" has the addresses if w
// is IPv6.
func (h *header) hash(w words, long *[4]uint64) uint64 {
	s := &h.seeds
	src, dst := w.a>>32, w.a&0xffffffff
	if w.ipv6() {
		src = fold(long[0]^s[4], long[1]^s[5])
		dst = fold(long[2]^s[4], long[3]^s[5])
	}
	sp, dp := uint64(w.srcPort()), uint64(w.dstPort())
	if isICMP(w.proto()) {
		dp = sp // the ICMP type differs between query and answer, so it is not hashed
	}
	return mix(src^sp<<40, dst^dp<<40, w.b&0xffffffff, s[6], s[7], s[8])
}

// mix hashes the endpoints a and b independently of their order, and the bits that both
// directions have in common. s6, s7 and s8 are seeds.
func mix(a, b, common, s6, s7, s8 uint64) uint64 { return fold(fold(a^s6, b^s6)^s7, common^s8) }

// The functions that read the tuple of a frame follow.

// kind says how the tracker treats a frame.
type kind uint8

const (
	kindNone  kind = iota // invalid
	kindFlow              // frame that may belong to a connection or begin one
	kindReply             // frame that may belong to a connection, but cannot begin one
	kindError             // ICMP error; the probe has the reverse of the inner datagram's tuple
)

// probe is the tuple of a frame with its hash, for a look-up. The field "long" has the addresses if the
// tuple is IPv6.
type probe struct {
	words
	hash  uint64
	long  [4]uint64
	kind  kind
	inner uint16 // offset in the frame of the datagram inside an ICMP error
}

// extract reads the tuple of frame f into p. p.kind becomes kindNone for a frame that cannot be tracked.
func (t *Table) extract(b *packet.Batch, f *packet.Frame, zone uint16, p *probe) {
	p.kind, p.inner = kindNone, 0
	if f.L3 == 0 || f.L4 == 0 && f.Flags&packet.FrameFragment != 0 {
		return // the frame is not IP, or it is a fragment that was not reassembled
	}
	h := f.Header()
	if h[f.L3]>>4 == 4 {
		ip := (*[packet.IPv4Len]byte)(h[f.L3:])
		p.a = binary.BigEndian.Uint64(ip[12:])
		p.b = uint64(zone)<<16 | uint64(ip[9])<<8 | familyIPv4
	} else {
		ip := (*[packet.IPv6Len]byte)(h[f.L3:])
		for i := range p.long {
			p.long[i] = binary.BigEndian.Uint64(ip[8+8*i:])
		}
		p.a = t.head.digest([2]uint64(p.long[:2]), [2]uint64(p.long[2:]))
		p.b = uint64(zone)<<16 | uint64(protoIPv6(f))<<8 | familyIPv6
	}
	p.kind = kindFlow
	if f.L4 != 0 {
		l4 := h[f.L4:]
		switch p.proto() {
		case packet.ProtoTCP, packet.ProtoUDP, packet.ProtoSCTP:
			p.b |= uint64(binary.BigEndian.Uint32(l4)) << 32
		case packet.ProtoICMP, packet.ProtoICMPv6:
			t.extractICMP(b, f, p)
		}
	}
	if p.kind != kindNone {
		p.hash = t.head.hash(p.words, &p.long)
	}
}

// protoIPv6 returns the protocol of IPv6 frame f after the extension headers.
func protoIPv6(f *packet.Frame) uint8 {
	if f.L4 != 0 {
		return f.Proto
	}
	h := f.Header()
	proto, _, _ := walkIPv6(h, int(f.L3))
	return proto
}

// walkIPv6 skips the extension headers of the IPv6 header at offset ip. It returns the protocol and the
// offset of the header after them. ok is false for a fragment other than the first, and for a truncated
// header.
func walkIPv6(h []byte, ip int) (proto uint8, offset int, ok bool) {
	proto, offset = h[ip+6], ip+packet.IPv6Len
	for offset+8 <= len(h) {
		n := 8 + int(h[offset+1])*8
		switch proto {
		case packet.ProtoHopByHop, packet.ProtoRouting, packet.ProtoDestOpts:
		case packet.ProtoAH: // RFC 4302 section 2.2
			n = (int(h[offset+1]) + 2) * 4
		case packet.ProtoFragment:
			if n = 8; binary.BigEndian.Uint16(h[offset+2:])&0xfff8 != 0 {
				return packet.ProtoFragment, offset, false
			}
		default:
			return proto, offset, true
		}
		proto = h[offset]
		offset += n
	}
	return proto, offset, offset <= len(h)
}

// extractICMP reads into p the identifier, type and code of an ICMP query or answer, or the tuple inside an
// ICMP error.
func (t *Table) extractICMP(b *packet.Batch, f *packet.Frame, p *probe) {
	off := int(f.L4)
	if !b.Pullup(f, off+packet.ICMPLen) {
		p.kind = kindNone
		return
	}
	h := f.Header()
	switch classOf(p.proto(), h[off]) {
	case queryAsks:
	case queryAnswers:
		p.kind = kindReply
	case queryError:
		t.extractError(b, f, p)
		return
	default:
		p.kind = kindNone
		return
	}
	p.b |= uint64(binary.BigEndian.Uint16(h[off+4:]))<<48 | uint64(binary.BigEndian.Uint16(h[off:]))<<32
}

// innerReach is how many bytes the tracker reads of the datagram inside an ICMP error: an IPv6
// header, an extension header of 16 bytes, and the ports.
const innerReach = packet.IPv6Len + 24

// extractError sets p to the reverse of the tuple of the datagram inside ICMP error f. A look-up of p then
// finds the connection of this datagram. p.kind becomes kindNone if the tuple cannot be read.
func (t *Table) extractError(b *packet.Batch, f *packet.Frame, p *probe) {
	p.kind = kindNone
	at := int(f.L4) + packet.ICMPLen
	b.Pullup(f, min(at+innerReach, f.Len()))
	h := f.Header()
	var in Tuple
	var l4 int
	if p.ipv6() {
		if len(h) < at+packet.IPv6Len || h[at]>>4 != 6 {
			return
		}
		proto, off, ok := walkIPv6(h, at)
		if !ok {
			return
		}
		in.IPv6, in.Proto, l4 = true, proto, off
		in.Src[0], in.Src[1] = packet.IPv6(h[at:]).Src()
		in.Dst[0], in.Dst[1] = packet.IPv6(h[at:]).Dst()
	} else {
		if len(h) < at+packet.IPv4Len || h[at]>>4 != 4 {
			return
		}
		ip := packet.IPv4(h[at:])
		if ip.HeaderLen() < packet.IPv4Len || ip.FlagsFrag()&0x1fff != 0 {
			return
		}
		in.Proto, l4 = ip.Proto(), at+ip.HeaderLen()
		in.Src[1], in.Dst[1] = uint64(ip.Src()), uint64(ip.Dst())
	}
	in.Zone = p.zone()
	if hasPorts(in.Proto) {
		if len(h) < l4+8 { // an ICMP error has at least 64 bits of the datagram's data (RFC 792)
			return
		}
		if isICMP(in.Proto) {
			if c := classOf(in.Proto, h[l4]); c != queryAsks && c != queryAnswers {
				return
			}
			in.SrcPort, in.DstPort = binary.BigEndian.Uint16(h[l4+4:]), binary.BigEndian.Uint16(h[l4:])
		} else {
			in.SrcPort, in.DstPort = binary.BigEndian.Uint16(h[l4:]), binary.BigEndian.Uint16(h[l4+2:])
		}
	}
	in = in.Reverse()
	p.words = in.words(t.head)
	p.long = [4]uint64{in.Src[0], in.Src[1], in.Dst[0], in.Dst[1]}
	p.kind, p.inner = kindError, uint16(at)
}
