package openflow

import "weft/flowtable"

// FlowWords is the size of a Flow in 64-bit words.
const FlowWords = wFlowEnd

// Flow is a frame as the OpenFlow tables see it: the words of a flowtable.Key,
// and behind them what only the tables know. All of the latter are 0 when a
// frame enters table 0.
//
//	word       63..............................................0
//	0..27      flowtable.Key
//	WMetadata  metadata 64
//	WReg       reg0 32 | reg1 32, and so on to reg15 (8 words: xreg0 to xreg7)
type Flow [FlowWords]uint64

// Word indexes behind those of flowtable.Key.
const (
	WMetadata = flowtable.KeyWords + iota
	WReg
	wFlowEnd = WReg + 8
)

// Match is a set of flows: those that agree with Value on the bits of Mask.
// Value has no bit outside of Mask. The zero Match matches everything. Matches
// are comparable.
type Match struct {
	Value, Mask Flow
}

// Covers tells whether f is in the set.
func (m *Match) Covers(f *Flow) bool {
	for i := range f {
		if (f[i]^m.Value[i])&m.Mask[i] != 0 {
			return false
		}
	}
	return true
}

// Within tells whether every flow of m is one of o: a loose delete or modify of
// o touches m.
func (m *Match) Within(o *Match) bool {
	for i := range m.Mask {
		if o.Mask[i]&^m.Mask[i] != 0 || (m.Value[i]^o.Value[i])&o.Mask[i] != 0 {
			return false
		}
	}
	return true
}

// MatchOf is the match of a megaflow's key and mask.
func MatchOf(key, mask *flowtable.Key) Match {
	var m Match
	for i := range key {
		m.Value[i], m.Mask[i] = key[i]&mask[i], mask[i]
	}
	return m
}
