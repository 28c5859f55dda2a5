package openflow

import (
	"net/netip"

	"weft/packet"
)

// PortKind tells translation how a port takes frames.
type PortKind uint8

// Kinds of port.
const (
	// PortNormal takes frames as they are: vhost-user, tap.
	PortNormal PortKind = iota
	// PortTunnel is a vxlan port: outputs become OpTunnel.
	PortTunnel
	// PortUplink carries tunnels. flood, all and normal leave it out, and an
	// output to it is refused as DropNoPort.
	PortUplink
)

// PortInfo is what translation knows of a port.
type PortInfo struct {
	No   uint32 // OpenFlow and datapath port number
	Name string
	Kind PortKind
	// Down says that the port does not forward: buckets of groups that watch it
	// are not live.
	Down bool
	// NoFlood leaves the port out of flood and of normal's flooding.
	NoFlood bool
	// NoLearning has normal learn nothing of frames that come from the port.
	NoLearning bool
	// NoAnswers has questions for addresses behind the port, a PortTunnel, go there
	// though the answer is known.
	NoAnswers bool
	// InVNI says that a PortNormal belongs to VNI, see Segment.
	InVNI bool
	// Binding is what a PortNormal may send as; nil: anything.
	Binding *Binding
	// NoSplitHorizon lets a tunnel's frames be flooded to this tunnel too.
	// Without it, what normal or flood got from a tunnel goes to no tunnel.
	NoSplitHorizon bool

	// For PortTunnel. VNI is used unless FlowVNI, Remote unless FlowRemote,
	// Local unless FlowLocal; the flow's tun_id, tun_dst, tun_src then decide.
	// An invalid Local, or tun_src of 0, lets Env choose the source.
	FlowVNI, FlowRemote, FlowLocal bool
	VNI                            uint32
	Remote, Local                  netip.Addr
	// Remotes, where there are any, stand in place of Remote: a frame goes to
	// each of them (head-end replication), but one of normal's whose destination
	// was learnt behind one of them to that one alone.
	Remotes []netip.Addr
}

// Names resolves port names in flow text. A nil Names knows none.
type Names interface {
	// PortByName returns the number of the port of that name.
	PortByName(name string) (no uint32, ok bool)
	// PortName returns the name of port no.
	PortName(no uint32) (name string, ok bool)
}

// Env is the switch around the tables as translation sees it. Control
// implements it; calls come from Translate only, and may come concurrently.
type Env interface {
	Port(no uint32) (PortInfo, bool)
	// Ports lists all ports in a stable order. The caller does not change it.
	Ports() []PortInfo
	// Bound tells whether any port has a Binding.
	Bound() bool
	// Tunnel returns the index of the tunnel template of vxlan port no with
	// these addresses, or why there can be none. local may be invalid: choose.
	// Translation of one megaflow may ask for several.
	Tunnel(no uint32, vni uint32, local, remote netip.Addr) (template uint32, drop packet.DropReason)
	// MAC returns the port behind which normal has learnt the address.
	// vlan is 0 to 4095, mac has 48 bits.
	MAC(s Segment, vlan uint16, mac uint64) (port uint32, ok bool)
	// Announced tells whether the address is behind the port and has sent a frame to
	// all from there.
	Announced(s Segment, vlan uint16, mac uint64, port uint32) bool
	// VTEP returns the remote of a port with Remotes behind which normal has
	// learnt the address; it is invalid for any other address.
	VTEP(s Segment, vlan uint16, mac uint64) netip.Addr
	// Neighbour returns the MAC address of which a host has said that it has ip.
	Neighbour(s Segment, vlan uint16, ip netip.Addr) (mac uint64, ok bool)
}

// Reserved port numbers, as ovs-ofctl shows them (OpenFlow 1.0, 16 bits).
const (
	PortInPort     uint32 = 0xfff8
	PortTable      uint32 = 0xfff9
	PortNORMAL     uint32 = 0xfffa
	PortFlood      uint32 = 0xfffb
	PortAll        uint32 = 0xfffc
	PortController uint32 = 0xfffd
	PortLocal      uint32 = 0xfffe
	PortNone       uint32 = 0xffff
	// PortMax is the first number that is not an ordinary port's.
	PortMax uint32 = 0xff00
)
