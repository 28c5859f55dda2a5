// SPDX-License-Identifier: Apache-2.0

package openflow

import (
	"weft/flowtable"
	"weft/packet"
)

// FieldID identifies a field. It is the field's index in the table "fields".
type FieldID uint8

// Fields, with the names of ovs-fields(7). reg0 to reg15, xreg0 to xreg7 and xxreg0
// to xxreg3 are FReg+n, FXReg+n, FXXReg+n, and tun_metadata0 to tun_metadata63
// FTunMetadata+n.
const (
	FNone FieldID = iota
	FTunID
	FTunSrc
	FTunDst
	FTunIPv6Src
	FTunIPv6Dst
	FTunGBPID
	FTunGBPFlags
	FTunFlags
	FMetadata
	FConjID
	FPktMark
	FInPort
	FInPortOXM
	FEthSrc
	FEthDst
	FEthType
	FVLANTCI
	FDLVLAN
	FDLVLANPCP
	FVLANVID
	FVLANPCP
	FIPSrc
	FIPDst
	FIPv6Src
	FIPv6Dst
	FIPv6Label
	FIPv6ExtHdr
	FIPProto
	FNwTOS
	FIPDSCP
	FIPECN
	FIPTTL
	FIPFrag
	FARPOp
	FARPSpa
	FARPTpa
	FARPSha
	FARPTha
	FTCPSrc
	FTCPDst
	FTCPFlags
	FUDPSrc
	FUDPDst
	FSCTPSrc
	FSCTPDst
	FICMPType
	FICMPCode
	FICMPv6Type
	FICMPv6Code
	FNDTarget
	FNDSll
	FNDTll
	FMPLSLabel
	FMPLSTC
	FMPLSBOS
	FMPLSTTL
	FPBBISID
	FNDReserved
	FNDOptType
	FNSHFlags
	FNSHTTL
	FNSHMDType
	FNSHNP
	FNSHSPI
	FNSHSI
	FNSHC1
	FNSHC2
	FNSHC3
	FNSHC4
	FCTState
	FCTZone
	FCTMark
	FCTLabel
	FCTNwSrc
	FCTNwDst
	FCTIPv6Src
	FCTIPv6Dst
	FCTNwProto
	FCTTpSrc
	FCTTpDst
	FReg
	FXReg  = FReg + 16
	FXXReg = FXReg + 8
	// FTunMetadata is the field tun_metadata0, and FTunMetadata+n is tun_metadataN for n from 0 to 63.
	FTunMetadata = FXXReg + 4
	fieldCount   = FTunMetadata + TLVFields
)

// format is the text format of a field's value.
type format uint8

const (
	asDecimal format = iota
	asHex
	asHex0 // like asHex, but with 0x also for the number 0
	asHex4 // 0x and four digits
	asHex5
	asEthernet
	asIPv4
	asIPv6
	asPort
	asFrag
	asTCPFlags
	asCTState
	asTunFlags
)

// field is a row of the table "fields". The rows follow ovs-fields(7). Parsers, formatters, look-ups and
// actions read the table.
type field struct {
	name, alias string
	// oxm lists the NXM and OXM headers of the field. Texts and OpenFlow 1.0 use the first header, later
	// versions of OpenFlow the last.
	oxm []headerName
	// The field's value is in the bits shift to shift+bits-1 of Flow[word]. A field of 128 bits takes all of
	// Flow[word] (upper half) and Flow[word+1].
	word, shift, bits uint8
	// stored is the number of low bits that Flow has of a field with more bits. In matches, the other bits must
	// be 0. If stored is 0, Flow has all bits.
	stored uint8
	// bytes is the greatest length in bytes that a value may have in the text of a flow.
	bytes        uint8
	format       format
	maskable     bool
	readOnly     bool
	prerequisite Prereq
	// shownByAlias is true if dump-flows shows the field by its OpenFlow 1.0 name, such as dl_src.
	shownByAlias bool
	// legacySet is the type of the action with which OpenFlow 1.0 sets the whole field; 0: there is none.
	legacySet uint16
}

// headerName is the name of an NXM or OXM header and its field number on the wire.
type headerName struct {
	name   string
	number uint8
}

const (
	tunHi, tunLo        = 32, 0
	dscpAt              = flowtable.TOSShift + ecnBits
	ecnBits             = 2
	dlVLANNone          = 0xffff
	tosDSCP      uint64 = 0xfc
)

var fields = [fieldCount]field{
	FNone:        {},
	FTunID:       {name: "tun_id", alias: "tunnel_id", oxm: []headerName{{"NXM_NX_TUN_ID", 16}, {"OXM_OF_TUNNEL_ID", 38}}, word: flowtable.WTunID, bits: 64, bytes: 8, format: asHex, maskable: true},
	FTunSrc:      {name: "tun_src", oxm: []headerName{{"NXM_NX_TUN_IPV4_SRC", 31}}, word: flowtable.WTunIPv4, shift: tunHi, bits: 32, bytes: 4, format: asIPv4, maskable: true},
	FTunDst:      {name: "tun_dst", oxm: []headerName{{"NXM_NX_TUN_IPV4_DST", 32}}, word: flowtable.WTunIPv4, shift: tunLo, bits: 32, bytes: 4, format: asIPv4, maskable: true},
	FTunIPv6Src:  {name: "tun_ipv6_src", oxm: []headerName{{"NXM_NX_TUN_IPV6_SRC", 109}}, word: flowtable.WTunIPv6Src, bits: 128, bytes: 16, format: asIPv6, maskable: true},
	FTunIPv6Dst:  {name: "tun_ipv6_dst", oxm: []headerName{{"NXM_NX_TUN_IPV6_DST", 110}}, word: flowtable.WTunIPv6Dst, bits: 128, bytes: 16, format: asIPv6, maskable: true},
	FTunGBPID:    {name: "tun_gbp_id", oxm: []headerName{{"NXM_NX_TUN_GBP_ID", 38}}, word: flowtable.WTunMeta, shift: flowtable.TunGBPIDShift, bits: 16, bytes: 2, format: asDecimal, maskable: true},
	FTunGBPFlags: {name: "tun_gbp_flags", oxm: []headerName{{"NXM_NX_TUN_GBP_FLAGS", 39}}, word: flowtable.WTunMeta, shift: flowtable.TunGBPFlagsShift, bits: 8, bytes: 1, format: asHex, maskable: true},
	FTunFlags:    {name: "tun_flags", oxm: []headerName{{"NXM_NX_TUN_FLAGS", 104}}, word: flowtable.WTunMeta, shift: flowtable.TunFlagsShift, bits: 1, bytes: 2, format: asTunFlags, maskable: true},
	FMetadata:    {name: "metadata", oxm: []headerName{{"OXM_OF_METADATA", 2}}, word: WMetadata, bits: 64, bytes: 8, format: asHex, maskable: true},
	FConjID:      {name: "conj_id", oxm: []headerName{{"NXM_NX_CONJ_ID", 37}}, word: WConj, shift: 32, bits: 32, bytes: 4, format: asDecimal, readOnly: true},
	FPktMark:     {name: "pkt_mark", oxm: []headerName{{"NXM_NX_PKT_MARK", 33}}, word: WConj, bits: 32, bytes: 4, format: asHex, maskable: true},
	FInPort:      {name: "in_port", oxm: []headerName{{"NXM_OF_IN_PORT", 0}}, word: flowtable.WPort, shift: 32, bits: 16, bytes: 2, format: asPort},
	FInPortOXM:   {name: "in_port_oxm", oxm: []headerName{{"OXM_OF_IN_PORT", 0}}, word: flowtable.WPort, shift: 32, bits: 32, bytes: 4, format: asPort},
	FEthSrc:      {name: "eth_src", alias: "dl_src", oxm: []headerName{{"NXM_OF_ETH_SRC", 2}, {"OXM_OF_ETH_SRC", 4}}, word: flowtable.WEthSrc, shift: 16, bits: 48, bytes: 6, format: asEthernet, maskable: true, shownByAlias: true, legacySet: wire10SetDLSrc},
	FEthDst:      {name: "eth_dst", alias: "dl_dst", oxm: []headerName{{"NXM_OF_ETH_DST", 1}, {"OXM_OF_ETH_DST", 3}}, word: flowtable.WEthDst, shift: 16, bits: 48, bytes: 6, format: asEthernet, maskable: true, shownByAlias: true, legacySet: wire10SetDLDst},
	FEthType:     {name: "eth_type", alias: "dl_type", oxm: []headerName{{"NXM_OF_ETH_TYPE", 3}, {"OXM_OF_ETH_TYPE", 5}}, word: flowtable.WEthDst, bits: 16, bytes: 2, format: asHex4, readOnly: true, shownByAlias: true},
	FVLANTCI:     {name: "vlan_tci", oxm: []headerName{{"NXM_OF_VLAN_TCI", 4}}, word: flowtable.WEthSrc, bits: 16, bytes: 2, format: asHex4, maskable: true},
	FDLVLAN:      {name: "dl_vlan", word: flowtable.WEthSrc, bits: 12, bytes: 2, format: asDecimal},
	FDLVLANPCP:   {name: "dl_vlan_pcp", word: flowtable.WEthSrc, shift: 13, bits: 3, bytes: 1, format: asDecimal},
	FVLANVID:     {name: "vlan_vid", oxm: []headerName{{"OXM_OF_VLAN_VID", 6}}, word: flowtable.WEthSrc, bits: 12, bytes: 2, format: asDecimal, maskable: true, prerequisite: NeedVLAN},
	FVLANPCP:     {name: "vlan_pcp", oxm: []headerName{{"OXM_OF_VLAN_PCP", 7}}, word: flowtable.WEthSrc, shift: 13, bits: 3, bytes: 1, format: asDecimal, prerequisite: NeedVLAN},
	FIPSrc:       {name: "ip_src", alias: "nw_src", oxm: []headerName{{"NXM_OF_IP_SRC", 7}, {"OXM_OF_IPV4_SRC", 11}}, word: flowtable.WIPv4, shift: 32, bits: 32, bytes: 4, format: asIPv4, maskable: true, prerequisite: NeedIPv4, shownByAlias: true, legacySet: wire10SetNWSrc},
	FIPDst:       {name: "ip_dst", alias: "nw_dst", oxm: []headerName{{"NXM_OF_IP_DST", 8}, {"OXM_OF_IPV4_DST", 12}}, word: flowtable.WIPv4, bits: 32, bytes: 4, format: asIPv4, maskable: true, prerequisite: NeedIPv4, shownByAlias: true, legacySet: wire10SetNWDst},
	FIPv6Src:     {name: "ipv6_src", oxm: []headerName{{"NXM_NX_IPV6_SRC", 19}, {"OXM_OF_IPV6_SRC", 26}}, word: flowtable.WIPv6Src, bits: 128, bytes: 16, format: asIPv6, maskable: true, prerequisite: NeedIPv6},
	FIPv6Dst:     {name: "ipv6_dst", oxm: []headerName{{"NXM_NX_IPV6_DST", 20}, {"OXM_OF_IPV6_DST", 27}}, word: flowtable.WIPv6Dst, bits: 128, bytes: 16, format: asIPv6, maskable: true, prerequisite: NeedIPv6},
	FIPv6Label:   {name: "ipv6_label", oxm: []headerName{{"NXM_NX_IPV6_LABEL", 27}, {"OXM_OF_IPV6_FLABEL", 28}}, word: flowtable.WL4, bits: 20, bytes: 4, format: asHex5, maskable: true, prerequisite: NeedIPv6},
	FIPv6ExtHdr:  {name: "ipv6_exthdr", oxm: []headerName{{"OXM_OF_IPV6_EXTHDR", 39}}, word: flowtable.WL4, shift: flowtable.ExtHdrShift, bits: 9, bytes: 2, format: asHex, maskable: true, readOnly: true, prerequisite: NeedIPv6},
	FIPProto:     {name: "nw_proto", alias: "ip_proto", oxm: []headerName{{"NXM_OF_IP_PROTO", 6}, {"OXM_OF_IP_PROTO", 10}}, word: flowtable.WIP, shift: flowtable.ProtoShift, bits: 8, bytes: 1, format: asDecimal, readOnly: true, prerequisite: NeedIP},
	FNwTOS:       {name: "nw_tos", oxm: []headerName{{"NXM_OF_IP_TOS", 5}}, word: flowtable.WIP, shift: flowtable.TOSShift, bits: 8, bytes: 1, format: asDecimal, prerequisite: NeedIP, legacySet: wire10SetNWTOS},
	FIPDSCP:      {name: "ip_dscp", oxm: []headerName{{"OXM_OF_IP_DSCP", 8}}, word: flowtable.WIP, shift: dscpAt, bits: 6, bytes: 1, format: asDecimal, prerequisite: NeedIP, legacySet: wire10SetNWTOS},
	FIPECN:       {name: "nw_ecn", alias: "ip_ecn", oxm: []headerName{{"NXM_NX_IP_ECN", 28}, {"OXM_OF_IP_ECN", 9}}, word: flowtable.WIP, shift: flowtable.TOSShift, bits: ecnBits, bytes: 1, format: asDecimal, prerequisite: NeedIP},
	FIPTTL:       {name: "nw_ttl", oxm: []headerName{{"NXM_NX_IP_TTL", 29}}, word: flowtable.WIP, shift: flowtable.TTLShift, bits: 8, bytes: 1, format: asDecimal, prerequisite: NeedIP},
	FIPFrag:      {name: "ip_frag", alias: "nw_frag", oxm: []headerName{{"NXM_NX_IP_FRAG", 26}}, word: flowtable.WIP, shift: flowtable.FragShift, bits: 2, bytes: 1, format: asFrag, maskable: true, readOnly: true, prerequisite: NeedIP, shownByAlias: true},
	FARPOp:       {name: "arp_op", oxm: []headerName{{"NXM_OF_ARP_OP", 15}, {"OXM_OF_ARP_OP", 21}}, word: flowtable.WIP, shift: flowtable.ProtoShift, bits: 16, stored: 8, bytes: 2, format: asDecimal, prerequisite: NeedARP},
	FARPSpa:      {name: "arp_spa", oxm: []headerName{{"NXM_OF_ARP_SPA", 16}, {"OXM_OF_ARP_SPA", 22}}, word: flowtable.WIPv4, shift: 32, bits: 32, bytes: 4, format: asIPv4, maskable: true, prerequisite: NeedARP},
	FARPTpa:      {name: "arp_tpa", oxm: []headerName{{"NXM_OF_ARP_TPA", 17}, {"OXM_OF_ARP_TPA", 23}}, word: flowtable.WIPv4, bits: 32, bytes: 4, format: asIPv4, maskable: true, prerequisite: NeedARP},
	FARPSha:      {name: "arp_sha", oxm: []headerName{{"NXM_NX_ARP_SHA", 17}, {"OXM_OF_ARP_SHA", 24}}, word: flowtable.WARPSha, shift: 16, bits: 48, bytes: 6, format: asEthernet, maskable: true, prerequisite: NeedARP},
	FARPTha:      {name: "arp_tha", oxm: []headerName{{"NXM_NX_ARP_THA", 18}, {"OXM_OF_ARP_THA", 25}}, word: flowtable.WARPTha, shift: 16, bits: 48, bytes: 6, format: asEthernet, maskable: true, prerequisite: NeedARP},
	FTCPSrc:      {name: "tcp_src", alias: "tp_src", oxm: []headerName{{"NXM_OF_TCP_SRC", 9}, {"OXM_OF_TCP_SRC", 13}}, word: flowtable.WL4, shift: flowtable.TPSrcShift, bits: 16, bytes: 2, format: asDecimal, maskable: true, prerequisite: NeedTCP, shownByAlias: true, legacySet: wire10SetTPSrc},
	FTCPDst:      {name: "tcp_dst", alias: "tp_dst", oxm: []headerName{{"NXM_OF_TCP_DST", 10}, {"OXM_OF_TCP_DST", 14}}, word: flowtable.WL4, shift: flowtable.TPDstShift, bits: 16, bytes: 2, format: asDecimal, maskable: true, prerequisite: NeedTCP, shownByAlias: true, legacySet: wire10SetTPDst},
	FTCPFlags:    {name: "tcp_flags", oxm: []headerName{{"NXM_NX_TCP_FLAGS", 34}, {"OXM_OF_TCP_FLAGS", 42}}, word: flowtable.WIP, bits: 12, bytes: 2, format: asTCPFlags, maskable: true, readOnly: true, prerequisite: NeedTCP},
	FUDPSrc:      {name: "udp_src", oxm: []headerName{{"NXM_OF_UDP_SRC", 11}, {"OXM_OF_UDP_SRC", 15}}, word: flowtable.WL4, shift: flowtable.TPSrcShift, bits: 16, bytes: 2, format: asDecimal, maskable: true, prerequisite: NeedUDP, legacySet: wire10SetTPSrc},
	FUDPDst:      {name: "udp_dst", oxm: []headerName{{"NXM_OF_UDP_DST", 12}, {"OXM_OF_UDP_DST", 16}}, word: flowtable.WL4, shift: flowtable.TPDstShift, bits: 16, bytes: 2, format: asDecimal, maskable: true, prerequisite: NeedUDP, legacySet: wire10SetTPDst},
	FSCTPSrc:     {name: "sctp_src", oxm: []headerName{{"OXM_OF_SCTP_SRC", 17}}, word: flowtable.WL4, shift: flowtable.TPSrcShift, bits: 16, bytes: 2, format: asDecimal, maskable: true, prerequisite: NeedSCTP},
	FSCTPDst:     {name: "sctp_dst", oxm: []headerName{{"OXM_OF_SCTP_DST", 18}}, word: flowtable.WL4, shift: flowtable.TPDstShift, bits: 16, bytes: 2, format: asDecimal, maskable: true, prerequisite: NeedSCTP},
	FICMPType:    {name: "icmp_type", oxm: []headerName{{"NXM_OF_ICMP_TYPE", 13}, {"OXM_OF_ICMPV4_TYPE", 19}}, word: flowtable.WL4, shift: flowtable.TPSrcShift, bits: 8, bytes: 1, format: asDecimal, prerequisite: NeedICMP},
	FICMPCode:    {name: "icmp_code", oxm: []headerName{{"NXM_OF_ICMP_CODE", 14}, {"OXM_OF_ICMPV4_CODE", 20}}, word: flowtable.WL4, shift: flowtable.TPDstShift, bits: 8, bytes: 1, format: asDecimal, prerequisite: NeedICMP},
	FICMPv6Type:  {name: "icmpv6_type", oxm: []headerName{{"NXM_NX_ICMPV6_TYPE", 21}, {"OXM_OF_ICMPV6_TYPE", 29}}, word: flowtable.WL4, shift: flowtable.TPSrcShift, bits: 8, bytes: 1, format: asDecimal, prerequisite: NeedICMPv6},
	FICMPv6Code:  {name: "icmpv6_code", oxm: []headerName{{"NXM_NX_ICMPV6_CODE", 22}, {"OXM_OF_ICMPV6_CODE", 30}}, word: flowtable.WL4, shift: flowtable.TPDstShift, bits: 8, bytes: 1, format: asDecimal, prerequisite: NeedICMPv6},
	FNDTarget:    {name: "nd_target", oxm: []headerName{{"NXM_NX_ND_TARGET", 23}, {"OXM_OF_IPV6_ND_TARGET", 31}}, word: flowtable.WNDTarget, bits: 128, bytes: 16, format: asIPv6, maskable: true, prerequisite: NeedND},
	FNDSll:       {name: "nd_sll", oxm: []headerName{{"NXM_NX_ND_SLL", 24}, {"OXM_OF_IPV6_ND_SLL", 32}}, word: flowtable.WARPSha, shift: 16, bits: 48, bytes: 6, format: asEthernet, maskable: true, prerequisite: NeedNDSolicit},
	FNDTll:       {name: "nd_tll", oxm: []headerName{{"NXM_NX_ND_TLL", 25}, {"OXM_OF_IPV6_ND_TLL", 33}}, word: flowtable.WARPTha, shift: 16, bits: 48, bytes: 6, format: asEthernet, maskable: true, prerequisite: NeedNDAdvert},
	FMPLSLabel:   {name: "mpls_label", oxm: []headerName{{"OXM_OF_MPLS_LABEL", 34}}, word: flowtable.WIPv4, shift: flowtable.ShimShift + 12, bits: 20, bytes: 4, format: asDecimal, prerequisite: NeedMPLS},
	FMPLSTC:      {name: "mpls_tc", oxm: []headerName{{"OXM_OF_MPLS_TC", 35}}, word: flowtable.WIPv4, shift: flowtable.ShimShift + 9, bits: 3, bytes: 1, format: asDecimal, prerequisite: NeedMPLS},
	FMPLSBOS:     {name: "mpls_bos", oxm: []headerName{{"OXM_OF_MPLS_BOS", 36}}, word: flowtable.WIPv4, shift: flowtable.ShimShift + 8, bits: 1, bytes: 1, format: asDecimal, readOnly: true, prerequisite: NeedMPLS},
	FMPLSTTL:     {name: "mpls_ttl", oxm: []headerName{{"NXM_NX_MPLS_TTL", 30}}, word: flowtable.WIPv4, shift: flowtable.ShimShift, bits: 8, bytes: 1, format: asDecimal, prerequisite: NeedMPLS},
	FPBBISID:     {name: "pbb_isid", oxm: []headerName{{"OXM_OF_PBB_ISID", 37}}, word: flowtable.WIPv4, shift: flowtable.ShimShift, bits: 24, bytes: 3, format: asDecimal, maskable: true, prerequisite: NeedPBB},
	FNDReserved:  {name: "nd_reserved", oxm: []headerName{{"ERICOXM_OF_ICMPV6_ND_RESERVED", 1}}, word: flowtable.WND, shift: 32, bits: 32, bytes: 4, format: asDecimal, prerequisite: NeedND},
	FNDOptType:   {name: "nd_options_type", oxm: []headerName{{"ERICOXM_OF_ICMPV6_ND_OPTIONS_TYPE", 2}}, word: flowtable.WND, shift: 24, bits: 8, bytes: 1, format: asDecimal, prerequisite: NeedND},
	FNSHFlags:    {name: "nsh_flags", oxm: []headerName{{"NXOXM_NSH_FLAGS", 1}}, word: flowtable.WIPv4, shift: packet.NSHFlagsShift, bits: 8, bytes: 1, format: asDecimal, maskable: true, prerequisite: NeedNSH},
	FNSHTTL:      {name: "nsh_ttl", oxm: []headerName{{"NXOXM_NSH_TTL", 10}}, word: flowtable.WIPv4, shift: packet.NSHTTLShift, bits: 8, bytes: 1, format: asDecimal, prerequisite: NeedNSH},
	FNSHMDType:   {name: "nsh_mdtype", oxm: []headerName{{"NXOXM_NSH_MDTYPE", 2}}, word: flowtable.WIPv4, shift: packet.NSHMDTypeShift, bits: 8, bytes: 1, format: asDecimal, readOnly: true, prerequisite: NeedNSH},
	FNSHNP:       {name: "nsh_np", oxm: []headerName{{"NXOXM_NSH_NP", 3}}, word: flowtable.WIPv4, shift: packet.NSHNextShift, bits: 8, bytes: 1, format: asDecimal, readOnly: true, prerequisite: NeedNSH},
	FNSHSPI:      {name: "nsh_spi", alias: "nsp", oxm: []headerName{{"NXOXM_NSH_SPI", 4}}, word: flowtable.WIPv4, shift: packet.NSHSPIShift, bits: 24, bytes: 4, format: asHex0, prerequisite: NeedNSH},
	FNSHSI:       {name: "nsh_si", alias: "nsi", oxm: []headerName{{"NXOXM_NSH_SI", 5}}, word: flowtable.WIPv4, shift: 0, bits: 8, bytes: 1, format: asDecimal, prerequisite: NeedNSH},
	FNSHC1:       {name: "nsh_c1", alias: "nshc1", oxm: []headerName{{"NXOXM_NSH_C1", 6}}, word: flowtable.WIPv6Src, shift: 32, bits: 32, bytes: 4, format: asHex0, maskable: true, prerequisite: NeedNSH},
	FNSHC2:       {name: "nsh_c2", alias: "nshc2", oxm: []headerName{{"NXOXM_NSH_C2", 7}}, word: flowtable.WIPv6Src, shift: 0, bits: 32, bytes: 4, format: asHex0, maskable: true, prerequisite: NeedNSH},
	FNSHC3:       {name: "nsh_c3", alias: "nshc3", oxm: []headerName{{"NXOXM_NSH_C3", 8}}, word: flowtable.WIPv6Src + 1, shift: 32, bits: 32, bytes: 4, format: asHex0, maskable: true, prerequisite: NeedNSH},
	FNSHC4:       {name: "nsh_c4", alias: "nshc4", oxm: []headerName{{"NXOXM_NSH_C4", 9}}, word: flowtable.WIPv6Src + 1, shift: 0, bits: 32, bytes: 4, format: asHex0, maskable: true, prerequisite: NeedNSH},
}

// fieldNames finds a field by its name or alias, and oxmNames by the name of its NXM or OXM header.
var fieldNames, oxmNames = indexFields()

func indexFields() (names, oxm map[string]FieldID) {
	addRegisters()
	addCTFields()
	addTLVFields()
	names, oxm = make(map[string]FieldID), make(map[string]FieldID)
	for id := FTunID; id < fieldCount; id++ {
		f := &fields[id]
		names[f.name] = id
		if f.alias != "" {
			names[f.alias] = id
		}
		for _, h := range f.oxm {
			oxm[h.name] = id
		}
	}
	return names, oxm
}

// addRegisters adds the registers to the table of fields. Wide registers consist of narrow ones: xreg0 is
// reg0 (upper half) and reg1, and xxreg0 is reg0 to reg3.
func addRegisters() {
	num := func(n int) string { return Value128{0, uint64(n)}.decimal() }
	for n := range 16 {
		fields[int(FReg)+n] = field{name: "reg" + num(n), oxm: []headerName{{"NXM_NX_REG" + num(n), uint8(n)}},
			word: uint8(WReg + n/2), shift: uint8(32 - n%2*32), bits: 32, bytes: 4, format: asHex, maskable: true}
	}
	for n := range 8 {
		fields[int(FXReg)+n] = field{name: "xreg" + num(n), oxm: []headerName{{"OXM_OF_PKT_REG" + num(n), uint8(n)}},
			word: uint8(WReg + n), bits: 64, bytes: 8, format: asHex, maskable: true}
	}
	for n := range 4 {
		fields[int(FXXReg)+n] = field{name: "xxreg" + num(n), oxm: []headerName{{"NXM_NX_XXREG" + num(n), uint8(numberXXReg + n)}},
			word: uint8(WReg + 2*n), bits: 128, bytes: 16, format: asHex, maskable: true}
	}
}

// String returns the field's name.
func (id FieldID) String() string { return fields[id].name }

// FieldByName returns the field with a name or an alias.
func FieldByName(name string) (FieldID, bool) {
	id, ok := fieldNames[name]
	return id, ok
}

// Alias returns the field's OpenFlow 1.0 name, such as dl_src, or its name if it has no other.
func (id FieldID) Alias() string {
	if alias := fields[id].alias; alias != "" {
		return alias
	}
	return fields[id].name
}

// Bits returns the field's size in bits. It returns 0 for the fields tun_metadata: their size depends on the
// TLV map of a bridge (see TLVMap.Whole).
func (id FieldID) Bits() uint { return uint(fields[id].bits) }

// Prerequisite returns what else a match must contain if it contains this field, such as the EtherType. It
// returns NeedNothing if there is no such condition.
func (id FieldID) Prerequisite() Prereq { return fields[id].prerequisite }

// Subfield is a part of a field: Bits bits from bit Offset on (0: the lowest bit).
type Subfield struct {
	Field  FieldID
	Offset uint16
	Bits   uint16
}

// storedBits returns how many of the field's bits Flow has.
func (f *field) storedBits() uint8 {
	if f.stored != 0 {
		return f.stored
	}
	return f.bits
}

// WholeField returns the sub-field with all bits of a field. For a field tun_metadata, it returns a
// sub-field of 0 bits, because only the TLV map has the length (see TLVMap.Whole).
func WholeField(id FieldID) Subfield { return Subfield{Field: id, Bits: uint16(fields[id].bits)} }

// Words returns the value v of the sub-field, shifted to the position of the sub-field's bits in a Flow.
// "hi" belongs to Flow[word], and "lo" to Flow[word+1]. "lo" is 0 unless the field has 128 bits.
func (s Subfield) Words(v Value128) (word int, hi, lo uint64) {
	f := &fields[s.Field]
	if f.bits <= 64 {
		return int(f.word), v[1] & ones64(uint(s.Bits)) << (s.Offset % 64) << (f.shift % 64), 0
	}
	v = v.And(Ones(uint(s.Bits))).Shl(uint(s.Offset))
	return int(f.word), v[0], v[1]
}

// Mask returns a mask of the sub-field's bits in a Flow: hi for Flow[word], and lo for Flow[word+1] if the
// field has 128 bits.
func (s Subfield) Mask() (word int, hi, lo uint64) { return s.Words(Ones(uint(s.Bits))) }

// Get reads the sub-field from f.
func (s Subfield) Get(f *Flow) Value128 {
	row := &fields[s.Field]
	if row.bits <= 64 {
		return Value128{0, f[row.word] >> (row.shift % 64) >> (s.Offset % 64) & ones64(uint(s.Bits))}
	}
	v := Value128{f[row.word], f[row.word+1]}
	return v.Shr(uint(s.Offset)).And(Ones(uint(s.Bits)))
}

// Put writes the bits of v that are set in "mask" to the sub-field in f. It keeps the other bits.
func (s Subfield) Put(f *Flow, v, mask Value128) {
	word, hi, lo := s.Words(v.And(mask))
	_, mhi, mlo := s.Words(mask)
	f[word] = f[word]&^mhi | hi
	if fields[s.Field].bits > 64 {
		f[word+1] = f[word+1]&^mlo | lo
	}
}
