// SPDX-License-Identifier: Apache-2.0

package openflow

import (
	"cmp"
	"encoding/binary"
	"slices"
	"unique"
)

// PackedMatch is a Match in a form that takes less memory. It has only those words of the value whose mask
// is not 0, and all matches with the same mask share it. Two PackedMatches are equal by == if the matches
// are equal. The zero PackedMatch matches every frame.
type PackedMatch struct {
	mask   unique.Handle[Flow] // zero: matches everything
	values string              // the value's words for the non-zero mask words, little endian
}

// Pack returns m as a PackedMatch. It drops bits of m.Value that are not in the mask.
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

// Mask returns a handle of the match's mask. Equal masks have equal handles. If p matches every frame, the
// handle is zero.
func (p PackedMatch) Mask() unique.Handle[Flow] { return p.mask }

// Word returns a word of the match's value. n counts only the words in which the mask is not 0, from 0 on.
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

// Format returns the text of the match as FormatMatch does. names may be nil.
func (p PackedMatch) Format(names Names) string {
	m := p.Unpack()
	return FormatMatch(&m, names)
}

// Compare compares two matches by value, and then by mask, for sorting.
func (p PackedMatch) Compare(o PackedMatch) int {
	a, b := p.Unpack(), o.Unpack()
	return cmp.Or(slices.Compare(a.Value[:], b.Value[:]), slices.Compare(a.Mask[:], b.Mask[:]))
}

// Covers reports whether the match matches f.
func (p PackedMatch) Covers(f *Flow) bool {
	m := p.Unpack()
	return m.Covers(f)
}
