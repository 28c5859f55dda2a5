// SPDX-License-Identifier: Apache-2.0

package xlate

import (
	"net/netip"

	"weft/openflow/fdb"
	"weft/packet"
)

// PortKind says what is behind a port, and so how translations treat the port.
type PortKind uint8

// Values of PortKind.
const (
	// PortNormal is a port for frames without a tunnel header, such as vhost-user and
	// tap.
	PortNormal PortKind = iota
	// PortTunnel is a tunnel, of any Encap.
	PortTunnel
	// PortUplink carries encapsulated traffic. Flows cannot send to it.
	PortUplink
	// PortPatch leads to a patch port of another bridge, or of the same one. It has no
	// device.
	PortPatch
	// PortMirror stands for a Mirror and counts its copies. Flows cannot name it: only Env.Mirrors
	// returns it.
	PortMirror
	// PortBond stands for a bond of several member ports.
	PortBond
	// PortExporter stands for an Exporter. Flows cannot name it: only Env.Exporters returns it.
	PortExporter
)

// Hidden reports whether ports of this kind have no device and cannot be named in flows.
func (k PortKind) Hidden() bool { return k == PortMirror || k == PortExporter }

// Encap is the encapsulation of a PortTunnel.
type Encap uint8

// Values of Encap, with the tunnel fields that flows can set for each.
const (
	EncapVXLAN  Encap = iota // RFC 7348; without further tunnel fields
	EncapGBP                 // VXLAN with tun_gbp_id and tun_gbp_flags
	EncapGPE                 // VXLAN-GPE; without further tunnel fields
	EncapGeneve              // RFC 8926, with tun_metadata and tun_flags
	EncapGRE                 // GRE and ERSPAN, whose key of 32 bits replaces the VNI; without further tunnel fields
)

// PortInfo is the part of a port's configuration that translations need.
type PortInfo struct {
	No uint32 // OpenFlow port number, in the port's bridge
	// Datapath is the port's number in the data path; 0: it is equal to the field No,
	// as for all ports of the first bridge but PortLocal.
	Datapath uint32
	Bridge   uint8 // number of the port's bridge
	// Peer is the other end of a PortPatch, by its number in the data path; 0: none.
	Peer uint32
	Name string
	Kind PortKind
	// Down is true if the port does not forward. Group buckets that watch it have then failed.
	Down bool
	// Off is true if the configuration turns the port off: it neither accepts frames nor sends any.
	Off bool
	// NoFlood excludes the port from flooding.
	NoFlood bool
	// NoLearning excludes the port's frames from address learning.
	NoLearning bool
	// BFD is true if the remotes of the PortTunnel have BFD sessions. Frames to the
	// destination address of BFD packets are then dropped, so that no guest can send BFD
	// packets to the remotes.
	BFD bool
	// NoAnswers turns off the switch's own answers to ARP requests and neighbour solicitations for
	// addresses behind a PortTunnel.
	NoAnswers bool
	// InVNI is true if the PortNormal belongs to the virtual network of the field VNI, see
	// fdb.Segment.
	InVNI bool
	// VLANs are the VLANs to which the action normal restricts the port; nil: all, with
	// unchanged tags.
	VLANs *PortVLANs
	// Binding restricts the sender addresses of a PortNormal; nil: no restriction.
	Binding *Binding
	// Queues are the queues of the port by number, at most MaxQueues. A frame whose queue the port
	// does not have belongs to queue 0. If the port has no queue 0 either, the output is not limited.
	Queues []Queue
	// Policing limits the frames that arrive on the port. A frame beyond the rate of any
	// bucket is dropped.
	Policing []TokenBucket
	// Policy has the filter rules of the groups into which the central controller (weft-central) has put a
	// PortNormal; nil: the port is in no group, and its frames are not filtered.
	Policy *Policy
	// Central is true for ports that weft-central, the central controller, has declared, and for the tunnel
	// of its networks. Frames of the port that match no flow of table 0 continue in CentralTable. normal
	// and flood send only frames of the port's own network to the port.
	Central bool
	// Bond is the PortBond to which the port belongs as a member, by its number in the data path;
	// 0: none.
	Bond uint32
	// Standby is true for a member that the bond does not use now.
	Standby bool
	// LACP is true for a member of a bond with LACP. The control process itself receives the LACP frames,
	// so no flow sees them.
	LACP bool
	// Members is the state of a PortBond, which selects a member for each frame.
	Members *Bond
	// Mirror says which frames a PortMirror copies, and where to.
	Mirror *Mirror
	// Exporter says which frames a PortExporter samples.
	Exporter *Exporter
	// MirrorOut is true for the output of a mirror, which has no other traffic.
	MirrorOut bool
	// NoSplitHorizon lets normal and flood send frames from another tunnel to this
	// tunnel.
	NoSplitHorizon bool

	// VNI, Remote and Local are the parameters of a PortTunnel. If FlowVNI, FlowRemote or FlowLocal
	// is set, the flow's tun_id, tun_dst or tun_src replaces the parameter. If Local is invalid,
	// Env.Tunnel chooses the source address.
	FlowVNI, FlowRemote, FlowLocal bool
	VNI                            uint32
	Remote, Local                  netip.Addr
	// Encap says which tunnel fields the headers of a PortTunnel have.
	Encap Encap
	// Remotes, if not empty, replaces Remote. Each frame goes to all of them (head-end
	// replication), or only to the remote behind which normal has learned the
	// destination address.
	Remotes []netip.Addr
	// Lost has the addresses of Remotes whose BFD session has failed. They get no frames.
	// At least one address of Remotes is not in Lost.
	Lost []netip.Addr
}

// At returns the port's number in the data path: Datapath or, if that is 0, No.
func (p *PortInfo) At() uint32 {
	if p.Datapath != 0 {
		return p.Datapath
	}
	return p.No
}

// Env gives translations in one bridge access to the rest of the switch: ports, tunnels and addresses.
// The control process implements it. Concurrent translations call its methods concurrently.
type Env interface {
	// Port returns the bridge's port with this OpenFlow number.
	Port(number uint32) (PortInfo, bool)
	// PortAt returns the port with this number in the data path, of whichever bridge.
	PortAt(datapath uint32) (PortInfo, bool)
	// Ports returns the bridge's ports in a stable order. The caller must not modify the
	// returned slice.
	Ports() []PortInfo
	// Bound reports whether at least one port has a Binding, Policing or LACP, is Off, or is the
	// output of a mirror.
	Bound() bool
	// Mirrors returns the bridge's ports of kind PortMirror in a stable order. The caller must
	// not modify the returned slice.
	Mirrors() []PortInfo
	// Exporters returns the bridge's ports of kind PortExporter in a stable order. The caller
	// must not modify the returned slice.
	Exporters() []PortInfo
	// Tunnel returns the index of the tunnel template for a tunnel port and these
	// addresses, or the drop reason. If local is invalid, Tunnel chooses the source
	// address.
	Tunnel(number uint32, vni uint32, local, remote netip.Addr) (template uint32, drop packet.DropReason)
	// Locate returns the port behind which normal has learned a MAC address. "port" is the port's number in
	// the data path. vlan is 0 to 4095, mac has 48 bits.
	Locate(s fdb.Segment, vlan uint16, mac uint64) (port uint32, ok bool)
	// Announced reports whether the MAC address has sent a broadcast or multicast frame
	// from behind the port. port is the port's number in the data path.
	Announced(s fdb.Segment, vlan uint16, mac uint64, port uint32) bool
	// VTEP returns the remote (the underlay address of a VTEP) behind which normal has
	// learned the MAC address, for a port with Remotes. It returns an invalid address if
	// the remote is unknown.
	VTEP(s fdb.Segment, vlan uint16, mac uint64) netip.Addr
	// Neighbour returns the MAC address that a host has announced for ip, by ARP or neighbour
	// discovery.
	Neighbour(s fdb.Segment, vlan uint16, ip netip.Addr) (mac uint64, ok bool)
	Networks
}

// Networks gives translations access to the networks that the central controller, weft-central, has
// declared.
type Networks interface {
	// Central reports whether the central controller (weft-central) has declared at least one port
	// (PortInfo.Central).
	Central() bool
	// CentralTunnel returns the tunnel port to the other hosts of the networks that the central controller
	// (weft-central) has declared; ok is false if there is none.
	CentralTunnel() (port PortInfo, ok bool)
	// Network returns the settings of the network that the central controller (weft-central) has declared
	// for segment s, or nil.
	Network(s fdb.Segment) *fdb.Network
	// Place returns the location of a MAC address of a declared network: behind a
	// port of this switch or behind another host.
	Place(s fdb.Segment, mac uint64) (place fdb.Place, ok bool)
	// HostOf returns the MAC address that the central controller (weft-central) has declared for IP address
	// "ip" in the network of segment s.
	HostOf(s fdb.Segment, ip netip.Addr) (mac uint64, ok bool)
}
