// SPDX-License-Identifier: Apache-2.0

package differ

import (
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
)

// macOf returns the MAC address of a host. Hosts 1 to 4 are behind the ports with their
// numbers.
func macOf(host int) []byte { return []byte{0x0a, 0, 0, 0, 0, byte(host)} }

func addressOf(host int, six bool) netip.Addr {
	if six {
		return netip.AddrFrom16([16]byte{0: 0xfd, 15: byte(host)})
	}
	return netip.AddrFrom4([4]byte{10, 0, 0, byte(host)})
}

// Numbers of protocols and Ethernet types.
const (
	typeIPv4, typeARP, typeIPv6, typeVLAN, typeQinQ, typeMPLS = 0x0800, 0x0806, 0x86dd, 0x8100, 0x88a8, 0x8847

	protoICMP, protoTCP, protoUDP, protoFragment, protoICMPv6, protoSCTP = 1, 6, 17, 44, 58, 132
)

// TCP flags.
const (
	fin, syn, rst, psh, ack = 1, 2, 4, 8, 16
)

// checksum returns the Internet checksum (RFC 1071) of the parts together.
func checksum(parts ...[]byte) uint16 {
	var sum uint32
	for _, p := range parts { // all but the last have an even length
		for i := 0; i+1 < len(p); i += 2 {
			sum += uint32(p[i])<<8 | uint32(p[i+1])
		}
		if len(p)%2 == 1 {
			sum += uint32(p[len(p)-1]) << 8
		}
	}
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	return ^uint16(sum)
}

// header has the fields of a frame's headers below the transport header.
type header struct {
	from, to  int    // hosts
	outer     []byte // tags and labels, from the Ethernet type on; nil: none
	src, dst  netip.Addr
	tos, ttl  byte
	label     uint32 // IPv6 flow label
	hopByHop  bool   // IPv6
	options   bool   // IPv4
	broadcast bool
}

func newHeader(r *rand.Rand, from, to int, six bool) header {
	h := header{from: from, to: to, src: addressOf(from, six), dst: addressOf(to, six), ttl: 64}
	if r.IntN(4) == 0 {
		h.tos = byte(r.IntN(256))
	}
	if r.IntN(6) == 0 {
		h.ttl = byte(1 + r.IntN(3))
	}
	if r.IntN(8) == 0 {
		h.label = uint32(r.IntN(3))
	}
	h.options = r.IntN(12) == 0
	h.hopByHop = r.IntN(12) == 0
	tag := func(kind uint16) {
		h.outer = binary.BigEndian.AppendUint16(h.outer, kind)
		h.outer = binary.BigEndian.AppendUint16(h.outer, uint16(pick(r, 0, 5, 6, 7)|r.IntN(2)*(r.IntN(8)<<13)))
	}
	switch r.IntN(10) {
	case 0, 1:
		tag(typeVLAN)
	case 2:
		tag(typeQinQ)
		tag(typeVLAN)
	case 3:
		h.outer = binary.BigEndian.AppendUint16(h.outer, typeMPLS)
		n := 1 + r.IntN(2)
		for i := range n {
			entry := uint32(16+r.IntN(3))<<12 | uint32(r.IntN(2))<<9 | uint32(pick(r, 1, 2, 64))
			if i == n-1 {
				entry |= 1 << 8
			}
			h.outer = binary.BigEndian.AppendUint32(h.outer, entry)
		}
	}
	return h
}

// ethernet returns a frame with the header's Ethernet part and this payload.
func (h *header) ethernet(kind uint16, payload []byte) []byte {
	frame := append(macOf(h.to), macOf(h.from)...)
	if h.broadcast {
		copy(frame, []byte{255, 255, 255, 255, 255, 255})
	}
	frame = append(frame, h.outer...)
	if len(h.outer) == 0 || binary.BigEndian.Uint16(h.outer) != typeMPLS {
		frame = binary.BigEndian.AppendUint16(frame, kind)
	}
	return append(frame, payload...)
}

// ip returns a frame with this IP payload, in which finish has set the transport checksum.
func (h *header) ip(proto byte, id uint16, offset int, hasMore bool, payload []byte) []byte {
	if h.src.Is4() {
		size := 20
		if h.options {
			size = 24
		}
		p := make([]byte, size)
		p[0], p[1] = 0x40|byte(size/4), h.tos
		binary.BigEndian.PutUint16(p[2:], uint16(size+len(payload)))
		binary.BigEndian.PutUint16(p[4:], id)
		fragment := uint16(offset / 8)
		if hasMore {
			fragment |= 0x2000
		}
		binary.BigEndian.PutUint16(p[6:], fragment)
		p[8], p[9] = h.ttl, proto
		copy(p[12:], h.src.AsSlice())
		copy(p[16:], h.dst.AsSlice())
		for i := 20; i < size; i++ {
			p[i] = 1 // no operation
		}
		binary.BigEndian.PutUint16(p[10:], checksum(p))
		return h.ethernet(typeIPv4, append(p, payload...))
	}
	p := make([]byte, 40)
	binary.BigEndian.PutUint32(p, 6<<28|uint32(h.tos)<<20|h.label)
	p[6], p[7] = proto, h.ttl
	copy(p[8:], h.src.AsSlice())
	copy(p[24:], h.dst.AsSlice())
	last := 6 // of the next header's number
	if h.hopByHop {
		p = append(p, proto, 0, 1, 4, 0, 0, 0, 0)
		p[last], last = 0, 40
	}
	if offset != 0 || hasMore {
		f := make([]byte, 8)
		f[0] = proto
		binary.BigEndian.PutUint16(f[2:], uint16(offset))
		if hasMore {
			f[3] |= 1
		}
		binary.BigEndian.PutUint32(f[4:], uint32(id))
		p[last] = protoFragment
		p = append(p, f...)
	}
	binary.BigEndian.PutUint16(p[4:], uint16(len(p)-40+len(payload)))
	return h.ethernet(typeIPv6, append(p, payload...))
}

// finish sets the transport checksum in a segment and returns the segment.
func (h *header) finish(proto byte, segment []byte) []byte {
	finishTransport(h.src, h.dst, proto, segment)
	return segment
}

func finishTransport(src, dst netip.Addr, proto byte, segment []byte) {
	at := map[byte]int{protoICMP: 2, protoICMPv6: 2, protoTCP: 16, protoUDP: 6}[proto]
	if at == 0 || len(segment) < at+2 {
		return
	}
	pseudo := append(append(src.AsSlice(), dst.AsSlice()...), 0, 0, 0, proto)
	pseudo = binary.BigEndian.AppendUint32(pseudo, uint32(len(segment)))
	if proto == protoICMP {
		pseudo = nil
	}
	segment[at], segment[at+1] = 0, 0
	sum := checksum(pseudo, segment)
	if sum == 0 && proto == protoUDP {
		sum = 0xffff
	}
	binary.BigEndian.PutUint16(segment[at:], sum)
}

func tcp(src, dst uint16, flags byte, seq, acked uint32, payload []byte) []byte {
	s := make([]byte, 20)
	binary.BigEndian.PutUint16(s, src)
	binary.BigEndian.PutUint16(s[2:], dst)
	binary.BigEndian.PutUint32(s[4:], seq)
	binary.BigEndian.PutUint32(s[8:], acked)
	s[12], s[13] = 5<<4, flags
	binary.BigEndian.PutUint16(s[14:], 8192)
	return append(s, payload...)
}

func udp(src, dst uint16, payload []byte) []byte {
	s := make([]byte, 8)
	binary.BigEndian.PutUint16(s, src)
	binary.BigEndian.PutUint16(s[2:], dst)
	binary.BigEndian.PutUint16(s[4:], uint16(8+len(payload)))
	return append(s, payload...)
}

// echo returns an ICMP echo request or reply.
func echo(six, reply bool, id, seq uint16, payload []byte) []byte {
	kind := byte(8)
	switch {
	case six && reply:
		kind = 129
	case six:
		kind = 128
	case reply:
		kind = 0
	}
	s := []byte{kind, 0, 0, 0}
	s = binary.BigEndian.AppendUint16(s, id)
	s = binary.BigEndian.AppendUint16(s, seq)
	return append(s, payload...)
}

func arp(h header, op uint16) []byte {
	p := []byte{0, 1, 8, 0, 6, 4}
	p = binary.BigEndian.AppendUint16(p, op)
	p = append(append(p, macOf(h.from)...), h.src.AsSlice()...)
	target := macOf(h.to)
	if op == 1 {
		target = make([]byte, 6)
	}
	return h.ethernet(typeARP, append(append(p, target...), h.dst.AsSlice()...))
}

// discovery returns a neighbour solicitation or advertisement.
func discovery(h header, advertisement bool) []byte {
	s := make([]byte, 8)
	s[0] = 135
	option := byte(1)
	target := h.dst
	if advertisement {
		s[0], s[4], option, target = 136, 0x60, 2, h.src
	}
	s = append(s, target.AsSlice()...)
	s = append(append(s, option, 1), macOf(h.from)...)
	h.ttl = 255
	h.hopByHop = false
	return h.ip(protoICMPv6, 0, 0, false, h.finish(protoICMPv6, s))
}

// view is an IP packet inside a frame.
type view struct {
	frame     []byte
	l3, l4    int
	proto     byte
	src, dst  netip.Addr
	fragments bool
}

// parse finds the IP packet of a frame.
func parse(frame []byte) (v view, ok bool) {
	v.frame = append([]byte{}, frame...)
	at := 12
	for at+4 <= len(frame) {
		switch kind := binary.BigEndian.Uint16(frame[at:]); {
		case kind == typeVLAN || kind == typeQinQ:
			at += 4
			continue
		case kind == typeIPv4 && len(frame) >= at+22:
			v.l3 = at + 2
			p := frame[v.l3:]
			v.l4, v.proto = v.l3+int(p[0]&15)*4, p[9]
			v.fragments = binary.BigEndian.Uint16(p[6:])&0x3fff != 0
			v.src, _ = netip.AddrFromSlice(p[12:16])
			v.dst, _ = netip.AddrFromSlice(p[16:20])
			return v, len(frame) >= v.l4+8
		case kind == typeIPv6 && len(frame) >= at+42:
			v.l3 = at + 2
			p := frame[v.l3:]
			v.l4, v.proto = v.l3+40, p[6]
			if v.proto == 0 {
				v.proto, v.l4 = p[40], v.l4+8
			}
			v.fragments = v.proto == protoFragment
			v.src, _ = netip.AddrFromSlice(p[8:24])
			v.dst, _ = netip.AddrFromSlice(p[24:40])
			return v, len(frame) >= v.l4+8
		}
		break
	}
	return v, false
}

// reply returns an answer to the frame, with its addresses and ports exchanged. segment makes
// the answer's transport header from that of the frame.
func reply(frame []byte, segment func(proto byte, old []byte) []byte) []byte {
	v, ok := parse(frame)
	if !ok || v.fragments {
		return nil
	}
	f := v.frame
	old := f[v.l4:]
	f = append([]byte{}, f[:v.l4]...)
	copy(f, v.frame[6:12])
	copy(f[6:], v.frame[:6])
	s := segment(v.proto, old)
	if s == nil {
		return nil
	}
	p := f[v.l3:]
	proto := v.proto
	if v.src.Is4() {
		copy(p[12:], v.dst.AsSlice())
		copy(p[16:], v.src.AsSlice())
		if p[8] < 10 {
			p[8] = 64
		}
		binary.BigEndian.PutUint16(p[2:], uint16(len(p)+len(s)))
		p[10], p[11] = 0, 0
		binary.BigEndian.PutUint16(p[10:], checksum(p))
	} else {
		copy(p[8:], v.dst.AsSlice())
		copy(p[24:], v.src.AsSlice())
		if p[7] < 10 {
			p[7] = 64
		}
		binary.BigEndian.PutUint16(p[4:], uint16(len(p)-40+len(s)))
	}
	finishTransport(v.dst, v.src, proto, s)
	return append(f, s...)
}

// complaint returns an ICMP error about the frame from the frame's destination. The error
// quotes the first bytes of the frame, as many as "quoted" says.
func complaint(frame []byte, quoted int) []byte {
	v, ok := parse(frame)
	if !ok {
		return nil
	}
	packet := v.frame[v.l3:]
	packet = packet[:min(len(packet), quoted)]
	h := header{src: v.dst, dst: v.src, ttl: 64}
	s := []byte{3, 3, 0, 0, 0, 0, 0, 0}
	proto := byte(protoICMP)
	if v.src.Is6() {
		s[0], s[1], proto = 1, 4, protoICMPv6
	}
	f := h.ip(proto, 7, 0, false, h.finish(proto, append(s, packet...)))
	copy(f, v.frame[6:12])
	copy(f[6:], v.frame[:6])
	tags := v.frame[12 : v.l3-2]
	return append(append(append([]byte{}, f[:12]...), tags...), f[12:]...)
}

func pick[T any](r *rand.Rand, list ...T) T { return list[r.IntN(len(list))] }
