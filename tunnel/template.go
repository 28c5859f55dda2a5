// Package tunnel is VXLAN (RFC 7348): header views, the templates from which a
// worker writes outer headers, and the table of vxlan ports that tunnels end in.
package tunnel

import (
	"net/netip"

	"weft/flowtable"
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
)

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
	// flow's hash modulo PortRange.
	PortBase, PortRange uint16
	// ID is the next IPv4 identification, counted only where DF is not set
	// (RFC 6864 section 4).
	ID uint16
	// Header has every constant byte: addresses, ports, flags, TTL. Lengths, UDP
	// source port, IPv4 identification and checksum, and VNI are 0.
	Header [MaxOuter]byte
}

// Params is what a template is made of.
type Params struct {
	Port           uint32 // datapath port of the uplink
	MTU            uint16 // longest outer frame, Ethernet header included
	SrcMAC, DstMAC [6]byte
	VLAN           uint16 // TCI of the outer tag; 0: untagged
	Local, Remote  netip.Addr
	TTL            uint8 // TTL or hop limit; 0: 64
	TOS            uint8 // DSCP in the upper six bits; ECN comes from the frame
	DontFragment   bool  // IPv4 only
	UDPPort        uint16
	// PortBase and PortRange as in Template; PortRange 0: 49152 to 65535
	// (RFC 7348 section 5).
	PortBase, PortRange uint16
}

// Build makes a template in TemplateReady. It fails for addresses of different
// families or none.
func Build(p Params) (Template, error) { return Template{}, nil }

// Push puts the outer header before the frame: vni (24 bits), the source port
// from hash (FlowHash), the ECN bits of innerTOS (InnerTOS; RFC 6040 section
// 4.1). In any other state than TemplateReady it returns the reason for which
// the frame drops (DropNoNeighbour while pending). The frame is unchanged
// unless DropNone is returned. Pop undoes it.
func (t *Template) Push(f *packet.Frame, vni, hash uint32, innerTOS uint8) packet.DropReason {
	return packet.DropNoRoute
}

// Pop takes off the header that Push put on.
func (t *Template) Pop(f *packet.Frame) { f.Pull(int(t.Len)) }

// InnerTOS is the TOS or traffic class of the frame's IP header; 0 without one.
func InnerTOS(f *packet.Frame) uint8 { return 0 }

// FlowHash is a hash of the frame's connection, equal for all its frames, its
// fragments included.
func FlowHash(k *flowtable.Key) uint32 { return 0 }

// TemplateBytes is the size of an encoded Template.
const TemplateBytes = 8 + 9*2 + 6 + MaxOuter

// AppendTo appends the template's encoding, TemplateBytes bytes.
func (t *Template) AppendTo(buf []byte) []byte { return append(buf, make([]byte, TemplateBytes)...) }

// Parse decodes what AppendTo encoded and checks its offsets; it reports false,
// t unchanged, for anything else. It allocates nothing.
func (t *Template) Parse(body []byte) bool { return false }
