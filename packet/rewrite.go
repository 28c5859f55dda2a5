// SPDX-License-Identifier: Apache-2.0

package packet

import "encoding/binary"

// This file rewrites header fields, after extraction. A rewrite changes nothing if the frame does not have
// the header. It updates the checksums that cover the field (RFC 1624). A UDP checksum of 0 ("none") stays
// 0. Fragments other than the first have no transport checksum.

// SetEthDst sets the destination MAC address to the low 48 bits of mac.
func (f *Frame) SetEthDst(mac uint64) { Ethernet(f.Header()).SetDst(mac) }

// SetEthSrc sets the source MAC address to the low 48 bits of mac.
func (f *Frame) SetEthSrc(mac uint64) { Ethernet(f.Header()).SetSrc(mac) }

// SetIPv4Src sets the source address of the IPv4 header. The most significant byte of
// addr is the first byte of the address.
func (f *Frame) SetIPv4Src(addr uint32) { f.setIPv4Address(12, addr) }

// SetIPv4Dst sets the destination address of the IPv4 header. The most significant
// byte of addr is the first byte of the address.
func (f *Frame) SetIPv4Dst(addr uint32) { f.setIPv4Address(16, addr) }

func (f *Frame) setIPv4Address(offset int, addr uint32) {
	ip := f.ipv4()
	if ip == nil {
		return
	}
	before, after := sum32(binary.BigEndian.Uint32(ip[offset:])), sum32(addr)
	binary.BigEndian.PutUint32(ip[offset:], addr)
	ip.SetChecksum(MendChecksum(ip.Checksum(), before, after))
	if f.Proto == ProtoTCP || f.Proto == ProtoUDP { // the ICMP checksum covers no pseudo header
		f.mendTransport(before, after)
	}
}

// SetIPv6Src sets the source address of the IPv6 header from its upper and lower 64
// bits.
func (f *Frame) SetIPv6Src(hi, lo uint64) { f.setIPv6Address(8, hi, lo, true) }

// SetIPv6Dst sets the destination address of the IPv6 header from its upper and lower
// 64 bits. If a routing header holds the final destination, the transport checksum
// does not cover this address.
func (f *Frame) SetIPv6Dst(hi, lo uint64) { f.setIPv6Address(24, hi, lo, f.Flags&FrameRouted == 0) }

func (f *Frame) setIPv6Address(offset int, hi, lo uint64, covered bool) {
	ip := f.ipv6()
	if ip == nil {
		return
	}
	addr := ip[offset : offset+16]
	before := Sum(addr)
	binary.BigEndian.PutUint64(addr, hi)
	binary.BigEndian.PutUint64(addr[8:], lo)
	if covered {
		f.mendTransport(before, Sum(addr))
	}
}

// SetTOS sets all eight bits of the IPv4 TOS or the IPv6 traffic class.
func (f *Frame) SetTOS(tos uint8) {
	if ip := f.ipv4(); ip != nil {
		before := binary.BigEndian.Uint16(ip)
		ip[1] = tos
		ip.SetChecksum(MendChecksum(ip.Checksum(), before, binary.BigEndian.Uint16(ip)))
	} else if ip := f.ipv6(); ip != nil {
		ip.SetTrafficClass(tos)
	}
}

// RaiseDropPrecedence changes a frame whose DSCP is one of assured forwarding (RFC 2597 section 6): it
// raises the drop precedence by n, but not above 3. It does not change other frames.
func (f *Frame) RaiseDropPrecedence(n uint8) {
	var tos uint8
	if ip := f.ipv4(); ip != nil {
		tos = ip[1]
	} else if ip := f.ipv6(); ip != nil {
		tos = ip.TrafficClass()
	} else {
		return
	}
	const precedence = 3 << 3
	class, level := tos>>5, tos&precedence>>3
	if class == 0 || class > 4 || level == 0 || tos&4 != 0 {
		return
	}
	level = uint8(min(uint(level)+uint(n), 3))
	f.SetTOS(tos&^precedence | level<<3)
}

// SetTTL sets the TTL of IPv4 or the hop limit of IPv6.
func (f *Frame) SetTTL(ttl uint8) {
	if ip := f.ipv4(); ip != nil {
		before := binary.BigEndian.Uint16(ip[8:])
		ip[8] = ttl
		ip.SetChecksum(MendChecksum(ip.Checksum(), before, binary.BigEndian.Uint16(ip[8:])))
	} else if ip := f.ipv6(); ip != nil {
		ip[7] = ttl
	}
}

// DecTTL decrements the TTL of IPv4 or the hop limit of IPv6. If the value is 1 or 0, DecTTL changes nothing
// and returns DropTTLExpired.
func (f *Frame) DecTTL() DropReason {
	var ttl uint8
	if ip := f.ipv4(); ip != nil {
		ttl = ip.TTL()
	} else if ip := f.ipv6(); ip != nil {
		ttl = ip.HopLimit()
	} else {
		return DropNone
	}
	if ttl <= 1 {
		return DropTTLExpired
	}
	f.SetTTL(ttl - 1)
	return DropNone
}

// SetTpSrc sets the source port of TCP, UDP or SCTP.
func (f *Frame) SetTpSrc(port uint16) { f.setPort(0, port) }

// SetTpDst sets the destination port of TCP, UDP or SCTP.
func (f *Frame) SetTpDst(port uint16) { f.setPort(2, port) }

func (f *Frame) setPort(offset int, port uint16) {
	if f.L4 == 0 {
		return
	}
	h := f.Header()
	l4 := h[f.L4:]
	switch f.Proto {
	case ProtoTCP, ProtoUDP:
		before := binary.BigEndian.Uint16(l4[offset:])
		binary.BigEndian.PutUint16(l4[offset:], port)
		if !f.partial() { // an unfinished checksum will include the new port when it is finished
			f.mendTransport(before, port)
		}
	case ProtoSCTP:
		before := binary.BigEndian.Uint16(l4[offset:])
		binary.BigEndian.PutUint16(l4[offset:], port)
		// the update of the CRC needs the number of bytes after the port, which is unknown for a
		// fragment
		if f.Flags&FrameFragment == 0 {
			rest := f.Len() - int(f.L4) - offset - 2
			crc := binary.LittleEndian.Uint32(l4[8:]) ^ crcDelta(before^port, rest)
			binary.LittleEndian.PutUint32(l4[8:], crc)
		}
	}
}

// mendTransport updates the checksum of TCP, UDP or ICMPv6, if there is one. oldSum and newSum are the sums
// over the changed bytes before and after the change.
func (f *Frame) mendTransport(oldSum, newSum uint16) {
	if f.L4 == 0 {
		return
	}
	l4 := f.Header()[f.L4:]
	switch f.Proto {
	case ProtoTCP:
		l4 = l4[16:18]
	case ProtoUDP:
		l4 = l4[6:8]
		if l4[0]|l4[1] == 0 && !f.partial() {
			return
		}
	case ProtoICMPv6:
		l4 = l4[2:4]
	default:
		return
	}
	if f.partial() { // until the checksum is finished, its field holds a sum that is not inverted
		sum := AddSums(binary.BigEndian.Uint16(l4), AddSums(^oldSum, newSum))
		binary.BigEndian.PutUint16(l4, sum)
		return
	}
	sum := MendChecksum(binary.BigEndian.Uint16(l4), oldSum, newSum)
	if sum == 0 && f.Proto == ProtoUDP {
		sum = 0xffff // a UDP checksum of 0 means "none" (RFC 768)
	}
	binary.BigEndian.PutUint16(l4, sum)
}

// partial reports whether the transport checksum of the frame is unfinished.
func (f *Frame) partial() bool {
	return f.Offload.Flags&OffloadPartial != 0 && f.Offload.CsumStart == f.L4
}

// ipv4 returns the header buffer from the IPv4 header on, or nil if the frame is not IPv4.
func (f *Frame) ipv4() IPv4 {
	if f.L3 == 0 {
		return nil
	}
	if h := f.Header()[f.L3:]; h[0]>>4 == 4 {
		return h
	}
	return nil
}

// ipv6 returns the header buffer from the IPv6 header on, or nil if the frame is not IPv6.
func (f *Frame) ipv6() IPv6 {
	if f.L3 == 0 {
		return nil
	}
	if h := f.Header()[f.L3:]; h[0]>>4 == 6 {
		return h
	}
	return nil
}
