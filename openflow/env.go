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
	// PortNormal is a port that takes frames without a tunnel header, such as
	// vhost-user and tap.
	PortNormal PortKind = iota
	// PortTunnel is a vxlan port. Translation turns an output to this port into
	// OpTunnel.
	PortTunnel
	// PortUplink carries encapsulated traffic. flood, all and normal skip uplinks. An
	// output to an uplink is dropped as DropNoPort.
	PortUplink
)

// PortInfo is the part of a port's configuration that translation needs.
type PortInfo struct {
	No   uint32 // OpenFlow and datapath port number
	Name string
	Kind PortKind
	// Down is true if the port does not forward. Group buckets that watch the port
	// count it as failed.
	Down bool
	// NoFlood excludes the port from flood and from normal's flooding.
	NoFlood bool
	// NoLearning excludes the port's frames from the address learning of the action
	// normal.
	NoLearning bool
	// NoAnswers turns off local answers for addresses behind a PortTunnel: ARP
	// requests and neighbour solicitations go to the tunnel even if Weft knows the
	// answer.
	NoAnswers bool
	// InVNI is true if a PortNormal belongs to the VNI in the field VNI, see Segment.
	InVNI bool
	// Binding restricts the addresses that a PortNormal may use as sender; nil: no
	// restriction.
	Binding *Binding
	// Central is true for a port that weft-central has declared, and for the tunnel
	// to the other hosts of weft-central's networks. A frame of the port that matches
	// no flow of table 0 continues in CentralTable. normal and flood send only frames
	// of the port's own network to the port.
	Central bool
	// NoSplitHorizon lets normal and flood send frames from another tunnel to this
	// tunnel. Without NoSplitHorizon no flooded frame goes from a tunnel to a tunnel.
	NoSplitHorizon bool

	// VNI, Remote and Local are the parameters of a PortTunnel. FlowVNI replaces VNI
	// with the flow's tun_id, FlowRemote replaces Remote with its tun_dst, and
	// FlowLocal replaces Local with its tun_src. If Local is invalid or tun_src is 0,
	// Env chooses the source address.
	FlowVNI, FlowRemote, FlowLocal bool
	VNI                            uint32
	Remote, Local                  netip.Addr
	// Remotes, if not empty, replaces Remote: each frame goes to every address in
	// Remotes (head-end replication). If normal has learnt the destination behind one
	// remote, the frame goes only to this remote.
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
	// Ports returns all ports in a stable order. The caller must not change the
	// returned list.
	Ports() []PortInfo
	// Bound reports whether at least one port has a Binding.
	Bound() bool
	// Tunnel returns the index of the tunnel template of a vxlan port with these
	// addresses. The argument no is the number of the vxlan port. If no template is
	// possible, Tunnel returns the drop reason. If local is invalid, Tunnel chooses
	// the source address. The translation of one megaflow may need several templates.
	Tunnel(no uint32, vni uint32, local, remote netip.Addr) (template uint32, drop packet.DropReason)
	// MAC returns the port behind which normal has learnt the MAC address. vlan is 0
	// to 4095, mac has 48 bits.
	MAC(s Segment, vlan uint16, mac uint64) (port uint32, ok bool)
	// Announced reports whether the MAC address is behind the port and has sent a
	// broadcast or multicast frame from there.
	Announced(s Segment, vlan uint16, mac uint64, port uint32) bool
	// VTEP returns the remote behind which normal has learnt the MAC address, for a
	// port with Remotes. If no such remote is known, the returned address is invalid.
	VTEP(s Segment, vlan uint16, mac uint64) netip.Addr
	// Neighbour returns the MAC address that a host has announced for ip.
	Neighbour(s Segment, vlan uint16, ip netip.Addr) (mac uint64, ok bool)
	Networks
}

// Networks are the networks that weft-central has declared.
type Networks interface {
	// Central reports whether at least one port has Central set.
	Central() bool
	// CentralTunnel returns the vxlan port that leads to the other hosts of
	// weft-central's networks. ok is false if there is no such port.
	CentralTunnel() (port PortInfo, ok bool)
	// Network returns the settings of a segment's network that weft-central has
	// declared, or nil if it has declared none.
	Network(s Segment) *Network
	// Place returns where a MAC address of a declared network is: behind a port of
	// this switch or behind another host.
	Place(s Segment, mac uint64) (place Place, ok bool)
	// HostOf returns the MAC address of the IP address ip in a network that
	// weft-central has declared.
	HostOf(s Segment, ip netip.Addr) (mac uint64, ok bool)
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
	// PortMax is one more than the highest number of an ordinary port.
	PortMax uint32 = 0xff00
)
