// SPDX-License-Identifier: Apache-2.0

package openflow

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
	"sync"

	"weft/flowtable"
	"weft/packet"
)

// FormatDuration returns a duration of ns nanoseconds as seconds, such as 5s. It adds the milliseconds unless
// they are 0, as in 5.250s.
func FormatDuration(ns uint64) string {
	ms := ns / 1_000_000
	if ms%1000 == 0 {
		return fmt.Sprintf("%ds", ms/1000)
	}
	return fmt.Sprintf("%d.%03ds", ms/1000, ms%1000)
}

// AppendPriority appends a flow's priority and match to "text". It leaves out DefaultPriority.
func AppendPriority(text []byte, priority uint16, packed PackedMatch, names Names) []byte {
	if priority != DefaultPriority {
		text = append(strconv.AppendUint(append(text, "priority="...), uint64(priority), 10), ',')
	}
	m := packed.Unpack()
	return bytes.TrimSuffix(appendMatch(text, &m, names), comma)
}

var comma = []byte{','}

// FormatFlowMod returns a flow as text. With the same command and names, ParseFlowMod
// makes an equal FlowMod of the text.
func FormatFlowMod(m *FlowMod, names Names) string {
	var room [256]byte
	b := textBuffer(room[:0])
	if m.Table != TableAll && !(m.Table == 0 && m.Command == Add) {
		b.setting("table=", 10, uint64(m.Table))
	}
	if m.CookieMask != 0 {
		b.WriteString(fmt.Sprintf("cookie=0x%x/0x%x,", m.Cookie, m.CookieMask))
	}
	if m.NewCookie != 0 || m.CookieMask != 0 && m.ModifyCookie {
		b.setting("cookie=0x", 16, m.NewCookie)
	}
	for _, f := range flagWords {
		if m.Flags&f.flag != 0 {
			b.WriteString(f.word + ",")
		}
	}
	if m.Importance != 0 {
		b.setting("importance=", 10, uint64(m.Importance))
	}
	if m.IdleTimeout != 0 {
		b.setting("idle_timeout=", 10, uint64(m.IdleTimeout))
	}
	if m.HardTimeout != 0 {
		b.setting("hard_timeout=", 10, uint64(m.HardTimeout))
	}
	if m.ByOutPort {
		b.WriteString("out_port=" + formatPort(m.OutPort, names) + ",")
	}
	if m.ByOutGroup {
		b.setting("out_group=", 10, uint64(m.OutGroup))
	}
	b = bytes.TrimSuffix(AppendPriority(b, m.Priority, m.Match, names), comma)
	if m.Command >= Delete {
		return string(b)
	}
	if len(b) > 0 {
		b = append(b, ' ')
	}
	return string(append(append(b, "actions="...), FormatActions(m.Actions, names)...))
}

// textBuffer is a text under construction.
type textBuffer []byte

// setting appends a setting of a flow, such as "priority=100,". The argument name includes the equals sign.
// v is written as a number in the given base.
func (b *textBuffer) setting(name string, base int, v uint64) {
	*b = append(strconv.AppendUint(append(*b, name...), v, base), ',')
}

// WriteString appends s.
func (b *textBuffer) WriteString(s string) { *b = append(*b, s...) }

// WriteByte implements io.ByteWriter.
func (b *textBuffer) WriteByte(c byte) error {
	*b = append(*b, c)
	return nil
}

// FormatDiff returns the flow that m adds as ovs-ofctl diff-flows prints it, without the + or - at the start
// of the line.
func FormatDiff(m *FlowMod, names Names) string {
	var b strings.Builder
	add := func(set bool, format string, arg any) {
		if set {
			fmt.Fprintf(&b, format, arg)
		}
	}
	add(m.Table != 0, "table=%d ", m.Table)
	b.Write(AppendPriority(nil, m.Priority, m.Match, names))
	add(m.NewCookie != 0, " cookie=0x%x", m.NewCookie)
	add(m.IdleTimeout != 0, " idle_timeout=%d", m.IdleTimeout)
	add(m.HardTimeout != 0, " hard_timeout=%d", m.HardTimeout)
	add(m.Importance != 0, " importance=%d", m.Importance)
	for _, f := range flagWords {
		add(m.Flags&f.flag != 0, " %s", f.word)
	}
	return b.String() + " actions=" + FormatActions(m.Actions, names)
}

// matchWriter builds the text of a match.
type matchWriter struct {
	textBuffer
	names     Names
	remaining Flow   // mask bits for which no text has been written yet
	m         *Match // points to the field match
	match     Match
}

// FormatMatch returns the text of a match in the order and words of ovs-ofctl. The text is empty if m
// matches every frame. If m comes from a megaflow, the text may have words that ParseFlowMod does not
// accept.
func FormatMatch(m *Match, names Names) string {
	var room [192]byte
	return string(bytes.TrimSuffix(appendMatch(room[:0], m, names), comma))
}

// appendMatch appends the text of FormatMatch. The text ends with a comma, unless m matches every frame.
func appendMatch(text []byte, m *Match, names Names) []byte {
	w := matchWriters.Get().(*matchWriter)
	w.textBuffer, w.names, w.remaining, w.match, w.m = text, names, m.Mask, *m, &w.match
	w.field(FPktMark)
	w.field(FConjID)
	w.ct()
	w.shorthand()
	for n := range 16 {
		w.field(FReg + FieldID(n))
	}
	for id := FTunID; id < FTunFlags; id++ {
		w.field(id)
	}
	w.tunFlags()
	w.raw("tun_critical", flowtable.WTunMeta, 0, 1)
	w.tunOptions()
	w.tlvs()
	w.field(FMetadata)
	if w.m.Value.Key().Recirc() != 0 {
		w.raw("recirc_id", flowtable.WPort, 0, 32)
	}
	w.inPort()
	w.vlan()
	w.raw("vlan_tci1", flowtable.WIP, flowtable.InnerTCIShift, 16)
	w.field(FEthSrc)
	w.field(FEthDst)
	w.field(FEthType)
	w.network()
	w.transport()
	text = w.textBuffer
	w.textBuffer, w.names = nil, nil
	matchWriters.Put(w)
	return text
}

var matchWriters = sync.Pool{New: func() any { return new(matchWriter) }}

// exact returns the bits of "mask" in Flow[word] that the match requires. It returns false if the match does
// not compare all of these bits.
func (w *matchWriter) exact(word int, mask uint64) (uint64, bool) {
	return w.m.Value[word] & mask, w.m.Mask[word]&mask == mask
}

func (w *matchWriter) add(format string, args ...any) {
	w.WriteString(fmt.Sprintf(format, args...)) // fmt.Fprintf would move w to the heap
	w.WriteByte(',')
}

func (w *matchWriter) equals(name, value string) {
	w.WriteString(name)
	w.WriteByte('=')
	w.WriteString(value)
	w.WriteByte(',')
}

// shorthand writes the EtherType and the IP protocol of the match as one word, such as tcp.
func (w *matchWriter) shorthand() {
	eth, known := w.exact(flowtable.WEthDst, 0xffff)
	if !known {
		return
	}
	proto, protoKnown := w.exact(flowtable.WIP, 0xff<<flowtable.ProtoShift)
	proto >>= flowtable.ProtoShift
	best := -1
	for i, s := range shorthands {
		if s.eth == eth && (s.proto == 0 && best < 0 || s.proto != 0 && protoKnown && s.proto == proto) {
			best = i
		}
	}
	if best < 0 {
		return
	}
	w.WriteString(shorthands[best].name)
	w.WriteByte(',')
	w.remaining[flowtable.WEthDst] &^= 0xffff
	if shorthands[best].proto != 0 {
		w.remaining[flowtable.WIP] &^= 0xff << flowtable.ProtoShift
	}
}

// field writes name=value[/mask] for the field. It leaves out bits that an earlier call has already written.
func (w *matchWriter) field(id FieldID) { w.fieldAs(id, fields[id].name) }

func (w *matchWriter) fieldAs(id FieldID, name string) {
	if f := &fields[id]; w.remaining[f.word] == 0 && (f.bits <= 64 || w.remaining[f.word+1] == 0) {
		return
	}
	s := WholeField(id)
	mask := s.Get(&w.remaining)
	if mask.IsZero() {
		return
	}
	word, hi, lo := s.Mask()
	w.remaining[word] &^= hi
	if fields[id].bits > 64 {
		w.remaining[word+1] &^= lo
	}
	if fields[id].shownByAlias {
		name = fields[id].alias
	}
	w.WriteString(name)
	w.WriteByte('=')
	w.textBuffer = appendFieldValue(w.textBuffer, id, s.Get(&w.m.Value), mask, w.names)
	w.WriteByte(',')
}

func (w *matchWriter) raw(name string, word, shift int, n uint) {
	mask := w.remaining[word] >> shift & ones64(n)
	if mask == 0 {
		return
	}
	w.remaining[word] &^= ones64(n) << shift
	v := w.m.Value[word] >> shift & ones64(n)
	if mask == ones64(n) {
		w.add("%s=0x%x", name, v)
		return
	}
	w.add("%s=0x%x/0x%x", name, v, mask)
}

func (w *matchWriter) inPort() {
	v, all := w.exact(flowtable.WPort, flowtable.InPortBits)
	if !all {
		w.raw("in_port", flowtable.WPort, 32, 32)
		return
	}
	w.remaining[flowtable.WPort] &^= flowtable.InPortBits
	w.equals("in_port", formatPort(uint32(v>>32), w.names))
}

// vlan writes the match on the outer VLAN tag as dl_vlan and dl_vlan_pcp if the mask covers these fields as
// a whole.
func (w *matchWriter) vlan() {
	const word = flowtable.WEthSrc
	v, mask := w.m.Value[word]&flowtable.VLANTCI, w.m.Mask[word]&flowtable.VLANTCI
	w.remaining[word] &^= flowtable.VLANTCI
	vid, pcp := mask&flowtable.VLANID == flowtable.VLANID, mask&flowtable.VLANPCP == flowtable.VLANPCP
	switch {
	case mask == 0:
	case mask&v&flowtable.VLANPresent == 0 || mask&flowtable.VLANID != 0 && !vid || mask&flowtable.VLANPCP != 0 && !pcp || !vid && !pcp:
		if mask == flowtable.VLANTCI {
			w.add("vlan_tci=0x%04x", v)
			return
		}
		w.add("vlan_tci=0x%04x/0x%04x", v, mask)
	default:
		if vid {
			w.add("dl_vlan=%d", v&flowtable.VLANID)
		}
		if pcp {
			w.add("dl_vlan_pcp=%d", v&flowtable.VLANPCP>>13)
		}
	}
}

func (w *matchWriter) network() {
	eth, _ := w.exact(flowtable.WEthDst, 0xffff)
	if eth == packet.EtherTypeARP || eth == packet.EtherTypeRARP {
		for _, id := range []FieldID{FARPSpa, FARPTpa, FARPOp, FARPSha, FARPTha} {
			w.field(id)
		}
	}
	if NeedMPLS.Met(w.m) {
		for _, id := range []FieldID{FMPLSLabel, FMPLSTC, FMPLSTTL, FMPLSBOS} {
			w.field(id)
		}
	}
	if eth == packet.EtherTypePBB {
		w.field(FPBBISID)
	}
	if eth == packet.EtherTypeNSH {
		for id := FNSHFlags; id <= FNSHC4; id++ {
			w.field(id)
		}
	}
	for _, id := range []FieldID{FIPSrc, FIPDst, FIPv6Src, FIPv6Dst, FIPv6Label, FIPv6ExtHdr, FIPProto} {
		w.field(id)
	}
	tos := w.remaining[flowtable.WIP] >> flowtable.TOSShift & tosDSCP
	if tos == tosDSCP {
		w.remaining[flowtable.WIP] &^= tosDSCP << flowtable.TOSShift
		w.add("nw_tos=%d", w.m.Value[flowtable.WIP]>>flowtable.TOSShift&tosDSCP)
	}
	w.field(FIPECN)
	w.field(FNwTOS)
	w.field(FIPTTL)
	w.frag()
}

func (w *matchWriter) frag() {
	s := WholeField(FIPFrag)
	v, mask := s.Get(&w.m.Value)[1], s.Get(&w.remaining)[1]
	for _, word := range fragWords {
		if mask != 0 && word.v == v && word.mask == mask {
			_, bits, _ := s.Mask()
			w.remaining[flowtable.WIP] &^= bits
			w.add("nw_frag=%s", word.word)
			return
		}
	}
	w.field(FIPFrag)
	w.raw("nw_frag_high", flowtable.WIP, flowtable.FragShift+2, 6)
}

func (w *matchWriter) transport() {
	v6 := NeedICMPv6.Met(w.m)
	if v6 || NeedICMP.Met(w.m) {
		w.fieldAs(FICMPType, "icmp_type")
		w.fieldAs(FICMPCode, "icmp_code")
	}
	for _, id := range []FieldID{FTCPSrc, FTCPDst, FNDTarget} {
		w.field(id)
	}
	if v6 {
		w.field(FNDSll)
		w.field(FNDTll)
		w.field(FNDReserved)
		w.field(FNDOptType)
	}
	for _, id := range []FieldID{FARPSha, FARPTha, FNDReserved, FNDOptType, FTCPFlags} {
		w.field(id)
	}
}

// appendFieldValue appends the text of formatField. It allocates nothing for IPv4 addresses, ports and other
// decimal numbers without a mask: large dumps of flows consist of them.
func appendFieldValue(text []byte, id FieldID, v, mask Value128, names Names) []byte {
	if f := &fields[id]; f.bits <= 64 && mask[1]&ones64(uint(f.storedBits())) == ones64(uint(f.storedBits())) {
		switch f.format {
		case asDecimal:
			return strconv.AppendUint(text, v[1], 10)
		case asIPv4:
			return ValueAddr(v, 32).AppendTo(text)
		}
	}
	return append(text, formatField(id, v, mask, names)...)
}

// formatField returns value[/mask] in the text format of the field.
func formatField(id FieldID, v, mask Value128, names Names) string {
	f := &fields[id]
	width := Ones(uint(f.storedBits()))
	mask = mask.And(width)
	exact := mask == width
	switch f.format {
	case asPort:
		return formatPort(uint32(v[1]), names)
	case asTCPFlags:
		return formatFlags(tcpFlagNames[:], 0xfff, v[1], mask[1])
	case asTunFlags:
		return formatFlags(tunFlagNames, flowtable.TunOAM, v[1], mask[1])
	case asCTState:
		return formatFlags(ctStateNames[:], 0xff, v[1], mask[1])
	case asEthernet:
		if exact {
			return FormatEthernet(v[1])
		}
		return FormatEthernet(v[1]) + "/" + FormatEthernet(mask[1])
	case asIPv4, asIPv6:
		text := formatAddr(v, f.bits)
		if exact {
			return text
		}
		if n := mask.prefixLen(uint(f.bits)); n >= 0 {
			return text + "/" + strconv.Itoa(n)
		}
		return text + "/" + formatAddr(mask, f.bits)
	}
	number := Value128.hex
	switch {
	case f.format == asHex0:
		number = func(v Value128) string { return fmt.Sprintf("0x%x", v[1]) }
	case id == FNSHFlags && !exact:
		return fmt.Sprintf("0x%02x/0x%02x", v[1], mask[1])
	case f.format == asHex4:
		number = func(v Value128) string { return fmt.Sprintf("0x%04x", v[1]) }
	case f.format == asHex5:
		number = func(v Value128) string { return fmt.Sprintf("0x%05x", v[1]) }
	case f.format == asDecimal && exact:
		number = Value128.decimal
	}
	switch {
	case exact:
		return number(v)
	case f.format == asDecimal:
		return "0x" + v.big().Text(16) + "/" + number(mask)
	}
	return number(v) + "/" + number(mask)
}

// formatAddr returns an address as inet_ntop does, with the last 32 bits of an
// IPv4-compatible address in dotted form.
func formatAddr(v Value128, width uint8) string {
	if width == 128 && v[0] == 0 && v[1]>>32 == 0 && v[1]>>16 != 0 {
		return "::" + ValueAddr(v, 32).String()
	}
	return ValueAddr(v, uint(width)).String()
}

// FormatEthernet returns the text of an Ethernet address, the lower 48 bits of v.
func FormatEthernet(v uint64) string {
	return fmt.Sprintf("%02x:%02x:%02x:%02x:%02x:%02x",
		byte(v>>40), byte(v>>32), byte(v>>24), byte(v>>16), byte(v>>8), byte(v))
}

// formatFlags returns the text of a field of named bits. It is a|b (the bits that are set) if the mask has
// all bits, otherwise +a-b (the compared bits with their values).
func formatFlags(names []string, allBits, v, mask uint64) string {
	var b strings.Builder
	for i, name := range names {
		bit := uint64(1) << i
		switch {
		case mask == allBits && v&bit != 0:
			if b.Len() > 0 {
				b.WriteByte('|')
			}
			b.WriteString(name)
		case mask != allBits && mask&bit != 0:
			sign := "-"
			if v&bit != 0 {
				sign = "+"
			}
			b.WriteString(sign + name)
		}
	}
	if b.Len() == 0 {
		return "0"
	}
	return b.String()
}

// formatPort returns the word of a reserved port, the port's name, or its number.
func formatPort(number uint32, names Names) string {
	switch number {
	case PortInPort:
		return "IN_PORT"
	case PortTable:
		return "TABLE"
	case PortNORMAL:
		return "NORMAL"
	case PortFlood:
		return "FLOOD"
	case PortAll:
		return "ALL"
	case PortController:
		return "CONTROLLER"
	case PortLocal:
		return "LOCAL"
	case PortNone:
		return "ANY"
	}
	if names != nil {
		if name, ok := names.PortName(number); ok {
			return quoteName(name)
		}
	}
	return strconv.FormatUint(uint64(number), 10)
}

// quoteName returns a port's name. It adds quotes if a parser of flows could take the name for something
// else.
func quoteName(name string) string {
	letter := func(c byte) bool { return c|0x20 >= 'a' && c|0x20 <= 'z' }
	plain := name != "" && letter(name[0])
	for i := range len(name) {
		plain = plain && (letter(name[i]) || name[i] >= '0' && name[i] <= '9')
	}
	plain = plain && !strings.Contains(name, "action")
	if _, reserved := reservedPorts[strings.ToLower(name)]; plain && !reserved {
		return name
	}
	return strconv.Quote(name)
}
