// SPDX-License-Identifier: Apache-2.0

package openflow

import (
	"fmt"
	"math/bits"
	"slices"
	"strconv"
	"strings"

	"weft/flowtable"
)

// Limits of TLV maps, as in Open vSwitch. The TLV map of a bridge says for which option of a Geneve header
// (RFC 8926, 3.5) each of the fields tun_metadata0 to tun_metadata63 stands.
const (
	// TLVFields is the number of fields tun_metadata.
	TLVFields = 64
	// TLVSpace is the largest sum of the lengths of a map's options, in bytes. A mapping that would exceed it
	// is refused.
	TLVSpace = 256
	// maxTLVLen is the largest length of an option without its header, in bytes.
	maxTLVLen = 124
	// tlvCell is the size of a cell in bytes. A Flow has the options in cells, and each option takes a whole
	// number of them.
	tlvCell = 4
)

// TLVMapping maps the Geneve options of one class, type and length to one field tun_metadata. Field is the
// number of the field, from 0 to TLVFields-1.
type TLVMapping struct {
	Class uint16
	Type  uint8
	Len   uint8 // without the option's header, in bytes
	Field uint16
}

// String returns the mapping in the syntax of ovs-ofctl's add-tlv-map.
func (m TLVMapping) String() string {
	return fmt.Sprintf("{class=%#x,type=%#x,len=%d}->tun_metadata%d", m.Class, m.Type, m.Len, m.Field)
}

// key returns the class and the type of the option as one number, which is the key in TLVMap.byKey.
func (m *TLVMapping) key() uint32 { return uint32(m.Class)<<8 | uint32(m.Type) }

// ParseTLVMappings parses the argument of add-tlv-map: one or several mappings with commas between them.
func ParseTLVMappings(text string) (list []TLVMapping, err error) {
	for rest := strings.TrimSpace(text); rest != ""; {
		var m TLVMapping
		if rest, err = m.parse(rest); err != nil {
			return nil, err
		}
		list = append(list, m)
	}
	return list, nil
}

// parse sets m to the mapping at the start of text, and returns the text behind the mapping.
func (m *TLVMapping) parse(text string) (rest string, err error) {
	end := strings.Index(text, "}")
	head, tail := text, ""
	if end >= 0 {
		head, tail = text[:end], text[end+1:]
	}
	tail, rest, more := strings.Cut(tail, ",")
	bad := wrong(strings.TrimSuffix(text, ","), "{class=NUMBER,type=NUMBER,len=BYTES}->tun_metadataN")
	number, mapped := strings.CutPrefix(tail, "->tun_metadata")
	options, braced := strings.CutPrefix(head, "{")
	parts := strings.Split(options, ",")
	if end < 0 || !mapped || !braced || len(parts) != 3 || more && rest == "" {
		return "", bad
	}
	var values [3]uint64
	for i, key := range []string{"class=", "type=", "len="} {
		value, ok := strings.CutPrefix(parts[i], key)
		limit := uint64(0xff)
		if i == 0 {
			limit = 0xffff
		}
		n, inRange := parseUint(value, limit)
		if !ok || !inRange {
			return "", bad
		}
		values[i] = n
	}
	field, err := strconv.ParseUint(number, 10, 16)
	if err != nil {
		return "", bad
	}
	*m = TLVMapping{Class: uint16(values[0]), Type: uint8(values[1]), Len: uint8(values[2]), Field: uint16(field)}
	return rest, nil
}

// check returns an error if the length or the number of the field is out of range.
func (m *TLVMapping) check() error {
	if m.Len%tlvCell != 0 || m.Len > maxTLVLen {
		return Errorf(ErrTLVBadOptLen, "%v: expected a length of at most %d that is a multiple of %d", m, maxTLVLen, tlvCell)
	}
	if m.Field >= TLVFields {
		return Errorf(ErrTLVBadField, "%v: expected tun_metadata0 to tun_metadata%d", m, TLVFields-1)
	}
	return nil
}

// TLVCommand is the command of a TLVMod, with the numbers of Nicira's message.
type TLVCommand uint16

// Commands of a TLVMod.
const (
	TLVAdd    TLVCommand = iota // adds mappings
	TLVDelete                   // deletes the mappings of fields; it ignores fields that are not mapped
	TLVClear                    // deletes all mappings
)

// TLVMod is a change of a TLV map. Either all of its mappings take effect or none.
type TLVMod struct {
	Command  TLVCommand
	Mappings []TLVMapping
}

// TLVMap is the TLV map of a bridge. It is immutable: Changed returns a new map. A nil map has no mappings.
type TLVMap struct {
	fields [TLVFields]*TLVField
	byKey  map[uint32]*TLVField
}

// TLVField is a field tun_metadata with its mapping and its place in a Flow. A Flow has 256 bytes for
// options, in cells of 4 bytes. "cells" has the index of the cell for each 4 bytes of the field's value,
// from the first byte on.
type TLVField struct {
	TLVMapping
	cells []uint8
}

// Mappings returns the mappings in the order of the fields' numbers. m may be nil.
func (m *TLVMap) Mappings() (list []TLVMapping) {
	if m == nil {
		return nil
	}
	for _, f := range m.fields {
		if f != nil {
			list = append(list, f.TLVMapping)
		}
	}
	return list
}

// Space returns the sum of the lengths of the mapped options, in bytes without their headers. TLVSpace
// limits it.
func (m *TLVMap) Space() (n int) {
	for _, mapping := range m.Mappings() {
		n += int(mapping.Len)
	}
	return n
}

// OptionBytes returns the greatest number of bytes of options that an output to a tunnel can add to a frame.
// These are all mapped options with their headers, but at most as many bytes as a Geneve header can have.
func (m *TLVMap) OptionBytes() int {
	return min(m.Space()+optionHeader*len(m.Mappings()), flowtable.MaxTunOptions)
}

// Changed returns a new map, which is m with the change "mod". It does not change m, which may be nil.
// Errors are *CodedError.
func (m *TLVMap) Changed(mod *TLVMod) (*TLVMap, error) {
	for i := range mod.Mappings {
		if err := mod.Mappings[i].check(); err != nil {
			return nil, err
		}
	}
	next := &TLVMap{byKey: map[uint32]*TLVField{}}
	if m != nil && mod.Command != TLVClear {
		for i, f := range m.fields {
			drop := mod.Command == TLVDelete && slices.ContainsFunc(mod.Mappings, func(d TLVMapping) bool { return int(d.Field) == i })
			if f != nil && !drop {
				next.fields[i], next.byKey[f.key()] = f, f
			}
		}
	}
	if mod.Command == TLVAdd {
		for _, mapping := range mod.Mappings {
			if err := next.add(mapping); err != nil {
				return nil, err
			}
		}
	}
	return next, nil
}

func (m *TLVMap) add(mapping TLVMapping) error {
	if f := m.fields[mapping.Field]; f != nil {
		return Errorf(ErrTLVAlreadyMapped, "%v: the field is mapped already: %v; delete this mapping first", mapping, f.TLVMapping)
	}
	if f := m.byKey[mapping.key()]; f != nil {
		return Errorf(ErrTLVDupEntry, "%v: the option is mapped already: %v; delete this mapping first", mapping, f.TLVMapping)
	}
	f := &TLVField{TLVMapping: mapping}
	taken := m.taken()
	for range mapping.Len / tlvCell {
		cell := bits.TrailingZeros64(^taken)
		if cell == TLVSpace/tlvCell {
			return Errorf(ErrTLVTableFull, "%v: the mapped options take %d of %d bytes already", mapping, m.Space(), TLVSpace)
		}
		f.cells = append(f.cells, uint8(cell))
		taken |= 1 << cell
	}
	m.fields[mapping.Field], m.byKey[mapping.key()] = f, f
	return nil
}

// taken returns the set of the cells in which a Flow has mapped options. Bit n stands for cell n.
func (m *TLVMap) taken() (cells uint64) {
	for _, f := range m.fields {
		if f != nil {
			for _, c := range f.cells {
				cells |= 1 << c
			}
		}
	}
	return cells
}
