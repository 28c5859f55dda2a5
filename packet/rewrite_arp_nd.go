// SPDX-License-Identifier: Apache-2.0

package packet

import "encoding/binary"

// This file rewrites fields of ARP, neighbour discovery and ICMP, and the IPv6 flow label. The rules are
// those of rewrite.go: a rewrite changes nothing if the frame does not have the field.

// arp returns the frame's ARP packet if it is for IPv4 over Ethernet, otherwise nil.
func (f *Frame) arp() []byte {
	h, at := f.Header(), f.typeOffset()
	if at < 0 || at+2+ARPLen > len(h) {
		return nil
	}
	if t := binary.BigEndian.Uint16(h[at:]); t != EtherTypeARP && t != EtherTypeRARP {
		return nil
	}
	arp := h[at+2 : at+2+ARPLen]
	if binary.BigEndian.Uint64(arp)>>16 != 0x0001_0800_0604 { // not ARP for IPv4 over Ethernet
		return nil
	}
	return arp
}

// SetARPOp sets the operation of an ARP packet.
func (f *Frame) SetARPOp(op uint16) {
	if arp := f.arp(); arp != nil {
		binary.BigEndian.PutUint16(arp[6:], op)
	}
}

// SetARPSha sets the sender's hardware address to the low 48 bits of mac.
func (f *Frame) SetARPSha(mac uint64) { f.setARPHardware(8, mac) }

// SetARPTha sets the target's hardware address to the low 48 bits of mac.
func (f *Frame) SetARPTha(mac uint64) { f.setARPHardware(18, mac) }

func (f *Frame) setARPHardware(offset int, mac uint64) {
	if arp := f.arp(); arp != nil {
		putMAC(arp[offset:], mac)
	}
}

// SetARPSpa sets the sender's IPv4 address. The most significant byte of addr is its first byte.
func (f *Frame) SetARPSpa(addr uint32) { f.setARPAddress(14, addr) }

// SetARPTpa sets the target's IPv4 address. The most significant byte of addr is its first byte.
func (f *Frame) SetARPTpa(addr uint32) { f.setARPAddress(24, addr) }

func (f *Frame) setARPAddress(offset int, addr uint32) {
	if arp := f.arp(); arp != nil {
		binary.BigEndian.PutUint32(arp[offset:], addr)
	}
}

func putMAC(b []byte, mac uint64) {
	binary.BigEndian.PutUint16(b, uint16(mac>>32))
	binary.BigEndian.PutUint32(b[2:], uint32(mac))
}

// SetICMPType sets the type of ICMP or ICMPv6.
func (f *Frame) SetICMPType(v uint8) { f.setICMP(0, v) }

// SetICMPCode sets the code of ICMP or ICMPv6.
func (f *Frame) SetICMPCode(v uint8) { f.setICMP(1, v) }

func (f *Frame) setICMP(offset int, v uint8) {
	if f.L4 == 0 || f.Proto != ProtoICMP && f.Proto != ProtoICMPv6 {
		return
	}
	l4 := f.Header()[f.L4:]
	before := binary.BigEndian.Uint16(l4)
	l4[offset] = v
	after := binary.BigEndian.Uint16(l4)
	if f.Proto == ProtoICMPv6 {
		f.mendTransport(before, after)
		return
	}
	binary.BigEndian.PutUint16(l4[2:], MendChecksum(binary.BigEndian.Uint16(l4[2:]), before, after))
}

// Message types, option types and offsets of neighbour discovery (RFC 4861 sections
// 4.3, 4.4 and 4.6.1).
const (
	NDSolicitation  = 135
	NDAdvertisement = 136
	ndSourceLink    = 1
	ndTargetLink    = 2
	ndOptions       = 24 // offset of the options in the ICMPv6 message
)

// nd returns the header buffer from the ICMPv6 header on, or nil if the frame is no neighbour solicitation
// or advertisement.
func (f *Frame) nd() []byte {
	if f.L4 == 0 || f.Proto != ProtoICMPv6 {
		return nil
	}
	l4 := f.Header()[f.L4:]
	if len(l4) < ndOptions || l4[0] != NDSolicitation && l4[0] != NDAdvertisement || l4[1] != 0 {
		return nil
	}
	return l4
}

// SetNDReserved sets the 32 bits between the checksum and the target address of neighbour discovery. The
// upper three bits of an advertisement are the flags R, S and O.
func (f *Frame) SetNDReserved(v uint32) {
	nd := f.nd()
	if nd == nil {
		return
	}
	before := sum32(binary.BigEndian.Uint32(nd[4:]))
	binary.BigEndian.PutUint32(nd[4:], v)
	f.mendTransport(before, sum32(v))
}

// SetNDTarget sets the target address of neighbour discovery from its upper and lower
// 64 bits.
func (f *Frame) SetNDTarget(hi, lo uint64) {
	nd := f.nd()
	if nd == nil {
		return
	}
	target := nd[8:ndOptions]
	before := Sum(target)
	binary.BigEndian.PutUint64(target, hi)
	binary.BigEndian.PutUint64(target[8:], lo)
	f.mendTransport(before, Sum(target))
}

// SetNDSll sets the source link-layer address option, if present, to the low 48 bits
// of mac.
func (f *Frame) SetNDSll(mac uint64) { f.setNDAddress(ndSourceLink, mac) }

// SetNDTll sets the target link-layer address option, if present, to the low 48 bits
// of mac.
func (f *Frame) SetNDTll(mac uint64) { f.setNDAddress(ndTargetLink, mac) }

func (f *Frame) setNDAddress(kind byte, mac uint64) {
	if option := f.ndOption(kind, kind); option != nil {
		before := Sum(option)
		putMAC(option[2:], mac)
		f.mendTransport(before, Sum(option))
	}
}

// SetNDOptionsType sets the type of the first neighbour discovery option that carries a link-layer address,
// if there is one.
func (f *Frame) SetNDOptionsType(kind uint8) {
	if option := f.ndOption(ndSourceLink, ndTargetLink); option != nil {
		before := Sum(option)
		option[0] = kind
		f.mendTransport(before, Sum(option))
	}
}

// ndOption returns the first neighbour discovery option whose type is a or b and whose length is that
// of an Ethernet address. It returns nil if there is none.
func (f *Frame) ndOption(a, b byte) []byte {
	nd := f.nd()
	if nd == nil {
		return nil
	}
	for opts := nd[ndOptions:]; len(opts) >= 8; {
		size := int(opts[1]) * 8
		if size == 0 || size > len(opts) {
			return nil
		}
		if (opts[0] == a || opts[0] == b) && size == 8 {
			return opts[:size]
		}
		opts = opts[size:]
	}
	return nil
}

// SetIPv6Label sets the IPv6 flow label to the low 20 bits of label.
func (f *Frame) SetIPv6Label(label uint32) {
	if ip := f.ipv6(); ip != nil {
		const bits = 0xfffff
		binary.BigEndian.PutUint32(ip, binary.BigEndian.Uint32(ip)&^bits|label&bits)
	}
}
