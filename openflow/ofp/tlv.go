// SPDX-License-Identifier: Apache-2.0

package ofp

import (
	of "weft/openflow"
)

// This file has Nicira's messages about the TLV map of a bridge (tlv_table): the request that changes it,
// and the reply that lists it.

const nxTLVTableReply = 26

// tlvMappingLen is the length of a mapping in bytes: class (16 bits), type (8), length
// (8), field (16) and padding (16).
const tlvMappingLen = 8

// DecodeTLVTableMod decodes Nicira's request to change the TLV map of a bridge.
func DecodeTLVTableMod(r *Request) (mod of.TLVMod, err error) {
	b := reader{b: r.Body, tlvs: r.TLVs}
	mod.Command = of.TLVCommand(b.u16())
	b.skip(6)
	if b.short || len(b.b)%tlvMappingLen != 0 {
		return mod, coded(of.ErrBadRequestLen, "tlv_table_mod: expected mappings of %d bytes", tlvMappingLen)
	}
	if mod.Command > of.TLVClear {
		return mod, coded(of.ErrTLVBadCommand, "tlv_table_mod: command %d: expected add, delete or clear", mod.Command)
	}
	for len(b.b) > 0 {
		mod.Mappings = append(mod.Mappings, of.TLVMapping{Class: b.u16(), Type: b.u8(), Len: b.u8(), Field: b.u16()})
		b.skip(2)
	}
	return mod, nil
}

// AppendTLVTableReply appends the reply that lists the TLV map of a bridge.
func AppendTLVTableReply(b []byte, r *Request, m *of.TLVMap) []byte {
	start := len(b)
	b = be.AppendUint32(be.AppendUint32(Begin(b, r.Version, TypeExperimenter, r.XID), nicira), nxTLVTableReply)
	b = zeros(be.AppendUint16(be.AppendUint32(b, of.TLVSpace), of.TLVFields), 10)
	for _, t := range m.Mappings() {
		b = append(be.AppendUint16(b, t.Class), t.Type, t.Len)
		b = zeros(be.AppendUint16(b, t.Field), 2)
	}
	return End(b, start)
}
