// SPDX-License-Identifier: Apache-2.0

package openflow

import "weft/flowtable"

// FlowWords is the size of a Flow in 64-bit words.
const FlowWords = wFlowEnd

// Flow is a frame as the OpenFlow tables see it. Its first words are a flowtable.Key.
// The words behind the key exist only in the tables; they are 0 when a frame enters
// table 0.
//
//	word       63..............................................0
//	0..27      flowtable.Key
//	WMetadata  metadata 64
//	WReg       reg0 32 | reg1 32, and so on to reg15 (8 words: xreg0 to xreg7)
type Flow [FlowWords]uint64

// Indexes of the words of a Flow that follow its flowtable.Key.
const (
	WMetadata = flowtable.KeyWords + iota
	WReg
	wFlowEnd = WReg + 8
)

// Match is a set of flows: all flows that agree with Value on the bits of Mask. Value
// has no bit outside Mask. The zero Match matches everything. Matches are comparable.
type Match struct {
	Value, Mask Flow
}

// Covers reports whether the match includes the flow f.
func (m *Match) Covers(f *Flow) bool {
	for i := range f {
		if (f[i]^m.Value[i])&m.Mask[i] != 0 {
			return false
		}
	}
	return true
}

// Within reports whether o matches every flow that m matches. A loose delete or
// modify with match o selects such rules.
func (m *Match) Within(o *Match) bool {
	for i := range m.Mask {
		if o.Mask[i]&^m.Mask[i] != 0 || (m.Value[i]^o.Value[i])&o.Mask[i] != 0 {
			return false
		}
	}
	return true
}

// MatchOf returns the match of a megaflow with this key and mask.
func MatchOf(key, mask *flowtable.Key) Match {
	var m Match
	for i := range key {
		m.Value[i], m.Mask[i] = key[i]&mask[i], mask[i]
	}
	return m
}
