// SPDX-License-Identifier: Apache-2.0

package openflow

import "weft/flowtable"

// StateWords is the number of words of a Flow that have the state of a frame's translation: metadata,
// registers, conj_id and pkt_mark. They begin at WMetadata, and are 0 when the frame enters table 0.
const StateWords = WTLVs - flowtable.KeyWords

// FlowWords is the size of a Flow in 64-bit words.
const FlowWords = WTLVCells + TLVSpace/8

// Flow is a frame as the OpenFlow tables see it. It begins with a flowtable.Key. Metadata, registers and
// the word WConj follow; they are 0 when the frame enters table 0. At the end are the options of the
// frame's Geneve header.
//
//	word       63..............................................0
//	0..30      flowtable.Key
//	WMetadata  metadata 64
//	WReg       reg0 32 | reg1 32, and so on to reg15 (8 words: xreg0 to xreg7)
//	WConj      conj_id 32 | pkt_mark 32; conj_id is not 0 only in a look-up through a
//	           conjunction
//	WTLVs      bit n: the frame has the option of tun_metadataN
//	WTLVCells  the values of these fields (32 words), at the places in the bridge's TLV map
type Flow [FlowWords]uint64

// Indexes of the words after the flowtable.Key.
const (
	WMetadata = flowtable.KeyWords + iota
	WReg
	WConj     = WReg + 8
	WTLVs     = WConj + 1
	WTLVCells = WTLVs + 1
)

// Key returns the flow's key without copying.
func (f *Flow) Key() *flowtable.Key { return (*flowtable.Key)(f[:flowtable.KeyWords]) }

// Match matches the flows whose bits in Mask are those of Value. Value is 0 outside of Mask. The zero Match
// matches every flow.
type Match struct {
	Value, Mask Flow
}

// Covers reports whether the match matches f.
func (m *Match) Covers(f *Flow) bool {
	for i := range f {
		if (f[i]^m.Value[i])&m.Mask[i] != 0 {
			return false
		}
	}
	return true
}

// Within reports whether o matches every flow that m matches. The commands Modify and Delete select the
// rules whose match is within the match of the FlowMod.
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
