// SPDX-License-Identifier: Apache-2.0

package openflow

import (
	"encoding/binary"
	"fmt"
	"strings"
)

// On the wire, a field begins with a header: NXM in OpenFlow 1.0, OXM in later versions (OpenFlow 1.5,
// 7.2.3). A header has a class (16 bits), a field number (7 bits), a bit that says whether a mask follows the
// value, and the length of the body in bytes (8 bits). The table of fields has the names and numbers of the
// headers (field.oxm).

// Classes of NXM and OXM headers, and the prefixes of the names of their fields.
const (
	classNXM0         = 0x0000 // NXM_OF_
	classNXM1         = 0x0001 // NXM_NX_
	classOXM          = 0x8000 // OXM_OF_
	classEricsson     = 0x1000 // ERICOXM_OF_
	classPacketRegs   = 0x8001 // OXM_OF_PKT_REG
	classExperimenter = 0xffff
)

// onfVendor is the experimenter number of the Open Networking Foundation.
const onfVendor = 0x4f4e4600

// onfTCPFlags is the number of tcp_flags among ONF's fields, which OpenFlow 1.3 and
// 1.4 use.
const onfTCPFlags = 42

// nshVendor is the experimenter number in the headers of the fields whose names begin with prefixNSH.
const (
	nshVendor = 0x005ad650
	prefixNSH = "NXOXM_NSH_"
)

// Numbers of xxreg0 and tun_metadata0 in NXM headers. xxregN and tun_metadataN have the number that is
// higher by N.
const (
	numberXXReg = 111 // NXM_NX_XXREG0
	numberTLV   = 40  // NXM_NX_TUN_METADATA0
)

// oxmHeader is an NXM or OXM header without its mask bit. "length" is the length in bytes of the value. If
// the class is classExperimenter, "vendor" is the number of the experimenter. On the wire, this number
// follows the header in 4 bytes, which "length" does not count.
type oxmHeader struct {
	class  uint16
	number uint8
	length uint8
	vendor uint32
}

// oxmHeaders has the two headers of a field. OpenFlow 1.0 and Nicira's actions use nxm, later versions of
// OpenFlow use oxm.
type oxmHeaders struct{ nxm, oxm oxmHeader }

var headersOf, fieldOfHeader = indexHeaders()

func indexHeaders() (headers [fieldCount]oxmHeaders, back map[oxmHeader]FieldID) {
	if len(fieldNames) == 0 {
		panic("the table of fields is not complete")
	}
	back = make(map[oxmHeader]FieldID)
	for id := FTunID; id < fieldCount; id++ {
		for i, named := range fields[id].oxm {
			h := oxmHeader{class: classOf(named.name), number: named.number, length: fields[id].bytes}
			if strings.HasPrefix(named.name, prefixNSH) {
				h.vendor = nshVendor
			}
			back[h] = id
			if i == 0 {
				headers[id].nxm = h
			}
			headers[id].oxm = h
		}
	}
	headers[FDLVLAN], headers[FDLVLANPCP] = headers[FVLANVID], headers[FVLANPCP] // both have no header of their own
	back[oxmHeader{classExperimenter, onfTCPFlags, 2, onfVendor}] = FTCPFlags
	return headers, back
}

// classOf returns the class of the header whose field has this name. The prefix of the name decides.
func classOf(name string) uint16 {
	for _, c := range []struct {
		prefix string
		class  uint16
	}{
		{"OXM_OF_PKT_REG", classPacketRegs}, {"OXM_OF_", classOXM}, {"NXM_OF_", classNXM0}, {"NXM_NX_", classNXM1}, {"ERICOXM_OF_", classEricsson}, {prefixNSH, classExperimenter},
	} {
		if strings.HasPrefix(name, c.prefix) {
			return c.class
		}
	}
	panic(name + " has no class")
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

// append appends the header to b. If masked is true, it sets the mask bit and doubles the length in the
// header, because a mask follows the value.
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

// AppendValue appends the low valueBytes bytes of a field's value in network order. valueBytes is the length
// in the field's header.
func AppendValue(b []byte, v Value128, valueBytes uint8) []byte {
	for i := int(valueBytes) - 1; i >= 0; i-- {
		b = append(b, byte(v.Shr(uint(8 * i))[1]))
	}
	return b
}

// oxmEntry is one decoded field of a match with its value and mask. If the field has no mask on the wire,
// all bits of "mask" are set, up to the field's length in bytes.
type oxmEntry struct {
	id      FieldID // FNone: a field that Weft does not support
	masked  bool
	v, mask Value128
	header  oxmHeader
	badLen  bool // the encoded length differs from the field's length
	zero    bool // all bits of the value are 0
	// For a field tun_metadata, bytes has the value and, if there is one, the mask after it.
	bytes []byte
}

// readHeader reads an NXM or OXM header at the start of b, with the experimenter number if it has one.
// bodyBytes is the length of the value and the mask that follow. restBytes is the rest of b. ok is false if
// b is too short.
func readHeader(b []byte) (h oxmHeader, masked bool, bodyBytes int, restBytes []byte, ok bool) {
	if len(b) < 4 {
		return h, false, 0, nil, false
	}
	h.class, h.number = binary.BigEndian.Uint16(b), b[2]>>1
	masked, bodyBytes, restBytes = b[2]&1 != 0, int(b[3]), b[4:]
	if h.class == classExperimenter {
		if bodyBytes < 4 || len(restBytes) < 4 {
			return h, false, 0, nil, false
		}
		h.vendor, restBytes = binary.BigEndian.Uint32(restBytes), restBytes[4:]
		bodyBytes -= 4
	}
	h.length = uint8(bodyBytes)
	if masked {
		h.length = uint8(bodyBytes / 2)
	}
	return h, masked, bodyBytes, restBytes, true
}

// fieldOf returns the field of a header, or FNone if Weft does not support the field. rightLength is true if
// the length in the header is the field's length.
func fieldOf(h oxmHeader) (id FieldID, rightLength bool) {
	if n := h.number - numberTLV; h.class == classNXM1 && n < TLVFields {
		return FTunMetadata + FieldID(n), h.length <= maxTLVLen
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

// readEntry reads one field with its header, value and mask. ok is false if b is shorter than the header
// says.
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

// ValueOf returns the number in b, which is in network order and has at most 16 bytes.
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

// MatchHeaders returns the encoded headers of the fields that a match may have, for the features of a flow
// table. If "masks" is true, the mask bit is set in the headers of the fields that may have a mask.
func MatchHeaders(v Version, masks bool) []byte {
	var b []byte
	for _, id := range featureFields(v) {
		b = id.header(v).append(b, masks && fields[id].maskable)
	}
	return b
}

// SetHeaders returns the encoded headers of the fields that set_field may set, for the features of a flow
// table.
func SetHeaders(v Version) []byte {
	var b []byte
	for _, id := range featureFields(v) {
		if !fields[id].readOnly {
			b = id.header(v).append(b, false)
		}
	}
	return b
}

// featureFields returns the fields of which version v has a header.
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
