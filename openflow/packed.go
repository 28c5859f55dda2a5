// SPDX-License-Identifier: Apache-2.0

package openflow

import (
	"cmp"
	"encoding/binary"
	"slices"
	"unique"
)

// PackedMatch is a Match in less memory, for the flow tables. It stores only the words in which the mask is
// not 0, and matches with equal masks share the mask. Equal matches are equal by ==. The zero PackedMatch
// matches everything.
type PackedMatch struct {
	mask   unique.Handle[Flow] // zero: matches everything
	values string              // the value's words for the non-zero mask words, little endian
}

// Pack returns m as a PackedMatch. Bits of m.Value outside of the mask are lost.
func (m *Match) Pack() PackedMatch {
	if m.Mask == (Flow{}) {
		return PackedMatch{}
	}
	var room [8 * FlowWords]byte
	values := room[:0]
	for i, mask := range m.Mask {
		if mask != 0 {
			values = binary.LittleEndian.AppendUint64(values, m.Value[i]&mask)
		}
	}
	return PackedMatch{mask: unique.Make(m.Mask), values: string(values)}
}

// Unpack returns the Match that Pack has packed. Its Value has no bit outside of its Mask.
func (p PackedMatch) Unpack() (m Match) {
	if p.values == "" {
		return m
	}
	m.Mask = p.mask.Value()
	at := 0
	for i, mask := range m.Mask {
		if mask != 0 {
			m.Value[i] = p.Word(at)
			at++
		}
	}
	return m
}

// Mask returns a handle of the match's mask. It is the zero handle if p matches everything. Equal masks have
// equal handles.
func (p PackedMatch) Mask() unique.Handle[Flow] { return p.mask }

// Word returns the value's word at the n-th word of the mask that is not 0, from n = 0.
func (p PackedMatch) Word(n int) uint64 {
	b := p.values[8*n : 8*n+8]
	return uint64(b[0]) | uint64(b[1])<<8 | uint64(b[2])<<16 | uint64(b[3])<<24 |
		uint64(b[4])<<32 | uint64(b[5])<<40 | uint64(b[6])<<48 | uint64(b[7])<<56
}

// Within reports whether o matches every flow that p matches.
func (p PackedMatch) Within(o *Match) bool {
	m := p.Unpack()
	return m.Within(o)
}

// Format returns the text of the match in ovs-ofctl's words, see FormatMatch. names may be nil.
func (p PackedMatch) Format(names Names) string {
	m := p.Unpack()
	return FormatMatch(&m, names)
}

// Compare orders matches by value, then by mask.
func (p PackedMatch) Compare(o PackedMatch) int {
	a, b := p.Unpack(), o.Unpack()
	return cmp.Or(slices.Compare(a.Value[:], b.Value[:]), slices.Compare(a.Mask[:], b.Mask[:]))
}

// Covers reports whether f matches.
func (p PackedMatch) Covers(f *Flow) bool {
	m := p.Unpack()
	return m.Covers(f)
}
