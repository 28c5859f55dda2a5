// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"encoding/binary"

	"weft/flowtable"
	"weft/packet"
	"weft/port"
)

// This file answers frames that are too long for their tunnel. The answer is ICMP "fragmentation
// needed" (RFC 792, RFC 1191) or ICMPv6 "packet too big" (RFC 4443 section 3.2). It tells the sender the
// MTU of the tunnel. Its source address is the destination of the frame, because the switch has no
// address in the overlay network (compare skb_tunnel_check_pmtu in Linux).
//
// The answer must quote the headers as the sender wrote them, but actions may have
// changed them. So addresses, ports, tags, TOS and TTL are taken from the key, which
// describes the frame as it was received.

const (
	// answerEveryNS and answerBurst limit the answers to frames of one port to a thousand a second, and to
	// 50 at once, like Linux's icmp_msgs_per_sec and icmp_msgs_burst. A limit for all ports together would
	// let one port keep the others from path MTU discovery. Frames beyond the limit are dropped without an
	// answer.
	answerEveryNS = 1_000_000
	answerBurst   = 50
	// maxQuote is the largest number of bytes of the frame, from its IP header on, that an answer quotes.
	// The quote must fit into a frame's header buffer, together with the answer's own headers.
	// RFC 792 demands at least the IP header and 8 bytes.
	maxQuote = packet.MaxHeader - packet.EthernetLen - 2*packet.VLANLen - packet.IPv6Len - icmpLen

	icmpLen         = 8
	icmpUnreachable = 3
	icmpFragNeeded  = 4
	icmp6TooBig     = 2
	internetControl = 0xc0 // TOS of ICMP messages from routers (RFC 1812 section 4.3.2.5)
	answerTTL       = 64
	minMTUv4        = 68
	minMTUv6        = 1280
)

// answerTooBig sends an ICMP error to the sender of frame i. mtu is the longest IP packet in bytes that fits
// into the tunnel. It sends nothing if ICMP forbids an answer, or if the rate limit is exceeded.
func (w *Worker) answerTooBig(i, mtu int) {
	f, k := &w.batch.Frames[i], &w.keys[i]
	p := &w.ports[f.InPort%uint32(len(w.ports))]
	if f.L3 == 0 || p.tx == nil || !mayAnswer(f, k, mtu) || !port.TakeToken(&p.answersNS, w.now, answerEveryNS, answerBurst) {
		return
	}
	b := &w.segments
	b.Reset()
	a, h := b.Next()
	b.Commit(a, writeTooBig(h, f, k, mtu))
	if a.Len() > p.tx.MTU() {
		return
	}
	w.sendAnswer(p)
}

// mayAnswer reports whether an ICMP error may answer the frame (RFC 1122 section 3.2.2, RFC 4443 section
// 2.4). The frame must be unicast and must not be an ICMP error. An IPv4 frame must have DF set.
func mayAnswer(f *packet.Frame, k *flowtable.Key, mtu int) bool {
	if k[flowtable.WEthSrc]>>56&1 != 0 || k[flowtable.WEthDst]>>56&1 != 0 {
		return false
	}
	proto, kind := k.Proto(), k.ICMPType()
	if ip := packet.IPv4(f.Header()[f.L3:]); ip.Version() == 4 {
		src, dst := k.IPv4Src(), k.IPv4Dst()
		icmpError := proto == packet.ProtoICMP && kind >= 3 && kind <= 12 && kind != 8 && kind != 9 && kind != 10
		return mtu >= minMTUv4 && ip.FlagsFrag() == 0x4000 && hostIPv4(src) && hostIPv4(dst) && !icmpError
	}
	src, dst := k[flowtable.WIPv6Src], k[flowtable.WIPv6Dst]
	icmpError := proto == packet.ProtoICMPv6 && kind < 128
	return mtu >= minMTUv6 && src>>56 != 0xff && dst>>56 != 0xff && src|k[flowtable.WIPv6Src+1] != 0 && !icmpError
}

// hostIPv4 reports whether a may be the address of a host: not in 0.0.0.0/8, and no loopback, multicast or
// reserved address.
func hostIPv4(a uint32) bool {
	first := a >> 24
	return first != 0 && first != 127 && first < 224
}

// writeTooBig writes the answer to frame f into h. It returns the answer's length in
// bytes.
func writeTooBig(h *[packet.MaxHeader]byte, f *packet.Frame, k *flowtable.Key, mtu int) int {
	packet.Ethernet(h[:]).SetDst(k.EthSrc())
	packet.Ethernet(h[:]).SetSrc(k.EthDst())
	at := writeTags(h[12:], k.OuterTCI(), k.InnerTCI()) + 12
	quote := f.Header()[f.L3:]
	quote = quote[:min(len(quote), maxQuote)]
	v4 := quote[0]>>4 == 4
	binary.BigEndian.PutUint16(h[at:], k.EtherType())
	at += 2
	l3 := at
	if v4 {
		at += writeAnswerIPv4(h[at:], k, icmpLen+len(quote))
	} else {
		at += writeAnswerIPv6(h[at:], k, icmpLen+len(quote))
	}
	icmp := h[at : at+icmpLen+len(quote)]
	clear(icmp[:icmpLen])
	copy(icmp[icmpLen:], quote)
	restore(icmp[icmpLen:], int(f.L4)-int(f.L3), f, k)
	if v4 {
		icmp[0], icmp[1] = icmpUnreachable, icmpFragNeeded
		binary.BigEndian.PutUint16(icmp[6:], uint16(mtu))
		binary.BigEndian.PutUint16(icmp[2:], packet.Checksum(icmp))
	} else {
		icmp[0] = icmp6TooBig
		binary.BigEndian.PutUint32(icmp[4:], uint32(mtu))
		pseudo := packet.SumIPv6(h[l3+8:], h[l3+24:], packet.ProtoICMPv6, len(icmp))
		binary.BigEndian.PutUint16(icmp[2:], ^packet.AddSums(pseudo, packet.Sum(icmp)))
	}
	return at + len(icmp)
}

// writeTags writes the VLAN tags of the received frame and returns their length in
// bytes. The key does not contain TPIDs, so the outer of two tags becomes a service
// tag.
func writeTags(h []byte, outer, inner uint16) int {
	if outer&flowtable.VLANPresent == 0 {
		return 0
	}
	tpid, n := uint16(packet.EtherTypeVLAN), packet.VLANLen
	if inner&flowtable.VLANPresent != 0 {
		binary.BigEndian.PutUint16(h[4:], packet.EtherTypeVLAN)
		binary.BigEndian.PutUint16(h[6:], inner&^flowtable.VLANPresent)
		tpid, n = packet.EtherTypeSVLAN, 2*packet.VLANLen
	}
	binary.BigEndian.PutUint16(h, tpid)
	binary.BigEndian.PutUint16(h[2:], outer&^flowtable.VLANPresent)
	return n
}

func writeAnswerIPv4(h []byte, k *flowtable.Key, n int) int {
	ip := packet.IPv4(h[:packet.IPv4Len])
	clear(ip)
	ip[0], ip[1], ip[8], ip[9] = 0x45, internetControl, answerTTL, packet.ProtoICMP
	ip.SetTotalLen(packet.IPv4Len + n)
	ip.SetFlagsFrag(0x4000)
	binary.BigEndian.PutUint32(ip[12:], k.IPv4Dst())
	binary.BigEndian.PutUint32(ip[16:], k.IPv4Src())
	ip.SetChecksum(packet.Checksum(ip))
	return packet.IPv4Len
}

func writeAnswerIPv6(h []byte, k *flowtable.Key, n int) int {
	ip := packet.IPv6(h[:packet.IPv6Len])
	clear(ip)
	ip[0] = 0x60
	ip.SetTrafficClass(internetControl)
	ip.SetPayloadLen(n)
	ip[6], ip[7] = packet.ProtoICMPv6, answerTTL
	putAddresses(ip[8:], k[flowtable.WIPv6Dst:], k[flowtable.WIPv6Src:])
	return packet.IPv6Len
}

// putAddresses writes two IPv6 addresses, first the source.
func putAddresses(h []byte, src, dst []uint64) {
	for i, word := range [...]uint64{src[0], src[1], dst[0], dst[1]} {
		binary.BigEndian.PutUint64(h[8*i:], word)
	}
}

// restore writes the addresses, ports, TOS and TTL in key k into the quoted headers, because actions may have
// changed them. l4 is the offset of the transport header in the quote; negative: none.
func restore(quote []byte, l4 int, f *packet.Frame, k *flowtable.Key) {
	tos, ttl := k.TOS(), k.TTL()
	if quote[0]>>4 == 4 {
		ip := packet.IPv4(quote)
		ip[1], ip[8] = tos, ttl
		binary.BigEndian.PutUint64(ip[12:], k[flowtable.WIPv4])
		if n := ip.HeaderLen(); n <= len(ip) {
			ip.SetChecksum(0)
			ip.SetChecksum(packet.Checksum(ip[:n]))
		}
	} else {
		ip := packet.IPv6(quote)
		ip.SetTrafficClass(tos)
		ip[7] = ttl
		putAddresses(ip[8:], k[flowtable.WIPv6Src:], k[flowtable.WIPv6Dst:])
	}
	switch f.Proto {
	case packet.ProtoTCP, packet.ProtoUDP, packet.ProtoSCTP:
		if l4 > 0 && l4+4 <= len(quote) {
			binary.BigEndian.PutUint32(quote[l4:], k.Ports())
		}
	}
}
