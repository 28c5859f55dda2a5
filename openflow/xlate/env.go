// SPDX-License-Identifier: Apache-2.0

package xlate

import (
	"net/netip"

	"weft/openflow/fdb"
	"weft/packet"
)

// PortKind is how a port takes frames.
type PortKind uint8

// Kinds of port.
const (
	// PortNormal is a port for frames without a tunnel header, such as vhost-user and
	// tap.
	PortNormal PortKind = iota
	// PortTunnel is a tunnel, of any Encap.
	PortTunnel
	// PortUplink carries encapsulated traffic. It takes no outputs.
	PortUplink
	// PortPatch leads to a patch port of another bridge, or of the same one. It has no
	// device.
	PortPatch
	// PortMirror stands for a Mirror, whose copies it counts. It is no port for flows: only
	// Env.Mirrors has it.
	PortMirror
	// PortBond stands for its members, which are other ports.
	PortBond
	// PortExporter stands for an Exporter. It is no port for flows: only Env.Exporters has it.
	PortExporter
)

// Hidden reports whether a port is none for flows, and has no device.
func (k PortKind) Hidden() bool { return k == PortMirror || k == PortExporter }

// Encap is the encapsulation of a PortTunnel.
type Encap uint8

// Encapsulations.
const (
	EncapVXLAN  Encap = iota // RFC 7348: no further fields
	EncapGBP                 // VXLAN with tun_gbp_id and tun_gbp_flags
	EncapGPE                 // VXLAN-GPE: no further fields
	EncapGeneve              // RFC 8926: tun_metadata and tun_flags
	EncapGRE                 // GRE and ERSPAN, whose key of 32 bits takes the place of the VNI: no further fields
)

// PortInfo is a port's configuration for translation.
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
	// Down: the port does not forward, and group buckets that watch it have failed.
	Down bool
	// Off: the port neither takes frames nor sends any, by its configuration.
	Off bool
	// NoFlood excludes the port from flooding.
	NoFlood bool
	// NoLearning excludes the port's frames from address learning.
	NoLearning bool
	// BFD is true if the remotes of the PortTunnel have BFD sessions. Frames to the
	// destination address of BFD packets are then dropped, so that no guest can send BFD
	// packets to the remotes.
	BFD bool
	// NoAnswers turns off local answers for addresses behind a PortTunnel.
	NoAnswers bool
	// the PortNormal belongs to the virtual network in the field VNI, see fdb.Segment
	InVNI bool
	// VLANs are the VLANs to which the action normal restricts the port; nil: all, with
	// unchanged tags.
	VLANs *PortVLANs
	// Binding restricts the sender addresses of a PortNormal; nil: no restriction.
	Binding *Binding
	// Queues are the queues of the port by number, at most MaxQueues. Frames of no queue
	// belong to queue 0. An output without a queue is not limited.
	Queues []Queue
	// Policing limits the frames that arrive on the port. A frame beyond the rate of any
	// bucket is dropped.
	Policing []TokenBucket
	// Policy has the rules of the groups of a PortNormal of a declared network; nil: the port is in no
	// group, and the rules of groups do not concern it.
	Policy *Policy
	// Central is true for ports that weft-central has declared, and for the tunnel of
	// its networks. Frames of the port that match no flow of table 0 continue in
	// CentralTable. normal and flood send only frames of the port's own network to
	// the port.
	Central bool
	// Bond is the PortBond to which the port belongs as a member, by its number in the data path;
	// 0: none.
	Bond uint32
	// Standby is true for a member that the bond does not use now.
	Standby bool
	// LACP is true for a member of a bond with LACP. Control takes the frames of LACP, so no flow
	// sees them.
	LACP bool
	// Members is the state of a PortBond.
	Members *Bond
	// Mirror is what a PortMirror copies.
	Mirror *Mirror
	// Exporter is what a PortExporter samples.
	Exporter *Exporter
	// MirrorOut is true for the output of a mirror, which has no other traffic.
	MirrorOut bool
	// NoSplitHorizon lets normal and flood send frames from another tunnel to this
	// tunnel.
	NoSplitHorizon bool

	// VNI, Remote and Local are the parameters of a PortTunnel. If FlowVNI, FlowRemote
	// or FlowLocal is set, the flow's tun_id, tun_dst or tun_src replaces the
	// parameter. Without a local address, Env chooses one.
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

// At returns the port's number in the data path.
func (p *PortInfo) At() uint32 {
	if p.Datapath != 0 {
		return p.Datapath
	}
	return p.No
}

// Env gives translations in one bridge access to the rest of the switch: ports, tunnels
// and addresses. Control implements Env. Concurrent translations call its methods
// concurrently.
type Env interface {
	// Port returns the bridge's port with this number.
	Port(number uint32) (PortInfo, bool)
	// PortAt returns the port of any bridge with a number of the data path.
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
	// Locate returns the data path's number of the port behind which normal has learned a MAC
	// address. vlan is 0 to 4095, mac has 48 bits.
	Locate(s fdb.Segment, vlan uint16, mac uint64) (port uint32, ok bool)
	// Announced reports whether the MAC address has sent a broadcast or multicast frame
	// from behind the port. port is the port's number in the data path.
	Announced(s fdb.Segment, vlan uint16, mac uint64, port uint32) bool
	// VTEP returns the remote (the underlay address of a VTEP) behind which normal has
	// learned the MAC address, for a port with Remotes. It returns an invalid address if
	// the remote is unknown.
	VTEP(s fdb.Segment, vlan uint16, mac uint64) netip.Addr
	// Neighbour returns the MAC address that a host has announced for ip.
	Neighbour(s fdb.Segment, vlan uint16, ip netip.Addr) (mac uint64, ok bool)
	Networks
}

// Networks are the networks that weft-central has declared.
type Networks interface {
	// Central reports whether weft-central has declared at least one port
	// (PortInfo.Central).
	Central() bool
	// CentralTunnel returns the tunnel port to the other hosts of weft-central's
	// networks; ok is false if there is none.
	CentralTunnel() (port PortInfo, ok bool)
	// Network returns the settings of the network that weft-central has declared for segment s, or nil.
	Network(s fdb.Segment) *fdb.Network
	// Place returns the location of a MAC address of a declared network: behind a
	// port of this switch or behind another host.
	Place(s fdb.Segment, mac uint64) (place fdb.Place, ok bool)
	// HostOf returns the MAC address of ip in a declared network.
	HostOf(s fdb.Segment, ip netip.Addr) (mac uint64, ok bool)
}
