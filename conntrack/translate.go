// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"encoding/binary"
	"math/bits"

	"weft/packet"
)

// This file translates the addresses and ports of frames (NAT). A frame of the original direction gets the
// reverse of the reply tuple. A frame of the reply direction gets the reverse of the original tuple.

// translate rewrites frame f, which belongs to the connection with the copy v, in direction dir. p is the
// frame's tuple. It returns the ct_state bits snat and dnat.
func (t *Table) translate(b *packet.Batch, f *packet.Frame, p *probe, v *view, dir uint8) (state uint8) {
	if v.flags&connTranslated == 0 {
		return 0
	}
	state = translated(v.flags, dir)
	src, dst := state&SNAT != 0, state&DNAT != 0
	if w := v.tuples[1-dir&1]; p.kind != kindError && w.setIPv4Endpoints(f) {
		return state
	}
	other := v.tuples[1-dir&1].tuple(v.addresses(1 - dir&1)).Reverse()
	if p.kind == kindError {
		t.translateError(b, f, int(p.inner), &other)
		setAddresses(f, &other, src, dst)
	} else {
		setAddresses(f, &other, src, dst)
		setPorts(f, &other, src, dst)
	}
	return state
}

// setIPv4Endpoints sets the addresses and ports of a TCP or UDP frame over IPv4 to the reverse of tuple w.
// For any other frame it changes nothing and returns false.
func (w words) setIPv4Endpoints(f *packet.Frame) bool {
	return !w.ipv6() && f.SetIPv4Ends(bits.RotateLeft64(w.a, 32), bits.RotateLeft32(uint32(w.b>>32), 16))
}

// translated returns the ct_state bits snat and dnat for frames in direction dir of a connection with these
// flags.
func translated(flags uint16, dir uint8) (state uint8) {
	src, dst := flags&connSNAT != 0, flags&connDNAT != 0
	if dir == 1 {
		src, dst = dst, src
	}
	if src {
		state |= SNAT
	}
	if dst {
		state |= DNAT
	}
	return state
}

func setAddresses(f *packet.Frame, tuple *Tuple, src, dst bool) {
	if src {
		if tuple.IPv6 {
			f.SetIPv6Src(tuple.Src[0], tuple.Src[1])
		} else {
			f.SetIPv4Src(uint32(tuple.Src[1]))
		}
	}
	if dst {
		if tuple.IPv6 {
			f.SetIPv6Dst(tuple.Dst[0], tuple.Dst[1])
		} else {
			f.SetIPv4Dst(uint32(tuple.Dst[1]))
		}
	}
}

func setPorts(f *packet.Frame, tuple *Tuple, src, dst bool) {
	switch {
	case f.L4 == 0:
	case isICMP(tuple.Proto):
		setIdentifier(f, tuple.SrcPort)
	default:
		if src {
			f.SetTpSrc(tuple.SrcPort)
		}
		if dst {
			f.SetTpDst(tuple.DstPort)
		}
	}
}

// setIdentifier sets the identifier of an ICMP or ICMPv6 query or answer, and corrects its checksum.
func setIdentifier(f *packet.Frame, id uint16) {
	h := f.Header()[f.L4:]
	if len(h) < packet.ICMPLen {
		return
	}
	was := binary.BigEndian.Uint16(h[4:])
	if was == id {
		return
	}
	binary.BigEndian.PutUint16(h[4:], id)
	binary.BigEndian.PutUint16(h[2:], packet.MendChecksum(binary.BigEndian.Uint16(h[2:]), was, id))
}

// translateError rewrites the datagram that ICMP error f carries at offset inner. This datagram travelled in
// the opposite direction, so it gets the reverse of outerTuple, the new tuple of the error itself. All
// checksums in the error are corrected, except an SCTP checksum.
func (t *Table) translateError(b *packet.Batch, f *packet.Frame, inner int, outerTuple *Tuple) {
	tuple := outerTuple.Reverse()
	b.Pullup(f, min(inner+innerReach, f.Len()))
	h := f.Header()
	in := h[inner:]
	was := packet.Sum(in)
	l4, addresses := 0, [2]uint16{} // addresses: sums over the IP addresses before and after the change
	if tuple.IPv6 {
		_, l4, _ = walkIPv6(in, 0)
		addresses[0] = packet.Sum(in[8:40])
		for i, w := range [4]uint64{tuple.Src[0], tuple.Src[1], tuple.Dst[0], tuple.Dst[1]} {
			binary.BigEndian.PutUint64(in[8+8*i:], w)
		}
		addresses[1] = packet.Sum(in[8:40])
	} else {
		ip := packet.IPv4(in)
		l4 = ip.HeaderLen()
		addresses[0] = packet.Sum(in[12:20])
		binary.BigEndian.PutUint32(in[12:], uint32(tuple.Src[1]))
		binary.BigEndian.PutUint32(in[16:], uint32(tuple.Dst[1]))
		addresses[1] = packet.Sum(in[12:20])
		ip.SetChecksum(packet.MendChecksum(ip.Checksum(), addresses[0], addresses[1]))
	}
	if l4 < len(in) {
		translateInner(in[l4:], &tuple, addresses)
	}
	sum := h[f.L4+2:]
	binary.BigEndian.PutUint16(sum, packet.MendChecksum(binary.BigEndian.Uint16(sum), was, packet.Sum(in)))
}

// translateInner rewrites the ports and the checksum of the transport header inside an ICMP error, which
// may be truncated. addresses has the checksums of the datagram's IP addresses before and after their
// change.
func translateInner(l4 []byte, tuple *Tuple, addresses [2]uint16) {
	if !hasPorts(tuple.Proto) || len(l4) < 8 {
		return
	}
	if isICMP(tuple.Proto) {
		was := binary.BigEndian.Uint16(l4[4:])
		binary.BigEndian.PutUint16(l4[4:], tuple.SrcPort)
		sum := packet.MendChecksum(binary.BigEndian.Uint16(l4[2:]), was, tuple.SrcPort)
		if tuple.IPv6 { // the ICMPv6 checksum covers a pseudo header with the addresses
			sum = packet.MendChecksum(sum, addresses[0], addresses[1])
		}
		binary.BigEndian.PutUint16(l4[2:], sum)
		return
	}
	was := packet.Sum(l4[:4])
	binary.BigEndian.PutUint16(l4, tuple.SrcPort)
	binary.BigEndian.PutUint16(l4[2:], tuple.DstPort)
	off := 6
	switch tuple.Proto {
	case packet.ProtoTCP:
		off = 16
	case packet.ProtoSCTP:
		return // SCTP's CRC covers bytes that the ICMP error does not carry
	}
	if len(l4) < off+2 || tuple.Proto == packet.ProtoUDP && l4[6]|l4[7] == 0 {
		return
	}
	sum := packet.MendChecksum(binary.BigEndian.Uint16(l4[off:]), was, packet.Sum(l4[:4]))
	sum = packet.MendChecksum(sum, addresses[0], addresses[1])
	if sum == 0 && tuple.Proto == packet.ProtoUDP {
		sum = 0xffff // RFC 768: 0 means no checksum
	}
	binary.BigEndian.PutUint16(l4[off:], sum)
}
