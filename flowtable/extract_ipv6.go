// SPDX-License-Identifier: Apache-2.0

package flowtable

import (
	"encoding/binary"

	"weft/packet"
)

// maxExtensionHeaders is the largest number of IPv6 extension headers. A frame with more is dropped with
// the reason DropBadIPv6. RFC 8200 section 4.1 allows seven.
const maxExtensionHeaders = 8

func extractIPv6(b *packet.Batch, f *packet.Frame, k *Key, offset int) packet.DropReason {
	h, reason := f.Header(), packet.DropNone
	if len(h) < offset+packet.IPv6Len {
		if h, reason = reach(b, f, offset+packet.IPv6Len, packet.DropBadIPv6); reason != packet.DropNone {
			return reason
		}
	}
	ip := (*[packet.IPv6Len]byte)(h[offset:])
	first := binary.BigEndian.Uint64(ip[0:8]) // first 8 bytes of IPv6: version, traffic class, flow label, payload length, next header, hop limit
	end, frameLen := offset+packet.IPv6Len+int(first>>16&0xffff), f.Len()
	if first>>60 != 6 {
		return packet.DropBadIPv6
	}
	if end > frameLen {
		return cutOff(frameLen-offset, packet.DropBadIPv6)
	}
	if end < frameLen {
		b.Trim(f, end)
	}
	f.L3 = uint16(offset)
	k[WIPv6Src] = binary.BigEndian.Uint64(ip[8:])
	k[WIPv6Src+1] = binary.BigEndian.Uint64(ip[16:])
	k[WIPv6Dst] = binary.BigEndian.Uint64(ip[24:])
	k[WIPv6Dst+1] = binary.BigEndian.Uint64(ip[32:])
	k[WL4] = first >> 32 & 0xfffff
	proto := uint8(first >> 8)
	k[WIP] |= first>>52&0xff<<48 | first&0xff<<40
	offset += packet.IPv6Len
	if isExtension(proto) {
		if offset, proto, reason = walkExtensions(b, f, k, offset, proto); reason != packet.DropNone {
			return reason
		}
	}
	switch proto {
	case packet.ProtoNone:
		k[WL4] |= ExtNoNext << ExtHdrShift
	case packet.ProtoESP:
		k[WL4] |= ExtESP << ExtHdrShift
	}
	k[WIP] |= uint64(proto) << 56
	if proto == packet.ProtoICMP {
		return packet.DropNone
	}
	return extractTransport(b, f, k, offset, proto)
}

func isExtension(proto uint8) bool {
	switch proto {
	case packet.ProtoHopByHop, packet.ProtoRouting, packet.ProtoFragment, packet.ProtoAH, packet.ProtoDestOpts:
		return true
	}
	return false
}

// Bits of the field ipv6_exthdr (OpenFlow 1.3, 7.2.3.8): which extension headers a frame has.
const (
	ExtNoNext      = 1 << iota // no next header
	ExtESP                     // encrypted payload
	ExtAuth                    // authentication header
	ExtDest                    // one or two destination options headers
	ExtFragment                // fragment header
	ExtRouter                  // routing header
	ExtHop                     // hop-by-hop options header
	ExtRepeated                // a header occurs more often than RFC 8200 allows
	ExtUnsequenced             // the headers are not in the order of RFC 8200 section 4.1
	// ExtHdrShift is the number of the lowest bit of ipv6_exthdr in the key's word WL4.
	ExtHdrShift = 20
)

// extensionOrder checks the order of a frame's extension headers (RFC 8200 section 4.1).
type extensionOrder struct {
	seen   uint64 // Ext* bits of the headers so far
	last   int    // highest position in the RFC's order of the headers so far
	second bool   // there were two destination options headers
}

// add returns the Ext* bits to set for the next extension header of the frame, which has type proto.
func (o *extensionOrder) add(proto uint8) uint64 {
	var bit uint64
	var place int
	switch proto {
	case packet.ProtoHopByHop:
		bit, place = ExtHop, 1
	case packet.ProtoRouting:
		bit, place = ExtRouter, 3
	case packet.ProtoFragment:
		bit, place = ExtFragment, 4
	case packet.ProtoAH:
		bit, place = ExtAuth, 5
	default:
		bit, place = ExtDest, 2
		if o.last > place || o.seen&ExtDest != 0 {
			place = 6
		}
	}
	flags := bit
	if o.seen&bit != 0 {
		if bit != ExtDest || o.second {
			flags |= ExtRepeated
		}
		o.second = o.second || bit == ExtDest
	}
	if place < o.last {
		flags |= ExtUnsequenced
	}
	o.seen |= bit
	o.last = max(o.last, place)
	return flags
}

// walkExtensions parses the extension headers from offset on; proto is the type of the first one. It returns
// the offset and the protocol of the header after them. For a fragment other than the first, the protocol is
// 44, as in ovs-fields(7).
func walkExtensions(b *packet.Batch, f *packet.Frame, k *Key, offset int, proto uint8) (int, uint8, packet.DropReason) {
	var order extensionOrder
	for range maxExtensionHeaders {
		h, reason := reach(b, f, offset+8, packet.DropBadIPv6)
		if reason != packet.DropNone {
			return 0, 0, reason
		}
		k[WL4] |= order.add(proto) << ExtHdrShift
		ext := (*[8]byte)(h[offset:])
		n := 8
		switch proto {
		case packet.ProtoFragment:
			if where := binary.BigEndian.Uint16(ext[2:]); where&0xfff9 != 0 { // offset, M
				f.Flags |= packet.FrameFragment
				k[WIP] |= FragAny << 32
				if where&0xfff8 != 0 {
					k[WIP] |= FragLater << 32
					return offset, packet.ProtoFragment, packet.DropNone
				}
			}
		case packet.ProtoAH: // RFC 4302 section 2.2
			n = (int(ext[1]) + 2) * 4
		case packet.ProtoRouting:
			n += int(ext[1]) * 8
			if ext[3] != 0 { // segments left
				f.Flags |= packet.FrameRouted
			}
		default:
			n += int(ext[1]) * 8
		}
		proto = ext[0]
		offset += n
		if offset > f.Len() {
			return 0, 0, packet.DropBadIPv6
		}
		if !isExtension(proto) {
			return offset, proto, packet.DropNone
		}
	}
	return 0, 0, packet.DropBadIPv6
}

// Option types of neighbour discovery (RFC 4861 sections 4.3, 4.4
// and 4.6).
const (
	ndOptSource = 1
	ndOptTarget = 2
	ndHeaderLen = 24
)

// ndTypeMask has the bits of nd_options_type in the key's word WND.
const (
	ndTypeShift = 24
	ndTypeMask  = 0xff << ndTypeShift
)

// extractND parses a neighbour solicitation or advertisement with its options. It returns DropDeepHeader for
// a message that does not fit into the header buffer. If an option is malformed or one with a link-layer
// address occurs twice, nd_target, nd_sll and nd_tll are 0. nd_options_type still has the type of the first
// option with a link-layer address, as in Open vSwitch.
func extractND(b *packet.Batch, f *packet.Frame, k *Key, offset int) packet.DropReason {
	if offset+ndHeaderLen > f.Len() {
		return packet.DropBadTransport
	}
	h, reason := reach(b, f, f.Len(), packet.DropBadTransport)
	if reason != packet.DropNone {
		return reason
	}
	k[WND] = uint64(binary.BigEndian.Uint32(h[offset+4:])) << 32
	opts := h[offset+ndHeaderLen:]
	var sll, tll uint64
	for len(opts) >= 8 {
		n := int(opts[1]) * 8
		if n == 0 || n > len(opts) {
			return packet.DropNone
		}
		address := &sll
		if opts[0] == ndOptTarget {
			address = &tll
		}
		if n == 8 && (opts[0] == ndOptSource || opts[0] == ndOptTarget) {
			if *address != 0 {
				return packet.DropNone
			}
			*address = binary.BigEndian.Uint64(opts) << 16
			if k[WND]&ndTypeMask == 0 {
				k[WND] |= uint64(opts[0]) << ndTypeShift
			}
		}
		opts = opts[n:]
	}
	k[WNDTarget] = binary.BigEndian.Uint64(h[offset+8:])
	k[WNDTarget+1] = binary.BigEndian.Uint64(h[offset+16:])
	k[WARPSha], k[WARPTha] = sll, tll
	return packet.DropNone
}
