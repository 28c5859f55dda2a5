// SPDX-License-Identifier: Apache-2.0

// Package flowtable finds the actions for a frame. Extraction reads the frame's headers into a Key. A
// megaflow is a cached flow: a key with a mask, and actions. Cache finds the megaflow that matches the
// key, first in its exact-match cache, then among all megaflows. If there is none, the control process
// translates the OpenFlow tables into a new megaflow (package openflow/xlate).
package flowtable

// KeyWords is the size of a Key in 64-bit words.
const KeyWords = 31

// Key holds every field of a frame that the switch can match, in words of host byte order. This table has
// the fields of each word with their sizes in bits, from the most significant bits on. A prefix of an
// address is thus a prefix of a word. Fields that a frame does not have are 0.
//
//	word       63..............................................0
//	WPort      in_port 32 | recirc_id 32
//	WEthDst    dl_dst 48 | dl_type 16
//	WEthSrc    dl_src 48 | vlan_tci 16
//	WIP        nw_proto 8 | nw_tos 8 | nw_ttl 8 | ip_frag 8 | vlan_tci2 16 | tcp_flags 16
//	WL4        tp_src 16 | tp_dst 16 | 0 3 | ipv6_exthdr 9 | ipv6_label 20
//	WIPv4      nw_src 32 | nw_dst 32, or the fields of an NSH (packet.NSHFields)
//	WIPv6Src   ipv6_src 128 (2 words), or nsh_c1 to nsh_c4, 32 each
//	WIPv6Dst   ipv6_dst 128 (2 words)
//	WTunID     tun_id 64
//	WTunIPv4   tun_src 32 | tun_dst 32
//	WTunIPv6Src, WTunIPv6Dst   2 words each
//	WTunOpts   hash of the Geneve options 64; 0: no options
//	WTunMeta   tun_gbp_id 16 | tun_gbp_flags 8 | 0 8 | tun_flags 16 | 0 15 | critical 1
//	WARPSha    arp_sha 48, or nd_sll 48 | 0 16
//	WARPTha    arp_tha 48, or nd_tll 48 | 0 16
//	WNDTarget  nd_target 128 (2 words)
//	WND        nd_reserved 32 | nd_options_type 8 | 0 24
//	WCT        ct_mark 32 | ct_state 8 | ct_nw_proto 8 | ct_zone 16
//	WCTPorts   ct_tp_src 16 | ct_tp_dst 16 | 0 32
//	WCTLabel   ct_label 128 (2 words)
//	WCTSrc     ct_ipv6_src 128 (2 words), or 0 96 | ct_nw_src 32
//	WCTDst     ct_ipv6_dst 128 (2 words), or 0 96 | ct_nw_dst 32
//
// The words from WCT on, and recirc_id, are 0 until a ct action has tracked the frame
// and recirculated it.
//
// The fields have the meaning of ovs-fields(7). vlan_tci has its CFI bit (0x1000) set if there is a tag,
// and is 0 otherwise. dl_type is the EtherType after the tags, or 0x05ff for 802.3 frames without SNAP.
// For ARP, nw_proto is the operation, and nw_src and nw_dst are arp_spa and arp_tpa. For MPLS and PBB,
// nw_src is the shim, the 32 bits after the EtherType: the outermost label stack entry or the I-TAG. For
// ICMP and ICMPv6, tp_src and tp_dst are type and code. nd_options_type is the type, 1 or 2, of the first
// neighbour discovery option that carries a link-layer address; 0: there is none. ip_frag has bit 0 set
// for any fragment, and bit 1 for a fragment other than the first.
type Key [KeyWords]uint64

// Indexes of the words in a Key.
const (
	WPort = iota
	WEthDst
	WEthSrc
	WIP
	WL4
	WIPv4
	WIPv6Src
	WIPv6Dst    = WIPv6Src + 2
	WTunID      = WIPv6Dst + 2
	WTunIPv4    = WTunID + 1
	WTunIPv6Src = WTunIPv4 + 1
	WTunIPv6Dst = WTunIPv6Src + 2
	WTunOpts    = WTunIPv6Dst + 2
	WTunMeta    = WTunOpts + 1
	WARPSha     = WTunMeta + 1
	WARPTha     = WARPSha + 1
	WNDTarget   = WARPTha + 1
	WND         = WNDTarget + 2
	WCT         = WND + 1
	WCTPorts    = WCT + 1
	WCTLabel    = WCTPorts + 1
	WCTSrc      = WCTLabel + 2
	WCTDst      = WCTSrc + 2
	wEnd        = WCTDst + 2
)

// The build fails here if KeyWords differs from the number of words with names.
var _ = [1]struct{}{}[wEnd-KeyWords]

// Bits of ip_frag.
const (
	FragAny   = 1 // any fragment
	FragLater = 2 // a fragment other than the first, which has no transport header
)

// Number of the lowest bit of a field in its word. Each comment names the word.
const (
	portShift     = 32 // WPort: in_port
	macShift      = 16 // WEthDst, WEthSrc: dl_dst, dl_src
	ProtoShift    = 56 // WIP: nw_proto
	TOSShift      = 48 // WIP: nw_tos
	TTLShift      = 40 // WIP: nw_ttl
	FragShift     = 32 // WIP: ip_frag
	InnerTCIShift = 16 // WIP: vlan_tci2
	TPSrcShift    = 48 // WL4
	TPDstShift    = 32 // WL4
	ShimShift     = 32 // WIPv4: the label stack entry of MPLS, the I-TAG of PBB
	CTMarkShift   = 32 // WCT
	CTStateShift  = 24 // WCT
	CTProtoShift  = 16 // WCT
)

// InPortBits is the mask of in_port in the word WPort.
const InPortBits = 0xffffffff << portShift

// Parts of vlan_tci.
const (
	VLANTCI     = 0xffff
	VLANID      = 0x0fff
	VLANPresent = 0x1000 // the CFI bit, which is set if the frame has a tag
	VLANPCP     = 0xe000
)

// EthTypeNone is the dl_type of an 802.3 frame without SNAP header.
const EthTypeNone = 0x05ff

// TunnelWords is the number of words that describe the tunnel of a received frame.
const TunnelWords = WARPSha - WTunID

// Tunnel returns the key's tunnel words without copying: tun_id, then tun_src and tun_dst for an IPv4
// underlay, then tun_ipv6_src and tun_ipv6_dst for an IPv6 underlay, then the hash of the Geneve
// options (OptionsKey.Hash), then the group policy and the flags. A megaflow's mask has all bits of the
// hash or none.
func (k *Key) Tunnel() *[TunnelWords]uint64 { return (*[TunnelWords]uint64)(k[WTunID:WARPSha]) }

// CTWords is the number of words with ct_* fields, the result of a ct action.
const CTWords = KeyWords - WCT

// CT returns the key's ct_* words without copying.
func (k *Key) CT() *[CTWords]uint64 { return (*[CTWords]uint64)(k[WCT:]) }
