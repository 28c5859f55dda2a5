// SPDX-License-Identifier: Apache-2.0

package tunnel

import (
	"encoding/binary"

	"weft/flowtable"
	"weft/packet"
)

// This file has the kinds of tunnels over GRE (RFC 2784, RFC 2890), which has no UDP header. ERSPAN
// types II and III (draft-foschiano-erspan-03) add an ERSPAN header, of version 1 or 2, after the GRE
// header. GRE's key, and ERSPAN's session ID, take the place of the VNI.

// Lengths in bytes of the ERSPAN headers of version 1 and 2, and of the subheader that follows version
// 2 if its bit O is set (draft-foschiano-erspan-03 sections 4.2 and 4.3).
const (
	erspan1Len    = 8
	erspan2Len    = 12
	erspanMoreLen = 8
)

const (
	// greMaxLen is the largest length in bytes of a received GRE header together with an ERSPAN
	// header.
	greMaxLen = packet.GRELen + 3*packet.GREFieldLen + erspan2Len + erspanMoreLen
	// greRefused are the bits that must be 0: flags of RFC 1701, and the version (RFC 2784 section
	// 2.2).
	greRefused = 0x4c07
	// session is the mask of the session ID in the first word of an ERSPAN header.
	session = 0x3ff
	// timestampNS is the unit of ERSPAN's timestamps in nanoseconds, with granularity 0.
	timestampNS = 100_000
)

// HasPort reports whether tunnels of the kind use UDP, and so have a UDP port. Other kinds use GRE.
func (k Kind) HasPort() bool { return k < KindGRE }

// protocol returns the IP protocol of the kind's datagrams.
func (k Kind) protocol() uint8 {
	if k.HasPort() {
		return packet.ProtoUDP
	}
	return packet.ProtoGRE
}

// greLen returns the length in bytes of the GRE header at t.UDP, together with the ERSPAN header. It
// depends on the GRE flags in t.Header.
func (t *Template) greLen() uint16 {
	n := packet.GRE(t.Header[t.UDP:]).Offset(0)
	switch t.Kind {
	case KindERSPAN1:
		n += erspan1Len
	case KindERSPAN2:
		n += erspan2Len
	}
	return uint16(n)
}

// SetClock sets the time that the next ERSPAN headers of version 2 show, in nanoseconds.
func (t *Template) SetClock(nowNS uint64) {
	if t.Kind == KindERSPAN2 {
		t.timestamp = uint32(nowNS / timestampNS)
	}
}

// GREOverhead returns how many bytes longer an IP packet becomes in a tunnel over GRE with the parameters p.
// Overhead returns the same for other tunnels.
func GREOverhead(p *Params) int {
	n := packet.IPv4Len
	if p.Remote.Is6() {
		n = packet.IPv6Len
	}
	return n + len(new(Template).appendGRE(nil, p)) + packet.EthernetLen
}

// appendGRE appends the GRE header, and the ERSPAN header if the kind has one, to h.
func (t *Template) appendGRE(h []byte, p *Params) []byte {
	flags, protocol := uint16(0), uint16(packet.EtherTypeTEB)
	for _, f := range [...]struct {
		enabled bool
		flag    uint16
	}{{p.Checksum, packet.GREChecksum}, {p.Key, packet.GREKey}, {p.Sequence, packet.GRESequence}} {
		if f.enabled {
			flags |= f.flag
		}
	}
	switch p.Kind {
	case KindERSPAN1:
		flags, protocol = packet.GRESequence, packet.EtherTypeERSPAN1
	case KindERSPAN2:
		flags, protocol = packet.GRESequence, packet.EtherTypeERSPAN2
	}
	at := len(h)
	h = binary.BigEndian.AppendUint16(h, flags)
	h = binary.BigEndian.AppendUint16(h, protocol)
	h = append(h, make([]byte, packet.GRE(h[at:]).Offset(0)-packet.GRELen)...)
	switch p.Kind {
	case KindERSPAN1:
		h = binary.BigEndian.AppendUint32(h, 1<<28)
		h = binary.BigEndian.AppendUint32(h, p.Index&0xfffff)
	case KindERSPAN2:
		last := uint32(1<<15) | uint32(p.HardwareID&0x3f)<<4 // the payload is an Ethernet frame
		if p.Egress {
			last |= 1 << 3
		}
		h = binary.BigEndian.AppendUint64(h, 2<<60)
		h = binary.BigEndian.AppendUint32(h, last)
	}
	return h
}

// pushGRE writes those fields of the GRE and ERSPAN headers that differ between datagrams. count is
// the number of datagrams into which the frame will be segmented.
func (t *Template) pushGRE(f *packet.Frame, h []byte, key uint32, count int) {
	f.Offload.Flags |= packet.OffloadGRE
	gre := packet.GRE(h[t.UDP:t.Len])
	flags := gre.Flags()
	if flags&packet.GREChecksum != 0 {
		f.Offload.Flags |= packet.OffloadOuter
	}
	if flags&packet.GREKey != 0 {
		binary.BigEndian.PutUint32(gre[gre.Offset(packet.GREKey):], key)
	}
	if flags&packet.GRESequence != 0 {
		binary.BigEndian.PutUint32(gre[gre.Offset(packet.GRESequence):], t.sequence)
		t.sequence += uint32(count)
	}
	if t.Kind == KindGRE {
		return
	}
	erspan := gre[gre.Offset(0):]
	binary.BigEndian.PutUint16(erspan[2:], uint16(key&session))
	if t.Kind == KindERSPAN2 {
		binary.BigEndian.PutUint32(erspan[4:], t.timestamp)
	}
}

// greHeader has the fields of a received GRE header, and those of the ERSPAN header if there is one.
type greHeader struct {
	key      uint32
	length   int // of both headers, in bytes
	family   uint8
	isSummed bool
}

// parseGRE validates the GRE header at offset of the frame, and an ERSPAN header. end is the offset of
// the end of the IP packet.
func parseGRE(b *packet.Batch, f *packet.Frame, offset, end int) (g greHeader, reason packet.DropReason) {
	b.Pullup(f, min(end, offset+greMaxLen))
	h := f.Header()
	h = h[:min(len(h), end)]
	if len(h) < offset+packet.GRELen {
		return g, packet.DropBadGRE
	}
	gre := packet.GRE(h[offset:])
	flags := gre.Flags()
	g.length, g.isSummed = gre.Offset(0), flags&packet.GREChecksum != 0
	if flags&greRefused != 0 || len(gre) < g.length {
		return g, packet.DropBadGRE
	}
	if flags&packet.GREKey != 0 {
		g.key = binary.BigEndian.Uint32(gre[gre.Offset(packet.GREKey):])
	}
	switch gre.Protocol() {
	case packet.EtherTypeTEB:
		g.family = familyGRE
		return g, packet.DropNone
	case packet.EtherTypeERSPAN1, packet.EtherTypeERSPAN2: // as Linux and Open vSwitch: both types with either version
		g.family = familyERSPAN
	default:
		return g, packet.DropTunnelPayload
	}
	if flags&packet.GRESequence == 0 { // type I, which has no header
		return g, packet.DropTunnelPayload
	}
	if reason = g.parseERSPAN(gre[g.length:]); reason == packet.DropNone && len(gre) < g.length {
		reason = packet.DropBadGRE
	}
	return g, reason
}

// parseERSPAN validates the ERSPAN header at the start of h, and adds its fields and length to g.
func (g *greHeader) parseERSPAN(h []byte) packet.DropReason {
	if len(h) < erspan1Len {
		return packet.DropBadGRE
	}
	g.key = uint32(binary.BigEndian.Uint16(h[2:])) & session
	switch version := h[0] >> 4; {
	case version == 1:
		g.length += erspan1Len
	case version == 2 && len(h) >= erspan2Len && h[11]&1 != 0:
		g.length += erspan2Len + erspanMoreLen
	case version == 2 && len(h) >= erspan2Len:
		g.length += erspan2Len
	default:
		return packet.DropBadGRE
	}
	return packet.DropNone
}

// decapsulateGRE removes the outer headers of a GRE packet. The caller has parsed the outer IP header
// into o. The GRE header begins at o.header.
func (t *Terminations) decapsulateGRE(b *packet.Batch, f *packet.Frame, o *outer, words *[flowtable.TunnelWords]uint64) packet.DropReason {
	g, reason := parseGRE(b, f, o.header, o.end)
	if reason != packet.DropNone {
		return reason
	}
	found := t.find(o.remote, o.local, g.key, greTuple+uint32(g.family))
	if found == nil {
		return packet.DropNoTunnelPort
	}
	if o.end < f.Len() {
		b.Trim(f, o.end)
	}
	if g.isSummed && !f.Undone() && b.SumFrom(f, o.header) != 0xffff {
		return packet.DropBadGRE
	}
	f.Pull(o.header + g.length)
	f.L3, f.L4 = 0, 0
	*words = [flowtable.TunnelWords]uint64{uint64(g.key)}
	return t.arrive(b, f, o, found, words)
}
