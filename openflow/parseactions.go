// SPDX-License-Identifier: Apache-2.0

package openflow

import (
	"encoding/hex"
	"fmt"
	"net/netip"
	"regexp"
	"strconv"
	"strings"

	"weft/flowtable"
	"weft/packet"
)

// maxActionDepth bounds the nesting of clone. Deeper nesting is refused.
const maxActionDepth = 16

// ParseActions parses a list of actions of an unknown flow. So it does not check whether the flow's match
// meets the prerequisites of the actions. Errors are *ParseError.
func ParseActions(text string, names Names) ([]Action, error) {
	a := actionParser{names: names, check: actionChecker{table: TableAll}}
	return a.whole(text)
}

// whole parses the complete actions of a flow. It also checks the two rules that need the complete list.
// Beside conjunction, only note is allowed. An action such as mod_nw_src on a field that the match does not
// guarantee is allowed only beside actions of OpenFlow 1.0.
func (p *actionParser) whole(text string) ([]Action, error) {
	list, err := p.parse(text)
	if other := checkConjunctions(list); err == nil && other != "" {
		return nil, wrong(other, "no action but note beside conjunction")
	}
	if err == nil && p.check.loose != "" && p.check.strict {
		return nil, wrong(p.check.loose, "a flow that matches %s, as push_vlan is among its actions", prereqTexts[p.check.looseNeeds])
	}
	return list, err
}

// actionParser parses one list of actions. It parses a nested list, such as that of clone, with a new
// actionParser.
type actionParser struct {
	names Names
	check actionChecker
	depth int // number of clone actions around the list
}

// This init function registers the actions that have no file of their own.
func init() {
	addAction(ActOutput, actionRow{words: map[string]actionParse{"output": (*actionParser).output}, format: formatOutput, rank: rankOutput,
		encode: func(e *actionEncoder, b []byte, a *Action) []byte { return e.output(b, a.Port, uint16(a.Value[1])) }})
	addAction(ActOutputReg, actionRow{format: func(a *Action, _ Names) string { return "output:" + a.Src.String() }, encode: (*actionEncoder).outputReg,
		nicira: map[uint16]niciraRow{nxOutputReg: {14, (*actionDecoder).outputReg}, nxOutputReg2: {14, (*actionDecoder).outputReg}}})
	addAction(ActSetField, actionRow{words: map[string]actionParse{"set_field": (*actionParser).setField}, rank: rankSet,
		format: func(a *Action, names Names) string {
			return "set_field:" + formatSet(a, names) + "->" + fields[a.Dst.Field].name
		},
		encode: (*actionEncoder).setField, whole: true, nicira: map[uint16]niciraRow{nxRegLoad2: {6, (*actionDecoder).regLoad2}}})
	addAction(ActLoad, actionRow{words: map[string]actionParse{"load": (*actionParser).load}, format: formatLoad, rank: rankSet,
		encode: (*actionEncoder).load, whole: true, nicira: map[uint16]niciraRow{nxRegLoad: {14, (*actionDecoder).load}}})
	addAction(ActMove, actionRow{words: map[string]actionParse{"move": (*actionParser).move}, rank: rankSet,
		format: func(a *Action, _ Names) string { return "move:" + a.Src.String() + "->" + a.Dst.String() },
		encode: (*actionEncoder).move, nicira: map[uint16]niciraRow{nxRegMove: {14, func(d *actionDecoder, _ uint16, b []byte) (Action, error) { return d.move(b, b[6:]) }}}})
	addAction(ActModField, actionRow{words: map[string]actionParse{
		"mod_dl_src": modField(FEthSrc), "mod_dl_dst": modField(FEthDst),
		"mod_nw_src": modField(FIPSrc), "mod_nw_dst": modField(FIPDst),
		"mod_nw_tos": modField(FNwTOS), "mod_nw_ecn": modField(FIPECN), "mod_nw_ttl": modField(FIPTTL),
		"mod_tp_src": modField(FTCPSrc), "mod_tp_dst": modField(FTCPDst),
		"set_mpls_label": modField(FMPLSLabel), "set_mpls_tc": modField(FMPLSTC), "set_mpls_ttl": modField(FMPLSTTL),
	}, format: formatModField, encode: (*actionEncoder).modField, whole: true, rank: rankSet, nicira: map[uint16]niciraRow{
		nxSetMPLSTTL: {6, (*actionDecoder).niciraShim}, nxSetMPLSLabel: {6, (*actionDecoder).niciraShim}, nxSetMPLSTC: {6, (*actionDecoder).niciraShim}}})
	addAction(ActModVLANVID, actionRow{words: map[string]actionParse{"mod_vlan_vid": (*actionParser).modVLANVID, "set_vlan_vid": (*actionParser).modVLANVID},
		format: func(a *Action, _ Names) string { return "mod_vlan_vid:" + a.Value.decimal() }, encode: (*actionEncoder).modVLAN, whole: true, rank: rankSet})
	addAction(ActModVLANPCP, actionRow{words: map[string]actionParse{"mod_vlan_pcp": (*actionParser).modVLANPCP, "set_vlan_pcp": (*actionParser).modVLANPCP},
		format: func(a *Action, _ Names) string { return "mod_vlan_pcp:" + a.Value.decimal() }, encode: (*actionEncoder).modVLAN, whole: true, rank: rankSet})
	addAction(ActPushVLAN, actionRow{words: map[string]actionParse{"push_vlan": (*actionParser).pushVLAN}, rank: rankPush,
		format: func(a *Action, _ Names) string { return fmt.Sprintf("push_vlan:0x%04x", a.Value[1]) }, encode: (*actionEncoder).pushVLAN})
	addAction(ActPopVLAN, actionRow{words: map[string]actionParse{"strip_vlan": (*actionParser).popVLAN, "pop_vlan": (*actionParser).popVLAN},
		format: called("strip_vlan"), encode: (*actionEncoder).popVLAN, rank: rankPop})
	addAction(ActGotoTable, actionRow{words: map[string]actionParse{"goto_table": (*actionParser).gotoTable},
		format: func(a *Action, _ Names) string { return fmt.Sprintf("goto_table:%d", a.Table) }, encode: (*actionEncoder).gotoTable})
	resubmit := niciraRow{6, (*actionDecoder).decodeResubmit}
	addAction(ActResubmit, actionRow{words: map[string]actionParse{"resubmit": (*actionParser).resubmit}, format: formatResubmit, rank: rankResubmit,
		encode: (*actionEncoder).resubmit, nicira: map[uint16]niciraRow{nxResubmit: resubmit, nxResubmitTable: resubmit, nxResubmitCT: resubmit}})
	addAction(ActWriteMetadata, actionRow{words: map[string]actionParse{"write_metadata": (*actionParser).writeMetadata}, format: formatMetadata,
		encode: (*actionEncoder).writeMetadata, nicira: map[uint16]niciraRow{nxWriteMetadata: {22, decodeMetadata}}})
	addAction(ActSetTunnel, actionRow{words: map[string]actionParse{"set_tunnel": (*actionParser).setTunnel, "set_tunnel64": (*actionParser).setTunnel},
		format: formatSetTunnel, encode: (*actionEncoder).setTunnel, rank: rankSet,
		nicira: map[uint16]niciraRow{nxSetTunnel: {6, decodeSetTunnel}, nxSetTunnel64: {14, decodeSetTunnel}}})
	addAction(ActClone, actionRow{words: map[string]actionParse{"clone": (*actionParser).clone},
		format: func(a *Action, names Names) string { return "clone(" + FormatActions(a.Sub, names) + ")" },
		encode: func(e *actionEncoder, b []byte, a *Action) []byte {
			return e.list(appendZeros(appendNX(b, nxClone), 6), a.Sub)
		},
		nicira: map[uint16]niciraRow{nxClone: {6, func(d *actionDecoder, _ uint16, b []byte) (Action, error) { return d.clone(b[6:]) }}}})
	addAction(ActNote, actionRow{words: map[string]actionParse{"note": (*actionParser).note}, format: formatNote,
		encode: func(_ *actionEncoder, b []byte, a *Action) []byte { return append(appendNX(b, nxNote), a.Text...) },
		nicira: map[uint16]niciraRow{nxNote: {6, func(_ *actionDecoder, _ uint16, b []byte) (Action, error) {
			return Action{Kind: ActNote, Text: string(b)}, nil
		}}}})
}

// actionsNotYet are the actions of ovs-actions(7) that Weft does not support.
const actionsNotYet = " nat "

func (p *actionParser) parse(text string) ([]Action, error) {
	var list []Action
	drop := false
	for n := 0; ; n++ {
		t, rest, ok := nextToken(text)
		if !ok {
			return list, nil
		}
		t, text = withDestination(t, rest)
		if t.key == "drop" {
			drop = true
		}
		if drop && (t.key != "drop" || len(list) > 0) {
			return nil, wrong("drop", "no other action beside it")
		}
		if drop {
			continue
		}
		a, err := p.parseAction(t)
		if err != nil {
			return nil, err
		}
		if err := p.check.order(t.text, t.key, a.Kind); err != nil {
			return nil, err
		}
		list = append(list, loadsOf(a)...)
		if len(list) > maxListed {
			return nil, wrong(t.text, "at most %d actions", maxListed)
		}
	}
}

// maxListed is the largest number of actions in one list. More are refused.
const maxListed = 4096

func (p *actionParser) parseAction(t token) (Action, error) {
	if parse, ok := actionWords[t.key]; ok {
		return parse(p, t)
	}
	if strings.Contains(actionsNotYet, " "+strings.ToLower(t.key)+" ") {
		return Action{}, wrong(t.text, "an action that weft supports")
	}
	no, err := parsePort(t.key, p.names) // as in ovs-ofctl, a value behind the port is ignored
	if err != nil {
		return Action{}, wrong(t.text, "a port or an action such as output, drop, set_field, push_vlan, goto_table or normal")
	}
	return p.check.outputTo(no, t.text)
}

func (p *actionParser) output(t token) (Action, error) {
	if isTruncation(t) {
		return p.outputTruncation(t)
	}
	no, err := parsePort(t.value, p.names)
	if err == nil {
		return p.check.outputTo(no, t.text)
	}
	src, ok := parseSubfieldOf(t.value, tlvsOf(p.names))
	if !ok {
		return Action{}, wrong(t.value, "the number or name of a port, or a field such as reg0[0..15]")
	}
	if err := p.check.readable(t.text, src); err != nil {
		return Action{}, err
	}
	return Action{Kind: ActOutputReg, Src: src}, nil
}

// subfield parses the sub-field that an action names, such as reg0[0..15].
func (p *actionParser) subfield(text string) (Subfield, error) {
	name, _, _ := strings.Cut(text, "[")
	id, ok := fieldNames[name]
	if !ok {
		id = oxmNames[name]
	}
	if id.IsTLV() && tlvsOf(p.names).Field(id) == nil {
		return Subfield{}, unmapped(id)
	}
	s, ok := parseSubfieldOf(text, tlvsOf(p.names))
	if !ok {
		return s, wrong(text, expectedSubfield)
	}
	return s, nil
}

// parseSubfield parses a sub-field. It does not accept the fields tun_metadata, because they need a TLV map.
func parseSubfield(text string) (Subfield, bool) { return parseSubfieldOf(text, nil) }

// parseSubfieldOf parses field, field[], field[bit] or field[from..to].
func parseSubfieldOf(text string, tlvs *TLVMap) (Subfield, bool) {
	name, bits := text, ""
	if open := strings.IndexByte(text, '['); open >= 0 {
		if !strings.HasSuffix(text, "]") {
			return Subfield{}, false
		}
		name, bits = text[:open], text[open+1:len(text)-1]
	}
	id, ok := fieldNames[name]
	if !ok {
		id, ok = oxmNames[name]
	}
	if !ok {
		return Subfield{}, false
	}
	s := tlvs.Whole(id)
	if bits == "" {
		return s, s.Bits > 0
	}
	from, to, ranged := strings.Cut(bits, "..")
	first, ok1 := parseBit(from)
	last, ok2 := first, true
	if ranged {
		last, ok2 = parseBit(to)
	}
	if !ok1 || !ok2 || first > last || last >= int(s.Bits) {
		return Subfield{}, false
	}
	return Subfield{Field: id, Offset: uint16(first), Bits: uint16(last - first + 1)}, true
}

func parseBit(s string) (int, bool) {
	n, err := strconv.ParseInt(s, 10, 16) // as in ovs-ofctl, -0 is valid
	return int(n), err == nil && n >= 0
}

const expectedSubfield = "a field with bits within it, such as reg0[0..15] or NXM_OF_VLAN_TCI[0..11]"

// splitArrow splits the value of a token, which has the form value->field.
func splitArrow(t token) (value, field string, err error) {
	value, field, ok := strings.Cut(t.value, "->")
	if !ok {
		return "", "", wrong(t.text, "%s:VALUE->FIELD", t.key)
	}
	return strings.TrimSpace(value), strings.TrimSpace(field), nil
}

func (p *actionParser) setField(t token) (Action, error) {
	value, name, err := splitArrow(t)
	if err != nil {
		return Action{}, err
	}
	id, ok := fieldNames[name]
	if !ok {
		return Action{}, wrong(name, "the name of a field, such as eth_dst or tun_id")
	}
	dst := WholeField(id)
	if err := p.check.settable(t.text, dst); err != nil {
		return Action{}, err
	}
	if id.IsTLV() {
		return p.setTLV(id, value)
	}
	v, mask, err := parseFieldValue(id, value, p.names)
	if err != nil {
		return Action{}, err
	}
	f := &fields[id]
	width := Ones(uint(f.storedBits()))
	masked := mask != Ones(8*uint(f.bytes))
	switch {
	case masked && !f.maskable:
		return Action{}, wrong(value, "a value without a mask for %s", f.name)
	case id == FVLANVID || id == FDLVLAN:
		// The text may have the bit OFPVID_PRESENT. The action sets it in any case.
		v = v.AndNot(Value64(flowtable.VLANPresent))
	case id == FNwTOS && v[1]&^tosDSCP != 0:
		return Action{}, wrong(value, "a multiple of 4 from 0 to 252 for nw_tos")
	}
	if !v.AndNot(width).IsZero() {
		return Action{}, wrong(value, "a number of at most %d bits for %s", f.storedBits(), f.name)
	}
	mask = mask.And(width)
	if id == FNwTOS {
		mask = Value64(tosDSCP)
	}
	p.check.assume(dst, v, mask)
	return Action{Kind: ActSetField, Dst: dst, Value: v.And(mask), Mask: mask}, nil
}

func (p *actionParser) load(t token) (Action, error) {
	value, name, err := splitArrow(t)
	if err != nil {
		return Action{}, err
	}
	dst, err := p.subfield(name)
	if err != nil {
		return Action{}, err
	}
	digits, negative := strings.CutPrefix(value, "-")
	v, ok := parseNumber(leadingNumber(digits))
	if !ok || negative && (v[0] != 0 || strings.HasPrefix(digits, "+")) {
		return Action{}, wrong(value, "a number of at most %d bits", dst.Bits)
	}
	if negative { // like ovs-ofctl, use the two's complement in 64 bits
		v[1] = -v[1]
	}
	if v.BitLen() > int(dst.Bits) {
		return Action{}, wrong(value, "a number of at most %d bits", dst.Bits)
	}
	if err := p.check.settable(t.text, dst); err != nil {
		return Action{}, err
	}
	p.check.assume(dst, v, Ones(uint(dst.Bits)))
	return Action{Kind: ActLoad, Dst: dst, Value: v}, nil
}

// loadsOf splits a load of more than 64 bits into several, because a load on the wire has at most 64 bits. It
// returns other actions unchanged.
func loadsOf(a Action) []Action {
	if a.Kind != ActLoad || a.Dst.Bits <= 64 {
		return []Action{a}
	}
	var list []Action
	for at := uint16(0); at < a.Dst.Bits; at += 64 {
		part := a
		part.Dst.Offset, part.Dst.Bits = a.Dst.Offset+at, min(a.Dst.Bits-at, 64)
		part.Value = a.Value.Shr(min(uint(at), 128)).And(Ones(64))
		list = append(list, part)
	}
	return list
}

func (p *actionParser) move(t token) (Action, error) {
	from, to, err := splitArrow(t)
	if err != nil {
		return Action{}, err
	}
	src, err := p.subfield(from)
	if err != nil {
		return Action{}, err
	}
	dst, err := p.subfield(to)
	if err != nil {
		return Action{}, err
	}
	if src.Bits != dst.Bits {
		return Action{}, wrong(to, "as many bits as %s has, %d", from, src.Bits)
	}
	if err := p.check.readable(t.text, src); err != nil {
		return Action{}, err
	}
	if err := p.check.writable(t.text, dst); err != nil {
		return Action{}, err
	}
	return Action{Kind: ActMove, Src: src, Dst: dst}, nil
}

func (p *actionParser) pushVLAN(t token) (Action, error) {
	v, ok := parseUint(t.value, 0xffff)
	if !ok || v != packet.EtherTypeVLAN && v != packet.EtherTypeSVLAN {
		return Action{}, wrong(t.text, "push_vlan:0x8100 or push_vlan:0x88a8")
	}
	p.check.strict = true
	return p.check.pushVLAN(v), nil
}

func (p *actionParser) popVLAN(t token) (Action, error) { return p.check.popVLAN(t.text), nil }

func (p *actionParser) modVLANVID(t token) (Action, error) {
	v, ok := parseUint(t.value, flowtable.VLANID)
	if !ok {
		return Action{}, wrong(t.text, "a VLAN number from 0 to 4095")
	}
	p.check.assumeTag()
	return Action{Kind: ActModVLANVID, Value: Value64(v)}, nil
}

func (p *actionParser) modVLANPCP(t token) (Action, error) {
	v, ok := parseUint(t.value, 7)
	if !ok {
		return Action{}, wrong(t.text, "a VLAN priority from 0 to 7")
	}
	p.check.assumeTag()
	return Action{Kind: ActModVLANPCP, Value: Value64(v)}, nil
}

// ethernetThere matches an Ethernet address that is followed by other text. ovs-ofctl ignores the other
// text.
var ethernetThere = regexp.MustCompile(`^((?:0*[0-9a-fA-F]{1,2}:){5}0*[0-9a-fA-F]{1,2})[^0-9a-fA-F]`)

// leadingEthernet returns the Ethernet address at the start of text. It returns all of
// text if text does not start with an address.
func leadingEthernet(text string) string {
	found := ethernetThere.FindStringSubmatch(text)
	if found != nil && !(strings.HasSuffix(found[1], ":0") && text[len(found[1])]|0x20 == 'x') { // 0x begins a number
		return found[1]
	}
	return text
}

// modField returns the parser of an action such as mod_nw_src, which sets a whole field. In OpenFlow 1.0
// these actions have no prerequisite: frames without the field stay unchanged.
func modField(id FieldID) func(*actionParser, token) (Action, error) {
	return func(p *actionParser, t token) (Action, error) {
		f := &fields[id]
		value := t.value
		if f.format == asEthernet {
			value = leadingEthernet(value)
		}
		v, err := parseScalar(f, value, t.text)
		if err != nil {
			return Action{}, err
		}
		if _, err := netip.ParseAddr(t.value); err != nil && f.format == asIPv4 {
			return Action{}, wrong(t.text, "an IPv4 address as a.b.c.d for %s", t.key)
		}
		switch id {
		case FIPECN, FIPTTL: // OpenFlow 1.0 has no actions for these fields, so later versions' rule applies
			if err := p.check.readable(t.text, WholeField(id)); err != nil && !p.check.inSet {
				return Action{}, err
			}
		case FTCPSrc, FTCPDst:
			p.check.lenient(t.text, NeedPorts)
		default:
			p.check.lenient(t.text, f.prerequisite)
		}
		mask := Ones(uint(f.bits))
		if id == FNwTOS {
			mask = Value64(tosDSCP)
		}
		if !v.AndNot(mask).IsZero() {
			return Action{}, wrong(t.text, "a value for %s with no bits beyond 0x%x", t.key, mask[1])
		}
		return Action{Kind: ActModField, Dst: WholeField(id), Value: v, Mask: mask}, nil
	}
}

func (p *actionParser) gotoTable(t token) (Action, error) {
	v, ok := parseDecimal(t.value, Tables-1)
	switch {
	case !ok:
		return Action{}, wrong(t.text, "a table number from 0 to 254")
	case p.check.table != TableAll && v <= uint64(p.check.table):
		// goto_table must name a later table. If the text of the flow has no table number, any table is
		// accepted, as in ovs-ofctl. maxResubmits of package xlate then ends a loop.
		return Action{}, wrong(t.text, "a table behind the flow's own, %d", p.check.table)
	}
	return Action{Kind: ActGotoTable, Table: uint8(v)}, nil
}

func (p *actionParser) resubmit(t token) (Action, error) {
	a := Action{Kind: ActResubmit, Port: PortInPort, Table: TableAll}
	port, table := t.value, ""
	if t.delim == '(' {
		var rest string
		port, rest, _ = strings.Cut(t.value, ",")
		if port != "" && strings.Trim(port, " ") == "" {
			return a, wrong(t.text, "a port, or nothing, before the comma")
		}
		table, rest, _ = strings.Cut(rest, ",")
		if table != "" && strings.Trim(table, " ") == "" {
			return a, wrong(t.text, "a table number from 0 to 254")
		}
		option, _, _ := strings.Cut(rest, ",") // ovs-ofctl ignores all text after the third comma
		switch {
		case strings.EqualFold(option, "ct"):
			a.Tuple = true
		case option != "":
			return a, wrong(t.text, "resubmit(PORT,TABLE) or resubmit(PORT,TABLE,ct)")
		}
		port, table = strings.TrimLeft(port, " "), strings.TrimLeft(table, " ")
	}
	if port != "" {
		no, err := parsePort(port, p.names)
		if err != nil {
			return a, err
		}
		a.Port = no
	}
	if table != "" {
		v, ok := parseDecimal(table, TableAll)
		if !ok {
			return a, wrong(t.text, "a table number from 0 to 254")
		}
		a.Table = uint8(v)
	}
	if a.Port == PortInPort && a.Table == TableAll {
		return a, wrong(t.text, "a port or a table, as in resubmit(PORT,TABLE) or resubmit(,TABLE)")
	}
	if a.Tuple && p.check.checked && !ctMet(&p.check.match) {
		return a, wrong(t.text, "ct only in a flow that matches a valid ct_state such as +trk-inv or +est")
	}
	return a, nil
}

func (p *actionParser) writeMetadata(t token) (Action, error) {
	value, mask, masked := strings.Cut(t.value, "/")
	v, ok := parseSigned(value)
	m := ^uint64(0)
	if masked && ok {
		m, ok = parseSigned(mask)
	}
	if !ok {
		return Action{}, wrong(t.text, "write_metadata:VALUE/MASK, both of 64 bits")
	}
	return Action{Kind: ActWriteMetadata, Value: Value64(v & m), Mask: Value64(m)}, nil
}

func (p *actionParser) setTunnel(t token) (Action, error) {
	v, ok := parseSigned(t.value)
	if !ok {
		return Action{}, wrong(t.text, "a tunnel number")
	}
	wide := t.key == "set_tunnel64" || v>>32 != 0
	return Action{Kind: ActSetTunnel, Value: Value64(v), Wide: wide}, nil
}

func (p *actionParser) clone(t token) (Action, error) {
	if p.depth == maxActionDepth {
		return Action{}, wrong("clone", "at most %d of them within each other", maxActionDepth)
	}
	inner := *p
	inner.depth++
	inner.check.nested, inner.check.rank = true, 0
	inner.check.strict = false // like ovs-ofctl, the check of loose and strict ignores the actions before clone
	sub, err := inner.parse(t.value)
	p.check.loose, p.check.looseNeeds, p.check.strict = inner.check.loose, inner.check.looseNeeds, inner.check.strict
	return Action{Kind: ActClone, Sub: sub}, err
}

func (p *actionParser) note(t token) (Action, error) {
	b, err := hex.DecodeString(strings.ReplaceAll(t.value, ".", ""))
	if err != nil {
		return Action{}, wrong(t.text, "pairs of hexadecimal digits")
	}
	return Action{Kind: ActNote, Text: string(b)}, nil
}
