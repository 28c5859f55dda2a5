// SPDX-License-Identifier: Apache-2.0

package xlate

import (
	"weft/flowtable"
	"weft/openflow"
	"weft/openflow/ofproto"
)

// This file reads the frame. A translation adds each bit that it reads to the megaflow's mask.

// ttlBits is the mask of the TTL in Flow[flowtable.WIP].
const ttlBits = 0xff << flowtable.TTLShift

// VisitWord adds bits to the megaflow's mask: those of mask in flow[word] that no action has set.
func (x *xlate) VisitWord(word int, mask uint64) {
	switch word {
	case flowtable.WPort:
		// in_port is the port's OpenFlow number, which depends on all bits of its number in the data path
		if mask>>32 != 0 {
			mask |= 0xffffffff << 32
		}
	case flowtable.WL4:
		if mask&ports != 0 && x.lookingUp && x.p.Fragments() == ofproto.FragmentsNormal {
			x.VisitWord(flowtable.WIP, fragmentBits)
		}
	case flowtable.WEthSrc:
		if tci := mask & flowtable.VLANTCI; tci != 0 {
			x.lookTag(x.tags.tag(0), uint16(tci))
		}
	case flowtable.WIP:
		if tci := mask >> flowtable.InnerTCIShift & flowtable.VLANTCI; tci != 0 {
			x.lookTag(x.tags.tag(1), uint16(tci))
		}
		if mask&ttlBits != 0 && x.decs > 0 {
			mask |= ttlBits // after dec_ttl, each bit of the TTL depends on all lower bits
		}
	}
	x.wc[word] |= mask & x.keep[word]
}

// Visit implements ofproto.Visitor: it adds the bits of mask in the listed words to the megaflow's
// mask.
func (x *xlate) Visit(words []uint8, mask *openflow.Flow) {
	for _, w := range words {
		x.VisitWord(int(w), mask[w])
	}
}

// Probe implements openflow.Prober: it returns the bits of mask in a word, and adds them to the
// megaflow's mask.
func (x *xlate) Probe(word int, mask uint64) (uint64, bool) {
	x.VisitWord(word, mask)
	return x.flow[word] & mask, true
}

// read returns a sub-field's value and adds its bits to the megaflow's mask.
func (x *xlate) read(s openflow.Subfield) openflow.Value128 {
	if s.Field.IsTLV() {
		return x.readTLV(s)
	}
	word, hi, lo := s.Mask()
	x.VisitWord(word, hi)
	if lo != 0 {
		x.VisitWord(word+1, lo)
	}
	return s.Get(&x.flow)
}

func (x *xlate) inPort() uint32 {
	x.VisitWord(flowtable.WPort, 0xffffffff<<32)
	return x.flow.Key().InPort()
}
