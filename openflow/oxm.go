// SPDX-License-Identifier: Apache-2.0

package openflow

import (
	"encoding/binary"
	"fmt"
	"strings"
)

// The headers of fields on the wire: NXM in OpenFlow 1.0, OXM in later versions
// (OpenFlow 1.5, 7.2.3). A header has a class of 16 bits, a field number of 7 bits, a
// bit for a mask, and the length of the body in 8 bits. The names of the headers are in
// the table of fields (field.oxm); the numbers are in oxmNumbers.

// Classes.
const (
	classNXM0         = 0x0000 // NXM_OF_
	classNXM1         = 0x0001 // NXM_NX_
	classOXM          = 0x8000 // OXM_OF_
	classEricsson     = 0x1000 // ERICOXM_OF_
	classPacketRegs   = 0x8001 // OXM_OF_PKT_REG
	classExperimenter = 0xffff
)

// onfVendor is the experimenter of the Open Networking Foundation.
const onfVendor = 0x4f4e4600

// onfTCPFlags is the number of tcp_flags among ONF's fields, which OpenFlow 1.3 and
// 1.4 use.
const onfTCPFlags = 42

// oxmNumbers has the field numbers of the names in the table of fields. Registers are
// numbered in their order: NXM_NX_REG0 is 0, NXM_NX_XXREG0 is 111, OXM_OF_PKT_REG0 is 0.
var oxmNumbers = map[string]uint8{
	"NXM_OF_IN_PORT": 0, "NXM_OF_ETH_DST": 1, "NXM_OF_ETH_SRC": 2, "NXM_OF_ETH_TYPE": 3, "NXM_OF_VLAN_TCI": 4,
	"NXM_OF_IP_TOS": 5, "NXM_OF_IP_PROTO": 6, "NXM_OF_IP_SRC": 7, "NXM_OF_IP_DST": 8, "NXM_OF_TCP_SRC": 9,
	"NXM_OF_TCP_DST": 10, "NXM_OF_UDP_SRC": 11, "NXM_OF_UDP_DST": 12, "NXM_OF_ICMP_TYPE": 13, "NXM_OF_ICMP_CODE": 14,
	"NXM_OF_ARP_OP": 15, "NXM_OF_ARP_SPA": 16, "NXM_OF_ARP_TPA": 17,

	"NXM_NX_TUN_ID": 16, "NXM_NX_ARP_SHA": 17, "NXM_NX_ARP_THA": 18, "NXM_NX_IPV6_SRC": 19, "NXM_NX_IPV6_DST": 20,
	"NXM_NX_ICMPV6_TYPE": 21, "NXM_NX_ICMPV6_CODE": 22, "NXM_NX_ND_TARGET": 23, "NXM_NX_ND_SLL": 24, "NXM_NX_ND_TLL": 25,
	"NXM_NX_IP_FRAG": 26, "NXM_NX_IPV6_LABEL": 27, "NXM_NX_IP_ECN": 28, "NXM_NX_IP_TTL": 29, "NXM_NX_TUN_IPV4_SRC": 31,
	"NXM_NX_TUN_IPV4_DST": 32, "NXM_NX_TUN_GBP_ID": 38, "NXM_NX_TUN_GBP_FLAGS": 39, "NXM_NX_TUN_FLAGS": 104, "NXM_NX_PKT_MARK": 33, "NXM_NX_CONJ_ID": 37, "NXM_NX_TCP_FLAGS": 34, "NXM_NX_CT_STATE": 105, "NXM_NX_CT_ZONE": 106, "NXM_NX_CT_MARK": 107,
	"NXM_NX_CT_LABEL": 108, "NXM_NX_TUN_IPV6_SRC": 109, "NXM_NX_TUN_IPV6_DST": 110, "NXM_NX_CT_NW_PROTO": 119,
	"NXM_NX_CT_NW_SRC": 120, "NXM_NX_CT_NW_DST": 121, "NXM_NX_CT_IPV6_SRC": 122, "NXM_NX_CT_IPV6_DST": 123,
	"NXM_NX_CT_TP_SRC": 124, "NXM_NX_CT_TP_DST": 125,

	"OXM_OF_IN_PORT": 0, "OXM_OF_METADATA": 2, "OXM_OF_ETH_DST": 3, "OXM_OF_ETH_SRC": 4, "OXM_OF_ETH_TYPE": 5,
	"OXM_OF_VLAN_VID": 6, "OXM_OF_VLAN_PCP": 7, "OXM_OF_IP_DSCP": 8, "OXM_OF_IP_ECN": 9, "OXM_OF_IP_PROTO": 10,
	"OXM_OF_IPV4_SRC": 11, "OXM_OF_IPV4_DST": 12, "OXM_OF_TCP_SRC": 13, "OXM_OF_TCP_DST": 14, "OXM_OF_UDP_SRC": 15,
	"OXM_OF_UDP_DST": 16, "OXM_OF_SCTP_SRC": 17, "OXM_OF_SCTP_DST": 18, "OXM_OF_ICMPV4_TYPE": 19, "OXM_OF_ICMPV4_CODE": 20,
	"OXM_OF_ARP_OP": 21, "OXM_OF_ARP_SPA": 22, "OXM_OF_ARP_TPA": 23, "OXM_OF_ARP_SHA": 24, "OXM_OF_ARP_THA": 25,
	"OXM_OF_IPV6_SRC": 26, "OXM_OF_IPV6_DST": 27, "OXM_OF_IPV6_FLABEL": 28, "OXM_OF_ICMPV6_TYPE": 29, "OXM_OF_ICMPV6_CODE": 30,
	"OXM_OF_IPV6_ND_TARGET": 31, "OXM_OF_IPV6_ND_SLL": 32, "OXM_OF_IPV6_ND_TLL": 33, "OXM_OF_MPLS_LABEL": 34, "OXM_OF_MPLS_TC": 35,
	"OXM_OF_MPLS_BOS": 36, "OXM_OF_PBB_ISID": 37, "OXM_OF_IPV6_EXTHDR": 39, "NXM_NX_MPLS_TTL": 30, "OXM_OF_TUNNEL_ID": 38, "OXM_OF_TCP_FLAGS": 42,

	"ERICOXM_OF_ICMPV6_ND_RESERVED": 1, "ERICOXM_OF_ICMPV6_ND_OPTIONS_TYPE": 2,
}

// Numbers of the first registers and of the first field tun_metadata.
const (
	numberReg   = 0   // NXM_NX_REG0
	numberXXReg = 111 // NXM_NX_XXREG0
	numberTLV   = 40  // NXM_NX_TUN_METADATA0
)

// oxmHeader is a header without its mask bit: the class (16 bits), the field number (7
// bits) and the length of a body without mask. vendor is the experimenter, for headers
// of the class classExperimenter. On the wire the vendor takes 4 bytes after the
// header, which length does not count.
type oxmHeader struct {
	class  uint16
	number uint8
	length uint8
	vendor uint32
}

// oxmHeaders has the headers of each field. nxm is the header in OpenFlow 1.0 and in
// Nicira's actions, oxm the header in later versions.
type oxmHeaders struct{ nxm, oxm oxmHeader }

var headersOf, fieldOfHeader = indexHeaders()

func indexHeaders() (headers [fieldCount]oxmHeaders, back map[oxmHeader]FieldID) {
	if len(fieldNames) == 0 {
		panic("the table of fields is not complete")
	}
	back = make(map[oxmHeader]FieldID)
	for id := FTunID; id < fieldCount; id++ {
		for i, name := range fields[id].oxm {
			h := headerOf(id, name)
			back[h] = id
			if i == 0 {
				headers[id].nxm = h
			}
			headers[id].oxm = h
		}
	}
	headers[FDLVLAN], headers[FDLVLANPCP] = headers[FVLANVID], headers[FVLANPCP] // aliases without a name of their own
	back[oxmHeader{classExperimenter, onfTCPFlags, 2, onfVendor}] = FTCPFlags
	return headers, back
}

func headerOf(id FieldID, name string) oxmHeader {
	h := oxmHeader{length: fields[id].bytes}
	switch {
	case id.IsTLV():
		h.class, h.number = classNXM1, numberTLV+uint8(id-FTunMetadata)
		return h
	case strings.HasPrefix(name, "OXM_OF_PKT_REG"):
		h.class, h.number = classPacketRegs, uint8(id-FXReg)
		return h
	case strings.HasPrefix(name, "NXM_NX_REG"):
		h.class, h.number = classNXM1, numberReg+uint8(id-FReg)
		return h
	case strings.HasPrefix(name, "NXM_NX_XXREG"):
		h.class, h.number = classNXM1, numberXXReg+uint8(id-FXXReg)
		return h
	case strings.HasPrefix(name, "NXM_OF_"):
		h.class = classNXM0
	case strings.HasPrefix(name, "NXM_NX_"):
		h.class = classNXM1
	case strings.HasPrefix(name, "OXM_OF_"):
		h.class = classOXM
	case strings.HasPrefix(name, "ERICOXM_OF_"):
		h.class = classEricsson
	default:
		panic(fmt.Sprintf("%s has no class", name))
	}
	number, ok := oxmNumbers[name]
	if !ok {
		panic(fmt.Sprintf("%s has no number", name))
	}
	h.number = number
	return h
}

// header returns the header of a field in messages of version v.
func (id FieldID) header(v Version) oxmHeader {
	switch {
	case v == Version10:
		return headersOf[id].nxm
	case id == FTCPFlags && v < Version15:
		return oxmHeader{classExperimenter, onfTCPFlags, 2, onfVendor}
	}
	return headersOf[id].oxm
}

// append appends the header. masked sets the mask bit and doubles the length.
func (h oxmHeader) append(b []byte, masked bool) []byte {
	length, bit := h.length, uint8(0)
	if masked {
		length, bit = 2*length, 1
	}
	if h.class == classExperimenter {
		length += 4
	}
	b = binary.BigEndian.AppendUint16(b, h.class)
	b = append(b, h.number<<1|bit, length)
	if h.class == classExperimenter {
		b = binary.BigEndian.AppendUint32(b, h.vendor)
	}
	return b
}

// AppendValue appends the low length bytes of a field value. length is the length in
// the field's header.
func AppendValue(b []byte, v Value128, length uint8) []byte {
	for i := int(length) - 1; i >= 0; i-- {
		b = append(b, byte(v.Shr(uint(8 * i))[1]))
	}
	return b
}

// oxmEntry is one decoded field with its value. If the field has no mask on the wire,
// mask has all bits of the field's bytes.
type oxmEntry struct {
	id      FieldID // FNone: a field that Weft does not support
	masked  bool
	v, mask Value128
	header  oxmHeader
	badLen  bool // the encoded length differs from the field's length
	zero    bool // all bits of the value are 0
	// bytes has the value, and the mask behind it, of a field tun_metadata.
	bytes []byte
}

// readHeader reads a field header at the start of b. length is the length of the
// field's body. rest is the remainder of b after the header and the experimenter. ok is
// false if b is too short.
func readHeader(b []byte) (h oxmHeader, masked bool, length int, rest []byte, ok bool) {
	if len(b) < 4 {
		return h, false, 0, nil, false
	}
	h.class, h.number = binary.BigEndian.Uint16(b), b[2]>>1
	masked, length, rest = b[2]&1 != 0, int(b[3]), b[4:]
	if h.class == classExperimenter {
		if length < 4 || len(rest) < 4 {
			return h, false, 0, nil, false
		}
		h.vendor, rest = binary.BigEndian.Uint32(rest), rest[4:]
		length -= 4
	}
	h.length = uint8(length)
	if masked {
		h.length = uint8(length / 2)
	}
	return h, masked, length, rest, true
}

// fieldOf returns the field of a header, and whether the header has the field's length.
func fieldOf(h oxmHeader) (id FieldID, rightLength bool) {
	if n := h.number - numberTLV; h.class == classNXM1 && n < TLVFields {
		return FTunMetadata + FieldID(n), h.length <= MaxTLVLen
	}
	if id, ok := fieldOfHeader[h]; ok {
		return id, true
	}
	for known, id := range fieldOfHeader {
		if known.class == h.class && known.number == h.number && known.vendor == h.vendor {
			return id, false
		}
	}
	return FNone, true
}

// readEntry reads one header with its body. ok is false if b is shorter than the
// header says.
func readEntry(b []byte) (e oxmEntry, rest []byte, ok bool) {
	h, masked, length, rest, ok := readHeader(b)
	if !ok || len(rest) < length {
		return e, nil, false
	}
	e.header, e.masked = h, masked
	body := rest[:length]
	e.zero = ValueOf(body[:min(int(h.length), 16)]).IsZero() && h.length <= 16
	rest = rest[length:]
	id, right := fieldOf(h)
	if id == FNone || !right || masked && length%2 != 0 {
		e.id, e.badLen = id, id != FNone
		return e, rest, true
	}
	e.id = id
	n := int(h.length)
	if id.IsTLV() {
		e.bytes = body
		return e, rest, true
	}
	e.v, e.mask = ValueOf(body[:n]), Ones(8*uint(n))
	if masked {
		e.mask = ValueOf(body[n:])
	}
	return e, rest, true
}

// ValueOf returns up to 16 bytes as a number.
func ValueOf(b []byte) (v Value128) {
	for _, c := range b {
		v = v.Shl(8)
		v[1] |= uint64(c)
	}
	return v
}

// readSubfieldHeader reads a header that names a field in an action, without a body.
// It returns an error if Weft does not support the field.
func readSubfieldHeader(b []byte) (id FieldID, rest []byte, err error) {
	h, masked, _, rest, ok := readHeader(b)
	if !ok {
		return FNone, nil, coded(ErrActionBadLen, "an action ends within the header of a field")
	}
	id, right := fieldOf(h)
	if id == FNone || !right || masked {
		return FNone, nil, coded(ErrActionBadSetType, fmt.Sprintf("field %#04x:%d: expected a field that weft supports", h.class, h.number))
	}
	return id, rest, nil
}

// MatchHeaders returns the headers of the fields that a match may have, as the features
// of a table list them. If masks is true, a field with masks has its mask bit set.
func MatchHeaders(v Version, masks bool) []byte {
	var b []byte
	for _, id := range featureFields(v) {
		b = id.header(v).append(b, masks && fields[id].maskable)
	}
	return b
}

// SetHeaders returns the headers of the fields that set_field may set.
func SetHeaders(v Version) []byte {
	var b []byte
	for _, id := range featureFields(v) {
		if !fields[id].readOnly {
			b = id.header(v).append(b, false)
		}
	}
	return b
}

// featureFields returns the fields with a header of their own in version v.
func featureFields(v Version) []FieldID {
	var ids []FieldID
	seen := map[oxmHeader]bool{{}: true}
	for id := FTunID; id < fieldCount; id++ {
		if h := id.header(v); len(fields[id].oxm) > 0 && !seen[h] {
			seen[h] = true
			ids = append(ids, id)
		}
	}
	return ids
}
