// SPDX-License-Identifier: Apache-2.0

package openflow

import (
	"strings"

	"weft/flowtable"
	"weft/packet"
)

// This file has the fields of the connection tracker: the ct_* fields of ovs-fields(7).

// ctStateNames are the names of ct_state's bits, lowest bit first.
var ctStateNames = []string{"new", "est", "rel", "rpl", "inv", "trk", "snat", "dnat"}

// Bits of ct_state that decide about the prerequisite NeedCT.
const (
	ctStateInv   = flowtable.StateInvalid
	ctStateTrk   = flowtable.StateTracked
	ctStateValid = 0xff &^ (flowtable.StateInvalid | flowtable.StateTracked)
)

func addCTFields() {
	row := func(id FieldID, f field) { fields[id] = f }
	row(FCTState, field{name: "ct_state", oxm: []headerName{{"NXM_NX_CT_STATE", 105}}, word: flowtable.WCT, shift: flowtable.CTStateShift, bits: 8, bytes: 4, format: asCTState, maskable: true, readOnly: true})
	row(FCTZone, field{name: "ct_zone", oxm: []headerName{{"NXM_NX_CT_ZONE", 106}}, word: flowtable.WCT, bits: 16, bytes: 2, format: asDecimal, readOnly: true})
	row(FCTMark, field{name: "ct_mark", oxm: []headerName{{"NXM_NX_CT_MARK", 107}}, word: flowtable.WCT, shift: flowtable.CTMarkShift, bits: 32, bytes: 4, format: asHex, maskable: true})
	row(FCTLabel, field{name: "ct_label", oxm: []headerName{{"NXM_NX_CT_LABEL", 108}}, word: flowtable.WCTLabel, bits: 128, bytes: 16, format: asHex, maskable: true})
	row(FCTNwSrc, field{name: "ct_nw_src", oxm: []headerName{{"NXM_NX_CT_NW_SRC", 120}}, word: flowtable.WCTSrc + 1, bits: 32, bytes: 4, format: asIPv4, maskable: true, readOnly: true, prerequisite: NeedCTIPv4})
	row(FCTNwDst, field{name: "ct_nw_dst", oxm: []headerName{{"NXM_NX_CT_NW_DST", 121}}, word: flowtable.WCTDst + 1, bits: 32, bytes: 4, format: asIPv4, maskable: true, readOnly: true, prerequisite: NeedCTIPv4})
	row(FCTIPv6Src, field{name: "ct_ipv6_src", oxm: []headerName{{"NXM_NX_CT_IPV6_SRC", 122}}, word: flowtable.WCTSrc, bits: 128, bytes: 16, format: asIPv6, maskable: true, readOnly: true, prerequisite: NeedCTIPv6})
	row(FCTIPv6Dst, field{name: "ct_ipv6_dst", oxm: []headerName{{"NXM_NX_CT_IPV6_DST", 123}}, word: flowtable.WCTDst, bits: 128, bytes: 16, format: asIPv6, maskable: true, readOnly: true, prerequisite: NeedCTIPv6})
	row(FCTNwProto, field{name: "ct_nw_proto", oxm: []headerName{{"NXM_NX_CT_NW_PROTO", 119}}, word: flowtable.WCT, shift: flowtable.CTProtoShift, bits: 8, bytes: 1, format: asDecimal, readOnly: true, prerequisite: NeedCT})
	row(FCTTpSrc, field{name: "ct_tp_src", oxm: []headerName{{"NXM_NX_CT_TP_SRC", 124}}, word: flowtable.WCTPorts, shift: flowtable.TPSrcShift, bits: 16, bytes: 2, format: asDecimal, maskable: true, readOnly: true, prerequisite: NeedCT})
	row(FCTTpDst, field{name: "ct_tp_dst", oxm: []headerName{{"NXM_NX_CT_TP_DST", 125}}, word: flowtable.WCTPorts, shift: flowtable.TPDstShift, bits: 16, bytes: 2, format: asDecimal, maskable: true, readOnly: true, prerequisite: NeedCT})
}

// ctMet reports whether the prerequisite NeedCT is met: ct_state has one of new, est,
// rel, rpl, snat and dnat, or trk without inv.
func ctMet(q Prober) bool {
	if v, _ := q.Probe(flowtable.WCT, ctStateValid<<flowtable.CTStateShift); v != 0 {
		return true
	}
	trk, known := q.Probe(flowtable.WCT, ctStateTrk<<flowtable.CTStateShift)
	inv, knownInv := q.Probe(flowtable.WCT, ctStateInv<<flowtable.CTStateShift)
	return known && knownInv && trk != 0 && inv == 0
}

// checkCT refuses a match on fields of the connection's original direction, such as
// ct_nw_src, unless the match also requires a valid connection.
func checkCT(m *Match) error {
	v4 := NeedCTIPv4.Met(m)
	for _, l := range []struct {
		field        FieldID
		word         int
		mask         uint64
		prerequisite Prereq
	}{
		{FCTNwProto, flowtable.WCT, 0xff << flowtable.CTProtoShift, NeedCT},
		{FCTTpSrc, flowtable.WCTPorts, 0xffff << flowtable.TPSrcShift, NeedCT}, {FCTTpDst, flowtable.WCTPorts, 0xffff << flowtable.TPDstShift, NeedCT},
		{FCTIPv6Src, flowtable.WCTSrc, ^uint64(0), NeedCTIPv6}, {FCTIPv6Dst, flowtable.WCTDst, ^uint64(0), NeedCTIPv6},
		{FCTNwSrc, flowtable.WCTSrc + 1, ^uint64(0), NeedCT}, {FCTNwDst, flowtable.WCTDst + 1, ^uint64(0), NeedCT},
	} {
		bits := m.Mask[l.word] & l.mask
		// ct_nw_src uses the low 32 bits of ct_ipv6_src. A match on only these bits
		// counts as a match on an IPv4 address.
		alias := l.word >= flowtable.WCTSrc && bits != 0 && (bits&^0xffffffff != 0 || m.Mask[l.word-1] != 0) == v4
		if l.prerequisite == NeedCTIPv6 {
			alias = v4 && bits != 0
		}
		if bits != 0 && (!l.prerequisite.Met(m) || alias) {
			return wrong(fields[l.field].name, "a match on %s beside it", prereqTexts[l.prerequisite])
		}
	}
	return nil
}

// parseCTState parses a match on ct_state. The form +trk-new compares only the named bits, trk|est compares
// all bits. The text may also be a number, with or without a mask.
func parseCTState(text string) (v, mask Value128, err error) {
	if text == "" || text == "0/0" {
		return v, mask, nil
	}
	bad := wrong(text, "a connection's state as +trk-new, trk|est or a number of 8 bits for ct_state")
	bit := func(name string) uint64 {
		for i, n := range ctStateNames {
			if n == name {
				return 1 << i
			}
		}
		return 0
	}
	if text[0] >= '0' && text[0] <= '9' {
		value, maskText, masked := strings.Cut(text, "/")
		n, ok := parseUint(value, 0xff)
		m := uint64(0xff)
		if masked && ok {
			m, ok = parseUint(maskText, 1<<32-1)
		}
		if !ok || m&^0xff != 0 && m != 1<<32-1 {
			return v, mask, bad
		}
		return Value64(n), Value64(m & 0xff), nil
	}
	if text[0] != '+' && text[0] != '-' {
		for _, name := range strings.Split(text, "|") {
			if bit(name) == 0 {
				return v, mask, bad
			}
			v[1] |= bit(name)
		}
		return v, Value64(0xff), nil
	}
	for text != "" {
		sign := text[0]
		end := strings.IndexAny(text[1:], "+-") + 1
		if end == 0 {
			end = len(text)
		}
		b := bit(text[1:end])
		if b == 0 || mask[1]&b != 0 {
			return v, mask, bad
		}
		mask[1] |= b
		if sign == '+' {
			v[1] |= b
		}
		text = text[end:]
	}
	return v, mask, nil
}

// ct writes the fields of the connection tracker (ct_*) that the match has.
func (w *matchWriter) ct() {
	for _, id := range []FieldID{FCTState, FCTZone, FCTMark, FCTLabel} {
		w.field(id)
	}
	if eth, _ := w.exact(flowtable.WEthDst, 0xffff); eth == packet.EtherTypeIPv4 {
		w.field(FCTNwSrc)
		w.field(FCTNwDst)
	}
	for _, id := range []FieldID{FCTIPv6Src, FCTIPv6Dst, FCTNwProto, FCTTpSrc, FCTTpDst} {
		w.field(id)
	}
}
