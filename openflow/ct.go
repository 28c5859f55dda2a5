// SPDX-License-Identifier: Apache-2.0

package openflow

import (
	"fmt"
	"net/netip"
	"strings"

	"weft/flowtable"
)

// Subtypes of Nicira's actions for ct and ct_clear.
const (
	nxCT      = 35
	nxCTClear = 43
)

func init() {
	addAction(ActCT, actionRow{words: map[string]actionParse{"ct": (*actionParser).ct}, rank: rankCT,
		format: func(a *Action, names Names) string { return a.CT.format(names) },
		encode: func(e *actionEncoder, b []byte, a *Action) []byte { return e.ct(b, a.CT) },
		nicira: map[uint16]niciraRow{nxCT: {14, (*actionDecoder).decodeCT}}})
	addAction(ActCTClear, actionRow{words: map[string]actionParse{"ct_clear": (*actionParser).ctClear}, format: called("ct_clear"), encode: encodeBare(nxCTClear),
		nicira: map[uint16]niciraRow{nxCTClear: {6, decodeBare(ActCTClear)}}})
}

// CTSpec holds the arguments of the action ct, which tracks the frame's connection (ovs-actions(7)).
type CTSpec struct {
	Commit, Force bool
	Table         uint8 // table that gets the tracked frame; TableAll: none, and the list continues untracked
	Zone          uint16
	ZoneSrc       Subfield // field with the zone; FNone: the zone is in Zone
	NAT           *NATSpec // nil: no NAT
	Exec          []Action // actions that set ct_mark and ct_label
	ALG           string
}

// NATSpec holds the arguments of nat, which stands within the action ct (ovs-actions(7)).
type NATSpec struct {
	// Src or Dst sets up source or destination NAT for a new connection. With neither, ct applies the NAT
	// that the connection already has.
	Src, Dst                 bool
	Lo, Hi                   netip.Addr // invalid: the frame's own address
	PortLo, PortHi           uint16     // range of ports; PortHi of 0: any port
	Persistent, Hash, Random bool
}

func (p *actionParser) ct(t token) (Action, error) {
	spec := &CTSpec{Table: TableAll}
	for text := t.value; ; {
		arg, rest, ok := nextToken(text)
		if !ok {
			break
		}
		text = rest
		if err := p.ctArgument(spec, arg); err != nil {
			return Action{}, err
		}
	}
	switch {
	case spec.Force && !spec.Commit:
		return Action{}, wrong(t.text, "force together with commit")
	case spec.Exec != nil && !spec.Commit:
		return Action{}, wrong(t.text, "exec together with commit")
	case p.check.lacks(NeedIP):
		return Action{}, wrong(t.text, "a flow that matches %s, as ct needs", prereqTexts[NeedIP])
	case spec.ALG == "ftp" && p.check.lacks(NeedTCP), spec.ALG == "tftp" && p.check.lacks(NeedUDP):
		return Action{}, wrong(t.text, "a flow that matches the protocol which %s uses", spec.ALG)
	}
	p.check.forgetCT()
	return Action{Kind: ActCT, CT: spec}, nil
}

func (p *actionParser) ctClear(token) (Action, error) { return Action{Kind: ActCTClear}, nil }

func (p *actionParser) ctArgument(spec *CTSpec, t token) error {
	switch t.key {
	case "commit":
		spec.Commit = true
	case "force":
		spec.Force = true
	case "table":
		v, ok := parseDecimal(t.value, TableAll-1)
		if !ok {
			return wrong(t.text, "a table number from 0 to 254")
		}
		spec.Table = uint8(v)
	case "zone":
		return p.ctZone(spec, t)
	case "nat":
		nat, err := parseNAT(t)
		spec.NAT = nat
		return err
	case "exec":
		return p.ctExec(spec, t)
	case "alg":
		if t.value != "ftp" && t.value != "tftp" {
			return wrong(t.text, "alg=ftp or alg=tftp")
		}
		spec.ALG = t.value
	default:
		return wrong(t.text, "commit, force, table, zone, nat, exec or alg within ct")
	}
	return nil
}

func (p *actionParser) ctZone(spec *CTSpec, t token) error {
	if v, ok := parseUint(t.value, 0xffff); ok {
		spec.Zone, spec.ZoneSrc = uint16(v), Subfield{}
		return nil
	}
	src, ok := parseSubfield(t.value)
	if !ok || src.Bits != 16 {
		return wrong(t.text, "a zone from 0 to 65535, or 16 bits of a field such as reg0[0..15]")
	}
	spec.Zone, spec.ZoneSrc = 0, src
	return p.check.readable(t.text, src)
}

// ctExec parses the actions in exec(...) of ct, which may only write ct_mark and
// ct_label.
func (p *actionParser) ctExec(spec *CTSpec, t token) error {
	if p.check.inExec { // a nested exec is refused before it is parsed, because text may nest to any depth
		return wrongInExec(t)
	}
	inner := *p
	inner.check.nested, inner.check.rank, inner.check.inExec = true, 0, true
	list, err := inner.parse(t.value)
	if err != nil {
		return err
	}
	for i := range list {
		switch a := &list[i]; a.Kind {
		case ActSetField, ActLoad, ActMove:
			if a.Dst.Field == FCTMark || a.Dst.Field == FCTLabel {
				continue
			}
		}
		return wrongInExec(t)
	}
	spec.Exec = list
	return nil
}

func wrongInExec(t token) error {
	return wrong(t.text, "actions that set ct_mark or ct_label within exec")
}

func parseNAT(t token) (*NATSpec, error) {
	nat := &NATSpec{}
	for text := t.value; ; {
		arg, rest, ok := nextToken(text)
		if !ok {
			break
		}
		text = rest
		switch arg.key {
		case "src", "dst":
			if nat.Src || nat.Dst {
				return nil, wrong(t.text, "src or dst, once")
			}
			nat.Src, nat.Dst = arg.key == "src", arg.key == "dst"
			if err := nat.parseRange(arg); err != nil {
				return nil, err
			}
		case "persistent":
			nat.Persistent = true
		case "hash":
			nat.Hash = true
		case "random":
			nat.Random = true
		default:
			return nil, wrong(arg.text, "src, dst, persistent, hash or random within nat")
		}
	}
	switch {
	case nat.Hash && nat.Random:
		return nil, wrong(t.text, "hash or random, not both")
	case (nat.Hash || nat.Random || nat.Persistent) && !nat.Src && !nat.Dst:
		return nil, wrong(t.text, "src or dst beside persistent, hash or random")
	}
	return nat, nil
}

const expectedRange = "an address or ADDR-ADDR, and perhaps :PORT or :PORT-PORT, IPv6 in [] before a port"

// parseRange parses the range of addresses and ports of a nat action: addr[-addr][:port[-port]].
func (n *NATSpec) parseRange(t token) error {
	text := t.value
	if text == "" {
		return nil
	}
	lo, rest, ok := cutAddr(text)
	if !ok {
		return wrong(t.text, "%s", expectedRange)
	}
	n.Lo, n.Hi = lo, lo
	if more, dash := strings.CutPrefix(rest, "-"); dash {
		if n.Hi, rest, ok = cutAddr(more); !ok || n.Hi.Is4() != lo.Is4() || n.Hi.Less(lo) {
			return wrong(t.text, "%s", expectedRange)
		}
	}
	if rest == "" {
		return nil
	}
	ports, colon := strings.CutPrefix(rest, ":")
	first, last, ranged := strings.Cut(ports, "-")
	a, ok1 := parseDecimal(first, 0xffff)
	b, ok2 := a, true
	if ranged {
		b, ok2 = parseDecimal(last, 0xffff)
	}
	if !colon || !ok1 || !ok2 || b < a {
		return wrong(t.text, "%s", expectedRange)
	}
	n.PortLo, n.PortHi = uint16(a), uint16(b)
	return nil
}

// cutAddr cuts an address off the start of text. An IPv6 address may be in brackets;
// without brackets, it must precede a dash or the end.
func cutAddr(text string) (a netip.Addr, rest string, ok bool) {
	end := len(text)
	if inner, bracket := strings.CutPrefix(text, "["); bracket {
		n := strings.IndexByte(inner, ']')
		if n < 0 {
			return a, "", false
		}
		a, err := netip.ParseAddr(inner[:n])
		return a, inner[n+1:], err == nil && a.Is6() && a.Zone() == ""
	}
	if n := strings.IndexByte(text, '-'); n >= 0 {
		end = n
	}
	if a, err := netip.ParseAddr(text[:end]); err == nil {
		return a, text[end:], a.Zone() == ""
	}
	if n := strings.IndexByte(text[:end], ':'); n >= 0 {
		end = n
	}
	a, err := netip.ParseAddr(text[:end])
	return a, text[end:], err == nil && a.Is4()
}

func (c *CTSpec) format(names Names) string {
	var args []string
	add := func(format string, v ...any) { args = append(args, fmt.Sprintf(format, v...)) }
	if c.Commit {
		add("commit")
	}
	if c.Force {
		add("force")
	}
	if c.Table != TableAll {
		add("table=%d", c.Table)
	}
	if c.ZoneSrc.Field != FNone {
		add("zone=%s", c.ZoneSrc)
	} else if c.Zone != 0 {
		add("zone=%d", c.Zone)
	}
	if c.NAT != nil {
		add("%s", c.NAT.format())
	}
	if c.Exec != nil {
		add("exec(%s)", FormatActions(c.Exec, names))
	}
	if c.ALG != "" {
		add("alg=%s", c.ALG)
	}
	return "ct(" + strings.Join(args, ",") + ")"
}

func (n *NATSpec) format() string {
	if !n.Src && !n.Dst {
		return "nat"
	}
	text := "nat(src"
	if n.Dst {
		text = "nat(dst"
	}
	if n.Lo.IsValid() {
		text += "=" + n.formatRange()
	}
	for _, f := range []struct {
		set  bool
		word string
	}{{n.Persistent, ",persistent"}, {n.Hash, ",hash"}, {n.Random, ",random"}} {
		if f.set {
			text += f.word
		}
	}
	return text + ")"
}

func (n *NATSpec) formatRange() string {
	addr := func(a netip.Addr) string {
		if a.Is6() && n.PortHi != 0 {
			return "[" + a.String() + "]"
		}
		return a.String()
	}
	text := addr(n.Lo)
	if n.Hi != n.Lo {
		text += "-" + addr(n.Hi)
	}
	if n.PortHi != 0 {
		text += fmt.Sprintf(":%d", n.PortLo)
		if n.PortHi != n.PortLo {
			text += fmt.Sprintf("-%d", n.PortHi)
		}
	}
	return text
}

// formatCT returns the text of the datapath action OpCT, which tracks a frame's connection.
func formatCT(r *flowtable.CTRequest) string {
	var args []string
	add := func(format string, v ...any) { args = append(args, fmt.Sprintf(format, v...)) }
	if r.Bits&flowtable.CTCommit != 0 {
		add("commit")
	}
	if r.Bits&flowtable.CTForce != 0 {
		add("force")
	}
	if r.Zone != 0 {
		add("zone=%d", r.Zone)
	}
	if r.MarkMask != 0 {
		add("mark=%#x/%#x", r.Mark, r.MarkMask)
	}
	if r.Bits&flowtable.CTLabel != 0 {
		add("label=%s/%s", Value128(r.Label).hex(), Value128(r.LabelMask).hex())
	}
	if r.Bits&(flowtable.CTNAT|flowtable.CTNATSrc|flowtable.CTNATDst) != 0 {
		nat := NATSpec{
			Src: r.Bits&flowtable.CTNATSrc != 0, Dst: r.Bits&flowtable.CTNATDst != 0, PortLo: r.PortLo, PortHi: r.PortHi,
			Persistent: r.Bits&flowtable.CTPersistent != 0, Hash: r.Bits&flowtable.CTHash != 0, Random: r.Bits&flowtable.CTRandom != 0,
		}
		if r.Bits&flowtable.CTRange != 0 {
			width := uint(32)
			if r.Bits&flowtable.CTIPv6 != 0 {
				width = 128
			}
			nat.Lo, nat.Hi = ValueAddr(r.Lo, width), ValueAddr(r.Hi, width)
		}
		add("%s", nat.format())
	}
	switch {
	case r.Bits&flowtable.CTFTP != 0:
		add("helper=ftp")
	case r.Bits&flowtable.CTTFTP != 0:
		add("helper=tftp")
	}
	return "ct(" + strings.Join(args, ",") + ")"
}
