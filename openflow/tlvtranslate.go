// SPDX-License-Identifier: Apache-2.0

package openflow

import (
	"encoding/binary"
	"slices"

	"weft/flowtable"
)

// This file translates the fields tun_metadata. Their bits in Flow belong to the key's
// word flowtable.WTunOpts: a megaflow that depends on one of them matches all options of
// the frame.

// readTLV is read for a field tun_metadata.
func (x *xlate) readTLV(s Subfield) Value128 {
	f := x.p.TLVs().field(s.Field)
	if f == nil {
		return Value128{}
	}
	f.visit(s, s.ones(), x.VisitWord)
	return f.get(&x.flow, s)
}

// putTLV writes the bits of v that are set in mask. The frame then has the option.
func (x *xlate) putTLV(dst Subfield, v, mask Value128) {
	f := x.p.TLVs().field(dst.Field)
	if f == nil {
		return
	}
	f.put(&x.flow, dst, v, mask)
	f.visit(dst, mask, func(word int, bits uint64) { x.keep[word] &^= bits })
	x.flow[WTLVs] |= f.present()
	x.keep[WTLVs] &^= f.present()
}

// setTLV executes set_field of a whole field.
func (x *xlate) setTLV(id FieldID, v *TLVValue) {
	f := x.p.TLVs().field(id)
	if f == nil || len(v.Value) != int(f.Len) {
		return
	}
	if len(v.Value) == 0 {
		x.putTLV(Subfield{Field: id}, Value128{}, Value128{})
		return
	}
	eachChunk(8*uint16(f.Len), func(bit, n uint16) {
		x.putTLV(Subfield{id, bit, n}, chunkOf(v.Value, bit, n), chunkOf(v.Mask, bit, n))
	})
}

// deleteTLV removes the option from the frame.
func (x *xlate) deleteTLV(id FieldID) {
	f := x.p.TLVs().field(id)
	if f == nil {
		return
	}
	s := x.p.TLVs().whole(id)
	eachChunk(s.Bits, func(bit, n uint16) { x.putTLV(Subfield{id, bit, n}, Value128{}, ones(uint(n))) })
	x.flow[WTLVs] &^= f.present()
	x.keep[WTLVs] &^= f.present()
}

// move copies a sub-field to one of the same size.
func (x *xlate) move(src, dst Subfield) {
	if src.Bits <= maxChunk {
		x.set(dst, x.read(src), dst.ones())
		return
	}
	var parts []Value128 // read as a whole first: the sub-fields may overlap
	eachChunk(src.Bits, func(bit, n uint16) { parts = append(parts, x.read(Subfield{src.Field, src.Offset + bit, n})) })
	eachChunk(dst.Bits, func(bit, n uint16) {
		x.set(Subfield{dst.Field, dst.Offset + bit, n}, parts[bit/maxChunk], ones(uint(n)))
	})
}

// eachChunk divides a number of bits into parts of at most maxChunk bits, and calls fn with
// the first bit and the size of each part, the lowest part first.
func eachChunk(bits uint16, fn func(bit, n uint16)) {
	for bit := uint16(0); bit < bits; bit += maxChunk {
		fn(bit, min(bits-bit, maxChunk))
	}
}

// chunkOf returns n bits of the number in b, from bit on. Both are multiples of 8.
func chunkOf(b []byte, bit, n uint16) Value128 {
	end := len(b) - int(bit)/8
	return valueOf(b[end-int(n)/8 : end])
}

// freezeTLVs returns the bits of the fields tun_metadata that do not come from the arriving
// frame: for each word with such bits its index in 8 bits, their mask and their values in
// 64 bits each.
func (x *xlate) freezeTLVs() string {
	set := x.keep
	for w := WTLVs; w < FlowWords; w++ {
		set[w] = ^set[w]
	}
	return tlvWords(&x.flow, &set)
}

// tlvWords returns the bits of flow that are set in mask, of the words from WTLVs on.
func tlvWords(flow, mask *Flow) string {
	var b []byte
	for w := WTLVs; w < FlowWords; w++ {
		if mask[w] != 0 {
			b = binary.BigEndian.AppendUint64(append(b, byte(w-WTLVs)), mask[w])
			b = binary.BigEndian.AppendUint64(b, flow[w]&mask[w])
		}
	}
	return string(b)
}

// eachTLVWord calls fn for the words in a text of tlvWords.
func eachTLVWord(text string, fn func(word int, mask, v uint64)) {
	for b := []byte(text); len(b) >= 17; b = b[17:] {
		fn(WTLVs+int(b[0]), binary.BigEndian.Uint64(b[1:]), binary.BigEndian.Uint64(b[9:]))
	}
}

// thawTLVs reverses freezeTLVs.
func (x *xlate) thawTLVs(frozen string) {
	eachTLVWord(frozen, func(w int, set, v uint64) {
		x.flow[w] = x.flow[w]&^set | v
		x.keep[w] &^= set
	})
}

// noteTLVs returns the fields that the frame has, in the form of tlvWords. The megaflow then
// matches them.
func (x *xlate) noteTLVs() string {
	var mask Flow
	for _, f := range x.presentTLVs() {
		f.eachCell(func(word int, bits uint64) {
			mask[word] |= bits
			x.VisitWord(word, bits)
		})
		mask[WTLVs] |= f.present()
	}
	return tlvWords(&x.flow, &mask)
}

// presentTLVs returns the mapped fields that the frame has.
func (x *xlate) presentTLVs() (list []*tlvField) {
	m := x.p.TLVs()
	if m == nil {
		return nil
	}
	for id := range FieldID(TLVFields) {
		f := m.field(FTunMetadata + id)
		if f == nil {
			continue
		}
		x.VisitWord(WTLVs, f.present())
		if x.flow[WTLVs]&f.present() != 0 {
			list = append(list, f)
		}
	}
	return list
}

// optionHeader is the length of the header of an option (RFC 8926, 3.5): class (16 bits),
// type (8), flags (3) and length in units of 4 bytes (5).
const optionHeader = 4

// criticalOption is the bit of an option's type that says that a receiver that does not
// know the option drops the frame.
const criticalOption = 0x80

// decode sets the fields of the options in raw, the options of a Geneve header. It returns
// false for options that end within one, for a critical option that the map does not have,
// and for an option whose length differs from the map's: such a frame is dropped, as in
// Open vSwitch. Other options without a field are ignored.
func (m *TLVMap) decode(flow *Flow, raw []byte) bool {
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
		var f *tlvField
		if m != nil {
			f = m.byKey[key]
		}
		switch {
		case f == nil && byte(key)&criticalOption != 0, f != nil && int(f.Len) != n:
			return false
		case f != nil:
			f.setBytes(flow, body, slices.Repeat([]byte{0xff}, n))
			flow[WTLVs] |= f.present()
		}
	}
	return true
}

// encode returns the options of the fields that the flow has, in the order of the fields.
func (m *TLVMap) encode(flow *Flow) []byte {
	if m == nil {
		return nil
	}
	var b []byte
	for _, f := range m.fields {
		if f != nil && flow[WTLVs]&f.present() != 0 {
			b = append(b, byte(f.Class>>8), byte(f.Class), f.Type, f.Len/tlvCell)
			b = append(b, f.bytes(flow)...)
		}
	}
	return b
}

// takeOptions decodes the options of the arriving frame with the map of the bridge. It
// returns false if the frame is dropped, because of a critical option that the map does not
// have or options that control does not know. Only frames with critical options are checked:
// otherwise each megaflow of a Geneve port would match all options.
func (x *xlate) takeOptions() bool {
	env, ok := x.env.(TunnelOptions)
	if !ok || !env.Geneve() {
		return true
	}
	x.VisitWord(flowtable.WTunMeta, flowtable.TunCritical)
	hash := x.flow[flowtable.WTunOpts]
	if hash == 0 {
		return true
	}
	critical := x.flow[flowtable.WTunMeta]&flowtable.TunCritical != 0
	raw, known := env.Options(hash)
	if critical || !known {
		x.VisitWord(flowtable.WTunOpts, ^uint64(0))
	}
	if !known {
		x.refuse()
	}
	if known && (x.p.TLVs().decode(&x.flow, raw) || !critical) {
		return true
	}
	x.note("the frame has Geneve options that the TLV map does not have")
	return false
}

// setTunnelFields emits the options, tun_gbp_id, tun_gbp_flags and tun_flags of the frame
// for the tunnel outputs that follow. As in Open vSwitch, the mapped options of a received
// frame are also sent to the next tunnel. It returns false if the options are too long.
func (x *xlate) setTunnelFields(port *PortInfo) bool {
	const word = flowtable.WTunMeta
	var sendable uint64
	switch port.Encap {
	case EncapGBP:
		sendable = 0xffff<<flowtable.TunGBPIDShift | 0xff<<flowtable.TunGBPFlagsShift
	case EncapGeneve:
		sendable = flowtable.TunOAM << flowtable.TunFlagsShift
		x.noteTLVs() // the options depend on all bits of these fields
		raw := string(x.p.TLVs().encode(&x.flow))
		if len(raw) > flowtable.MaxTunOptions {
			return false
		}
		if raw != x.sentOptions {
			for _, a := range flowtable.AppendTunOptions(nil, []byte(raw)) {
				x.emit(a)
			}
			x.sentOptions = raw
		}
	default:
		return true
	}
	x.VisitWord(word, sendable)
	if meta := x.flow[word] & sendable; meta != x.sentMeta {
		x.emit(flowtable.Action{Op: flowtable.OpTunMeta, U64: meta})
		x.sentMeta = meta
	}
	return true
}
