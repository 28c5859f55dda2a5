// SPDX-License-Identifier: Apache-2.0

package flowtable

import (
	"encoding/binary"

	"weft/packet"
)

type extracted struct {
	key    Key
	reason packet.DropReason
	l3, l4 int
	proto  uint8
	length int // length of the frame after trimming
	flags  uint32
}

// slowExtract is a reference implementation of Extract on contiguous frames.
func slowExtract(data []byte, inPort uint32) (x extracted) {
	p := slowParser{data: data, x: &x}
	x.key[WPort] = uint64(inPort) << 32
	p.ethernet()
	x.reason, x.length = p.reason, len(p.data)
	return x
}

type slowParser struct {
	data   []byte
	offset int
	x      *extracted
	reason packet.DropReason

	proto, tos, ttl, frag uint64
	tci2, tcpFlags        uint64
	tpSrc, tpDst, label   uint64
	v6                    bool
	extensions            []uint64 // protocol numbers of the IPv6 extension headers
}

// hasBytes reports whether n more bytes of the frame exist and fit into the header buffer. If they do not
// exist, it records the drop reason "short".
func (p *slowParser) hasBytes(n int, short packet.DropReason) bool {
	if p.offset+n > len(p.data) {
		p.reason = short
	} else if p.offset+n > packet.MaxHeader {
		p.reason = packet.DropDeepHeader
	}
	return p.reason == packet.DropNone
}

func (p *slowParser) u8(offset int) uint64  { return uint64(p.data[p.offset+offset]) }
func (p *slowParser) u16(offset int) uint64 { return p.u8(offset)<<8 | p.u8(offset+1) }
func (p *slowParser) u32(offset int) uint64 { return p.u16(offset)<<16 | p.u16(offset+2) }
func (p *slowParser) u48(offset int) uint64 { return p.u16(offset)<<32 | p.u32(offset+2) }
func (p *slowParser) u64(offset int) uint64 { return p.u32(offset)<<32 | p.u32(offset+4) }

func (p *slowParser) ethernet() {
	if !p.hasBytes(14, packet.DropRuntFrame) {
		return
	}
	dst, src, etherType, tci := p.u48(0), p.u48(6), p.u16(12), uint64(0)
	p.offset = 14
	for n := 0; n < 2 && (etherType == 0x8100 || etherType == 0x88a8); n++ {
		if !p.hasBytes(4, packet.DropBadVLAN) {
			return
		}
		if n == 0 {
			tci = p.u16(0) | 0x1000
		} else {
			p.tci2 = p.u16(0) | 0x1000
		}
		etherType = p.u16(2)
		p.offset += 4
	}
	if etherType < 0x600 {
		etherType = 0x05ff
		if p.offset+8 <= len(p.data) {
			if !p.hasBytes(8, packet.DropNone) {
				return
			}
			if p.u48(0) == 0xaaaa03000000 && p.u16(6) >= 0x600 {
				etherType = p.u16(6)
				p.offset += 8
			}
		}
	}
	switch etherType {
	case 0x0800:
		p.ipv4()
	case 0x86dd:
		p.ipv6()
	case 0x0806, 0x8035:
		p.arp()
	case 0x8847, 0x8848, 0x88e7:
		length := 4
		if etherType == 0x88e7 {
			length += 14
		}
		if p.hasBytes(length, packet.DropRuntFrame) {
			p.x.key[WIPv4] = p.u32(0) << 32
		}
	case 0x894f:
		p.nsh()
	}
	k := &p.x.key
	k[WEthDst] = dst<<16 | etherType
	k[WEthSrc] = src<<16 | tci
	k[WIP] = p.proto<<56 | p.tos<<48 | p.ttl<<40 | p.frag<<32 | p.tci2<<16 | p.tcpFlags
	k[WL4] = p.tpSrc<<48 | p.tpDst<<32 | p.label | p.exthdr()<<20
}

func (p *slowParser) nsh() {
	if !p.hasBytes(8, packet.DropRuntFrame) {
		return
	}
	length, kind := int(p.u8(1)%64*4), p.u8(2)%16
	if p.u8(0)>>6 != 0 || length < 8 || kind == 1 && length != 24 || p.offset+length > len(p.data) {
		p.reason = packet.DropBadNSH
		return
	}
	if kind == 1 && !p.hasBytes(24, packet.DropBadNSH) {
		return
	}
	flags, ttl := p.u8(0)>>4&3, p.u16(0)>>6&63
	p.x.key[WIPv4] = flags<<56 | ttl<<48 | kind<<40 | p.u8(3)<<32 | p.u32(4)
	if kind == 1 {
		p.x.key[WIPv6Src], p.x.key[WIPv6Src+1] = p.u64(8), p.u64(16)
	}
}

// exthdr returns the field ipv6_exthdr: a bit for each kind of extension header, and bits that say whether a
// header is repeated and whether the headers are in the order of RFC 8200.
func (p *slowParser) exthdr() (bits uint64) {
	if !p.v6 {
		return 0
	}
	count := map[uint64]int{}
	for _, e := range p.extensions {
		count[e]++
		bits |= map[uint64]uint64{0: 1 << 6, 43: 1 << 5, 44: 1 << 4, 51: 1 << 2, 60: 1 << 3}[e]
	}
	for e, n := range count {
		if n > 2 || n == 2 && e != 60 {
			bits |= 1 << 7
		}
	}
	at := 0 // position in the allowed order that the headers have reached
	for _, e := range p.extensions {
		found := false
		for k, allowed := range []uint64{0, 60, 43, 44, 51, 60} {
			if e == allowed && k >= at && !found {
				at, found = k, true
				if e == 60 && k == 1 {
					at = 2
				}
			}
		}
		if !found {
			bits |= 1 << 8
		}
	}
	switch p.proto {
	case 59:
		bits |= 1 << 0
	case 50:
		bits |= 1 << 1
	}
	return bits
}

func (p *slowParser) arp() {
	if !p.hasBytes(8, packet.DropBadARP) || p.u32(0) != 1<<16|0x0800 {
		return
	}
	if !p.hasBytes(28, packet.DropBadARP) {
		return
	}
	if p.u8(4) != 6 || p.u8(5) != 4 {
		p.reason = packet.DropBadARP
		return
	}
	if p.u16(6) < 256 {
		p.proto = p.u16(6)
	}
	p.x.key[WARPSha] = p.u48(8) << 16
	p.x.key[WIPv4] = p.u32(14)<<32 | p.u32(24)
	p.x.key[WARPTha] = p.u48(18) << 16
}

func (p *slowParser) ipv4() {
	if !p.hasBytes(20, packet.DropBadIPv4) {
		return
	}
	header, total := int(p.u8(0)%16*4), int(p.u16(2))
	rest := len(p.data) - p.offset
	if p.u8(0)/16 != 4 || header < 20 || total < header || total > rest && rest < 46 {
		p.reason = packet.DropBadIPv4
		return
	}
	if total > rest {
		return
	}
	p.data = p.data[:p.offset+total]
	p.x.l3 = p.offset
	p.tos, p.ttl, p.proto = p.u8(1), p.u8(8), p.u8(9)
	p.x.key[WIPv4] = p.u64(12)
	more, offset := p.u16(6)&0x2000 != 0, p.u16(6)&0x1fff
	p.offset += header
	p.fragment(more, offset != 0)
	if p.proto != 58 {
		p.transport()
	}
}

func (p *slowParser) fragment(continued, later bool) {
	if continued || later {
		p.frag = 1
		p.x.flags = packet.FrameFragment
	}
	if later {
		p.frag = 3
	}
}

func (p *slowParser) ipv6() {
	if !p.hasBytes(40, packet.DropBadIPv6) {
		return
	}
	total := 40 + int(p.u16(4))
	rest := len(p.data) - p.offset
	if p.u8(0)/16 != 6 || total > rest && rest < 46 {
		p.reason = packet.DropBadIPv6
		return
	}
	if total > rest {
		return
	}
	p.data = p.data[:p.offset+total]
	p.x.l3 = p.offset
	p.tos, p.label, p.ttl, p.proto = p.u16(0)>>4&0xff, p.u32(0)&0xfffff, p.u8(7), p.u8(6)
	for i := range 4 {
		p.x.key[WIPv6Src+i] = p.u64(8 + 8*i)
	}
	p.v6 = true
	p.offset += 40
	for n := 0; p.frag&2 == 0; n++ {
		isExt := p.proto == 0 || p.proto == 43 || p.proto == 44 || p.proto == 51 || p.proto == 60
		if !isExt {
			break
		}
		if n == 8 {
			p.reason = packet.DropBadIPv6
			return
		}
		if !p.hasBytes(8, packet.DropBadIPv6) {
			return
		}
		p.extensions = append(p.extensions, p.proto)
		size := 8 + 8*int(p.u8(1))
		switch p.proto {
		case 43:
			if p.u8(3) > 0 {
				p.x.flags |= packet.FrameRouted
			}
		case 44:
			size = 8
			flags := p.x.flags
			p.fragment(p.u16(2)&1 != 0, p.u16(2)>>3 != 0)
			p.x.flags |= flags
		case 51:
			size = 8 + 4*int(p.u8(1))
		}
		if p.frag&2 != 0 {
			p.proto = 44
			return
		}
		if p.offset+size > len(p.data) {
			p.reason = packet.DropBadIPv6
			return
		}
		p.proto = p.u8(0)
		p.offset += size
	}
	if p.proto != 1 {
		p.transport()
	}
}

func (p *slowParser) transport() {
	size, known := map[uint64]int{1: 8, 6: 20, 17: 8, 58: 4, 132: 12}[p.proto]
	if !known || p.frag&2 != 0 || !p.hasBytes(size, packet.DropBadTransport) {
		return
	}
	p.x.l4, p.x.proto = p.offset, uint8(p.proto)
	rest := len(p.data) - p.offset
	p.tpSrc, p.tpDst = p.u16(0), p.u16(2)
	switch p.proto {
	case 1, 58:
		p.tpSrc, p.tpDst = p.u8(0), p.u8(1)
		if p.proto == 58 && (p.u8(0) == 135 || p.u8(0) == 136) && p.u8(1) == 0 {
			p.nd(rest)
		}
	case 6:
		header := int(p.u8(12) / 16 * 4)
		if header < 20 || p.frag == 0 && header > rest {
			p.reason = packet.DropBadTransport
		}
		p.tcpFlags = p.u16(12) & 0xfff
	case 17:
		if n := int(p.u16(4)); n < 8 || p.frag == 0 && n > rest {
			p.reason = packet.DropBadTransport
		}
	}
}

func (p *slowParser) nd(rest int) {
	if rest < 24 {
		p.reason = packet.DropBadTransport
		return
	}
	if !p.hasBytes(rest, packet.DropNone) {
		return
	}
	p.x.key[WND] = p.u32(4) << 32
	var addresses [3]uint64
	for at := 24; rest-at >= 8; {
		kind, size := p.u8(at), 8*int(p.u8(at+1))
		if size == 0 || size > rest-at {
			return
		}
		if size == 8 && (kind == 1 || kind == 2) {
			if addresses[kind] != 0 {
				return
			}
			if p.x.key[WND]<<32 == 0 {
				p.x.key[WND] |= kind << 24
			}
			addresses[kind] = binary.BigEndian.Uint64(p.data[p.offset+at:]) << 16
		}
		at += size
	}
	p.x.key[WNDTarget], p.x.key[WNDTarget+1] = p.u64(8), p.u64(16)
	p.x.key[WARPSha], p.x.key[WARPTha] = addresses[1], addresses[2]
}
