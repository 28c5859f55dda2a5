// SPDX-License-Identifier: Apache-2.0

package packet

import "encoding/binary"

// The types in this file are views: the bytes of a header in a frame, with a method for each field.
// Integers are in host byte order. The methods check no lengths, because extraction has done so.

// EtherTypes.
const (
	EtherTypeIPv4  = 0x0800
	EtherTypeARP   = 0x0806
	EtherTypeRARP  = 0x8035
	EtherTypeTEB   = 0x6558 // transparent Ethernet bridging: Ethernet in a tunnel
	EtherTypeVLAN  = 0x8100
	EtherTypeIPv6  = 0x86dd
	EtherTypeSVLAN = 0x88a8

	// protocol types of GRE for ERSPAN (draft-foschiano-erspan-03 section 4)
	EtherTypeERSPAN1 = 0x88be
	EtherTypeERSPAN2 = 0x22eb
)

// IP protocols.
const (
	ProtoHopByHop = 0
	ProtoICMP     = 1
	ProtoTCP      = 6
	ProtoUDP      = 17
	ProtoRouting  = 43
	ProtoFragment = 44
	ProtoGRE      = 47
	ProtoESP      = 50
	ProtoAH       = 51
	ProtoICMPv6   = 58
	ProtoNone     = 59
	ProtoDestOpts = 60
	ProtoSCTP     = 132
)

// Lengths in bytes of headers, without options and other variable parts.
const (
	EthernetLen = 14
	VLANLen     = 4
	ARPLen      = 28
	IPv4Len     = 20
	IPv6Len     = 40
	TCPLen      = 20
	UDPLen      = 8
	GRELen      = 4 // without the fields of its flags
	GREFieldLen = 4 // length of the optional field of one flag
	// TunnelLimitLen is the length of an IPv6 destination options header that has only the tunnel
	// encapsulation limit (RFC 2473 section 5.1). Linux sends such a header before GRE over IPv6.
	TunnelLimitLen = 8
	SCTPLen        = 12
	ICMPLen        = 8
	ICMPv6Len      = 4
)

// Ethernet is an Ethernet II header, at least 14 bytes. Its methods take an address in the low 48 bits of an
// integer.
type Ethernet []byte

func (h Ethernet) Type() uint16 { return binary.BigEndian.Uint16(h[12:]) }

func (h Ethernet) SetDst(mac uint64) {
	binary.BigEndian.PutUint64(h, mac<<16|uint64(binary.BigEndian.Uint16(h[6:])))
}

func (h Ethernet) SetSrc(mac uint64) {
	binary.BigEndian.PutUint32(h[6:], uint32(mac>>16))
	binary.BigEndian.PutUint16(h[10:], uint16(mac))
}

func (h Ethernet) SetType(t uint16) { binary.BigEndian.PutUint16(h[12:], t) }

// ARP is an ARP or RARP packet for IPv4 over Ethernet, 28 bytes (RFC 826).
type ARP []byte

func (h ARP) HardwareType() uint16 { return binary.BigEndian.Uint16(h) }
func (h ARP) ProtocolType() uint16 { return binary.BigEndian.Uint16(h[2:]) }
func (h ARP) HardwareLen() uint8   { return h[4] }
func (h ARP) ProtocolLen() uint8   { return h[5] }
func (h ARP) Op() uint16           { return binary.BigEndian.Uint16(h[6:]) }
func (h ARP) SenderHW() uint64     { return binary.BigEndian.Uint64(h[8:]) >> 16 }
func (h ARP) SenderIPv4() uint32   { return binary.BigEndian.Uint32(h[14:]) }
func (h ARP) TargetHW() uint64     { return binary.BigEndian.Uint64(h[18:]) >> 16 }
func (h ARP) TargetIPv4() uint32   { return binary.BigEndian.Uint32(h[24:]) }

// IPv4 is an IPv4 header, at least 20 bytes (RFC 791).
type IPv4 []byte

func (h IPv4) Version() uint8    { return h[0] >> 4 }
func (h IPv4) HeaderLen() int    { return int(h[0]&15) * 4 } // bytes
func (h IPv4) TOS() uint8        { return h[1] }
func (h IPv4) TotalLen() int     { return int(binary.BigEndian.Uint16(h[2:])) }
func (h IPv4) ID() uint16        { return binary.BigEndian.Uint16(h[4:]) }
func (h IPv4) FlagsFrag() uint16 { return binary.BigEndian.Uint16(h[6:]) } // DF 0x4000, MF 0x2000, offset 0x1fff
func (h IPv4) TTL() uint8        { return h[8] }
func (h IPv4) Proto() uint8      { return h[9] }
func (h IPv4) Checksum() uint16  { return binary.BigEndian.Uint16(h[10:]) }
func (h IPv4) Src() uint32       { return binary.BigEndian.Uint32(h[12:]) }
func (h IPv4) Dst() uint32       { return binary.BigEndian.Uint32(h[16:]) }

func (h IPv4) SetTotalLen(n int)      { binary.BigEndian.PutUint16(h[2:], uint16(n)) }
func (h IPv4) SetID(id uint16)        { binary.BigEndian.PutUint16(h[4:], id) }
func (h IPv4) SetFlagsFrag(v uint16)  { binary.BigEndian.PutUint16(h[6:], v) }
func (h IPv4) SetChecksum(sum uint16) { binary.BigEndian.PutUint16(h[10:], sum) }

// IPv6 is an IPv6 header, 40 bytes (RFC 8200).
type IPv6 []byte

func (h IPv6) Version() uint8      { return h[0] >> 4 }
func (h IPv6) TrafficClass() uint8 { return uint8(binary.BigEndian.Uint16(h) >> 4) }
func (h IPv6) Label() uint32       { return binary.BigEndian.Uint32(h) & 0xfffff }
func (h IPv6) PayloadLen() int     { return int(binary.BigEndian.Uint16(h[4:])) }
func (h IPv6) NextHeader() uint8   { return h[6] }
func (h IPv6) HopLimit() uint8     { return h[7] }

// Src and Dst return the upper and lower 64 bits of an IPv6 address.
func (h IPv6) Src() (hi, lo uint64) {
	return binary.BigEndian.Uint64(h[8:]), binary.BigEndian.Uint64(h[16:])
}

func (h IPv6) Dst() (hi, lo uint64) {
	return binary.BigEndian.Uint64(h[24:]), binary.BigEndian.Uint64(h[32:])
}

func (h IPv6) SetPayloadLen(n int) { binary.BigEndian.PutUint16(h[4:], uint16(n)) }

func (h IPv6) SetTrafficClass(tc uint8) {
	h[0] = h[0]&0xf0 | tc>>4
	h[1] = h[1]&0x0f | tc<<4
}

// UDP is a UDP header, 8 bytes (RFC 768).
type UDP []byte

func (h UDP) SrcPort() uint16  { return binary.BigEndian.Uint16(h) }
func (h UDP) DstPort() uint16  { return binary.BigEndian.Uint16(h[2:]) }
func (h UDP) Len() int         { return int(binary.BigEndian.Uint16(h[4:])) }
func (h UDP) Checksum() uint16 { return binary.BigEndian.Uint16(h[6:]) }

func (h UDP) SetSrcPort(p uint16)    { binary.BigEndian.PutUint16(h, p) }
func (h UDP) SetDstPort(p uint16)    { binary.BigEndian.PutUint16(h[2:], p) }
func (h UDP) SetLen(n int)           { binary.BigEndian.PutUint16(h[4:], uint16(n)) }
func (h UDP) SetChecksum(sum uint16) { binary.BigEndian.PutUint16(h[6:], sum) }

// GRE is a GRE header of version 0 (RFC 2784 section 2, RFC 2890 section 2): flags and protocol type, 2
// bytes each, then a field of 4 bytes for each of the flags GREChecksum, GREKey and GRESequence that is
// set, in this order.
type GRE []byte

// GREProtocols are the protocol types of GRE that tunnels accept: Ethernet and ERSPAN.
var GREProtocols = [...]uint16{EtherTypeTEB, EtherTypeERSPAN1, EtherTypeERSPAN2}

// Flags of a GRE header.
const (
	GREChecksum = 0x8000
	GREKey      = 0x2000
	GRESequence = 0x1000
)

func (h GRE) Flags() uint16    { return binary.BigEndian.Uint16(h) }
func (h GRE) Protocol() uint16 { return binary.BigEndian.Uint16(h[2:]) }

// Offset returns the offset in the header of the field that belongs to a flag, such as GREKey. If flag is 0,
// it returns the offset of the payload.
func (h GRE) Offset(flag uint16) int {
	n := GRELen
	for _, f := range [...]uint16{GREChecksum, GREKey, GRESequence} {
		if f == flag {
			break
		}
		if h.Flags()&f != 0 {
			n += GREFieldLen
		}
	}
	return n
}

// addSequence adds n to the sequence number, if the header has one.
func (h GRE) addSequence(n uint32) {
	if h.Flags()&GRESequence != 0 {
		at := h[h.Offset(GRESequence):]
		binary.BigEndian.PutUint32(at, binary.BigEndian.Uint32(at)+n)
	}
}

// TCP is a TCP header, at least 20 bytes (RFC 9293).
type TCP []byte

func (h TCP) Seq() uint32      { return binary.BigEndian.Uint32(h[4:]) }
func (h TCP) Ack() uint32      { return binary.BigEndian.Uint32(h[8:]) }
func (h TCP) HeaderLen() int   { return int(h[12]>>4) * 4 } // bytes
func (h TCP) Checksum() uint16 { return binary.BigEndian.Uint16(h[16:]) }
