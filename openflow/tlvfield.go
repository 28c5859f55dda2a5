// SPDX-License-Identifier: Apache-2.0

package openflow

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math/big"
	"strings"

	"weft/flowtable"
)

// This file has the fields tun_metadata0 to tun_metadata63. Each stands for a Geneve option. The TLV map of
// a bridge says for which option, and gives the field its length and its place in a Flow. So parsers,
// formatters, encoders and decoders of these fields need the TLV map.

func addTLVFields() {
	for n := range TLVFields {
		num := Value64(uint64(n)).decimal()
		fields[int(FTunMetadata)+n] = field{name: "tun_metadata" + num, oxm: []headerName{{"NXM_NX_TUN_METADATA" + num, uint8(numberTLV + n)}},
			bytes: maxTLVLen, format: asHex, maskable: true}
	}
}

// IsTLV reports whether the field is one of tun_metadata0 to tun_metadata63.
func (id FieldID) IsTLV() bool { return id >= FTunMetadata && id < FTunMetadata+TLVFields }

// tlvNames has the port names of one bridge, and its TLV map.
type tlvNames struct {
	Names
	tlvs *TLVMap
}

// TLVs returns the TLV map that WithTLVs was called with.
func (n *tlvNames) TLVs() *TLVMap { return n.tlvs }

func (n *tlvNames) PortByName(name string) (uint32, bool) {
	if n.Names == nil {
		return 0, false
	}
	return n.Names.PortByName(name)
}

func (n *tlvNames) PortName(number uint32) (string, bool) {
	if n.Names == nil {
		return "", false
	}
	return n.Names.PortName(number)
}

// WithTLVs returns names that also have a TLV map. Parsers and formatters need the map for texts with the
// fields tun_metadata. Both arguments may be nil.
func WithTLVs(names Names, m *TLVMap) Names { return &tlvNames{names, m} }

// tlvsOf returns the TLV map that WithTLVs has added to names, or nil.
func tlvsOf(names Names) *TLVMap {
	if n, ok := names.(interface{ TLVs() *TLVMap }); ok {
		return n.TLVs()
	}
	return nil
}

// tlvs returns the TLV map of the bridge whose actions are parsed, or nil.
func (p *actionParser) tlvs() *TLVMap { return tlvsOf(p.names) }

// Field returns the Geneve option for which the field "id" stands, and its place in a Flow. It returns nil
// if the map does not have the field. m may be nil.
func (m *TLVMap) Field(id FieldID) *TLVField {
	if m == nil || !id.IsTLV() {
		return nil
	}
	return m.fields[id-FTunMetadata]
}

// Whole returns the sub-field with all bits of a field. It gets the length of a field tun_metadata from the
// map. If the map does not have the field, the sub-field has 0 bits.
func (m *TLVMap) Whole(id FieldID) Subfield {
	s := WholeField(id)
	if f := m.Field(id); f != nil {
		s.Bits = 8 * uint16(f.Len)
	}
	return s
}

// unmapped returns the error for a field tun_metadata0 to tun_metadata63 to which the bridge's TLV map
// assigns no Geneve option.
func unmapped(id FieldID) error {
	return wrong(id.String(), "a field that is mapped to an option: weft add-tlv-map '{class=...,type=...,len=...}->%s'", id)
}

// Present returns the mask of the bit in Flow[WTLVs] that is set if the frame has the field's Geneve option.
func (f *TLVField) Present() uint64 { return 1 << f.Field }

// MaxChunk is the largest number of bits that one call of Get, Put or Visit can handle. A field may have
// more bits.
const MaxChunk = 128

// overlap calls fn for each cell of the field that has bits of sub-field s. A cell is a range of 4 bytes in
// a Flow. Bit 0 of v is the lowest bit of s. The argument "bits" of fn has the bits of v that belong to the
// cell. The argument "bit" is the position in s of the cell's lowest bit; it is negative if the cell begins
// below s.
func (f *TLVField) overlap(s Subfield, v Value128, fn func(cell uint8, bit int, bits uint32)) {
	v = v.And(Ones(uint(s.Bits)))
	for i, cell := range f.cells {
		bit := 32*(len(f.cells)-1-i) - int(s.Offset) // position in s of the cell's lowest bit
		if bit <= -32 || bit >= int(s.Bits) {
			continue
		}
		bits := v.Shr(uint(max(bit, 0)))[1] << max(-bit, 0)
		fn(cell, bit, uint32(bits))
	}
}

// wordOf returns where a cell (4 bytes) is in a Flow: the index of the word, and the position of the cell's
// lowest bit in it.
func wordOf(cell uint8) (word int, shift uint8) { return WTLVCells + int(cell)/2, 32 * (1 - cell%2) }

// EachCell calls fn for each cell (4 bytes) of the field. The cell is in Flow[word], in the 32 bits that are
// set in "bits".
func (f *TLVField) EachCell(fn func(word int, bits uint64)) {
	for _, cell := range f.cells {
		word, shift := wordOf(cell)
		fn(word, 0xffffffff<<shift)
	}
}

// Get returns the bits of sub-field s, at most MaxChunk, from a Flow.
func (f *TLVField) Get(flow *Flow, s Subfield) (v Value128) {
	f.overlap(s, Value128{}, func(cell uint8, bit int, _ uint32) {
		word, shift := wordOf(cell)
		bits := uint64(uint32(flow[word]>>shift)) >> max(-bit, 0)
		v = v.Or(Value64(bits).Shl(uint(max(bit, 0))))
	})
	return v.And(Ones(uint(s.Bits)))
}

// Visit calls fn for each cell (4 bytes) of the field that has bits of sub-field s. Bit 0 of "mask" is the
// lowest bit of s. The cell is in Flow[word], and "bits" has the bits of "mask" at their positions in this
// word.
func (f *TLVField) Visit(s Subfield, mask Value128, fn func(word int, bits uint64)) {
	f.overlap(s, mask, func(cell uint8, _ int, bits uint32) {
		word, shift := wordOf(cell)
		fn(word, uint64(bits)<<shift)
	})
}

// Put writes the bits of v that are set in "mask" to sub-field s in a Flow. s has at most MaxChunk bits.
func (f *TLVField) Put(flow *Flow, s Subfield, v, mask Value128) {
	var masks [TLVSpace / tlvCell]uint32
	f.overlap(s, mask, func(cell uint8, _ int, bits uint32) { masks[cell] = bits })
	f.overlap(s, v, func(cell uint8, _ int, bits uint32) {
		word, shift := wordOf(cell)
		m := uint64(masks[cell]) << shift
		flow[word] = flow[word]&^m | uint64(bits)<<shift&m
	})
}

// Bytes returns the field's value in a Flow as f.Len bytes, in a new slice.
func (f *TLVField) Bytes(flow *Flow) []byte {
	b := make([]byte, 0, f.Len)
	for _, cell := range f.cells {
		word, shift := wordOf(cell)
		b = binary.BigEndian.AppendUint32(b, uint32(flow[word]>>shift))
	}
	return b
}

// SetBytes writes the bits of v that are set in "mask" to the field in a Flow. Both slices have f.Len bytes.
func (f *TLVField) SetBytes(flow *Flow, v, mask []byte) {
	for i, cell := range f.cells {
		word, shift := wordOf(cell)
		m := uint64(binary.BigEndian.Uint32(mask[tlvCell*i:])) << shift
		flow[word] = flow[word]&^m | uint64(binary.BigEndian.Uint32(v[tlvCell*i:]))<<shift&m
	}
}

// TLVValue is a value and a mask of a field tun_metadata. Both have the field's length. Value has no bit
// outside of Mask.
type TLVValue struct{ Value, Mask []byte }

// parseTLVNumber parses a number into n bytes in network order. The number is hexadecimal of any length, or
// has at most 64 bits in another base. ok is false if the number needs more than n bytes.
func parseTLVNumber(text string, n int) (b []byte, ok bool) {
	if digits, isHex := strings.CutPrefix(strings.ToLower(text), "0x"); isHex {
		if strings.ContainsAny(digits, "+-_") || len(digits) > 16*maxTLVLen {
			return nil, false
		}
		v, ok := new(big.Int).SetString("0"+digits, 16)
		if !ok || v.BitLen() > 8*n {
			return nil, false
		}
		return v.FillBytes(make([]byte, n)), true
	}
	v, ok := parseUint(text, ^uint64(0))
	if !ok || Value64(v).BitLen() > 8*n {
		return nil, false
	}
	return Value64(v).big().FillBytes(make([]byte, n)), true
}

// parseValue parses value[/mask] of the field. Without a mask in the text, all bits of the mask are set.
func (f *TLVField) parseValue(id FieldID, text string) (v TLVValue, err error) {
	value, maskText, masked := strings.Cut(text, "/")
	n := int(f.Len)
	bad := wrong(text, "a number of at most %d bits, perhaps with /MASK, for %s, as its option has", 8*n, id)
	var ok bool
	if v.Value, ok = parseTLVNumber(value, n); !ok {
		return v, bad
	}
	v.Mask = make([]byte, n)
	for i := range v.Mask {
		v.Mask[i] = 0xff
	}
	if masked {
		if v.Mask, ok = parseTLVNumber(maskText, n); !ok {
			return v, bad
		}
	}
	for i := range v.Value {
		v.Value[i] &= v.Mask[i]
	}
	return v, nil
}

// format returns value[/mask] without leading zeros, as ovs-ofctl does.
func (v *TLVValue) format() string {
	text := formatTLVNumber(v.Value)
	for _, b := range v.Mask {
		if b != 0xff {
			return text + "/" + formatTLVNumber(v.Mask)
		}
	}
	return text
}

func formatTLVNumber(b []byte) string {
	digits := strings.TrimLeft(hex.EncodeToString(b), "0")
	if digits == "" {
		return "0"
	}
	return "0x" + digits
}

// parseTLVMatch parses tun_metadataN or tun_metadataN=value[/mask] and adds it to the match.
func parseTLVMatch(m *Match, id FieldID, t token, names Names) error {
	f := tlvsOf(names).Field(id)
	if f == nil {
		return unmapped(id)
	}
	if t.value == "*" {
		f.unset(m)
		return nil
	}
	text := t.value
	if text == "" {
		text = "0/0" // the frame must have the option, with any value
	}
	v, err := f.parseValue(id, text)
	if err == nil {
		f.require(m, &v)
	}
	return err
}

// require makes the match m require that the frame has the option, with this value.
func (f *TLVField) require(m *Match, v *TLVValue) {
	f.unset(m)
	f.SetBytes(&m.Value, v.Value, v.Mask)
	f.SetBytes(&m.Mask, v.Mask, v.Mask)
	SetBits(m, WTLVs, f.Present(), f.Present())
}

// unset removes the field from the match: the match then accepts any value of the option, and frames without
// the option.
func (f *TLVField) unset(m *Match) {
	for _, cell := range f.cells {
		word, shift := wordOf(cell)
		ClearBits(m, word, 0xffffffff<<shift)
	}
	ClearBits(m, WTLVs, f.Present())
}

// required returns the value and the mask that the match requires of the field. ok is false if the match
// does not have the field.
func (f *TLVField) required(m *Match) (v TLVValue, ok bool) {
	if m.Mask[WTLVs]&f.Present() == 0 {
		return v, false
	}
	return TLVValue{f.Bytes(&m.Value), f.Bytes(&m.Mask)}, true
}

// tlvs writes the fields tun_metadata of the match. It writes NP as the value if the frame must not have the
// option.
func (w *matchWriter) tlvs() {
	m := tlvsOf(w.names)
	if m == nil || w.m.Mask[WTLVs] == 0 {
		return
	}
	for _, f := range m.fields {
		if f == nil {
			continue
		}
		v, ok := f.required(w.m)
		name := (FTunMetadata + FieldID(f.Field)).String()
		switch {
		case !ok:
		case w.m.Value[WTLVs]&f.Present() == 0:
			w.equals(name, "NP")
		case allZero(v.Mask):
			w.WriteString(name + ",")
		default:
			w.equals(name, v.format())
		}
	}
}

func allZero(b []byte) bool {
	for _, c := range b {
		if c != 0 {
			return false
		}
	}
	return true
}

// UsedTLVs returns the set of the fields tun_metadata that the actions name, nested actions included. Bit n
// stands for tun_metadataN.
func UsedTLVs(actions []Action) (used uint64) {
	note := func(s Subfield) {
		if s.Field.IsTLV() {
			used |= 1 << (s.Field - FTunMetadata)
		}
	}
	for i := range actions {
		a := &actions[i]
		note(a.Src)
		note(a.Dst)
		used |= UsedTLVs(a.Sub)
		if a.Sample != nil {
			note(a.Sample.DomainSrc)
			note(a.Sample.PointSrc)
		}
		if a.CT != nil {
			note(a.CT.ZoneSrc)
			used |= UsedTLVs(a.CT.Exec)
		}
	}
	return used
}

// NoteTLVs sets m.TLVs to tlvs if the match or the actions of m name a field tun_metadata.
func (m *FlowMod) NoteTLVs(match *Match, tlvs *TLVMap) {
	if match.Mask[WTLVs] != 0 || UsedTLVs(m.Actions) != 0 {
		m.TLVs = tlvs
	}
}

// NoteTLVs sets m.TLVs to tlvs if the actions of the group's buckets name a field tun_metadata.
func (m *GroupMod) NoteTLVs(tlvs *TLVMap) {
	if m.Group.UsedTLVs() != 0 {
		m.TLVs = tlvs
	}
}

// UsedTLVs returns the set of the fields tun_metadata that the buckets' actions name. Bit n stands for
// tun_metadataN.
func (g *Group) UsedTLVs() (used uint64) {
	for i := range g.Buckets {
		used |= UsedTLVs(g.Buckets[i].Actions)
	}
	return used
}

// setTLV returns a set_field action for the field tun_metadata "id". The text "value" has the form
// value[/mask].
func (p *actionParser) setTLV(id FieldID, value string) (Action, error) {
	f := p.tlvs().Field(id)
	if f == nil {
		return Action{}, unmapped(id)
	}
	v, err := f.parseValue(id, value)
	return Action{Kind: ActSetField, Dst: p.tlvs().Whole(id), TLV: &v}, err
}

// deleteField parses the argument of the action delete_field.
func (p *actionParser) deleteField(t token) (Action, error) {
	id, ok := fieldNames[t.value]
	if !ok || !id.IsTLV() {
		return Action{}, wrong(t.text, "delete_field:tun_metadataN")
	}
	if p.tlvs().Field(id) == nil {
		return Action{}, unmapped(id)
	}
	return Action{Kind: ActDeleteField, Dst: p.tlvs().Whole(id)}, nil
}

// tunFlagNames are the names of the bits of tun_flags.
var tunFlagNames = []string{"oam"}

// parseTunFlags parses a match on tun_flags. The forms +oam and -oam compare the bit, oam compares all bits.
// The text may also be a number, with or without a mask.
func parseTunFlags(text string) (v, mask Value128, err error) {
	bad := wrong(text, "+oam, -oam, oam or a number of 1 bit for tun_flags")
	number, maskText, masked := strings.Cut(text, "/")
	n, isNumber := parseUint(number, flowtable.TunOAM)
	m := uint64(flowtable.TunOAM)
	if masked {
		var ok bool
		m, ok = parseUint(maskText, 0xffff)
		isNumber = isNumber && ok
	}
	switch {
	case text == "oam":
		return Value64(flowtable.TunOAM), Ones(16), nil
	case text == "+oam":
		return Value64(flowtable.TunOAM), Value64(flowtable.TunOAM), nil
	case text == "-oam":
		return v, Value64(flowtable.TunOAM), nil
	case isNumber && !masked:
		return Value64(n), Ones(16), nil
	case isNumber:
		return Value64(n & m), Value64(m & flowtable.TunOAM), nil
	}
	return v, mask, bad
}

// tunFlags writes the field tun_flags, always with a sign as dump-flows does.
func (w *matchWriter) tunFlags() {
	f := &fields[FTunFlags]
	bit := uint64(flowtable.TunOAM) << f.shift
	if w.remaining[f.word]&bit == 0 {
		return
	}
	w.remaining[f.word] &^= bit
	sign := "-"
	if w.m.Value[f.word]&bit != 0 {
		sign = "+"
	}
	w.equals(f.name, sign+tunFlagNames[0])
}

// tunOptions writes the Geneve options that a megaflow requires. The megaflow has only a hash of them. If
// w.names can find the options by the hash, tunOptions writes them in the form of add-tlv-map. Otherwise it
// writes the hash.
func (w *matchWriter) tunOptions() {
	const word = flowtable.WTunOpts
	if w.remaining[word] == 0 {
		return
	}
	w.remaining[word] = 0
	hash := w.m.Value[word]
	if hash == 0 {
		w.equals("tun_options", "none")
		return
	}
	known, ok := w.names.(interface {
		Options(hash uint64) (raw []byte, ok bool)
	})
	if ok {
		if raw, ok := known.Options(hash); ok {
			w.equals("tun_options", formatOptions(raw))
			return
		}
	}
	w.add("tun_options=hash:%#x", hash)
}

// formatOptions returns the text of Geneve options, such as {class=0x102,type=0x1,len=4,0xabcd}.
func formatOptions(raw []byte) string {
	var b strings.Builder
	for len(raw) >= optionHeader {
		end := min(optionHeader+tlvCell*int(raw[3]&0x1f), len(raw))
		fmt.Fprintf(&b, "{class=%#x,type=%#x,len=%d,%s}", uint16(raw[0])<<8|uint16(raw[1]), raw[2], end-optionHeader, formatTLVNumber(raw[optionHeader:end]))
		raw = raw[end:]
	}
	return b.String()
}
