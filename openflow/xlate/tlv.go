// SPDX-License-Identifier: Apache-2.0

package xlate

import (
	"encoding/binary"

	"weft/flowtable"
	"weft/openflow"
)

// This file translates the fields tun_metadata. The key has only a hash of the Geneve options, in the
// word flowtable.WTunOpts. A megaflow that depends on one of the fields therefore matches all options of
// the frame.

// readTLV does the work of read for the fields tun_metadata.
func (x *xlate) readTLV(s openflow.Subfield) openflow.Value128 {
	f := x.p.TLVs().Field(s.Field)
	if f == nil {
		return openflow.Value128{}
	}
	f.Visit(s, s.Ones(), x.VisitWord)
	return f.Get(&x.flow, s)
}

// putTLV writes the bits of v that are set in mask. The frame then has the option.
func (x *xlate) putTLV(dst openflow.Subfield, v, mask openflow.Value128) {
	f := x.p.TLVs().Field(dst.Field)
	if f == nil {
		return
	}
	f.Put(&x.flow, dst, v, mask)
	f.Visit(dst, mask, func(word int, bits uint64) { x.keep[word] &^= bits })
	x.flow[openflow.WTLVs] |= f.Present()
	x.keep[openflow.WTLVs] &^= f.Present()
}

// setTLV executes set_field of a whole field tun_metadata.
func (x *xlate) setTLV(id openflow.FieldID, v *openflow.TLVValue) {
	f := x.p.TLVs().Field(id)
	if f == nil || len(v.Value) != int(f.Len) {
		return
	}
	if len(v.Value) == 0 {
		x.putTLV(openflow.Subfield{Field: id}, openflow.Value128{}, openflow.Value128{})
		return
	}
	eachChunk(8*uint16(f.Len), func(bit, n uint16) {
		x.putTLV(openflow.Subfield{Field: id, Offset: bit, Bits: n}, chunkOf(v.Value, bit, n), chunkOf(v.Mask, bit, n))
	})
}

// deleteTLV executes delete_field: it removes the Geneve option of a field tun_metadata from the
// frame.
func (x *xlate) deleteTLV(id openflow.FieldID) {
	f := x.p.TLVs().Field(id)
	if f == nil {
		return
	}
	s := x.p.TLVs().Whole(id)
	eachChunk(s.Bits, func(bit, n uint16) {
		x.putTLV(openflow.Subfield{Field: id, Offset: bit, Bits: n}, openflow.Value128{}, openflow.Ones(uint(n)))
	})
	x.flow[openflow.WTLVs] &^= f.Present()
	x.keep[openflow.WTLVs] &^= f.Present()
}

// move copies a sub-field to one of the same size.
func (x *xlate) move(src, dst openflow.Subfield) {
	if src.Bits <= openflow.MaxChunk {
		x.set(dst, x.read(src), dst.Ones())
		return
	}
	var parts []openflow.Value128 // read completely before the first write, because the sub-fields may overlap
	eachChunk(src.Bits, func(bit, n uint16) {
		parts = append(parts, x.read(openflow.Subfield{Field: src.Field, Offset: src.Offset + bit, Bits: n}))
	})
	eachChunk(dst.Bits, func(bit, n uint16) {
		x.set(openflow.Subfield{Field: dst.Field, Offset: dst.Offset + bit, Bits: n}, parts[bit/openflow.MaxChunk], openflow.Ones(uint(n)))
	})
}

// eachChunk divides a number of bits into parts of at most MaxChunk bits, and calls fn with
// the first bit and the size of each part, the lowest part first.
func eachChunk(bits uint16, fn func(bit, n uint16)) {
	for bit := uint16(0); bit < bits; bit += openflow.MaxChunk {
		fn(bit, min(bits-bit, openflow.MaxChunk))
	}
}

// chunkOf returns n bits of the big-endian number in b. Bit 0 is the lowest; the result begins at the
// given bit. Both numbers are multiples of 8.
func chunkOf(b []byte, bit, n uint16) openflow.Value128 {
	end := len(b) - int(bit)/8
	return openflow.ValueOf(b[end-int(n)/8 : end])
}

// freezeTLVs returns the bits of the fields tun_metadata that do not come from the arriving
// frame, encoded by tlvWords.
func (x *xlate) freezeTLVs() string {
	set := x.keep
	for w := openflow.WTLVs; w < openflow.FlowWords; w++ {
		set[w] = ^set[w]
	}
	return tlvWords(&x.flow, &set)
}

// tlvWords encodes the bits of flow that are set in mask, of the words from WTLVs on (the fields
// tun_metadata). Each word with such bits has its index in 8 bits, its mask and its value in 64 bits each.
func tlvWords(flow, mask *openflow.Flow) string {
	var b []byte
	for w := openflow.WTLVs; w < openflow.FlowWords; w++ {
		if mask[w] != 0 {
			b = binary.BigEndian.AppendUint64(append(b, byte(w-openflow.WTLVs)), mask[w])
			b = binary.BigEndian.AppendUint64(b, flow[w]&mask[w])
		}
	}
	return string(b)
}

// eachTLVWord calls fn for each word in text, which tlvWords has encoded.
func eachTLVWord(text string, fn func(word int, mask, v uint64)) {
	for b := []byte(text); len(b) >= 17; b = b[17:] {
		fn(openflow.WTLVs+int(b[0]), binary.BigEndian.Uint64(b[1:]), binary.BigEndian.Uint64(b[9:]))
	}
}

// thawTLVs reverses freezeTLVs.
func (x *xlate) thawTLVs(frozen string) {
	eachTLVWord(frozen, func(w int, set, v uint64) {
		x.flow[w] = x.flow[w]&^set | v
		x.keep[w] &^= set
	})
}

// noteTLVs returns the fields tun_metadata that the frame has, encoded by tlvWords. It makes the
// megaflow match these fields, because the result of the translation depends on them.
func (x *xlate) noteTLVs() string {
	var mask openflow.Flow
	for _, f := range x.presentTLVs() {
		f.EachCell(func(word int, bits uint64) {
			mask[word] |= bits
			x.VisitWord(word, bits)
		})
		mask[openflow.WTLVs] |= f.Present()
	}
	return tlvWords(&x.flow, &mask)
}

// presentTLVs returns the fields of the bridge's TLV map whose options the frame has.
func (x *xlate) presentTLVs() (list []*openflow.TLVField) {
	m := x.p.TLVs()
	if m == nil {
		return nil
	}
	for id := range openflow.FieldID(openflow.TLVFields) {
		f := m.Field(openflow.FTunMetadata + id)
		if f == nil {
			continue
		}
		x.VisitWord(openflow.WTLVs, f.Present())
		if x.flow[openflow.WTLVs]&f.Present() != 0 {
			list = append(list, f)
		}
	}
	return list
}

// takeOptions decodes the Geneve options of the arriving frame with the TLV map of the bridge. It returns
// false if the frame must be dropped: for a critical option that the map does not have, or if the control
// process does not know the options. The megaflow matches the options only if the frame has a critical
// option or unknown options. Otherwise, frames with different options can share the megaflow.
func (x *xlate) takeOptions() bool {
	env, ok := x.env.(tunnelOptions)
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
	if known && (x.p.TLVs().Decode(&x.flow, raw) || !critical) {
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
		raw := string(x.p.TLVs().Encode(&x.flow))
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
