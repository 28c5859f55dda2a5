// Package tunnel is VXLAN (RFC 7348): header views, the templates from which a
// worker writes outer headers, and the table of vxlan ports that tunnels end in.
package tunnel

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"weft/packet"
)

// MaxOuter is the longest outer header: Ethernet 14, VLAN 4, IPv6 40, UDP 8,
// VXLAN 8, rounded up.
const MaxOuter = 80

// Template states.
const (
	// TemplateFree: no such tunnel; frames drop as DropNoRoute.
	TemplateFree uint32 = iota
	// TemplatePending: the next hop is being asked for; frames are held.
	TemplatePending
	// TemplateReady: Header is complete.
	TemplateReady
	// TemplateNoRoute and TemplateNoNeighbour: frames drop under that reason.
	TemplateNoRoute
	TemplateNoNeighbour
	// TemplateSpread: the underlay has several ways; Header has the indexes of the
	// templates of Ways ways, see Way.
	TemplateSpread
)

// Ways is the number of shares of a TemplateSpread, by which weights are kept.
const Ways = 16

// Template is the outer header of one tunnel (local, remote, uplink), kept
// current by control from the kernel's routes and neighbours. Pointer-free.
type Template struct {
	State uint32
	Port  uint32 // datapath port of the uplink
	// Len is the length of Header in use; IP, UDP and VXLAN offsets into it.
	Len, IP, UDP, VXLAN uint16
	// MTU is the longest outer frame the uplink takes, Ethernet header included.
	MTU uint16
	// PortBase and PortRange: the UDP source port is PortBase plus the inner
	// flow's hash scaled to 0..PortRange-1.
	PortBase, PortRange uint16
	// ID is the next IPv4 identification, counted only where DF is not set
	// (RFC 6864 section 4).
	ID uint16
	// Inherit says what is taken from the inner IP header, where there is one.
	Inherit uint16
	// Header has every constant byte: addresses, ports, flags, TTL, DSCP.
	// Lengths, UDP source port, IPv4 identification, ECN bits, what is inherited, and
	// VNI are 0; the
	// IPv4 checksum is the sum over the header so far, not inverted; the UDP
	// checksum is 0, or where there is to be one the sum over the pseudo header
	// without the length.
	Header [MaxOuter]byte
	// TTL is that of frames without an IP header, where TTLs are inherited.
	TTL uint16
}

// Bits of Template.Inherit.
const (
	InheritTTL = 1 << iota
	InheritTOS // all eight bits; without it the ECN bits alone
)

// Params is what a template is made of.
type Params struct {
	Port           uint32 // datapath port of the uplink
	MTU            uint16 // longest outer frame, Ethernet header included
	SrcMAC, DstMAC [6]byte
	VLAN           uint16 // TCI of the outer tag; 0: untagged
	Local, Remote  netip.Addr
	TTL            uint8 // TTL or hop limit; 0: 64
	TOS            uint8 // DSCP in the upper six bits; ECN comes from the frame
	// InheritTTL and InheritTOS take them from the inner IP header; a frame without
	// one gets TTL, and a TOS of 0.
	InheritTTL, InheritTOS bool
	DontFragment           bool // IPv4 only
	UDPPort                uint16
	// Checksum has the outer UDP header carry one. Linux drops VXLAN over IPv6
	// without it unless told otherwise (udp6zerocsumrx).
	Checksum bool
	// PortBase and PortRange as in Template; PortRange 0: 49152 to 65535
	// (RFC 7348 section 5).
	PortBase, PortRange uint16
}

const (
	defaultTTL       = 64
	defaultPortBase  = 49152
	defaultPortRange = 16384
	flagDF           = 0x4000
)

// Build makes a template in TemplateReady. It fails for addresses of different
// families, or none, a UDP port of 0, and source ports beyond 65535.
func Build(p Params) (Template, error) {
	local, remote := p.Local.Unmap(), p.Remote.Unmap()
	switch {
	case !local.IsValid() || !remote.IsValid():
		return Template{}, errors.New("tunnel: local or remote address missing")
	case local.Is4() != remote.Is4():
		return Template{}, fmt.Errorf("tunnel: local %v and remote %v are of different families", local, remote)
	case p.UDPPort == 0:
		return Template{}, errors.New("tunnel: UDP port 0")
	case p.PortRange != 0 && int(p.PortBase)+int(p.PortRange) > 1<<16:
		return Template{}, fmt.Errorf("tunnel: %d source ports from %d reach beyond 65535", p.PortRange, p.PortBase)
	}
	if p.PortRange == 0 {
		p.PortBase, p.PortRange = defaultPortBase, defaultPortRange
	}
	if p.TTL == 0 {
		p.TTL = defaultTTL
	}
	t := Template{State: TemplateReady, Port: p.Port, MTU: p.MTU, PortBase: p.PortBase, PortRange: p.PortRange}
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
	h = append(h, 0, 0)
	h = binary.BigEndian.AppendUint16(h, p.UDPPort)
	// RFC 7348 section 5 wants a UDP checksum of 0, and RFC 6935 allows that over
	// IPv6: the inner frame has its own.
	sum := uint16(0)
	if p.Checksum {
		sum = pseudoSum(local, remote)
	}
	h = append(h, 0, 0, byte(sum>>8), byte(sum))
	t.VXLAN = uint16(len(h))
	h = append(h, vxlanValid, 0, 0, 0, 0, 0, 0, 0)
	t.Len = uint16(len(h))
	return t, nil
}

// inherit leaves out of p what comes from the inner header.
func (t *Template) inherit(p *Params) {
	if p.InheritTTL {
		t.Inherit |= InheritTTL
		t.TTL, p.TTL = uint16(p.TTL), 0
	}
	if p.InheritTOS {
		t.Inherit |= InheritTOS
		p.TOS = 0
	}
}

// Spread makes a template that leads to those at ways, at most Ways of them, in
// order of their hashes. There is at least one.
func Spread(ways []uint32) Template {
	t := Template{State: TemplateSpread}
	for i := range Ways {
		binary.LittleEndian.PutUint32(t.Header[4*i:], ways[i*len(ways)/Ways])
	}
	return t
}

// Way is the index of the template for a frame of this hash (FlowHash), of a
// TemplateSpread. It uses the bits that the source port comes from, so that each
// way has a range of source ports of its own.
func (t *Template) Way(hash uint32) uint32 {
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
	h = append(h, p.TTL, packet.ProtoUDP, 0, 0)
	h = append(h, local[:]...)
	h = append(h, remote[:]...)
	packet.IPv4(h[t.IP:]).SetChecksum(packet.Sum(h[t.IP:]))
	return h
}

func (t *Template) appendIPv6(h []byte, p *Params, local, remote [16]byte) []byte {
	h = binary.BigEndian.AppendUint16(h, packet.EtherTypeIPv6)
	t.IP = uint16(len(h))
	h = binary.BigEndian.AppendUint32(h, 6<<28|uint32(p.TOS&^3)<<20)
	h = append(h, 0, 0, packet.ProtoUDP, p.TTL)
	h = append(h, local[:]...)
	return append(h, remote[:]...)
}

// pseudoSum is never 0: the protocol is among what is summed.
func pseudoSum(local, remote netip.Addr) uint16 {
	if local.Is4() {
		src, dst := local.As4(), remote.As4()
		return packet.SumIPv4(binary.BigEndian.Uint32(src[:]), binary.BigEndian.Uint32(dst[:]), packet.ProtoUDP, 0)
	}
	src, dst := local.As16(), remote.As16()
	return packet.SumIPv6(src[:], dst[:], packet.ProtoUDP, 0)
}

// TemplateBytes is the size of an encoded Template.
const TemplateBytes = 2*4 + 10*2 + MaxOuter

// AppendTo appends the template's encoding, TemplateBytes bytes.
func (t *Template) AppendTo(buf []byte) []byte {
	buf = binary.LittleEndian.AppendUint32(buf, t.State)
	buf = binary.LittleEndian.AppendUint32(buf, t.Port)
	for _, v := range [...]uint16{t.Len, t.IP, t.UDP, t.VXLAN, t.MTU, t.PortBase, t.PortRange, t.ID, t.Inherit, t.TTL} {
		buf = binary.LittleEndian.AppendUint16(buf, v)
	}
	return append(buf, t.Header[:]...)
}

// Parse decodes what AppendTo encoded and checks its offsets; it reports false,
// t unchanged, for anything else. It allocates nothing.
func (t *Template) Parse(body []byte) bool {
	if len(body) != TemplateBytes {
		return false
	}
	u16 := func(i int) uint16 { return binary.LittleEndian.Uint16(body[8+2*i:]) }
	n := Template{
		State: binary.LittleEndian.Uint32(body), Port: binary.LittleEndian.Uint32(body[4:]),
		Len: u16(0), IP: u16(1), UDP: u16(2), VXLAN: u16(3), MTU: u16(4), PortBase: u16(5), PortRange: u16(6), ID: u16(7),
		Inherit: u16(8), TTL: u16(9),
	}
	copy(n.Header[:], body[28:])
	if n.State > TemplateSpread || n.Inherit > InheritTTL|InheritTOS || n.TTL > 0xff || n.State == TemplateReady && !n.consistent() {
		return false
	}
	*t = n
	return true
}

// consistent tells whether Push can use the template as it is.
func (t *Template) consistent() bool {
	ip := packet.IPv4Len
	if int(t.IP) < packet.EthernetLen || int(t.IP) >= MaxOuter {
		return false
	}
	if t.Header[t.IP]>>4 == 6 {
		ip = packet.IPv6Len
	}
	return int(t.UDP) == int(t.IP)+ip && t.VXLAN == t.UDP+packet.UDPLen && t.Len == t.VXLAN+VXLANLen &&
		t.Len <= MaxOuter && t.PortRange != 0
}
