// SPDX-License-Identifier: Apache-2.0

package openflow

import (
	"fmt"

	"weft/flowtable"
	"weft/packet"
)

// This file has the actions on the network service header (NSH, RFC 8300): dec_nsh_ttl, and the argument of
// encap(nsh) for the MD type.

// nxDecNSHTTL is the subtype of the action with which Nicira's extensions encode dec_nsh_ttl.
const nxDecNSHTTL = 48

func init() {
	addAction(ActDecNSHTTL, actionRow{words: map[string]actionParse{"dec_nsh_ttl": (*actionParser).decNSHTTL}, format: called("dec_nsh_ttl"),
		encode: (*actionEncoder).appendDecNSHTTL, rank: rankNSHTTL, nicira: map[uint16]niciraRow{nxDecNSHTTL: {6, (*actionDecoder).decodeDecNSHTTL}}})
}

// nshWords maps the arguments of encap for an NSH to the MD type. 0 means that the text gives no MD type, and
// the header gets type 1.
var nshWords = map[string]uint64{"nsh": 0, "nsh(md_type=1)": packet.NSHType1, "nsh(md_type=2)": packet.NSHType2}

// Numbers of the property with which an encap(nsh) action gives the MD type: its class, its type, its length
// in bytes without padding, and its length with padding. ovs-ofctl writes the same numbers.
const (
	propertyNSH       = 4
	propertyMDType    = 1
	propertyMDTypeLen = 5
	propertyLen       = 8
)

// decodeMDType returns the MD type in the properties b of encap(nsh), or 0 if b is empty. ok is false if the
// MD type is unknown, or if b has other properties.
func decodeMDType(b []byte) (mdType uint64, ok bool) {
	if len(b) == 0 {
		return 0, true
	}
	if len(b) != propertyLen || be.Uint16(b) != propertyNSH || b[2] != propertyMDType || b[3] != propertyMDTypeLen && b[3] != propertyLen {
		return 0, false
	}
	return uint64(b[4]), b[4] == packet.NSHType1 || b[4] == packet.NSHType2
}

func (p *actionParser) decNSHTTL(t token) (Action, error) { return p.check.decNSHTTL(t.text) }

// appendDecNSHTTL appends a dec_nsh_ttl action. It appends nothing for OpenFlow 1.0.
func (e *actionEncoder) appendDecNSHTTL(b []byte, _ *Action) []byte {
	if e.v == Version10 {
		return b
	}
	return appendZeros(appendNX(b, nxDecNSHTTL), 6)
}

func (d *actionDecoder) decodeDecNSHTTL(uint16, []byte) (Action, error) {
	if d.v == Version10 {
		return Action{}, coded(ErrActionBadExpType, "dec_nsh_ttl: expected OpenFlow 1.3 or later")
	}
	a, err := d.check.decNSHTTL("dec_nsh_ttl")
	if err != nil {
		err = coded(ErrActionMatchInconsistent, err.Error())
	}
	return a, err
}

// formatNSH returns the text of a datapath action that adds, removes or rewrites an NSH.
func formatNSH(a *flowtable.Action) string {
	v := packet.NSHFields(a.U64)
	push := fmt.Sprintf("push_nsh(flags=%d,ttl=%d,mdtype=%d,np=%d,spi=0x%x,si=%d)", v>>packet.NSHFlagsShift, v>>packet.NSHTTLShift&0xff,
		v>>packet.NSHMDTypeShift&0xff, v>>packet.NSHNextShift&0xff, v>>packet.NSHSPIShift&0xffffff, v&0xff)
	switch a.Op {
	case flowtable.OpEncapNSH:
		return push + ",push_eth"
	case flowtable.OpPushNSH:
		return push
	case flowtable.OpDecapNSH:
		return "pop_eth,pop_nsh(eth_type=0x6558)"
	case flowtable.OpPopNSH:
		return fmt.Sprintf("pop_nsh(eth_type=0x%04x)", a.U16)
	case flowtable.OpSetNSHFlags:
		return fmt.Sprintf("set(nsh(flags=%d))", a.U32)
	case flowtable.OpSetNSHTTL:
		return fmt.Sprintf("set(nsh(ttl=%d))", a.U32)
	case flowtable.OpSetNSHSPI:
		return fmt.Sprintf("set(nsh(spi=0x%x))", a.U32)
	case flowtable.OpSetNSHSI:
		return fmt.Sprintf("set(nsh(si=%d))", a.U32)
	}
	return fmt.Sprintf("set(nsh(c%d=0x%x))", a.Op-flowtable.OpSetNSHC1+1, a.U32)
}

// A frame's key has no words for the fields of an NSH. It stores them in the words that have the IP
// addresses of other frames. So a match cannot have both. The EtherType that decides may be the last word of
// a flow's text, so the parser checks this at the end.

// sharedWord is a field in the text of a match, whose value is in a word that IP addresses and the NSH
// share.
type sharedWord struct {
	id   FieldID
	text token
}

func usesSharedWord(id FieldID) bool {
	w := fields[id].word
	return w == flowtable.WIPv4 || w == flowtable.WIPv6Src || w == flowtable.WIPv6Src+1
}

// separateShared removes IP addresses from a match of frames with an NSH, as ovs-ofctl does. It returns a
// remark for each removed address. If the match is of other frames and has fields of the NSH, it returns an
// error.
func (p *flowParser) separateShared() (notes []string, err error) {
	isNSH := NeedNSH.Met(&p.match)
	for _, w := range p.shared {
		if f := &fields[w.id]; f.prerequisite == NeedNSH && !isNSH && w.text.value != "*" {
			return nil, wrong(w.text.text, "a flow that matches %s, as %s needs", prereqTexts[NeedNSH], f.name)
		}
	}
	if !isNSH {
		return nil, nil
	}
	for _, w := range p.shared {
		unsetField(&p.match, w.id)
	}
	for _, w := range p.shared {
		if f := &fields[w.id]; f.prerequisite != NeedNSH {
			notes = append(notes, f.name+" is ignored: it needs "+prereqTexts[f.prerequisite])
		} else if err := parseMatchField(&p.match, w.id, w.text, p.names); err != nil {
			return nil, err
		}
	}
	return notes, nil
}

// validNSH reports whether an NSH can have the value of the field (RFC 8300 section 2.2).
func validNSH(id FieldID, v uint64) bool {
	switch id {
	case FNSHMDType:
		return v == packet.NSHType1 || v == packet.NSHType2
	case FNSHTTL:
		return v <= 63
	case FNSHSPI:
		return v < 1<<24
	}
	return true
}
