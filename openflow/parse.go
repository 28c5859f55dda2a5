// SPDX-License-Identifier: Apache-2.0

package openflow

import (
	"fmt"
	"strings"
	"sync"

	"weft/flowtable"
	"weft/packet"
)

// ParseError names the wrong word of a text and what the parser expects. Its message
// is one line.
type ParseError struct {
	Line     int // line number in a file, from 1; 0: not from a file
	Word     string
	Expected string
}

func (e *ParseError) Error() string {
	text := fmt.Sprintf("%q: expected %s", e.Word, e.Expected)
	if e.Line != 0 {
		return fmt.Sprintf("line %d: %s", e.Line, text)
	}
	return text
}

func wrong(word, expected string, args ...any) error {
	return &ParseError{Word: word, Expected: fmt.Sprintf(expected, args...)}
}

const expectedKeyword = "a match field such as in_port, dl_dst or nw_src, a protocol such as ip or tcp, or priority, table, cookie or actions"

// shorthands are words such as tcp that stand for a match on an EtherType and an IP protocol.
var shorthands = []struct {
	name  string
	eth   uint64
	proto uint64 // 0: no protocol
}{
	{"ip", packet.EtherTypeIPv4, 0}, {"ip4", packet.EtherTypeIPv4, 0}, {"ipv4", packet.EtherTypeIPv4, 0}, {"icmp", packet.EtherTypeIPv4, packet.ProtoICMP}, {"tcp", packet.EtherTypeIPv4, packet.ProtoTCP},
	{"udp", packet.EtherTypeIPv4, packet.ProtoUDP}, {"sctp", packet.EtherTypeIPv4, packet.ProtoSCTP},
	{"ipv6", packet.EtherTypeIPv6, 0}, {"ip6", packet.EtherTypeIPv6, 0}, {"icmp6", packet.EtherTypeIPv6, packet.ProtoICMPv6}, {"tcp6", packet.EtherTypeIPv6, packet.ProtoTCP},
	{"udp6", packet.EtherTypeIPv6, packet.ProtoUDP}, {"sctp6", packet.EtherTypeIPv6, packet.ProtoSCTP},
	{"arp", packet.EtherTypeARP, 0}, {"rarp", packet.EtherTypeRARP, 0}, {"mpls", packet.EtherTypeMPLS, 0}, {"mplsm", packet.EtherTypeMPLSMulticast, 0},
}

// notYet is the set of fields in ovs-fields(7) that Weft does not support.
var notYet = map[string]bool{}

func init() {
	for _, n := range strings.Fields("skb_priority " +
		"actset_output dp_hash recirc_id tun_erspan_ver tun_erspan_idx tun_erspan_dir " +
		"tun_erspan_hwid tun_gtpu_flags tun_gtpu_msgtype") {
		notYet[n] = true
	}
}

// token is one setting in the text of a flow or an action. It has one of the forms key, key=value, key:value
// and key(value).
type token struct {
	key, value string
	delim      byte // byte behind the key: '=', ':' or '('; 0: the token has no value
	text       string
}

const separators = ", \t\r\n"

func isSeparator(c byte) bool { return c == ',' || c == ' ' || c == '\t' || c == '\r' || c == '\n' }

// nextToken cuts the first token off s. ok is false if s has no more tokens.
func nextToken(s string) (t token, rest string, ok bool) {
	for s != "" && isSeparator(s[0]) {
		s = s[1:]
	}
	if s == "" {
		return token{}, "", false
	}
	n := keyEnd(s)
	t.key, t.text = s[:n], s[:n]
	if n == len(s) || isSeparator(s[n]) {
		return t, s[n:], true
	}
	t.delim = s[n]
	from, end, skip := n+1, 0, 0
	if t.delim == '(' {
		end = valueEnd(s, from, ")")
		if end < len(s) {
			skip = 1
		}
	} else {
		end = valueEnd(s, from, separators)
	}
	t.value, t.text = s[from:end], s[:min(end+skip, len(s))]
	return t, s[end+skip:], true
}

// flagWords are the flags of a flow, in ovs-ofctl's order.
var flagWords = []struct {
	word string
	flag Flags
}{
	{"send_flow_rem", SendFlowRem}, {"check_overlap", CheckOverlap}, {"reset_counts", ResetCounts},
	{"no_packet_counts", NoPacketCounts}, {"no_byte_counts", NoByteCounts},
}

// Words returns the ovs-ofctl(8) words of the flags in f, in ovs-ofctl's order.
func (f Flags) Words() (words []string) {
	for _, w := range flagWords {
		if f&w.flag != 0 {
			words = append(words, w.word)
		}
	}
	return words
}

// keyEnd returns the end of the key, possibly quoted, at the start of s.
func keyEnd(s string) int {
	if s[0] == '"' {
		return quotedEnd(s, 0)
	}
	for n := range len(s) {
		if c := s[n]; c == '=' || c == ':' || c == '(' || isSeparator(c) {
			return n
		}
	}
	return len(s)
}

// valueEnd returns the position of the first byte of s from pos on that is in delims and outside of quotes
// and parentheses, or len(s). delims is "separators" or ")".
func valueEnd(s string, pos int, delims string) int {
	depth := 0
	for pos < len(s) {
		switch c := s[pos]; {
		case c == '"':
			pos = quotedEnd(s, pos)
			continue
		case depth == 0 && (isSeparator(c) && delims == separators || c == ')' && delims == ")"):
			return pos
		case c == '(':
			depth++
		case c == ')' && depth > 0:
			depth--
		}
		pos++
	}
	return pos
}

// quotedEnd returns the position after a quoted string. The argument pos is the
// position of the opening quote.
func quotedEnd(s string, pos int) int {
	for i := pos + 1; i < len(s); i++ {
		switch s[i] {
		case '\\':
			i++
		case '"':
			return i + 1
		}
	}
	return len(s)
}

// parseMode says for which command a flow's text is, because commands allow different words.
type parseMode struct {
	command Command
	filter  bool // of dump-flows and del-flows: the text may have out_port and out_group, but no actions
}

// ParseFlowMod parses one flow in the syntax of ovs-ofctl's add-flow (Add), mod-flows (Modify, ModifyStrict)
// or del-flows (Delete, DeleteStrict). names has the bridge's ports and TLV map; nil: the text may have
// neither port names nor fields tun_metadata. Errors are *ParseError.
//
// Like ovs-ofctl, it ignores match fields without their prerequisites; FlowMod.Notes
// lists them.
func ParseFlowMod(text string, command Command, names Names) (FlowMod, error) {
	p := parsers.Get().(*flowParser)
	defer parsers.Put(p)
	*p = flowParser{names: names, mode: parseMode{command: command, filter: command >= Delete}}
	return p.parse(text)
}

// parsers has unused parsers, of 2 KiB each, for reuse. The control process may have to parse a million
// saved flows when it starts.
var parsers = sync.Pool{New: func() any { return new(flowParser) }}

// ParseFilter parses the argument of dump-flows: "", or a match that may also have table, cookie/mask,
// out_port and out_group. The result has the command Delete, which selects the same flows as dump-flows.
func ParseFilter(text string, names Names) (FlowMod, error) {
	return ParseFlowMod(text, Delete, names)
}

var commandWords = map[string]Command{
	"add": Add, "modify": Modify, "modify_strict": ModifyStrict, "delete": Delete, "delete_strict": DeleteStrict,
}

// ParseFlowMods parses a file of flows, one per line; # begins a comment. A line may
// begin with add, modify, modify_strict, delete or delete_strict, as in ovs-ofctl
// --bundle. Other lines use the argument command. Parsing stops at the first error,
// which names the line. The result does not refer to the memory of text.
func ParseFlowMods(text string, command Command, names Names) ([]FlowMod, error) {
	mods := make([]FlowMod, 0, countFlows(text))
	lists := actionLists{}
	p := parsers.Get().(*flowParser)
	defer parsers.Put(p)
	for number := 1; text != ""; number++ {
		var line string
		line, text, _ = strings.Cut(text, "\n")
		if len(line) > maxLine {
			return nil, tooLong(number)
		}
		line, _, _ = strings.Cut(line, "#")
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		if len(mods) == maxFileFlows {
			return nil, &ParseError{Line: number, Word: line[:min(len(line), 40)], Expected: fmt.Sprintf("at most %d flows in a file", maxFileFlows)}
		}
		*p = flowParser{names: names, lists: lists}
		mod, err := p.line(line, command)
		if err != nil {
			if pe, ok := err.(*ParseError); ok {
				pe.Line = number
			}
			return nil, err
		}
		mod.Line = number
		mods = append(mods, mod)
	}
	return mods, nil
}

// countFlows returns an upper bound for the number of flows in a file, but at most maxFileFlows. It counts
// the lines that are neither empty nor comments.
func countFlows(text string) (n int) {
	most := min(len(text)/shortestFlow+1, maxFileFlows)
	for text != "" && n < most {
		if text[0] != '#' && text[0] != '\n' {
			n++
		}
		end := strings.IndexByte(text, '\n')
		if end < 0 {
			break
		}
		text = text[end+1:]
	}
	return n
}

// maxFileFlows limits the flows in a file: MaxRules, and 4096 more for lines that delete. A file with more is
// refused.
const maxFileFlows = 1<<20 + 1<<12

// shortestFlow is the length of the shortest flow text, with its newline.
const shortestFlow = len("action=1\n")

// maxLine is the greatest length in bytes of a line in a file of flows. A longer line is refused.
const maxLine = 1 << 20

func (p *flowParser) line(text string, command Command) (FlowMod, error) {
	word, rest, _ := strings.Cut(text, " ")
	if c, ok := commandWords[word]; ok {
		text, command = rest, c
	}
	p.mode = parseMode{command: command, filter: command >= Delete}
	return p.parse(text)
}

// flowParser parses the text of one flow. The pool "parsers" keeps it for another flow afterwards.
type flowParser struct {
	names Names
	mode  parseMode
	mod   FlowMod
	match Match // the match so far, which finish packs into mod
	lists actionLists
	inner actionParser
	// shared has the fields of the text whose value is in words that IP addresses and an NSH share (see
	// separateShared).
	shared []sharedWord
}

// actionLists maps the text of a list of actions to the parsed list, which flows of one file then share. The
// map has only lists whose meaning does not depend on the flow's match. A nil map shares nothing.
type actionLists map[string][]Action

// maxActionLists limits the shared lists of actions of a file. Further lists are not shared.
const maxActionLists = 1024

// keep stores a parsed list of actions, so that later flows with the same text share it. It stores only
// lists of outputs, because other actions may be valid only with the present flow's match.
func (l actionLists) keep(text string, list []Action) {
	if l == nil || len(l) >= maxActionLists {
		return
	}
	for i := range list {
		if list[i].Kind != ActOutput {
			return
		}
	}
	l[strings.Clone(text)] = list
}

func (p *flowParser) parse(text string) (FlowMod, error) {
	p.mod = FlowMod{Command: p.mode.command, Priority: DefaultPriority, Table: TableAll}
	match, actions, hasActions := text, "", false
	if !p.mode.filter {
		var err error
		if match, actions, hasActions, err = cutActions(text); err != nil {
			return FlowMod{}, err
		}
	}
	for {
		t, rest, ok := nextToken(match)
		if !ok {
			return p.finish(actions, hasActions)
		}
		match = rest
		if err := p.word(t); err != nil {
			return FlowMod{}, err
		}
	}
}

// cutActions splits a flow's text into match and actions. Like ovs-ofctl, it ends the match at the first
// "action", even if this is part of a longer word. The actions begin after the next "=".
func cutActions(text string) (match, actions string, found bool, err error) {
	const word = "action"
	for at := 0; at < len(text); at++ {
		if text[at] == '"' {
			at = quotedEnd(text, at) - 1
			continue
		}
		if text[at] != word[0] || !strings.HasPrefix(text[at:], word) {
			continue
		}
		_, actions, ok := strings.Cut(text[at:], "=")
		if !ok {
			return "", "", false, wrong(text[at:], "actions=ACTION[,ACTION...]")
		}
		return text[:at], actions, true, nil
	}
	return text, "", false, nil
}

func (p *flowParser) finish(actions string, hasActions bool) (FlowMod, error) {
	mod := &p.mod
	ignored, err := p.separateShared()
	if err != nil {
		return FlowMod{}, err
	}
	notes, err := normalize(&p.match)
	mod.Notes = append(ignored, notes...)
	if err != nil {
		return FlowMod{}, err
	}
	mod.Match = p.match.Pack()
	if p.mode.filter {
		return *mod, nil
	}
	if !hasActions {
		return FlowMod{}, wrong("", "actions=ACTION[,ACTION...] at the end of the flow")
	}
	if mod.CookieMask == 0 {
		// Without a cookie mask, a modification sets the cookie of the flows: to the value in the text, or
		// to 0.
		mod.ModifyCookie = true
	}
	if mod.Command == Add && mod.CookieMask != 0 {
		return FlowMod{}, wrong("cookie", "a value without a mask when adding a flow")
	}
	list, known := p.lists[actions]
	if !known {
		p.inner = actionParser{names: p.names, check: actionChecker{match: p.match, table: mod.Table, checked: true}}
		var err error
		if list, err = p.inner.whole(actions); err != nil {
			return FlowMod{}, err
		}
		p.lists.keep(actions, list)
	}
	if mod.Table == TableAll && mod.Command == Add {
		mod.Table = 0
	}
	mod.Actions = list
	mod.NoteTLVs(&p.match, tlvsOf(p.names))
	return *mod, nil
}

// word parses one word of the text before the actions: a setting, a flag, a protocol or a field.
func (p *flowParser) word(t token) error {
	for i := range shorthands {
		if s := &shorthands[i]; s.name == t.key {
			setField(&p.match, FEthType, Value64(s.eth), Ones(16))
			if s.proto != 0 {
				setField(&p.match, FIPProto, Value64(s.proto), Ones(8))
			}
			return nil
		}
	}
	switch t.key {
	case "actions", "action":
		return wrong(t.key, "only a match here")
	case "packet_type":
		return checkPacketType(t)
	case "eth", "duration", "n_packets", "n_bytes", "idle_age", "hard_age":
		return nil
	}
	for _, f := range flagWords {
		if f.word == t.key && !p.mode.filter {
			p.mod.Flags |= f.flag
			return nil
		}
	}
	return p.keyValue(t)
}

func (p *flowParser) keyValue(t token) error {
	id, isField := fieldNames[t.key]
	if isField {
		if usesSharedWord(id) {
			p.shared = append(p.shared, sharedWord{id, t})
		}
		return parseMatchField(&p.match, id, t, p.names)
	}
	if notYet[t.key] {
		return wrong(t.key, "a field that weft supports")
	}
	set := p.setting(t.key)
	if set == nil {
		return wrong(t.key, expectedKeyword)
	}
	if t.value == "" {
		return wrong(t.text, "%s=VALUE", t.key)
	}
	return set(p, t)
}

// setting returns the function that parses the setting with this name, such as priority. It returns nil if
// there is no such setting, or if the command does not allow it.
func (p *flowParser) setting(key string) func(*flowParser, token) error {
	switch key {
	case "table":
		return (*flowParser).table
	case "cookie":
		return (*flowParser).cookie
	case "priority":
		if p.mod.Command != Delete {
			return func(p *flowParser, t token) error { return parseUint16(t, &p.mod.Priority) }
		}
	case "out_port":
		if p.mode.filter {
			return (*flowParser).outPort
		}
	case "out_group":
		if p.mode.filter {
			return (*flowParser).outGroup
		}
	}
	if p.mode.filter {
		return nil
	}
	switch key {
	case "idle_timeout":
		return func(p *flowParser, t token) error { return parseUint16(t, &p.mod.IdleTimeout) }
	case "hard_timeout":
		return func(p *flowParser, t token) error { return parseUint16(t, &p.mod.HardTimeout) }
	case "importance":
		return func(p *flowParser, t token) error { return parseUint16(t, &p.mod.Importance) }
	}
	return nil
}

func (p *flowParser) outPort(t token) (err error) {
	p.mod.OutPort, err = parsePort(t.value, p.names)
	p.mod.ByOutPort = true
	return err
}

func (p *flowParser) outGroup(t token) error {
	v, ok := parseUint(t.value, GroupAny-1)
	if !ok {
		return wrong(t.value, "the number of a group for out_group")
	}
	p.mod.OutGroup, p.mod.ByOutGroup = uint32(v), true
	return nil
}

func parseUint16(t token, dst *uint16) error {
	v, ok := parseSigned(t.value) // as in ovs-ofctl, -0 is valid
	if !ok || v > 0xffff || strings.HasSuffix(t.value, "x") {
		return wrong(t.value, "a number from 0 to 65535 for %s", t.key)
	}
	*dst = uint16(v)
	return nil
}

func (p *flowParser) table(t token) error {
	v, ok := parseDecimal(t.value, TableAll)
	if !ok {
		return wrong(t.value, "a table number from 0 to 254")
	}
	p.mod.Table = uint8(v)
	return nil
}

// cookie parses a cookie. The form cookie=value gives flows a new cookie, cookie=value/mask selects flows by
// their cookie.
func (p *flowParser) cookie(t token) error {
	value, mask, masked := strings.Cut(t.value, "/")
	v, ok := parseSigned(value)
	if !ok {
		return wrong(t.value, "a 64-bit number for cookie")
	}
	m := &p.mod
	if !masked {
		if p.mode.filter {
			return wrong(t.value, "cookie=%s/-1: a mask to select by cookie", value)
		}
		m.NewCookie, m.ModifyCookie = v, true
		return nil
	}
	if m.CookieMask, ok = parseSigned(mask); !ok {
		return wrong(t.value, "cookie=VALUE/MASK, both 64-bit numbers")
	}
	m.Cookie = v & m.CookieMask
	return nil
}

// parseSigned parses a 64-bit number that may be negative; -1 has all bits set.
func parseSigned(s string) (uint64, bool) {
	digits, negative := strings.CutPrefix(s, "-")
	v, ok := parseUint(digits, ^uint64(0))
	if negative {
		v = -v
	}
	return v, ok
}

// location is a range of bits in a Flow. Several fields may use the same bits, such as the ports of TCP and
// UDP. A match on these bits is valid if it meets one of the prerequisites in anyOf.
type location struct {
	field FieldID // the field that messages name
	word  int
	mask  uint64
	anyOf []Prereq
}

var locations = []location{
	{FIPProto, flowtable.WIP, 0xff << flowtable.ProtoShift, []Prereq{NeedIP, NeedARP}},
	{FNwTOS, flowtable.WIP, 0xff << flowtable.TOSShift, []Prereq{NeedIP}},
	{FIPTTL, flowtable.WIP, 0xff << flowtable.TTLShift, []Prereq{NeedIP}},
	{FIPFrag, flowtable.WIP, 0xff << flowtable.FragShift, []Prereq{NeedIP}},
	{FIPSrc, flowtable.WIPv4, 0xffffffff << 32, []Prereq{NeedIPv4, NeedARP, NeedMPLS, NeedPBB, NeedNSH}},
	{FIPDst, flowtable.WIPv4, 0xffffffff, []Prereq{NeedIPv4, NeedARP, NeedNSH}},
	{FIPv6Src, flowtable.WIPv6Src, ^uint64(0), []Prereq{NeedIPv6, NeedNSH}},
	{FIPv6Src, flowtable.WIPv6Src + 1, ^uint64(0), []Prereq{NeedIPv6, NeedNSH}},
	{FIPv6Dst, flowtable.WIPv6Dst, ^uint64(0), []Prereq{NeedIPv6}},
	{FIPv6Dst, flowtable.WIPv6Dst + 1, ^uint64(0), []Prereq{NeedIPv6}},
	{FIPv6Label, flowtable.WL4, 1<<flowtable.ExtHdrShift - 1, []Prereq{NeedIPv6}},
	{FIPv6ExtHdr, flowtable.WL4, 0xfff << flowtable.ExtHdrShift, []Prereq{NeedIPv6}},
	{FTCPSrc, flowtable.WL4, 0xffff << flowtable.TPSrcShift, []Prereq{NeedPorts, NeedICMP, NeedICMPv6}},
	{FTCPDst, flowtable.WL4, 0xffff << flowtable.TPDstShift, []Prereq{NeedPorts, NeedICMP, NeedICMPv6}},
	{FTCPFlags, flowtable.WIP, 0xffff, []Prereq{NeedTCP}},
	{FARPSha, flowtable.WARPSha, 0xffffffffffff << 16, []Prereq{NeedARP, NeedNDSolicit}},
	{FARPTha, flowtable.WARPTha, 0xffffffffffff << 16, []Prereq{NeedARP, NeedNDAdvert}},
	{FNDTarget, flowtable.WNDTarget, ^uint64(0), []Prereq{NeedND}},
	{FNDTarget, flowtable.WNDTarget + 1, ^uint64(0), []Prereq{NeedND}},
	{FNDReserved, flowtable.WND, 0xffffffff << 32, []Prereq{NeedND}},
	{FNDOptType, flowtable.WND, 0xff << 24, []Prereq{NeedND}},
}

// normalize removes from the match the fields whose prerequisites are missing. "notes" has a line for each
// removed field; it becomes FlowMod.Notes. A removed field may be the prerequisite of another one, which
// follows in "locations" and is then removed, too.
func normalize(m *Match) (notes []string, err error) {
	for i := range locations {
		l := &locations[i]
		if m.Mask[l.word]&l.mask == 0 {
			continue
		}
		if (l.field == FTCPSrc || l.field == FTCPDst || l.field == FTCPFlags) && !notLater(m) {
			return notes, wrong(fields[l.field].alias, "no transport field, as nw_frag=later selects frames without one")
		}
		met := false
		for _, need := range l.anyOf {
			met = met || need.Met(m)
		}
		if met {
			continue
		}
		m.Mask[l.word] &^= l.mask
		m.Value[l.word] &^= l.mask
		notes = l.note(notes)
	}
	return notes, checkCT(m)
}

// note adds the remark to "notes" that the match ignores the field. It adds no second remark for a field of
// 128 bits, which has two entries in "locations".
func (l *location) note(notes []string) []string {
	var needs []string
	for _, p := range l.anyOf {
		needs = append(needs, prereqTexts[p])
	}
	text := fmt.Sprintf("%s is ignored: it needs %s", fields[l.field].name, strings.Join(needs, ", or "))
	if n := len(notes); n > 0 && notes[n-1] == text {
		return notes
	}
	return append(notes, text)
}

// ParseFrame parses a frame in the syntax of trace: a match without masks. Missing
// fields are 0. Metadata and registers are ignored. options are the frame's raw Geneve
// options, from its fields tun_metadata; the caller sets their hash in the key.
func ParseFrame(text string, names Names) (k flowtable.Key, options []byte, err error) {
	mod, err := ParseFlowMod(text, Delete, names)
	if err != nil {
		return k, nil, err
	}
	if mod.Table != TableAll || mod.CookieMask != 0 || mod.ByOutPort || mod.ByOutGroup {
		return k, nil, wrong(text, "only match fields")
	}
	match := mod.Match.Unpack()
	copy(k[:], match.Value[:])
	tlvs := tlvsOf(names)
	for _, m := range tlvs.Mappings() {
		if match.Value[WTLVs]>>m.Field&1 != 0 && m.Type&criticalOption != 0 {
			k[flowtable.WTunMeta] |= flowtable.TunCritical
		}
	}
	return k, tlvs.Encode(&match.Value), nil
}
