// SPDX-License-Identifier: Apache-2.0

package openflow

import (
	"net/netip"

	"weft/packet"
)

// PortKind is how a port takes frames.
type PortKind uint8

// Kinds of port.
const (
	// PortNormal takes frames as they are: vhost-user, tap.
	PortNormal PortKind = iota
	// PortTunnel is a vxlan port. An output to it becomes OpTunnel.
	PortTunnel
	// PortUplink carries tunnels. flood, all and normal skip it, and an output to it
	// is dropped as DropNoPort.
	PortUplink
)

// PortInfo is the part of a port's configuration that translation needs.
type PortInfo struct {
	No   uint32 // OpenFlow and datapath port number
	Name string
	Kind PortKind
	// Down: the port does not forward. Buckets of groups that watch it are not live.
	Down bool
	// NoFlood excludes the port from flood and from normal's flooding.
	NoFlood bool
	// NoLearning keeps normal from learning from frames of the port.
	NoLearning bool
	// NoAnswers turns off local answers for a PortTunnel: ARP and neighbour
	// solicitations for addresses behind the port go to the port even if the answer
	// is known.
	NoAnswers bool
	// InVNI: a PortNormal belongs to VNI, see Segment.
	InVNI bool
	// Binding restricts the addresses that a PortNormal may use as sender; nil: no
	// restriction.
	Binding *Binding
	// NoSplitHorizon also floods frames from a tunnel to this tunnel. Without it,
	// normal and flood send no frame from a tunnel to a tunnel.
	NoSplitHorizon bool

	// The following fields are for PortTunnel. The flow's tun_id replaces VNI with
	// FlowVNI, its tun_dst replaces Remote with FlowRemote, and its tun_src replaces
	// Local with FlowLocal. If Local is invalid or tun_src is 0, Env chooses the
	// source.
	FlowVNI, FlowRemote, FlowLocal bool
	VNI                            uint32
	Remote, Local                  netip.Addr
	// Remotes replaces Remote if it is not empty: a frame goes to each of them
	// (head-end replication). A frame of normal whose destination was learnt behind
	// one of them goes only there.
	Remotes []netip.Addr
}

// Names resolves port names in flow text. A nil Names knows no names.
type Names interface {
	// PortByName returns the number of the port with a name.
	PortByName(name string) (no uint32, ok bool)
	// PortName returns the name of port no.
	PortName(no uint32) (name string, ok bool)
}

// Env is the rest of the switch as translation sees it. Control implements it. Only
// translations call it, possibly concurrently.
type Env interface {
	Port(no uint32) (PortInfo, bool)
	// Ports returns all ports in a stable order. The caller must not change the list.
	Ports() []PortInfo
	// Bound reports whether any port has a Binding.
	Bound() bool
	// Tunnel returns the index of the tunnel template of vxlan port no with these
	// addresses, or the drop reason if there can be no template. If local is invalid,
	// Tunnel chooses the source. The translation of one megaflow may need several
	// templates.
	Tunnel(no uint32, vni uint32, local, remote netip.Addr) (template uint32, drop packet.DropReason)
	// MAC returns the port behind which normal has learnt the address. vlan is 0 to
	// 4095, mac has 48 bits.
	MAC(s Segment, vlan uint16, mac uint64) (port uint32, ok bool)
	// Announced reports whether the address is behind the port and has sent a
	// broadcast or multicast frame from there.
	Announced(s Segment, vlan uint16, mac uint64, port uint32) bool
	// VTEP returns the remote of a port with Remotes behind which normal has learnt
	// the address. For any other address it returns an invalid one.
	VTEP(s Segment, vlan uint16, mac uint64) netip.Addr
	// Neighbour returns the MAC address that a host has announced for ip.
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
	// PortMax is the first number above those of ordinary ports.
	PortMax uint32 = 0xff00
)
