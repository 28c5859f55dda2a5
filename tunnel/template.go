// Package tunnel is VXLAN (RFC 7348): header views, the templates from which a
// worker writes outer headers, and the table of vxlan ports that tunnels end in.
package tunnel

// TODO(tunnel): AppendTo, ParseTemplate, ParseTermination, Push, Decapsulate.

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
	_                   uint16
	// Header has every constant byte: addresses, ports, flags, TTL. Lengths, UDP
	// source port, IPv4 identification and checksum, and VNI are 0.
	Header [MaxOuter]byte
}

// Termination says which datapath port a decapsulated frame comes from.
// Pointer-free. The most specific entry wins: remote and VNI, remote, VNI, none.
type Termination struct {
	Port    uint32 // datapath port of the vxlan port; 0: entry is free
	VNI     uint32 // 24 bits; AnyVNI: taken from the frame (vni=flow)
	UDPPort uint16
	_       [6]byte
	// Local and Remote are addresses of the underlay, IPv4 mapped into IPv6;
	// all zero: any.
	Local, Remote [16]byte
}

// AnyVNI in Termination.VNI takes every VNI.
const AnyVNI = ^uint32(0)
