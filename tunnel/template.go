// SPDX-License-Identifier: Apache-2.0

// Package tunnel implements VXLAN (RFC 7348), VXLAN-GPE, Geneve (RFC 8926), GRE (RFC 2784) and ERSPAN. It has
// the templates from which a worker writes outer headers, and the table in which it finds the tunnel of a
// received frame. The differences between the kinds are in kind.go and gre.go.
package tunnel

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"weft/packet"
)

// maxOuter is the largest length of the outer headers in bytes, without Geneve options: Ethernet 14,
// VLAN 4, IPv6 40, UDP 8 and tunnel header 8, or GRE and ERSPAN 20, rounded up.
const maxOuter = 80

// Template states.
const (
	// TemplateFree: the tunnel does not exist. Its frames are dropped as DropNoRoute.
	TemplateFree uint32 = iota
	// TemplatePending: the control process is resolving the next hop. Meanwhile the worker holds the tunnel's
	// frames.
	TemplatePending
	// TemplateReady: Header is complete.
	TemplateReady
	// TemplateNoRoute and TemplateNoNeighbour: the remote address has no route, or the MAC address of the next
	// hop is unknown. The tunnel's frames are dropped as DropNoRoute or DropNoNeighbour.
	TemplateNoRoute
	TemplateNoNeighbour
	// TemplateSpread: the underlay has several next hops. Header then has no headers, but NextHops indexes of
	// other templates. Each index stands for one range of hash values; see NextHop.
	TemplateSpread
)

// NextHops is the number of template indexes in a template in state TemplateSpread. The index of a next hop
// with a larger weight occurs more often.
const NextHops = 16

// Template is the outer header of one tunnel (local address, remote address, uplink). The control process
// updates it when the kernel's routes and neighbours change.
type Template struct {
	State uint32
	Port  uint32 // datapath port of the uplink
	// Len is the number of bytes of Header in use. IP, UDP and Encap are the offsets of the outer IP
	// header, the UDP header and the tunnel header in it. In kinds over GRE, UDP and Encap are both
	// the offset of the GRE header.
	Len, IP, UDP, Encap uint16
	// MTU is the uplink's MTU in bytes, Ethernet header included.
	MTU uint16
	// PortBase and PortRange say how the UDP source port follows from the hash of the inner flow: it
	// is PortBase plus the hash scaled to 0..PortRange-1. Both are 0 in kinds over GRE.
	PortBase, PortRange uint16
	// ID is the IPv4 identification of the next datagram. It matters only if DF is not set (RFC 6864 section 4).
	ID uint16
	// Inherit has a bit for each outer field that is copied from the inner IP header.
	Inherit uint16
	// Header has the bytes that are equal in all datagrams: addresses, ports, flags, TTL, DSCP. Fields that Push
	// writes are 0. The field of the IPv4 checksum has the sum over the header, not inverted. The field of the
	// UDP checksum is 0 if the tunnel sends no UDP checksums. Otherwise it has the sum over the pseudo header
	// without the length.
	Header [maxOuter]byte
	// TTL is the outer TTL of frames without an IP header, for a tunnel that inherits TTLs.
	TTL uint8
	// Kind is the encapsulation. It decides which fields of the tunnel header Push fills in for each frame,
	// such as the VNI, a group policy, Geneve options or a sequence number.
	Kind Kind
	// sequence is the sequence number of the next GRE datagram. timestamp is that of the next ERSPAN header, see
	// SetClock. The worker owns both. They are not in templates from the control process.
	sequence, timestamp uint32
}

// Bits of Template.Inherit.
const (
	inheritTTL = 1 << iota
	inheritTOS // copy all eight bits of the inner TOS, not only the ECN bits
)

// Params has the properties of a tunnel from which Build makes a template.
type Params struct {
	Port           uint32 // datapath port of the uplink
	MTU            uint16 // uplink's MTU in bytes, Ethernet header included
	SrcMAC, DstMAC [6]byte
	VLAN           uint16 // TCI of the outer tag; 0: untagged
	Local, Remote  netip.Addr
	TTL            uint8 // TTL or hop limit; 0: 64
	TOS            uint8 // outer TOS; Push sets its two ECN bits
	// InheritTTL and InheritTOS copy the outer field from the inner IP header. For a frame without an
	// IP header, the outer TTL is TTL and the outer TOS 0.
	InheritTTL, InheritTOS bool
	DontFragment           bool // IPv4 only
	UDPPort                uint16
	Kind                   Kind
	// Checksum enables checksums in the outer UDP or GRE header. Linux requires UDP checksums over
	// IPv6, unless its vxlan device has udp6zerocsumrx.
	Checksum bool
	// Key and Sequence enable these fields in KindGRE. ERSPAN always has a sequence number and no key.
	Key, Sequence bool
	// Index is the 20-bit index of ERSPAN version 1. HardwareID is the 6-bit ID of version 2, and
	// Egress its direction.
	Index      uint32
	HardwareID uint8
	Egress     bool
	// PortBase and PortRange have the meaning that they have in Template. PortRange 0 means the ports
	// 49152 to 65535 (RFC 7348 section 5).
	PortBase, PortRange uint16
}

const (
	defaultTTL       = 64
	defaultPortBase  = 49152
	defaultPortRange = 16384
	flagDF           = 0x4000
)

// Build returns a template in state TemplateReady. It returns an error for missing addresses, for addresses
// of different IP versions, for UDP port 0, and for source ports beyond 65535.
func Build(p Params) (Template, error) {
	local, remote := p.Local.Unmap(), p.Remote.Unmap()
	switch {
	case !local.IsValid() || !remote.IsValid():
		return Template{}, errors.New("tunnel: local or remote address missing")
	case local.Is4() != remote.Is4():
		return Template{}, fmt.Errorf("tunnel: local %v and remote %v are of different families", local, remote)
	case p.UDPPort == 0 && p.Kind.HasPort():
		return Template{}, errors.New("tunnel: UDP port 0")
	case p.PortRange != 0 && int(p.PortBase)+int(p.PortRange) > 1<<16:
		return Template{}, fmt.Errorf("tunnel: %d source ports from %d reach beyond 65535", p.PortRange, p.PortBase)
	}
	if !p.Kind.HasPort() {
		p.PortBase, p.PortRange = 0, 0
	} else if p.PortRange == 0 {
		p.PortBase, p.PortRange = defaultPortBase, defaultPortRange
	}
	if p.TTL == 0 {
		p.TTL = defaultTTL
	}
	t := Template{State: TemplateReady, Port: p.Port, MTU: p.MTU, PortBase: p.PortBase, PortRange: p.PortRange, Kind: p.Kind}
	t.inherit(&p)
	h := t.Header[:0]
	h = append(h, p.DstMAC[:]...)
	h = append(h, p.SrcMAC[:]...)
	if p.VLAN != 0 {
		h = binary.BigEndian.AppendUint16(h, packet.EtherTypeVLAN)
		h = binary.BigEndian.AppendUint16(h, p.VLAN)
	}
	if local.Is4() {
		h = t.appendIPv4(h, &p, local.As4(), remote.As4())
	} else {
		h = t.appendIPv6(h, &p, local.As16(), remote.As16())
	}
	t.UDP = uint16(len(h))
	if t.Encap = t.UDP; p.Kind.HasPort() {
		h = t.appendUDP(h, &p, local, remote)
	} else {
		h = t.appendGRE(h, &p)
	}
	t.Len = uint16(len(h))
	return t, nil
}

// appendUDP appends the UDP header and the tunnel header.
func (t *Template) appendUDP(h []byte, p *Params, local, remote netip.Addr) []byte {
	h = append(h, 0, 0)
	h = binary.BigEndian.AppendUint16(h, p.UDPPort)
	// By default, the tunnel sends no UDP checksum, as RFC 7348 section 5 recommends. RFC 6935 allows this over
	// IPv6.
	sum := uint16(0)
	if p.Checksum {
		sum = pseudoSum(local, remote)
	}
	h = append(h, 0, 0, byte(sum>>8), byte(sum))
	t.Encap = uint16(len(h))
	return binary.BigEndian.AppendUint64(h, kinds[p.Kind%kindEnd].sent)
}

// inherit notes in t which outer fields are copied from the inner header. It clears the values of these
// fields in p.
func (t *Template) inherit(p *Params) {
	if p.InheritTTL {
		t.Inherit |= inheritTTL
		t.TTL, p.TTL = p.TTL, 0
	}
	if p.InheritTOS {
		t.Inherit |= inheritTOS
		p.TOS = 0
	}
}

// Spread returns a template in state TemplateSpread. nexthops has the indexes of 1 to NextHops templates.
// Each of them gets about the same number of hash values.
func Spread(nexthops []uint32) Template {
	t := Template{State: TemplateSpread}
	for i := range NextHops {
		binary.LittleEndian.PutUint32(t.Header[4*i:], nexthops[i*len(nexthops)/NextHops])
	}
	return t
}

// NextHop returns the index of the template for frames with this hash (FlowHash). t must be in state
// TemplateSpread. The UDP source port depends on the same bits of the hash, so each next hop has its
// own range of source ports.
func (t *Template) NextHop(hash uint32) uint32 {
	return binary.LittleEndian.Uint32(t.Header[4*(hash>>28):])
}

func (t *Template) appendIPv4(h []byte, p *Params, local, remote [4]byte) []byte {
	h = binary.BigEndian.AppendUint16(h, packet.EtherTypeIPv4)
	t.IP = uint16(len(h))
	h = append(h, 0x45, p.TOS&^3, 0, 0, 0, 0)
	flags := uint16(0)
	if p.DontFragment {
		flags = flagDF
	}
	h = binary.BigEndian.AppendUint16(h, flags)
	h = append(h, p.TTL, p.Kind.protocol(), 0, 0)
	h = append(h, local[:]...)
	h = append(h, remote[:]...)
	packet.IPv4(h[t.IP:]).SetChecksum(packet.Sum(h[t.IP:]))
	return h
}

func (t *Template) appendIPv6(h []byte, p *Params, local, remote [16]byte) []byte {
	h = binary.BigEndian.AppendUint16(h, packet.EtherTypeIPv6)
	t.IP = uint16(len(h))
	h = binary.BigEndian.AppendUint32(h, 6<<28|uint32(p.TOS&^3)<<20)
	h = append(h, 0, 0, p.Kind.protocol(), p.TTL)
	h = append(h, local[:]...)
	return append(h, remote[:]...)
}

// pseudoSum returns the sum over the UDP pseudo header without the length. It is
// never 0.
func pseudoSum(local, remote netip.Addr) uint16 {
	if local.Is4() {
		src, dst := local.As4(), remote.As4()
		return packet.SumIPv4(binary.BigEndian.Uint32(src[:]), binary.BigEndian.Uint32(dst[:]), packet.ProtoUDP, 0)
	}
	src, dst := local.As16(), remote.As16()
	return packet.SumIPv6(src[:], dst[:], packet.ProtoUDP, 0)
}

// TemplateBytes is the size of an encoded Template in bytes.
const TemplateBytes = 2*4 + 10*2 + maxOuter

// AppendTo appends the encoding of the template, which has TemplateBytes bytes, to buf.
func (t *Template) AppendTo(buf []byte) []byte {
	buf = binary.LittleEndian.AppendUint32(buf, t.State)
	buf = binary.LittleEndian.AppendUint32(buf, t.Port)
	for _, v := range [...]uint16{t.Len, t.IP, t.UDP, t.Encap, t.MTU, t.PortBase, t.PortRange, t.ID, t.Inherit, uint16(t.TTL) | uint16(t.Kind)<<8} {
		buf = binary.LittleEndian.AppendUint16(buf, v)
	}
	return append(buf, t.Header[:]...)
}

// Parse decodes an encoding of AppendTo and checks the offsets. For invalid bytes it returns false and
// leaves t unchanged. It allocates no memory.
func (t *Template) Parse(body []byte) bool {
	if len(body) != TemplateBytes {
		return false
	}
	u16 := func(i int) uint16 { return binary.LittleEndian.Uint16(body[8+2*i:]) }
	n := Template{
		State: binary.LittleEndian.Uint32(body), Port: binary.LittleEndian.Uint32(body[4:]),
		Len: u16(0), IP: u16(1), UDP: u16(2), Encap: u16(3), MTU: u16(4), PortBase: u16(5), PortRange: u16(6), ID: u16(7),
		Inherit: u16(8), TTL: uint8(u16(9)), Kind: Kind(u16(9) >> 8),
	}
	copy(n.Header[:], body[28:])
	n.sequence = t.sequence // so that new routes and neighbours do not restart it
	if n.State > TemplateSpread || n.Inherit > inheritTTL|inheritTOS || n.Kind >= kindEnd || n.State == TemplateReady && !n.consistent() {
		return false
	}
	*t = n
	return true
}

// consistent reports whether the template's offsets and lengths agree with its IP version and its kind, so
// that Push can use them.
func (t *Template) consistent() bool {
	ip := packet.IPv4Len
	if int(t.IP) < packet.EthernetLen || int(t.IP) >= maxOuter {
		return false
	}
	if t.Header[t.IP]>>4 == 6 {
		ip = packet.IPv6Len
	}
	if int(t.UDP) != int(t.IP)+ip || t.Len > maxOuter {
		return false
	}
	if t.Kind.HasPort() {
		return t.Encap == t.UDP+packet.UDPLen && t.Len == t.Encap+HeaderLen && t.PortRange != 0
	}
	return t.Encap == t.UDP && int(t.UDP)+packet.GRELen <= maxOuter && t.Len == t.UDP+t.greLen()
}
