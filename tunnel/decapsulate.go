// SPDX-License-Identifier: Apache-2.0

package tunnel

import (
	"encoding/binary"

	"weft/flowtable"
	"weft/packet"
)

// outer has the data from the outer headers of a received frame that Decapsulate needs.
type outer struct {
	header        int // offset of the tunnel header in the frame
	end           int // end of the IP packet, if it is GRE
	remote, local [2]uint64
	tos, ttl      uint8
	udpPort       uint16
	family        uint8 // family of kinds of tunnels that use the UDP port; familyGRE for a GRE packet
	v6            bool
}

// Decapsulate validates and removes the outer headers of a frame from an uplink. It sets f.InPort to the
// tunnel's port. It writes the tunnel fields for the frame's flow key to words. The caller stores the words
// in the key after Extract. It moves Geneve options from the frame to options, and writes their hash to
// words. It merges the outer ECN field into the inner IP header (RFC 6040 section 4.2). If it returns a drop
// reason, InPort is still the uplink.
//
// If the tunnel uses BFD and the inner frame is addressed to BFDAddress, Decapsulate returns packet.Consumed,
// which is no drop reason. words[0] then also has the outer TTL, at OuterTTLShift.
//
// Decapsulate does not verify the outer UDP checksum, as RFC 7348 section 5 allows. It verifies a GRE
// checksum, unless the frame is large or its inner checksum is unfinished. It drops outer fragments as
// DropBadOuter (RFC 7348 section 4.3).
func (t *Terminations) Decapsulate(b *packet.Batch, f *packet.Frame, words *[flowtable.TunnelWords]uint64, options *flowtable.TunOptions) packet.DropReason {
	var o outer
	if reason := t.parseOuter(b, f, &o); reason != packet.DropNone {
		if reason == isGRE {
			return t.decapsulateGRE(b, f, &o, words)
		}
		return reason
	}
	header := binary.BigEndian.Uint64(f.Header()[o.header:])
	d := &families[o.family&(1<<portBits-1)]
	if header&d.mask != d.want {
		return d.bad
	}
	vni := uint32(header>>8) & 0xffffff
	end := t.find(o.remote, o.local, vni, uint32(o.udpPort))
	if end == nil {
		return packet.DropNoTunnelPort
	}
	if header&d.hasNext == d.hasNext && header&d.nextMask != d.next {
		return packet.DropTunnelPayload
	}
	if end.Extensions != ExtIgnore && !allowed(header, end.Extensions) {
		return packet.DropBadVXLAN
	}
	f.Pull(o.header + HeaderLen)
	f.L3, f.L4 = 0, 0
	*words = [flowtable.TunnelWords]uint64{uint64(vni)}
	if end.Kind != KindVXLAN {
		if reason := t.readFields(b, f, end.Kind, header, words, options); reason != packet.DropNone {
			return reason
		}
	}
	return t.arrive(b, f, &o, end, words)
}

// arrive finishes the decapsulation of a frame whose outer headers are removed: it merges ECN, and
// sets the frame's input port and the addresses in words.
func (t *Terminations) arrive(b *packet.Batch, f *packet.Frame, o *outer, end *Termination, words *[flowtable.TunnelWords]uint64) packet.DropReason {
	if reason := mergeECN(b, f, o.tos); reason != packet.DropNone {
		return reason
	}
	f.InPort = end.Port
	if o.v6 {
		words[2], words[3], words[4], words[5] = o.remote[0], o.remote[1], o.local[0], o.local[1]
	} else {
		words[1] = o.remote[1]<<32 | o.local[1]&0xffffffff
	}
	if end.BFD && toBFD(b, f) {
		words[0] |= uint64(o.ttl) << OuterTTLShift
		return packet.Consumed
	}
	return packet.DropNone
}

// readFields moves Geneve options from the frame, which begins after the tunnel header, to options. It
// writes the hash of the options, and the group policy and flags of the tunnel header, to words.
func (t *Terminations) readFields(b *packet.Batch, f *packet.Frame, kind Kind, header uint64, words *[flowtable.TunnelWords]uint64, options *flowtable.TunOptions) packet.DropReason {
	const hash, meta = flowtable.WTunOpts - flowtable.WTunID, flowtable.WTunMeta - flowtable.WTunID
	words[meta] = metaOf(kind, header)
	n := 4 * int(uint8(header>>56)&families[kinds[kind%kindEnd].family].optionWords)
	if n == 0 {
		return packet.DropNone
	}
	hasCritical, ok := takeOptions(b, f, options, n)
	if !ok {
		return packet.DropBadGeneve
	}
	words[hash] = t.OptionsKey.Hash(options.Raw())
	if hasCritical {
		words[meta] |= flowtable.TunCritical
	}
	return packet.DropNone
}

// takeOptions moves the first n bytes of the frame, which are Geneve options, to options. ok is false
// if the frame is shorter, or if the lengths of the options do not add up to n.
func takeOptions(b *packet.Batch, f *packet.Frame, options *flowtable.TunOptions, n int) (hasCritical, ok bool) {
	if !b.Strip(f, options.Bytes[:n]) {
		return false, false
	}
	options.Len = uint32(n)
	return checkOptions(options.Raw())
}

// OuterTTLShift is the lowest bit of the outer TTL in words[0] after Decapsulate. Only BFD packets have the
// TTL there.
const OuterTTLShift = 32

// BFDAddress is the destination MAC address of BFD packets in a tunnel, which is Open vSwitch's
// default (ovs-vswitchd.conf.db(5), bfd_local_dst_mac).
const BFDAddress = 0x002320000001

func toBFD(b *packet.Batch, f *packet.Frame) bool {
	return b.Pullup(f, packet.EthernetLen) && binary.BigEndian.Uint64(f.Header())>>16 == BFDAddress
}

// isGRE is the result with which parseOuter reports a GRE packet. It is no drop reason.
const isGRE = packet.Consumed

// parseOuter validates the outer Ethernet, IP and UDP headers and trims the frame to the UDP datagram.
// It returns DropNotTunnel if no tunnel uses the UDP destination port. For GRE it validates the
// Ethernet and IP headers, and returns isGRE, or DropNotTunnel if no tunnel uses GRE.
func (t *Terminations) parseOuter(b *packet.Batch, f *packet.Frame, o *outer) packet.DropReason {
	h := f.Header()
	if len(h) < maxOuter {
		b.Pullup(f, min(f.Len(), maxOuter))
		h = f.Header()
	}
	if len(h) < packet.EthernetLen {
		return packet.DropRuntFrame
	}
	etherType, off := packet.Ethernet(h).Type(), packet.EthernetLen
	if packet.IsVLAN(etherType) {
		if len(h) < off+packet.VLANLen {
			return packet.DropBadVLAN
		}
		etherType, off = binary.BigEndian.Uint16(h[16:]), off+packet.VLANLen
	}
	var end int
	var reason packet.DropReason
	switch etherType {
	case packet.EtherTypeIPv4:
		off, end, reason = o.parseIPv4(b, f, off)
	case packet.EtherTypeIPv6:
		off, end, reason = o.parseIPv6(f, off)
	default:
		return packet.DropNotTunnel
	}
	if reason != packet.DropNone {
		o.header, o.end = off, end
		if reason == isGRE && !t.hasGRE {
			return packet.DropNotTunnel
		}
		return reason
	}
	if off+packet.UDPLen > end {
		return packet.DropBadOuter
	}
	if h = f.Header(); len(h) < off+packet.UDPLen+HeaderLen { // the frame is truncated, or long IP options leave no room in the header buffer
		b.Pullup(f, min(f.Len(), off+packet.UDPLen+HeaderLen))
		if h = f.Header(); len(h) < off+packet.UDPLen {
			return packet.DropBadOuter
		}
	}
	udp := packet.UDP(h[off : off+packet.UDPLen])
	o.udpPort = udp.DstPort()
	if o.family = t.family(o.udpPort); o.family == 0 {
		return packet.DropNotTunnel
	}
	n := udp.Len()
	if n < packet.UDPLen+HeaderLen || off+n > end || len(h) < off+packet.UDPLen+HeaderLen {
		return packet.DropBadOuter
	}
	if off+n < f.Len() {
		b.Trim(f, off+n)
	}
	o.header = off + packet.UDPLen
	return packet.DropNone
}

// mapped is the last word of the prefix of IPv4-mapped IPv6 addresses (RFC 4291 section 2.5.5.2).
const mapped = 0xffff

// parseIPv4 validates the outer IPv4 header at offset. It returns the offset of the UDP header and that of
// the end of the packet. For a GRE packet, the reason is isGRE, and udp is the offset of the GRE header.
func (o *outer) parseIPv4(b *packet.Batch, f *packet.Frame, offset int) (udp, end int, reason packet.DropReason) {
	h := f.Header()
	if len(h) < offset+packet.IPv4Len {
		return 0, 0, packet.DropBadOuter
	}
	ip := packet.IPv4(h[offset : offset+packet.IPv4Len])
	n, total := ip.HeaderLen(), ip.TotalLen()
	if ip.Version() != 4 || n < packet.IPv4Len || total < n || offset+total > f.Len() {
		return 0, 0, packet.DropBadOuter
	}
	proto := ip.Proto()
	if proto != packet.ProtoUDP {
		if proto != packet.ProtoGRE {
			return 0, 0, packet.DropNotTunnel
		}
		reason = isGRE
	}
	if n > packet.IPv4Len { // the checksum covers the options
		if !b.Pullup(f, offset+n) {
			return 0, 0, packet.DropBadOuter
		}
		ip = packet.IPv4(f.Header()[offset : offset+n])
	}
	if ip.FlagsFrag()&0x3fff != 0 || packet.Sum(ip) != 0xffff {
		return 0, 0, packet.DropBadOuter
	}
	o.remote[1], o.local[1] = mapped<<32|uint64(ip.Src()), mapped<<32|uint64(ip.Dst())
	o.tos, o.ttl = ip.TOS(), ip.TTL()
	return offset + n, offset + total, reason
}

// parseIPv6 validates the outer IPv6 header at offset, with the results of parseIPv4. It accepts no
// extension headers except for 8 bytes of destination options before GRE, because tunnel endpoints
// send no others.
func (o *outer) parseIPv6(f *packet.Frame, offset int) (udp, end int, reason packet.DropReason) {
	h := f.Header()
	if len(h) < offset+packet.IPv6Len {
		return 0, 0, packet.DropBadOuter
	}
	ip := packet.IPv6(h[offset : offset+packet.IPv6Len])
	end = offset + packet.IPv6Len + ip.PayloadLen()
	if ip.Version() != 6 || end > f.Len() {
		return 0, 0, packet.DropBadOuter
	}
	offset += packet.IPv6Len
	if ip.NextHeader() != packet.ProtoUDP {
		switch limit := h[offset:min(len(h), offset+packet.TunnelLimitLen)]; {
		case ip.NextHeader() == packet.ProtoGRE:
		case ip.NextHeader() == packet.ProtoDestOpts && len(limit) == packet.TunnelLimitLen && limit[0] == packet.ProtoGRE && limit[1] == 0:
			offset += packet.TunnelLimitLen
		default:
			return 0, 0, packet.DropNotTunnel
		}
		reason = isGRE
	}
	o.remote[0], o.remote[1] = ip.Src()
	o.local[0], o.local[1] = ip.Dst()
	o.v6 = true
	o.tos, o.ttl = ip.TrafficClass(), ip.HopLimit()
	return offset, end, reason
}
