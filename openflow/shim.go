// SPDX-License-Identifier: Apache-2.0

package openflow

import (
	"fmt"

	"weft/packet"
)

// Subtypes of Nicira's actions on MPLS headers.
const (
	nxPushMPLS   = 23
	nxPopMPLS    = 24
	nxDecMPLSTTL = 26
)

func init() {
	for _, shim := range []struct {
		kind    ActionKind
		word    string
		parse   actionParse
		rank    setRank
		subtype uint16 // subtype of Nicira's action; 0: there is none
	}{
		{ActPushMPLS, "push_mpls", (*actionParser).pushMPLS, rankPushMPLS, nxPushMPLS},
		{ActPopMPLS, "pop_mpls", (*actionParser).popMPLS, rankPopMPLS, nxPopMPLS},
		{ActDecMPLSTTL, "dec_mpls_ttl", (*actionParser).decMPLSTTL, rankMPLSTTL, nxDecMPLSTTL},
		{ActPushPBB, "push_pbb", (*actionParser).pushPBB, rankPushPBB, 0},
		{ActPopPBB, "pop_pbb", (*actionParser).popPBB, rankPopPBB, 0},
	} {
		row := actionRow{words: map[string]actionParse{shim.word: shim.parse}, format: formatShim, encode: (*actionEncoder).appendShim, rank: shim.rank}
		if shim.subtype != 0 {
			row.nicira = map[uint16]niciraRow{shim.subtype: {6, (*actionDecoder).niciraShim}}
		}
		addAction(shim.kind, row)
	}
}

// This file has the actions on MPLS and PBB headers in text and on the wire (ovs-actions(7), "MPLS"; OpenFlow
// 1.3, 5.12). Package xlate executes them.

func (p *actionParser) pushMPLS(t token) (Action, error) {
	v, _ := parseUint(t.value, 0xffff) // 0 if there is no number
	return p.check.pushMPLS(t.text, v)
}

func (p *actionParser) popMPLS(t token) (Action, error) {
	v, ok := parseUint(t.value, 0xffff)
	if !ok {
		return Action{}, wrong(t.text, "pop_mpls:ETHERTYPE, such as 0x0800")
	}
	return p.check.popMPLS(t.text, v), nil
}

func (p *actionParser) decMPLSTTL(t token) (Action, error) { return p.check.decMPLSTTL(t.text), nil }

func (p *actionParser) pushPBB(t token) (Action, error) {
	v, _ := parseUint(t.value, 0xffff) // 0 if there is no number
	return p.check.pushPBB(t.text, v)
}

func (p *actionParser) popPBB(t token) (Action, error) { return p.check.popPBB(t.text), nil }

func formatShim(a *Action, _ Names) string {
	switch a.Kind {
	case ActPushMPLS:
		return fmt.Sprintf("push_mpls:0x%04x", a.Value[1])
	case ActPopMPLS:
		return fmt.Sprintf("pop_mpls:0x%04x", a.Value[1])
	case ActDecMPLSTTL:
		return "dec_mpls_ttl"
	case ActPushPBB:
		return fmt.Sprintf("push_pbb:0x%04x", packet.EtherTypePBB)
	case ActPopPBB:
		return "pop_pbb"
	}
	return ""
}

// appendShim appends an action on an MPLS or PBB header. For OpenFlow 1.0 it appends Nicira's action on the
// MPLS header, and nothing for PBB.
func (e *actionEncoder) appendShim(b []byte, a *Action) []byte {
	switch {
	case a.Kind == ActPushMPLS && e.v == Version10:
		return appendZeros(be.AppendUint16(appendNX(b, nxPushMPLS), uint16(a.Value[1])), 4)
	case a.Kind == ActPopMPLS && e.v == Version10:
		return appendZeros(be.AppendUint16(appendNX(b, nxPopMPLS), uint16(a.Value[1])), 4)
	case a.Kind == ActDecMPLSTTL && e.v == Version10:
		return appendZeros(appendNX(b, nxDecMPLSTTL), 6)
	case a.Kind == ActPushMPLS:
		return be.AppendUint16(appendHeader(b, wirePushMPLS), uint16(a.Value[1]))
	case a.Kind == ActPopMPLS:
		return be.AppendUint16(appendHeader(b, wirePopMPLS), uint16(a.Value[1]))
	case a.Kind == ActDecMPLSTTL:
		return appendHeader(b, wireDecMPLSTTL)
	case e.v == Version10:
		return b
	case a.Kind == ActPushPBB:
		return be.AppendUint16(appendHeader(b, wirePushPBB), packet.EtherTypePBB)
	}
	return appendHeader(b, wirePopPBB)
}

// decodeShim decodes an action of OpenFlow 1.3 and later on an MPLS or PBB header. "kind" is the type of the
// action; ok is false if it is no such action. "argument" has the 4 bytes behind the action's length.
func (d *actionDecoder) decodeShim(kind uint16, argument []byte) (a Action, ok bool, err error) {
	etherType := uint64(be.Uint16(argument))
	switch kind {
	case wireSetMPLSTTL:
		return d.setShim(FMPLSTTL, uint64(argument[0])), true, nil
	case wireDecMPLSTTL:
		a = d.check.decMPLSTTL("dec_mpls_ttl")
	case wirePushMPLS:
		a, err = d.check.pushMPLS("push", etherType)
	case wirePopMPLS:
		a = d.check.popMPLS("pop_mpls", etherType)
	case wirePushPBB:
		a, err = d.check.pushPBB("push", etherType)
	case wirePopPBB:
		a = d.check.popPBB("pop_pbb")
	default:
		return a, false, nil
	}
	if err != nil {
		err = coded(ErrActionBadArgument, err.Error())
	}
	return a, true, err
}

// setShim returns the action that sets a whole field of an MPLS label stack entry to v.
func (d *actionDecoder) setShim(id FieldID, v uint64) Action {
	d.check.lenient("set_"+fields[id].name, NeedMPLS)
	return Action{Kind: ActModField, Dst: WholeField(id), Value: Value64(v), Mask: Ones(uint(fields[id].bits))}
}

// niciraShim decodes one of Nicira's actions on an MPLS header. b begins behind the subtype.
func (d *actionDecoder) niciraShim(subtype uint16, b []byte) (Action, error) {
	switch subtype {
	case nxSetMPLSLabel:
		return d.setShim(FMPLSLabel, uint64(be.Uint32(b[2:])&(1<<20-1))), nil
	case nxSetMPLSTC:
		return d.setShim(FMPLSTC, uint64(b[0]&mplsClass)), nil
	case nxSetMPLSTTL:
		return d.setShim(FMPLSTTL, uint64(b[0])), nil
	}
	kind := map[uint16]uint16{nxPushMPLS: wirePushMPLS, nxPopMPLS: wirePopMPLS, nxDecMPLSTTL: wireDecMPLSTTL}[subtype]
	a, _, err := d.decodeShim(kind, b)
	return a, err
}

// mplsClass is the largest traffic class of MPLS, and the mask of its bits.
const mplsClass = 7

// EtherTypeUnrevealed takes the place of the EtherType behind an I-TAG or NSH that an action has removed.
// The translation does not know this EtherType. It is known after recirculation, which parses the frame
// again.
const EtherTypeUnrevealed = 0
