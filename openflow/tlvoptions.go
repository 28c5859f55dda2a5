// SPDX-License-Identifier: Apache-2.0

package openflow

import "slices"

// optionHeader is the length of the header of an option (RFC 8926, 3.5): class (16 bits),
// type (8), flags (3) and length in units of 4 bytes (5).
const optionHeader = 4

// criticalOption is the bit of an option's type that makes the option critical: a receiver that does not know
// the option must drop the frame.
const criticalOption = 0x80

// Decode sets the fields tun_metadata of a flow from "raw", the options of the frame's Geneve header. If it
// returns false, the frame must be dropped, as in Open vSwitch: the last option is incomplete, a critical
// option is not mapped, or an option has another length than its mapping. Other options without a mapping are
// ignored.
func (m *TLVMap) Decode(flow *Flow, raw []byte) bool {
	for len(raw) > 0 {
		if len(raw) < optionHeader {
			return false
		}
		n := tlvCell * int(raw[3]&0x1f)
		if len(raw) < optionHeader+n {
			return false
		}
		key := uint32(raw[0])<<16 | uint32(raw[1])<<8 | uint32(raw[2])
		body := raw[optionHeader : optionHeader+n]
		raw = raw[optionHeader+n:]
		var f *TLVField
		if m != nil {
			f = m.byKey[key]
		}
		switch {
		case f == nil && byte(key)&criticalOption != 0, f != nil && int(f.Len) != n:
			return false
		case f != nil:
			f.SetBytes(flow, body, slices.Repeat([]byte{0xff}, n))
			flow[WTLVs] |= f.Present()
		}
	}
	return true
}

// Encode returns the Geneve options, with their headers, that a frame with this flow has. They are in the
// order of the numbers of their fields.
func (m *TLVMap) Encode(flow *Flow) []byte {
	if m == nil {
		return nil
	}
	var b []byte
	for _, f := range m.fields {
		if f != nil && flow[WTLVs]&f.Present() != 0 {
			b = append(b, byte(f.Class>>8), byte(f.Class), f.Type, f.Len/tlvCell)
			b = append(b, f.Bytes(flow)...)
		}
	}
	return b
}
