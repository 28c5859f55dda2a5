// SPDX-License-Identifier: Apache-2.0

package ofp

import (
	"net/netip"

	of "weft/openflow"
)

// CTMatch selects connections of the connection tracker, for Nicira's request ct_flush. A connection must
// have all values that are set.
type CTMatch struct {
	Zone             *uint16
	Mark, MarkMask   uint32
	Label, LabelMask [2]uint64 // the upper half first
	Proto            uint8     // 0: any
	Orig, Reply      CTTuple
}

// CTTuple selects connections by the addresses and ports of one direction.
type CTTuple struct {
	Src, Dst         netip.Addr // invalid: any
	SrcPort, DstPort *uint16
	ID               *uint16 // ICMP and ICMPv6
	Type, Code       *uint8  // ICMP and ICMPv6
}

// Types of the properties of a ct_flush request, and of those in its tuples.
const (
	ctOrig      = 0
	ctReply     = 1
	ctZone      = 2
	ctMark      = 3
	ctMarkMask  = 4
	ctLabel     = 5
	ctLabelMask = 6

	tupleSrc     = 0
	tupleDst     = 1
	tupleSrcPort = 2
	tupleDstPort = 3
	tupleID      = 4
	tupleType    = 5
	tupleCode    = 6
)

// DecodeCTFlush decodes Nicira's request ct_flush, which deletes connections from the connection tracker.
func DecodeCTFlush(r *Request) (m CTMatch, err error) {
	b := reader{b: r.Body, tlvs: r.TLVs}
	m.Proto = b.u8()
	b.skip(7)
	if err := b.err("ct_flush"); err != nil {
		return m, err
	}
	defer m.Orig.clearUnset()
	defer m.Reply.clearUnset()
	var hasMask [ctLabelMask + 1]bool
	for len(b.b) > 0 {
		kind, body, rest, err := of.CutProperty(b.b)
		if err != nil {
			return m, err
		}
		b.b = rest
		if kind > ctLabelMask {
			return m, coded(of.ErrPropBadType, "ct_flush: unknown property %d", kind)
		}
		if err := m.property(kind, body); err != nil {
			return m, err
		}
		hasMask[kind] = true
	}
	if hasMask[ctMark] && !hasMask[ctMarkMask] {
		m.MarkMask = ^uint32(0)
	}
	if hasMask[ctLabel] && !hasMask[ctLabelMask] {
		m.LabelMask = [2]uint64{^uint64(0), ^uint64(0)}
	}
	return m, nil
}

func (m *CTMatch) property(kind uint16, body []byte) error {
	b := reader{b: body}
	wide := func() [2]uint64 {
		b.skip(len(b.b) - 16) // padding in front of the number
		return [2]uint64{b.u64(), b.u64()}
	}
	switch kind {
	case ctOrig, ctReply:
		b.skip(4)
		if b.short {
			break
		}
		if kind == ctOrig {
			return m.Orig.decode(b.b)
		}
		return m.Reply.decode(b.b)
	case ctZone:
		zone := b.u16()
		m.Zone = &zone
	case ctMark:
		m.Mark = b.u32()
	case ctMarkMask:
		m.MarkMask = b.u32()
	case ctLabel:
		m.Label = wide()
	case ctLabelMask:
		m.LabelMask = wide()
	}
	if b.short {
		return coded(of.ErrPropBadLen, "ct_flush: property %d is too short", kind)
	}
	return nil
}

// clearUnset empties the tuple if it has only ICMP fields and all of them are 0. If a command of ovs-ofctl
// has one tuple, for ICMP, ovs-ofctl sends such a tuple for the other direction.
func (t *CTTuple) clearUnset() {
	if t.ID == nil || t.Type == nil || t.Code == nil || *t.ID != 0 || *t.Type != 0 || *t.Code != 0 {
		return
	}
	if rest := (CTTuple{ID: t.ID, Type: t.Type, Code: t.Code}); *t == rest {
		*t = CTTuple{}
	}
}

func (t *CTTuple) decode(b []byte) error {
	for len(b) > 0 {
		kind, body, rest, err := of.CutProperty(b)
		if err != nil {
			return err
		}
		b = rest
		p := reader{b: body}
		switch kind {
		case tupleSrc, tupleDst:
			p.skip(len(p.b) - 16) // padding in front of the address
			a, _ := netip.AddrFromSlice(p.take(16))
			if kind == tupleSrc {
				t.Src = a.Unmap()
			} else {
				t.Dst = a.Unmap()
			}
		case tupleSrcPort, tupleDstPort, tupleID:
			v := p.u16()
			*map[uint16]**uint16{tupleSrcPort: &t.SrcPort, tupleDstPort: &t.DstPort, tupleID: &t.ID}[kind] = &v
		case tupleType, tupleCode:
			v := p.u8()
			*map[uint16]**uint8{tupleType: &t.Type, tupleCode: &t.Code}[kind] = &v
		default:
			return coded(of.ErrPropBadType, "ct_flush: unknown property %d of a tuple", kind)
		}
		if p.short {
			return coded(of.ErrPropBadLen, "ct_flush: property %d of a tuple is too short", kind)
		}
	}
	return nil
}
