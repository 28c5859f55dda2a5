// SPDX-License-Identifier: Apache-2.0

package tunnel

import (
	"encoding/binary"
	"math/bits"

	"weft/flowtable"
	"weft/packet"
)

// Push writes the outer headers before the frame. vni is the VNI or, for a kind over GRE, the key or
// session ID. hash, which FlowHash returns, selects the UDP source port. The outer TOS gets the ECN
// bits of innerTOS (RFC 6040 section 4.1, normal mode), or all its bits if the tunnel inherits TOS. x
// has further tunnel fields; nil: none. Push ignores fields that the kind of tunnel does not have.
//
// If the template is not in state TemplateReady, Push returns the drop reason for its state. Push
// changes the frame only if it returns DropNone. Pop undoes Push.
func (t *Template) Push(f *packet.Frame, vni, hash uint32, innerTOS uint8, x *Fields) packet.DropReason {
	if t.State != TemplateReady {
		return t.reason()
	}
	n := t.Outer(x)
	if f.SegmentLen()+n > int(t.MTU) {
		return packet.DropTooBigForTunnel
	}
	count, ttl := uint16(f.SegmentCount()), uint8(0)
	if t.Inherit&inheritTTL != 0 {
		ttl = innerTTL(f, t.TTL)
	}
	if t.Inherit&inheritTOS == 0 {
		innerTOS &= 3
	}
	h := f.Push(n)
	if h == nil {
		return packet.DropNoHeadroom
	}
	copy(h, t.Header[:t.Len])
	f.OuterL3, f.OuterL4 = t.IP, t.UDP
	// A large frame may be longer than 16 bits can say. Segmenter then writes the lengths of the
	// segments.
	length := f.Len()
	if t.Kind < KindGRE {
		udp := packet.UDP(h[t.UDP : t.UDP+packet.UDPLen])
		udp.SetSrcPort(t.PortBase + uint16(uint64(hash)*uint64(t.PortRange)>>32))
		udp.SetLen(length - int(t.UDP))
		if udp.Checksum() != 0 {
			f.Offload.Flags |= packet.OffloadOuter
		}
		binary.BigEndian.PutUint32(h[t.Encap+4:], vni<<8)
		if x != nil {
			t.pushFields(h[t.Encap:], x)
		}
	} else {
		t.pushGRE(f, h, vni, int(count))
	}
	if ip := h[t.IP:t.UDP]; len(ip) == packet.IPv4Len {
		t.finishIPv4(ip, length-int(t.IP), innerTOS, ttl, count)
	} else {
		ip := packet.IPv6(ip)
		ip.SetPayloadLen(length - int(t.UDP))
		ip[0] |= innerTOS >> 4
		ip[1] |= innerTOS << 4
		ip[7] |= ttl
	}
	return packet.DropNone
}

// SetOuterTTL changes the outer TTL or hop limit of a frame after Push.
func (t *Template) SetOuterTTL(f *packet.Frame, ttl uint8) {
	h := f.Header()[t.IP:t.UDP]
	if len(h) != packet.IPv4Len {
		h[7] = ttl
		return
	}
	ip := packet.IPv4(h)
	ip[8] = ttl
	ip.SetChecksum(0)
	ip.SetChecksum(packet.Checksum(ip))
}

// finishIPv4 writes the outer IPv4 fields that differ between datagrams. The checksum field already has the
// sum over the constant fields. tos and ttl are the bits that the outer header inherits. count is the number
// of datagrams into which the frame will be segmented.
func (t *Template) finishIPv4(ip packet.IPv4, length int, tos, ttl uint8, count uint16) {
	sum := uint32(ip.Checksum()) + uint32(length) + uint32(tos) + uint32(ttl)<<8
	ip[1] |= tos
	ip[8] |= ttl
	ip.SetTotalLen(length)
	if ip.FlagsFrag()&flagDF == 0 {
		ip.SetID(t.ID)
		sum += uint32(t.ID)
		t.ID += count
	}
	sum = sum>>16 + sum&0xffff
	ip.SetChecksum(^uint16(sum>>16 + sum))
}

func (t *Template) reason() packet.DropReason {
	switch t.State {
	case TemplatePending, TemplateNoNeighbour:
		return packet.DropNoNeighbour
	}
	return packet.DropNoRoute
}

// Pop removes the outer headers that Push has written.
func (t *Template) Pop(f *packet.Frame) {
	n := int(t.Len)
	if t.Kind == KindGeneve {
		n += 4 * int(f.Header()[t.Encap]&families[familyGeneve].optionWords)
	}
	f.Pull(n)
	f.Offload.Flags &^= packet.OffloadOuter | packet.OffloadGRE
	f.OuterL3, f.OuterL4 = 0, 0
}

// InnerTOS returns the TOS or traffic class of the frame's IP header; 0: there is none. It must be
// called before Push, which changes the meaning of f.L3.
func InnerTOS(f *packet.Frame) uint8 {
	if f.L3 == 0 {
		return 0
	}
	ip := f.Header()[f.L3:]
	if len(ip) < packet.IPv4Len {
		return 0
	}
	if ip[0]>>4 == 4 {
		return packet.IPv4(ip).TOS()
	}
	return packet.IPv6(ip).TrafficClass()
}

// innerTTL returns the TTL or hop limit of the frame's IP header, or fallback if there is none.
func innerTTL(f *packet.Frame, fallback uint8) uint8 {
	if f.L3 == 0 {
		return fallback
	}
	ip := f.Header()[f.L3:]
	if len(ip) < packet.IPv4Len {
		return fallback
	}
	if ip[0]>>4 == 4 {
		return ip[8]
	}
	return ip[7]
}

// FlowHash returns a hash of the frame's connection. For a fragment, it is a hash of the addresses only.
// Every process computes the same hash. A guest can choose frames with a wanted hash. The hash only selects
// the path in the underlay, so this does no harm.
func FlowHash(k *flowtable.Key) uint32 {
	ports, proto := k[flowtable.WL4]>>32, k[flowtable.WIP]>>56
	if k.IsFragment() {
		ports, proto = 0, 0 // later fragments have no ports, and over IPv6 their protocol is 44
	}
	acc := mix(k[flowtable.WIPv4]^0x2d358dccaa6c78a5, ports<<8^proto^0x8bb84b93962eacc9)
	if k.EtherType() != packet.EtherTypeIPv4 {
		acc ^= mix(k[flowtable.WEthDst]^0x4b33a62ed433d4a3, k[flowtable.WEthSrc]&^0xffff^0x4d5a2da51de1aa47)
		acc ^= mix(k[flowtable.WIPv6Src]^0xa0761d6478bd642f, k[flowtable.WIPv6Src+1]^0xe7037ed1a0b428db)
		acc ^= mix(k[flowtable.WIPv6Dst]^0x8ebc6af09c88c6e3, k[flowtable.WIPv6Dst+1]^0x589965cc75374cc3)
	}
	return uint32(mix(acc, 0x9e3779b97f4a7c15) >> 32)
}

func mix(a, b uint64) uint64 {
	hi, lo := bits.Mul64(a, b)
	return hi ^ lo
}
