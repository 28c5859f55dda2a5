// SPDX-License-Identifier: Apache-2.0

package flowtable

// The methods of Key in this file return or set one field, named as in ovs-fields(7). A field that the
// frame does not have is 0.

// InPort returns in_port: the number of the datapath port that received the frame.
func (k *Key) InPort() uint32 { return uint32(k[WPort] >> portShift) }

// SetInPort sets in_port to the number of a datapath port.
func (k *Key) SetInPort(number uint32) { k[WPort] = uint64(number)<<portShift | k[WPort]&0xffffffff }

// EthDst returns dl_dst, the destination MAC address, in the low 48 bits.
func (k *Key) EthDst() uint64 { return k[WEthDst] >> macShift }

// EthSrc returns dl_src, the source MAC address, in the low 48 bits.
func (k *Key) EthSrc() uint64 { return k[WEthSrc] >> macShift }

// EtherType returns dl_type: the EtherType after the VLAN tags, or EthTypeNone.
func (k *Key) EtherType() uint16 { return uint16(k[WEthDst]) }

// OuterTCI returns vlan_tci, the tag control information of the outermost VLAN tag.
func (k *Key) OuterTCI() uint16 { return uint16(k[WEthSrc]) }

// InnerTCI returns vlan_tci2, the tag control information of the second VLAN tag.
func (k *Key) InnerTCI() uint16 { return uint16(k[WIP] >> InnerTCIShift) }

// Proto returns nw_proto: the IP protocol, or the operation of ARP.
func (k *Key) Proto() uint8 { return uint8(k[WIP] >> ProtoShift) }

// TOS returns nw_tos with the ECN bits: all eight bits of the TOS or traffic class.
func (k *Key) TOS() uint8 { return uint8(k[WIP] >> TOSShift) }

// TTL returns nw_ttl: the TTL of IPv4 or the hop limit of IPv6.
func (k *Key) TTL() uint8 { return uint8(k[WIP] >> TTLShift) }

// IsFragment reports whether the frame is a fragment, the first one or a later one.
func (k *Key) IsFragment() bool { return k[WIP]>>FragShift&FragAny != 0 }

// Ports returns tp_src in the upper 16 bits and tp_dst in the lower 16 bits.
func (k *Key) Ports() uint32 { return uint32(k[WL4] >> TPDstShift) }

// ICMPType returns the type of ICMP or ICMPv6, which is stored as tp_src.
func (k *Key) ICMPType() uint8 { return uint8(k[WL4] >> TPSrcShift) }

// IPv4Src returns nw_src: the source address of IPv4, or the sender's address of ARP.
func (k *Key) IPv4Src() uint32 { return uint32(k[WIPv4] >> 32) }

// IPv4Dst returns nw_dst: the destination address of IPv4, or the target address of ARP.
func (k *Key) IPv4Dst() uint32 { return uint32(k[WIPv4]) }

// Shim returns the label stack entry of MPLS or the I-TAG of PBB, which is stored as nw_src.
func (k *Key) Shim() uint32 { return uint32(k[WIPv4] >> ShimShift) }

// CTZone returns ct_zone: the ct zone in which the frame was tracked.
func (k *Key) CTZone() uint16 { return uint16(k[WCT]) }

// CTProto returns ct_nw_proto: the IP protocol of the connection's original tuple.
func (k *Key) CTProto() uint8 { return uint8(k[WCT] >> CTProtoShift) }

// Bits of ct_state, as ovs-fields(7) numbers them.
const (
	StateNew         = 0x01
	StateEstablished = 0x02
	StateRelated     = 0x04
	StateReply       = 0x08
	StateInvalid     = 0x10
	StateTracked     = 0x20
	StateSNAT        = 0x40
	StateDNAT        = 0x80
)

// CTState returns ct_state: a set of the bits StateNew to StateDNAT.
func (k *Key) CTState() uint8 { return uint8(k[WCT] >> CTStateShift) }

// Tracked reports whether a ct action had tracked the frame when it was looked up.
func (k *Key) Tracked() bool { return k.CTState() != 0 }

// Recirc returns recirc_id, the number with which an OpRecirc looked the frame up again; 0: this is the
// frame's first look-up.
func (k *Key) Recirc() uint32 { return uint32(k[WPort]) }

// SetRecirc sets recirc_id, as OpRecirc does before a further look-up.
func (k *Key) SetRecirc(id uint32) { k[WPort] = k[WPort]&^0xffffffff | uint64(id) }

// The functions that follow pack and unpack the operands of OpTunnel, as its comment defines them.

// TunnelAction returns an OpTunnel with this template and VNI, and without a limit for the length of the
// inner frame. "port" is the number of the tunnel's port, which counts the frames; 0: no port does.
func TunnelAction(template, vni uint32, port uint16) Action {
	return Action{Op: OpTunnel, U16: port, U32: template, U64: uint64(vni)}
}

// VNI returns the VNI of an OpTunnel.
func (a *Action) VNI() uint32 { return uint32(a.U64) }

// MaxInner returns the largest length in bytes of the inner frame of an OpTunnel; 0: no limit.
func (a *Action) MaxInner() uint32 { return uint32(a.U64 >> 32) }

// SetMaxInner sets the largest length in bytes of the inner frame of an OpTunnel; 0: no limit.
func (a *Action) SetMaxInner(size uint32) { a.U64 = uint64(a.VNI()) | uint64(size)<<32 }
