// SPDX-License-Identifier: Apache-2.0

package openflow

import "slices"

func init() {
	addAction(ActDeleteField, actionRow{words: map[string]actionParse{"delete_field": (*actionParser).deleteField},
		format: func(a *Action, _ Names) string { return "delete_field:" + a.Dst.Field.String() },
		encode: (*actionEncoder).deleteField, nicira: map[uint16]niciraRow{nxDeleteField: {14, (*actionDecoder).deleteField}}})
}

// On the wire, the length in the header of a field tun_metadata may be smaller than the length of the Geneve
// option. The first bytes of the option are then missing, and are 0 in the value and in the mask.

// header returns the header of a field for version v. The length in the header of a field tun_metadata comes
// from the map.
func (m *TLVMap) header(id FieldID, v Version) oxmHeader {
	h := id.header(v)
	if f := m.Field(id); f != nil {
		h.length = f.Len
	}
	return h
}

// tlv returns the value and the mask of a field tun_metadata in the length that the map gives the field.
// Errors are *CodedError.
func (e *oxmEntry) tlv(m *TLVMap) (v TLVValue, err error) {
	f := m.Field(e.id)
	if f == nil {
		return v, coded(ErrFlowInvalidTLV, unmapped(e.id).Error())
	}
	n := len(e.bytes)
	if e.masked {
		n /= 2
	}
	fit := func(b []byte) (fitted []byte, ok bool) {
		if extra := len(b) - int(f.Len); extra > 0 {
			return b[extra:], allZero(b[:extra])
		}
		return slices.Concat(make([]byte, int(f.Len)-len(b)), b), true
	}
	value, ok := fit(e.bytes[:n])
	mask := slices.Repeat([]byte{0xff}, int(f.Len))
	if ok && e.masked {
		mask, ok = fit(e.bytes[n:])
	}
	if !ok {
		return v, Errorf(ErrMatchBadLen, "%v: expected a value of at most %d bytes", e.id, f.Len)
	}
	for i := range value {
		if value[i]&^mask[i] != 0 {
			return v, Errorf(ErrMatchBadWildcards, "%v: a value with bits that its mask does not have", e.id)
		}
	}
	return TLVValue{slices.Clone(value), slices.Clone(mask)}, nil
}

// requireTLV adds the decoded field tun_metadata to the match m. Errors are *CodedError.
func (e *oxmEntry) requireTLV(m *Match, tlvs *TLVMap) error {
	v, err := e.tlv(tlvs)
	if err != nil {
		return err
	}
	f := tlvs.Field(e.id)
	if m.Mask[WTLVs]&f.Present() != 0 {
		return Errorf(ErrMatchDupField, "%v: expected it once", e.id)
	}
	f.require(m, &v)
	return nil
}

// appendMatch appends the fields tun_metadata of a match.
func (m *TLVMap) appendMatch(b []byte, match *Match) []byte {
	if m == nil || match.Mask[WTLVs] == 0 {
		return b
	}
	for _, f := range m.fields {
		if f == nil {
			continue
		}
		if v, ok := f.required(match); ok {
			b = m.appendValue(b, FTunMetadata+FieldID(f.Field), &v)
		}
	}
	return b
}

// appendValue appends the header and the value of a field tun_metadata, and the mask unless all of its bits
// are set. A match that only requires the option to be present has the mask 0.
func (m *TLVMap) appendValue(b []byte, id FieldID, v *TLVValue) []byte {
	masked := slices.ContainsFunc(v.Mask, func(c byte) bool { return c != 0xff })
	b = append(m.header(id, Version10).append(b, masked), v.Value...)
	if masked {
		b = append(b, v.Mask...)
	}
	return b
}

// setTLV appends a set_field of a field tun_metadata. Before OpenFlow 1.5 a set_field with a mask becomes
// Nicira's reg_load2. In OpenFlow 1.0 any set_field does.
func (e *actionEncoder) setTLV(b []byte, id FieldID, v *TLVValue) []byte {
	start := len(b)
	whole := !slices.ContainsFunc(v.Mask, func(c byte) bool { return c != 0xff })
	if e.v >= Version15 || whole && e.v != Version10 {
		b = appendHeader(b, wireSetField)
	} else {
		b = appendNX(b, nxRegLoad2)
	}
	return endAction(e.tlvs.appendValue(b, id, v), start)
}

// loadTLV appends a load to a field tun_metadata. OpenFlow 1.5 gets a set_field with a mask instead.
func (e *actionEncoder) loadTLV(b []byte, a *Action) []byte {
	f := e.tlvs.Field(a.Dst.Field)
	if f == nil {
		return b
	}
	if e.v < Version15 {
		start := len(b)
		b = be.AppendUint16(appendNX(b, nxRegLoad), a.Dst.bitsOf())
		return endAction(be.AppendUint64(e.tlvs.header(a.Dst.Field, Version10).append(b, false), a.Value[1]), start)
	}
	var value, mask Flow
	f.Put(&value, a.Dst, a.Value, a.Dst.Ones())
	f.Put(&mask, a.Dst, a.Dst.Ones(), a.Dst.Ones())
	return e.setTLV(b, a.Dst.Field, &TLVValue{f.Bytes(&value), f.Bytes(&mask)})
}

// deleteFieldLen is the length of delete_field in bytes.
const deleteFieldLen = 24

// deleteField appends a delete_field action. The header of the field and zeros follow the subtype.
func (e *actionEncoder) deleteField(b []byte, a *Action) []byte {
	start := len(b)
	b = e.tlvs.header(a.Dst.Field, Version10).append(appendNX(b, nxDeleteField), false)
	return appendZeros(b, start+deleteFieldLen-len(b))
}

// deleteField decodes delete_field. b begins behind the subtype.
func (d *actionDecoder) deleteField(_ uint16, b []byte) (Action, error) {
	id, _, err := readSubfieldHeader(b)
	switch {
	case err != nil:
		return Action{}, err
	case !id.IsTLV():
		return Action{}, Errorf(ErrActionBadArgument, "delete_field: %v: expected a field tun_metadata", id)
	case d.tlvs.Field(id) == nil:
		return Action{}, coded(ErrFlowInvalidTLV, unmapped(id).Error())
	}
	return Action{Kind: ActDeleteField, Dst: d.tlvs.Whole(id)}, nil
}
