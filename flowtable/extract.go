// SPDX-License-Identifier: Apache-2.0

package flowtable

import (
	"encoding/binary"

	"weft/packet"
)

// Extraction reads the fields of a frame's headers into a Key. It follows ovs-fields(7) and is as lenient
// as Open vSwitch about the contents of fields. It drops frames that end within a header and frames whose
// lengths contradict each other. The functions of this file are in the order of the headers: Ethernet,
// tags, ARP, IPv4, transport. IPv6 with its extension headers is in extract_ipv6.go.

// Extract sets every word of k from the headers of frame f. The recirc_id, the tunnel words and the ct_*
// words become 0. Extract also sets f.L3, f.L4 and f.Proto, and removes padding after an IP datagram. If
// the headers are longer than the header buffer, it copies the missing bytes from the spans to the
// buffer. It returns a drop reason for a malformed frame, and DropDeepHeader if the buffer is too small
// for the headers. After a drop reason, the contents of k are undefined.
func Extract(b *packet.Batch, f *packet.Frame, k *Key) packet.DropReason {
	clear(k[WIPv6Src:])
	if extractPlain(b, f, k) {
		return packet.DropNone
	}
	return extractAny(b, f, k)
}

// ExtractAll does the work of Extract for all frames of a batch that are not dropped yet, and stores
// drop reasons in Frame.Drop. Bit i of "dirty" must be set if keys[i] may have words other than 0 from
// WIPv6Src on. ExtractAll clears only these keys, because clearing a key takes as long as the rest of
// the extraction. nowDirty is the value of "dirty" for the next call. special is the set of frames that
// are dropped, or whose checksum or segmentation their sender has left to the switch.
func ExtractAll(b *packet.Batch, keys *[packet.BatchSize]Key, dirty uint32) (nowDirty, special uint32) {
	for i := range b.Frames[:min(uint(b.N), packet.BatchSize)] {
		f, k := &b.Frames[i], &keys[i]
		if f.Drop != packet.DropNone {
			special |= 1 << i
			continue
		}
		if dirty>>i&1 != 0 {
			dirty &^= 1 << i
			clear(k[WIPv6Src:])
		}
		if !extractPlain(b, f, k) {
			f.Drop = extractAny(b, f, k)
			if k[WEthDst]&0xffff != packet.EtherTypeIPv4 {
				dirty |= 1 << i
			}
		}
		if f.Drop != packet.DropNone || f.Undone() {
			special |= 1 << i
		}
	}
	return dirty, special
}

// extractPlain is Extract for common frames: untagged, unfragmented UDP or TCP over IPv4 without IP
// options. It returns false for all other frames, also for malformed ones. The caller has cleared the
// words from WIPv6Src on.
func extractPlain(b *packet.Batch, f *packet.Frame, k *Key) bool {
	h := f.Header()
	if len(h) < plainLen {
		return false
	}
	p := (*[plainLen]byte)(h)
	first := binary.BigEndian.Uint64(p[14:22])  // first 8 bytes of IPv4: version, IHL, TOS, length, ID, fragment
	second := binary.BigEndian.Uint64(p[22:30]) // TTL, protocol, checksum, source
	if binary.BigEndian.Uint16(p[12:14]) != packet.EtherTypeIPv4 || first>>56 != 0x45 || first&0x3fff != 0 {
		return false
	}
	end, total := packet.EthernetLen+int(first>>32&0xffff), f.Len()
	proto := uint8(second >> 48)
	l4 := binary.BigEndian.Uint64(p[34:42]) // first 8 bytes of the UDP or TCP header
	flags := uint64(0)
	switch {
	case proto == packet.ProtoUDP:
		if n := int(l4 >> 16 & 0xffff); n < packet.UDPLen || plainLen-packet.UDPLen+n > end {
			return false
		}
	case proto == packet.ProtoTCP && len(h) >= plainTCPLen:
		flags = uint64(binary.BigEndian.Uint16(h[46:48]))
		if n := int(flags>>12) * 4; n < packet.TCPLen || plainLen-packet.UDPLen+n > end {
			return false
		}
		flags &= 0xfff
	default:
		return false
	}
	if end > total {
		return false
	}
	k[WPort] = uint64(f.InPort) << 32
	k[WEthDst] = binary.BigEndian.Uint64(p[0:8])&^0xffff | packet.EtherTypeIPv4
	k[WEthSrc] = binary.BigEndian.Uint64(p[6:14]) &^ 0xffff
	k[WIP] = uint64(proto)<<56 | first>>48&0xff<<48 | second>>56<<40 | flags
	k[WL4] = l4 >> 32 << 32
	k[WIPv4] = second<<32 | uint64(binary.BigEndian.Uint32(p[30:34]))
	f.L3, f.L4, f.Proto = packet.EthernetLen, packet.EthernetLen+packet.IPv4Len, proto
	f.Flags &^= packet.FrameRouted | packet.FrameFragment
	if end < total {
		b.Trim(f, end)
	}
	return true
}

// plainLen and plainTCPLen are the lengths in bytes of the headers of a UDP and a TCP frame for extractPlain,
// from Ethernet to transport.
const (
	plainLen    = packet.EthernetLen + packet.IPv4Len + packet.UDPLen
	plainTCPLen = packet.EthernetLen + packet.IPv4Len + packet.TCPLen
)

// extractAny is Extract for frames of any kind. The caller has cleared the words of k from WIPv6Src
// on.
func extractAny(b *packet.Batch, f *packet.Frame, k *Key) packet.DropReason {
	h := f.Header()
	if len(h) < packet.EthernetLen {
		var reason packet.DropReason
		if h, reason = reach(b, f, packet.EthernetLen, packet.DropRuntFrame); reason != packet.DropNone {
			return reason
		}
	}
	f.L3, f.L4 = 0, 0
	f.Flags &^= packet.FrameRouted | packet.FrameFragment
	clear(k[:WIPv6Src])
	k[WPort] = uint64(f.InPort) << 32
	dst := binary.BigEndian.Uint64(h[0:8]) &^ 0xffff
	src := binary.BigEndian.Uint64(h[6:14])
	etherType, off := uint16(src), packet.EthernetLen
	k[WEthSrc] = src &^ 0xffff
	if packet.IsVLAN(etherType) || etherType < minEtherType {
		var reason packet.DropReason
		if etherType, off, reason = extractTags(b, f, k, etherType); reason != packet.DropNone {
			return reason
		}
	}
	k[WEthDst] = dst | uint64(etherType)
	switch etherType {
	case packet.EtherTypeIPv4:
		return extractIPv4(b, f, k, off)
	case packet.EtherTypeIPv6:
		return extractIPv6(b, f, k, off)
	case packet.EtherTypeARP, packet.EtherTypeRARP:
		return extractARP(b, f, k, off)
	case packet.EtherTypeMPLS, packet.EtherTypeMPLSMulticast:
		return extractShim(b, f, k, off, packet.ShimLen)
	case packet.EtherTypePBB:
		return extractShim(b, f, k, off, packet.ShimLen+packet.EthernetLen)
	case packet.EtherTypeNSH:
		return extractNSH(b, f, k, off)
	}
	return packet.DropNone
}

// extractShim stores the 32 bits after the EtherType of an MPLS or PBB frame, which begin at offset: the
// outermost label stack entry or the I-TAG. It does not parse the bytes after them. The frame must have
// needBytes bytes from offset on. For PBB these include the inner Ethernet header.
func extractShim(b *packet.Batch, f *packet.Frame, k *Key, offset, needBytes int) packet.DropReason {
	h, reason := reach(b, f, offset+needBytes, packet.DropRuntFrame)
	if reason != packet.DropNone {
		return reason
	}
	k[WIPv4] = uint64(binary.BigEndian.Uint32(h[offset:])) << 32
	return packet.DropNone
}

// extractNSH stores the fields of the network service header (RFC 8300 section 2) at offset, and the
// context headers of MD type 1. It does not parse the payload. It tries to copy an inner Ethernet header
// into the header buffer, because the action decap() needs it there.
func extractNSH(b *packet.Batch, f *packet.Frame, k *Key, offset int) packet.DropReason {
	h, reason := reach(b, f, offset+packet.NSHBaseLen, packet.DropRuntFrame)
	if reason != packet.DropNone {
		return reason
	}
	nsh := packet.NSH(h[offset:])
	length := nsh.HeaderLen()
	if nsh.Version() != 0 || !nsh.HasValidLen() || offset+length > f.Len() {
		return packet.DropBadNSH
	}
	k[WIPv4] = uint64(nsh.Fields())
	if nsh.MDType() == packet.NSHType1 {
		if h, reason = reach(b, f, offset+length, packet.DropBadNSH); reason != packet.DropNone {
			return reason
		}
		k[WIPv6Src] = binary.BigEndian.Uint64(h[offset+packet.NSHBaseLen:])
		k[WIPv6Src+1] = binary.BigEndian.Uint64(h[offset+packet.NSHBaseLen+8:])
	}
	_ = b.Pullup(f, min(offset+length+packet.EthernetLen, f.Len()))
	return packet.DropNone
}

// minEtherType is the lowest valid EtherType. Lower values are lengths of 802.3
// frames.
const minEtherType = 0x600

// reach extends the header buffer to at least n bytes and returns it. If the frame has fewer bytes, reach
// returns the drop reason "short".
func reach(b *packet.Batch, f *packet.Frame, n int, short packet.DropReason) ([]byte, packet.DropReason) {
	if n > f.Len() {
		return nil, short
	}
	if !b.Pullup(f, n) {
		return nil, packet.DropDeepHeader
	}
	return f.Header(), packet.DropNone
}

// maxTags is the number of VLAN tags that extraction parses. If a frame has a third
// tag, its TPID becomes dl_type.
const maxTags = 2

// extractTags parses the headers between the source address and the final EtherType: VLAN tags, and the LLC
// and SNAP headers of an 802.3 frame (RFC 1042). etherType is the field after the source address. The
// results are the final EtherType and the offset after it.
func extractTags(b *packet.Batch, f *packet.Frame, k *Key, etherType uint16) (uint16, int, packet.DropReason) {
	off := packet.EthernetLen
	for tag := 0; tag < maxTags && packet.IsVLAN(etherType); tag++ {
		h, reason := reach(b, f, off+packet.VLANLen, packet.DropBadVLAN)
		if reason != packet.DropNone {
			return 0, 0, reason
		}
		tci := uint64(binary.BigEndian.Uint16(h[off:]) | VLANPresent)
		if tag == 0 {
			k[WEthSrc] |= tci
		} else {
			k[WIP] |= tci << 16
		}
		etherType = binary.BigEndian.Uint16(h[off+2:])
		off += packet.VLANLen
	}
	if etherType >= minEtherType {
		return etherType, off, packet.DropNone
	}
	h, reason := reach(b, f, off+8, packet.DropRuntFrame)
	if reason == packet.DropDeepHeader {
		return 0, 0, reason
	}
	const snap = 0xaaaa03000000 // DSAP, SSAP, control, organisation
	if reason == packet.DropNone {
		llc := binary.BigEndian.Uint64(h[off:])
		if t := uint16(llc); llc>>16 == snap && t >= minEtherType {
			return t, off + 8, packet.DropNone
		}
	}
	return EthTypeNone, off, packet.DropNone
}

func extractARP(b *packet.Batch, f *packet.Frame, k *Key, offset int) packet.DropReason {
	h, reason := reach(b, f, offset+8, packet.DropBadARP)
	if reason != packet.DropNone {
		return reason
	}
	if arp := packet.ARP(h[offset:]); arp.HardwareType() != 1 || arp.ProtocolType() != packet.EtherTypeIPv4 {
		return packet.DropNone
	}
	if h, reason = reach(b, f, offset+packet.ARPLen, packet.DropBadARP); reason != packet.DropNone {
		return reason
	}
	arp := packet.ARP(h[offset : offset+packet.ARPLen])
	if arp.HardwareLen() != 6 || arp.ProtocolLen() != 4 {
		return packet.DropBadARP
	}
	if op := arp.Op(); op <= 0xff {
		k[WIP] |= uint64(op) << 56
	}
	k[WIPv4] = uint64(arp.SenderIPv4())<<32 | uint64(arp.TargetIPv4())
	k[WARPSha] = arp.SenderHW() << 16
	k[WARPTha] = arp.TargetHW() << 16
	return packet.DropNone
}

func extractIPv4(b *packet.Batch, f *packet.Frame, k *Key, offset int) packet.DropReason {
	h := f.Header()
	if len(h) < offset+packet.IPv4Len {
		var reason packet.DropReason
		if h, reason = reach(b, f, offset+packet.IPv4Len, packet.DropBadIPv4); reason != packet.DropNone {
			return reason
		}
	}
	ip := (*[packet.IPv4Len]byte)(h[offset:])
	first := binary.BigEndian.Uint64(ip[0:8]) // first 8 bytes of IPv4: version, IHL, TOS, length, ID, fragment
	second := binary.BigEndian.Uint32(ip[8:]) // TTL, protocol, checksum
	headerLen := int(first>>56&15) * 4
	totalLen := int(first >> 32 & 0xffff)
	frameLen := f.Len()
	if first>>60 != 4 || headerLen < packet.IPv4Len || totalLen < headerLen {
		return packet.DropBadIPv4
	}
	if offset+totalLen > frameLen {
		return cutOff(frameLen-offset, packet.DropBadIPv4)
	}
	if offset+totalLen < frameLen {
		b.Trim(f, offset+totalLen)
	}
	f.L3 = uint16(offset)
	proto := uint8(second >> 16)
	k[WIPv4] = binary.BigEndian.Uint64(ip[12:])
	k[WIP] |= uint64(proto)<<56 | first>>48&0xff<<48 | uint64(second>>24)<<40
	if first&0x3fff != 0 { // MF, offset
		f.Flags |= packet.FrameFragment
		k[WIP] |= FragAny << 32
		if first&0x1fff != 0 {
			k[WIP] |= FragLater << 32
			return packet.DropNone
		}
	}
	if proto == packet.ProtoICMPv6 {
		return packet.DropNone
	}
	return extractTransport(b, f, k, offset+headerLen, proto)
}

// leastPayload is the smallest payload of an Ethernet frame in bytes (IEEE 802.3 clause 3.2.8).
// Devices pad shorter frames with zeros.
const leastPayload = 46

// cutOff decides whether to drop a frame whose IP header claims more than the "length" bytes that follow
// in the frame. As in Open vSwitch, such a frame is normally forwarded, and its IP fields are 0. But a
// frame that is so short that a device would pad it is dropped for the reason "short". The padding might
// fill the datagram to the claimed length. The receiver would then accept the datagram, although no flow
// has matched its fields.
func cutOff(length int, short packet.DropReason) packet.DropReason {
	if length < leastPayload {
		return short
	}
	return packet.DropNone
}

// extractTransport parses the transport header of protocol proto at offset. The caller has removed padding
// after the IP datagram or fragment. It passes ICMP only for IPv4 and ICMPv6 only for IPv6.
func extractTransport(b *packet.Batch, f *packet.Frame, k *Key, offset int, proto uint8) packet.DropReason {
	var need int
	switch proto {
	case packet.ProtoTCP:
		need = packet.TCPLen
	case packet.ProtoUDP:
		need = packet.UDPLen
	case packet.ProtoICMP:
		need = packet.ICMPLen
	case packet.ProtoICMPv6:
		need = packet.ICMPv6Len
	case packet.ProtoSCTP:
		need = packet.SCTPLen
	default:
		return packet.DropNone
	}
	h := f.Header()
	if len(h) < offset+need {
		var reason packet.DropReason
		if h, reason = reach(b, f, offset+need, packet.DropBadTransport); reason != packet.DropNone {
			return reason
		}
	}
	l4 := h[offset : offset+need]
	f.L4, f.Proto = uint16(offset), proto
	whole := f.Flags&packet.FrameFragment == 0
	switch proto {
	case packet.ProtoTCP:
		flags := binary.BigEndian.Uint16(l4[12:])
		headerLen := int(flags>>12) * 4
		if headerLen < packet.TCPLen || whole && offset+headerLen > f.Len() {
			return packet.DropBadTransport
		}
		k[WIP] |= uint64(flags & 0xfff)
	case packet.ProtoUDP:
		n := int(binary.BigEndian.Uint16(l4[4:]))
		if n < packet.UDPLen || whole && offset+n > f.Len() {
			return packet.DropBadTransport
		}
	case packet.ProtoICMP:
		k[WL4] |= uint64(l4[0])<<48 | uint64(l4[1])<<32
		return packet.DropNone
	case packet.ProtoICMPv6:
		k[WL4] |= uint64(l4[0])<<48 | uint64(l4[1])<<32
		if (l4[0] == packet.NDSolicitation || l4[0] == packet.NDAdvertisement) && l4[1] == 0 {
			return extractND(b, f, k, offset)
		}
		return packet.DropNone
	}
	k[WL4] |= uint64(binary.BigEndian.Uint32(l4)) << 32
	return packet.DropNone
}
