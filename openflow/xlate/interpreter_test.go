// SPDX-License-Identifier: Apache-2.0

package xlate

import (
	"fmt"
	"math/bits"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"weft/flowtable"
	"weft/openflow"
	"weft/openflow/fdb"
	"weft/openflow/ofproto"
	"weft/openflow/openflowtest"
	"weft/openflow/slowtable"
	"weft/packet"
)

// Reference implementations: an interpreter of the tables without megaflows, whose look-ups are
// linear searches (package slowtable), and an interpreter of datapath actions.

// rulesOf returns the rules of a pipeline by slot.
func rulesOf(p *ofproto.Tables) (rules []*ofproto.Rule) {
	for slot := uint32(0); len(rules) < p.Len(); slot++ {
		if r := p.Rule(slot); r != nil {
			rules = append(rules, r)
		}
	}
	return rules
}

// slowLookup is the slow twin of a pipeline's look-up.
func slowLookup(p *ofproto.Tables, table uint8, f *openflow.Flow) *ofproto.Rule {
	var twin slowtable.Table[*ofproto.Rule]
	for _, r := range rulesOf(p) {
		if r.Table == table {
			twin.Add(r, r.Priority, r.Match, r.Actions)
		}
	}
	seen := *f
	if fragment := f[flowtable.WIP]>>flowtable.FragShift&flowtable.FragAny != 0; fragment {
		switch p.Fragments() {
		case ofproto.FragmentsDrop:
			return nil
		case ofproto.FragmentsNormal:
			openflow.WholeField(openflow.FTCPSrc).Put(&seen, openflow.Value128{}, openflow.Ones(16))
			openflow.WholeField(openflow.FTCPDst).Put(&seen, openflow.Value128{}, openflow.Ones(16))
		}
	}
	r, _ := twin.Lookup(&seen)
	return r
}

// slowTag is a VLAN tag. tci includes flowtable.VLANPresent. If tpid is 0, the tag has the TPID with
// which the frame arrived.
type slowTag struct{ tci, tpid uint16 }

// slowFrame is the frame that both interpreters change.
type slowFrame struct {
	dst, src               uint64
	tags                   []slowTag
	ipSrc, ipDst           uint64
	v6Src, v6Dst           openflow.Value128
	tos, ttl, tpSrc, tpDst uint64
	label, proto, sha, tha uint64
	reserved, optionsType  uint64
	target                 openflow.Value128
}

func frameOf(k *flowtable.Key) slowFrame {
	var f openflow.Flow
	copy(f[:], k[:])
	get := func(id openflow.FieldID) uint64 { return openflow.WholeField(id).Get(&f)[1] }
	s := slowFrame{dst: get(openflow.FEthDst), src: get(openflow.FEthSrc), ipSrc: get(openflow.FIPSrc), ipDst: get(openflow.FIPDst),
		v6Src: openflow.WholeField(openflow.FIPv6Src).Get(&f), v6Dst: openflow.WholeField(openflow.FIPv6Dst).Get(&f), tos: get(openflow.FNwTOS), ttl: get(openflow.FIPTTL),
		tpSrc: get(openflow.FTCPSrc), tpDst: get(openflow.FTCPDst), label: get(openflow.FIPv6Label), proto: get(openflow.FIPProto), sha: get(openflow.FARPSha), tha: get(openflow.FARPTha),
		target: openflow.WholeField(openflow.FNDTarget).Get(&f), reserved: get(openflow.FNDReserved), optionsType: get(openflow.FNDOptType)}
	if tci := uint16(get(openflow.FVLANTCI)); tci&flowtable.VLANPresent != 0 {
		s.tags = append(s.tags, slowTag{tci: tci})
		if tci := f.Key().InnerTCI(); tci&flowtable.VLANPresent != 0 {
			s.tags = append(s.tags, slowTag{tci: tci})
		}
	}
	return s
}

// shown returns the frame's text. An unknown TPID counts as 802.1Q.
func (s slowFrame) shown() string {
	s.tags = append([]slowTag(nil), s.tags...)
	for i := range s.tags {
		if s.tags[i].tpid == 0 {
			s.tags[i].tpid = packet.EtherTypeVLAN
		}
	}
	return fmt.Sprint(s)
}

// runDatapath executes datapath actions on the frame with key k, and returns the
// outputs.
func runDatapath(k *flowtable.Key, actions []flowtable.Action) (sent []string) {
	f := frameOf(k)
	var options flowtable.TunOptions
	meta := uint64(0)
	for i, a := range actions {
		switch a.Op {
		case flowtable.OpTunOptions:
			flowtable.ReadTunOptions(actions[i:], &options)
		case flowtable.OpTunMeta:
			meta = a.U64
		case flowtable.OpOutput:
			sent = append(sent, fmt.Sprintf("port %d %s", a.U32, f.shown()))
		case flowtable.OpOutputTruncated:
			sent = append(sent, fmt.Sprintf("port %d %s, %d bytes", a.U32, f.shown(), a.U64))
		case flowtable.OpTunnel:
			text := fmt.Sprintf("tunnel %d %d %s", a.U32, uint32(a.U64), f.shown()) + tunnelText(a.U16, options.Raw(), meta)
			if limit := a.U64 >> 32; limit != 0 {
				text += fmt.Sprintf(", %d bytes", limit)
			}
			sent = append(sent, text)
		case flowtable.OpDrop:
			return sent
		case flowtable.OpPushVLAN:
			f.tags = append([]slowTag{{uint16(a.U32) | flowtable.VLANPresent, a.U16}}, f.tags...)
		case flowtable.OpPopVLAN:
			f.tags = f.tags[1:]
		case flowtable.OpSetVLAN:
			f.tags = append([]slowTag{{uint16(a.U32) | flowtable.VLANPresent, f.tags[0].tpid}}, f.tags[1:]...)
		case flowtable.OpSetEthDst:
			f.dst = a.U64
		case flowtable.OpSetEthSrc:
			f.src = a.U64
		case flowtable.OpSetIPv4Src:
			f.ipSrc = uint64(a.U32)
		case flowtable.OpSetIPv4Dst:
			f.ipDst = uint64(a.U32)
		case flowtable.OpSetIPv6Src:
			f.v6Src = openflow.Value128{a.U64, actions[i+1].U64}
		case flowtable.OpSetIPv6Dst:
			f.v6Dst = openflow.Value128{a.U64, actions[i+1].U64}
		case flowtable.OpSetShim:
			f.ipSrc = uint64(a.U32)
		case flowtable.OpSetNSHFlags, flowtable.OpSetNSHTTL, flowtable.OpSetNSHSPI, flowtable.OpSetNSHSI:
			at := map[flowtable.Op]struct{ shift, bits int }{flowtable.OpSetNSHFlags: {56, 8}, flowtable.OpSetNSHTTL: {48, 8},
				flowtable.OpSetNSHSPI: {8, 24}, flowtable.OpSetNSHSI: {0, 8}}[a.Op]
			word := (f.ipSrc<<32|f.ipDst)&^((1<<at.bits-1)<<at.shift) | uint64(a.U32)<<at.shift
			f.ipSrc, f.ipDst = word>>32, word&0xffffffff
		case flowtable.OpSetNSHC1:
			f.v6Src[0] = f.v6Src[0]&0xffffffff | uint64(a.U32)<<32
		case flowtable.OpSetNSHC2:
			f.v6Src[0] = f.v6Src[0]&^0xffffffff | uint64(a.U32)
		case flowtable.OpSetNSHC3:
			f.v6Src[1] = f.v6Src[1]&0xffffffff | uint64(a.U32)<<32
		case flowtable.OpSetNSHC4:
			f.v6Src[1] = f.v6Src[1]&^0xffffffff | uint64(a.U32)
		case flowtable.OpSetARPSpa:
			f.ipSrc = uint64(a.U32)
		case flowtable.OpSetARPTpa:
			f.ipDst = uint64(a.U32)
		case flowtable.OpSetARPOp:
			f.proto = uint64(a.U32)
		case flowtable.OpSetARPSha, flowtable.OpSetNDSll:
			f.sha = a.U64
		case flowtable.OpSetARPTha, flowtable.OpSetNDTll:
			f.tha = a.U64
		case flowtable.OpSetNDTarget:
			f.target = openflow.Value128{a.U64, actions[i+1].U64}
		case flowtable.OpSetNDReserved:
			f.reserved = uint64(a.U32)
		case flowtable.OpSetNDOptionsType:
			f.optionsType = uint64(a.U32)
		case flowtable.OpSetICMPType:
			f.tpSrc = uint64(a.U32)
		case flowtable.OpSetICMPCode:
			f.tpDst = uint64(a.U32)
		case flowtable.OpSetIPv6Label:
			f.label = uint64(a.U32)
		case flowtable.OpSetTOS:
			f.tos = uint64(a.U32)
		case flowtable.OpSetTTL:
			f.ttl = uint64(a.U32)
		case flowtable.OpDecTTL:
			if f.ttl <= 1 {
				return append(sent, "died of its TTL")
			}
			f.ttl--
		case flowtable.OpSetTpSrc:
			f.tpSrc = uint64(a.U32)
		case flowtable.OpSetTpDst:
			f.tpDst = uint64(a.U32)
		}
	}
	return sent
}

// Numbers of the ports that checkTranslation makes tunnels with further fields.
const (
	gbpPort    = 5
	genevePort = 6
)

// setEncaps makes port gbpPort a tunnel with group policies (EncapGBP), and port genevePort a Geneve
// tunnel whose frames have the options openflowtest.Options.
func (e *fakeEnv) setEncaps() {
	e.options = openflowtest.Options
	e.ports[gbpPort-1].Encap, e.ports[genevePort-1].Encap = EncapGBP, EncapGeneve
}

// tunnelText returns the tunnel fields that a port sends, as text. meta has the layout of
// flowtable.WTunMeta.
func tunnelText(port uint16, options []byte, meta uint64) string {
	switch port % 10 { // bridgeEnv numbers port n of bridge b as b*10+n
	case gbpPort:
		return fmt.Sprintf(" gbp %x", meta>>flowtable.TunGBPFlagsShift)
	case genevePort:
		return fmt.Sprintf(" options %x flags %x", options, meta>>flowtable.TunFlagsShift&1)
	}
	return ""
}

// tunnelText returns, as text, the tunnel fields with which the frame leaves through the port.
func (in *interpreter) tunnelText(p *PortInfo) string {
	if p.Encap == EncapVXLAN {
		return tunnelText(uint16(p.At()), nil, 0)
	}
	return tunnelText(uint16(p.At()), slowOptions(in.p.TLVs(), &in.f), in.f[flowtable.WTunMeta])
}

// slowOptions returns the Geneve options of the fields tun_metadata that the frame has.
func slowOptions(m *openflow.TLVMap, f *openflow.Flow) (b []byte) {
	for _, t := range m.Mappings() {
		if f[openflow.WTLVs]>>t.Field&1 != 0 {
			b = append(b, byte(t.Class>>8), byte(t.Class), t.Type, t.Len/4)
			b = append(b, m.Field(openflow.FTunMetadata+openflow.FieldID(t.Field)).Bytes(f)...)
		}
	}
	return b
}

// decodeOptions sets the frame's fields tun_metadata from its Geneve options. It returns false if the
// frame is dropped.
func (in *interpreter) decodeOptions(raw []byte) bool {
	for rest := raw; len(rest) >= 4; rest = rest[4+4*int(rest[3]&31):] {
		known := false
		for _, t := range in.p.TLVs().Mappings() {
			if t.Class != uint16(rest[0])<<8|uint16(rest[1]) || t.Type != rest[2] {
				continue
			}
			if int(t.Len) != 4*int(rest[3]&31) {
				break
			}
			known = true
			in.f[openflow.WTLVs] |= 1 << t.Field
			body := rest[4 : 4+t.Len]
			in.p.TLVs().Field(openflow.FTunMetadata + openflow.FieldID(t.Field)).EachCell(func(word int, cell uint64) {
				for k := range 32 {
					if body[k/8]>>(7-k%8)&1 != 0 {
						in.f[word] |= 1 << (bits.Len64(cell) - 1 - k)
					}
				}
				body = body[4:]
			})
		}
		if !known && openflowtest.IsCritical(raw) && (rest[2]&0x80 != 0 || mappedKey(in.p.TLVs(), rest)) {
			return false
		}
		if !known && mappedKey(in.p.TLVs(), rest) {
			return true // the translation also ignores all options after one that does not fit its mapping
		}
	}
	return true
}

func mappedKey(m *openflow.TLVMap, option []byte) bool {
	return slices.ContainsFunc(m.Mappings(), func(t openflow.TLVMapping) bool {
		return t.Class == uint16(option[0])<<8|uint16(option[1]) && t.Type == option[2]
	})
}

// get reads a sub-field, bit by bit for a field tun_metadata.
func (in *interpreter) get(s openflow.Subfield) (v []bool) {
	for i := range int(s.Bits) {
		at := int(s.Offset) + i
		if !s.Field.IsTLV() {
			v = append(v, openflow.Subfield{Field: s.Field, Offset: uint16(at), Bits: 1}.Get(&in.f)[1] != 0)
			continue
		}
		b := in.p.TLVs().Field(s.Field).Bytes(&in.f)
		v = append(v, b[len(b)-1-at/8]>>(at%8)&1 != 0)
	}
	return v
}

// putTLV writes the bits of v that are set in mask to a field tun_metadata.
func (in *interpreter) putTLV(s openflow.Subfield, v, mask []bool) {
	f := in.p.TLVs().Field(s.Field)
	b, all := f.Bytes(&in.f), slices.Repeat([]byte{0xff}, int(f.Len))
	for i := range v {
		if at := int(s.Offset) + i; mask[i] {
			b[len(b)-1-at/8] &^= 1 << (at % 8)
			if v[i] {
				b[len(b)-1-at/8] |= 1 << (at % 8)
			}
		}
	}
	f.SetBytes(&in.f, b, all)
	in.f[openflow.WTLVs] |= 1 << f.Field
}

// bitsOfBytes returns the bits of a number, the lowest one first.
func bitsOfBytes(b []byte) (v []bool) {
	for at := range 8 * len(b) {
		v = append(v, b[len(b)-1-at/8]>>(at%8)&1 != 0)
	}
	return v
}

func bitsOfValue(v openflow.Value128, n uint16) (list []bool) {
	for i := range uint(n) {
		list = append(list, v.Shr(i)[1]&1 != 0)
	}
	return list
}

func valueOfBits(list []bool) (v openflow.Value128) {
	for i, bit := range list {
		if bit {
			v = v.Or(openflow.Value64(1).Shl(uint(i)))
		}
	}
	return v
}

// interpreter runs the tables on one frame without any optimization.
type interpreter struct {
	p       *ofproto.Tables
	env     *fakeEnv
	f       openflow.Flow // key, metadata and registers of the frame; its VLAN tags are in tags
	tags    []slowTag
	sent    []string
	budget  int
	written []openflow.Action // action set
	stack   []openflow.Value128
	exited  bool
	learned []string
	rule    *ofproto.Rule // rule in execution
	// finished has the flows with fin_timeout that saw a FIN or RST.
	finished []ofproto.Finished
}

func interpret(p *ofproto.Tables, env *fakeEnv, k *flowtable.Key) *interpreter {
	in := &interpreter{p: p, env: env, budget: 3000, tags: frameOf(k).tags}
	copy(in.f[:], k[:])
	port, ok := env.PortAt(k.InPort())
	if ok {
		in.enter(port.Bridge)
		in.f[flowtable.WPort] = k[flowtable.WPort]&0xffffffff | uint64(port.No)<<32
	}
	if raw, _ := env.Options(k[flowtable.WTunOpts]); env.Geneve() && !in.decodeOptions(raw) {
		return in
	}
	if ok && port.Binding != nil && slowSpoofed(port.Binding, &in.f) {
		return in
	}
	in.run(0)
	in.runWritten()
	return in
}

func (in *interpreter) enter(bridge uint8) {
	if in.env.bridges != nil {
		in.p, in.env = in.env.bridges[bridge].p, in.env.bridges[bridge].env
	}
}

// cross runs the frame through the bridge of a patch port's peer.
func (in *interpreter) cross(port *PortInfo) {
	was := *in
	peer, ok := in.env.PortAt(port.Peer)
	if !ok {
		return
	}
	in.enter(peer.Bridge)
	in.sync()
	f := in.f
	f[flowtable.WPort] = uint64(peer.No) << 32
	clear(f[flowtable.WTunID : flowtable.WTunID+flowtable.TunnelWords])
	clear(f[openflow.WMetadata:openflow.WConj])
	clear(f[openflow.WTLVs:])
	in.f, in.written, in.rule, in.stack = f, nil, nil, nil
	in.budget--
	in.run(0)
	in.runWritten()
	in.p, in.env, in.f, in.tags, in.written, in.rule, in.stack = was.p, was.env, was.f, was.tags, was.written, was.rule, was.stack
	in.exited = false
}

// peerOf returns the peer of a patch port; 0: the port is no patch port.
func (in *interpreter) peerOf(number uint32) uint32 {
	if number == openflow.PortInPort {
		number = in.f.Key().InPort()
	}
	p, _ := in.env.Port(number)
	return p.Peer
}

func (in *interpreter) sync() {
	var tci [2]uint64
	for i := range min(2, len(in.tags)) {
		tci[i] = uint64(in.tags[i].tci)
	}
	in.f[flowtable.WEthSrc] = in.f[flowtable.WEthSrc]&^0xffff | tci[0]
	in.f[flowtable.WIP] = in.f[flowtable.WIP]&^(0xffff<<flowtable.InnerTCIShift) | tci[1]<<flowtable.InnerTCIShift
}

// Probe implements openflow.Prober.
func (in *interpreter) Probe(word int, mask uint64) (uint64, bool) { return in.f[word] & mask, true }

func (in *interpreter) run(table uint8) {
	for in.budget--; in.budget > 0; in.budget-- {
		r := slowLookup(in.p, table, &in.f)
		if port, _ := in.env.Port(in.f.Key().InPort()); r == nil && table == 0 && port.Central {
			table = ofproto.CentralTable
			continue
		}
		if r == nil {
			return
		}
		next, jump := in.execute(r, table)
		if !jump {
			return
		}
		table = next
	}
}

// execute runs a rule's actions.
func (in *interpreter) execute(r *ofproto.Rule, table uint8) (uint8, bool) {
	outer := in.rule
	in.rule = r
	next, jump := in.list(r.Actions, table)
	in.rule = outer
	return next, jump
}

func (in *interpreter) list(actions []openflow.Action, table uint8) (uint8, bool) {
	for i := range actions {
		a := &actions[i]
		if in.budget <= 0 || in.exited {
			return 0, false
		}
		switch a.Kind {
		case openflow.ActGotoTable:
			return a.Table, true
		case openflow.ActDecTTL:
			if !openflow.NeedIP.Met(in) {
				continue
			}
			ttl := openflow.WholeField(openflow.FIPTTL).Get(&in.f)[1]
			if ttl <= 1 {
				return 0, false
			}
			openflow.WholeField(openflow.FIPTTL).Put(&in.f, openflow.Value64(ttl-1), openflow.Ones(8))
		case openflow.ActDecNSHTTL:
			if !openflow.NeedNSH.Met(in) {
				continue
			}
			ttl := openflow.WholeField(openflow.FNSHTTL).Get(&in.f)[1]
			if ttl <= 1 {
				return 0, false
			}
			openflow.WholeField(openflow.FNSHTTL).Put(&in.f, openflow.Value64(ttl-1), openflow.Ones(8))
		case openflow.ActDecMPLSTTL:
			if !openflow.NeedMPLS.Met(in) {
				continue
			}
			ttl := openflow.WholeField(openflow.FMPLSTTL).Get(&in.f)[1]
			if ttl <= 1 {
				return 0, false
			}
			openflow.WholeField(openflow.FMPLSTTL).Put(&in.f, openflow.Value64(ttl-1), openflow.Ones(8))
		case openflow.ActOutput:
			in.output(a.Port)
		case openflow.ActEnqueue:
			in.output(a.Port)
		case openflow.ActOutputTrunc:
			if before := len(in.sent); in.peerOf(a.Port) == 0 {
				in.output(a.Port)
				for i := before; i < len(in.sent); i++ {
					in.sent[i] += fmt.Sprintf(", %d bytes", a.Value[1])
				}
			}
		case openflow.ActOutputReg:
			in.output(uint32(a.Src.Get(&in.f)[1]))
		case openflow.ActClone:
			f, tags, set, stack := in.f, in.tags, in.written, slices.Clone(in.stack)
			in.list(a.Sub, table)
			in.runWritten()
			in.f, in.tags, in.written, in.stack = f, tags, set, stack
		case openflow.ActGroup:
			in.group(uint32(a.Value[1]))
		case openflow.ActFinTimeout:
			if openflow.NeedTCP.Met(in) && openflow.WholeField(openflow.FTCPFlags).Get(&in.f)[1]&5 != 0 && in.rule != nil {
				in.finished = append(in.finished, ofproto.Finished{Rule: in.rule, Idle: uint16(a.Value[0]), Hard: uint16(a.Value[1])})
			}
		case openflow.ActLearn:
			in.learn(a.Learn)
		case openflow.ActWriteActions:
			in.written = append(append([]openflow.Action(nil), in.written...), a.Sub...)
		case openflow.ActClearActions:
			in.written = nil
		case openflow.ActResubmit:
			in.resubmit(a, table)
		case openflow.ActExit:
			in.exited = true
		case openflow.ActBundle:
			in.bundle(a)
		default:
			in.change(a)
		}
	}
	return 0, false
}

// learn records the learned flow as text.
func (in *interpreter) learn(spec *openflow.LearnSpec) {
	m := openflow.FlowMod{Command: openflow.Add, Table: spec.Table, Priority: spec.Priority, NewCookie: spec.Cookie}
	var match openflow.Match
	for _, item := range spec.Items {
		v := item.Value
		if item.Src.Bits != 0 {
			v = item.Src.Get(&in.f)
		}
		switch item.Kind {
		case openflow.LearnMatch:
			item.Dst.Put(&match.Value, v, item.Dst.Ones())
			item.Dst.Put(&match.Mask, item.Dst.Ones(), item.Dst.Ones())
			if item.Dst == openflow.WholeField(openflow.FInPort) {
				match.Mask[flowtable.WPort] = 0xffffffff << 32
			}
		case openflow.LearnLoad:
			m.Actions = append(m.Actions, openflow.Action{Kind: openflow.ActLoad, Dst: item.Dst, Value: v})
		case openflow.LearnOutput:
			if v[0] == 0 && (v[1] < 0xff00 || v[1] == 0xfff8 || v[1] == 0xfffb || v[1] == 0xfffc || v[1] == 0xfffe) {
				m.Actions = append(m.Actions, openflow.Action{Kind: openflow.ActOutput, Port: uint32(v[1])})
			}
		}
	}
	m.Match = match.Pack()
	n, there := 0, false
	for _, r := range rulesOf(in.p) {
		if r.Table == spec.Table && r.Cookie == spec.Cookie {
			n++
		}
		there = there || r.Table == spec.Table && r.Priority == spec.Priority && r.Match == m.Match
	}
	allowed := spec.Limit == 0 || n < int(spec.Limit) || there
	if spec.Result.Bits != 0 {
		bit := uint64(0)
		if allowed {
			bit = 1
		}
		in.set(spec.Result, openflow.Value64(bit), openflow.Ones(1))
		in.sync()
	}
	if allowed {
		in.learned = append(in.learned, fmt.Sprint(in.p.Bridge(), openflow.FormatFlowMod(&m, nil)))
	}
}

func learnedTexts(tr *Translation) (texts []string) {
	for _, m := range tr.Learned {
		m.Command, m.Flags, m.IdleTimeout, m.HardTimeout = openflow.Add, 0, 0, 0
		texts = append(texts, fmt.Sprint(m.Bridge, openflow.FormatFlowMod(&m, nil)))
	}
	return texts
}

// group executes the buckets of a group, each on the unchanged frame.
func (in *interpreter) group(id uint32) {
	g := in.p.Group(id)
	buckets := g.Buckets
	in.budget--
	switch g.Type {
	case openflow.GroupSelect: // takes any bucket, because other tests check the choice
		x, k := new(xlate), key(&in.f)
		x.begin(in.p, &k, in.env, nil)
		i := x.choose(g)
		buckets = buckets[i : i+1]
	case openflow.GroupFailover:
		buckets = buckets[:1]
	}
	for _, b := range buckets {
		f, tags := in.f, in.tags
		if in.budget > 0 {
			in.runSet(b.Actions)
		}
		in.f, in.tags, in.exited = f, tags, false
	}
}

// bundle executes the action bundle. It takes the member from memberOf, which TestBundle checks.
func (in *interpreter) bundle(a *openflow.Action) {
	member := memberOf(a.Links, &in.f, func(number uint32) bool {
		port, ok := in.env.Port(number)
		return ok && !port.Down || number > openflow.PortMax && number != openflow.PortLocal
	})
	if a.Dst.Bits == 0 {
		in.output(member)
		return
	}
	in.set(a.Dst, openflow.Value64(uint64(member)), a.Dst.Ones())
	in.sync()
}

func (in *interpreter) runWritten() {
	set := in.written
	in.written = nil
	if !in.exited {
		in.runSet(set)
	}
}

func (in *interpreter) runSet(set []openflow.Action) {
	last := func(kind openflow.ActionKind) (found []openflow.Action) {
		for _, a := range set {
			if a.Kind == kind {
				found = []openflow.Action{a}
			}
		}
		return found
	}
	list := append(append(last(openflow.ActPopVLAN), last(openflow.ActPushVLAN)...), last(openflow.ActDecTTL)...)
	list = append(append(list, last(openflow.ActDecMPLSTTL)...), last(openflow.ActDecNSHTTL)...)
	for _, a := range set {
		switch a.Kind {
		case openflow.ActOutput, openflow.ActResubmit, openflow.ActGroup, openflow.ActPopVLAN, openflow.ActPushVLAN, openflow.ActDecTTL, openflow.ActDecMPLSTTL, openflow.ActDecNSHTTL:
		default:
			list = append(list, a)
		}
	}
	if g := last(openflow.ActGroup); g != nil {
		in.list(append(list, g...), 0)
	} else if out := last(openflow.ActOutput); out != nil {
		in.list(append(list, out...), 0)
	} else if re := last(openflow.ActResubmit); re != nil {
		in.list(append(list, re...), 0)
	}
}

func (in *interpreter) resubmit(a *openflow.Action, table uint8) {
	if a.Table != openflow.TableAll {
		table = a.Table
	}
	if a.Tuple {
		return // these frames have no connection
	}
	f := in.f
	if a.Port != openflow.PortInPort {
		f[flowtable.WPort] = uint64(a.Port) << 32
	}
	in.budget--
	if r := slowLookup(in.p, table, &f); r != nil {
		if next, jump := in.execute(r, table); jump {
			in.run(next)
		}
	}
}

func (in *interpreter) change(a *openflow.Action) {
	switch a.Kind {
	case openflow.ActPushVLAN:
		in.tags = append([]slowTag{{flowtable.VLANPresent, uint16(a.Value[1])}}, in.tags...)
	case openflow.ActPopVLAN:
		if len(in.tags) > 0 {
			in.tags = in.tags[1:]
		}
	case openflow.ActModVLANVID, openflow.ActModVLANPCP:
		if len(in.tags) == 0 {
			in.tags = []slowTag{{flowtable.VLANPresent, 0x8100}}
		}
		dst := openflow.FVLANVID
		if a.Kind == openflow.ActModVLANPCP {
			dst = openflow.FVLANPCP
		}
		in.sync()
		in.set(openflow.WholeField(dst), a.Value, openflow.WholeField(dst).Ones())
	case openflow.ActDeleteField:
		all := slices.Repeat([]bool{true}, int(a.Dst.Bits))
		in.putTLV(a.Dst, make([]bool, a.Dst.Bits), all)
		in.f[openflow.WTLVs] &^= 1 << (a.Dst.Field - openflow.FTunMetadata)
	case openflow.ActSetField, openflow.ActModField:
		if a.TLV != nil {
			in.putTLV(a.Dst, bitsOfBytes(a.TLV.Value), bitsOfBytes(a.TLV.Mask))
			break
		}
		in.set(a.Dst, a.Value, a.Mask)
	case openflow.ActLoad:
		in.set(a.Dst, a.Value, a.Dst.Ones())
	case openflow.ActWriteMetadata:
		in.set(openflow.WholeField(openflow.FMetadata), a.Value, a.Mask)
	case openflow.ActSetTunnel:
		in.set(openflow.WholeField(openflow.FTunID), a.Value, openflow.Ones(64))
	case openflow.ActMove:
		if a.Src.Field.Prerequisite().Met(in) {
			v := in.get(a.Src)
			if a.Dst.Field.IsTLV() {
				in.putTLV(a.Dst, v, slices.Repeat([]bool{true}, len(v)))
				break
			}
			in.set(a.Dst, valueOfBits(v), a.Dst.Ones())
		}
	case openflow.ActPush:
		v := valueOfBits(in.get(a.Src))
		if !a.Src.Field.Prerequisite().Met(in) {
			v = openflow.Value128{}
		}
		in.stack = append(in.stack, v)
	case openflow.ActPop:
		if n := len(in.stack); n > 0 {
			in.set(a.Dst, in.stack[n-1].And(a.Dst.Ones()), a.Dst.Ones())
			in.stack = in.stack[:n-1]
		}
	case openflow.ActMultipath: // TestMultipath checks the algorithms
		in.set(a.Dst, openflow.Value64(uint64(linkOf(a.Links, &in.f))), a.Dst.Ones())
	}
	in.sync()
}

func (in *interpreter) set(dst openflow.Subfield, v, mask openflow.Value128) {
	if dst.Field.IsTLV() {
		in.putTLV(dst, bitsOfValue(v, dst.Bits), bitsOfValue(mask, dst.Bits))
		return
	}
	needs := dst.Field.Prerequisite()
	if dst.Field == openflow.FTCPSrc || dst.Field == openflow.FTCPDst {
		needs = openflow.NeedPorts
	}
	if !needs.Met(in) {
		return
	}
	dst.Put(&in.f, v, mask)
	if word, mask, _ := openflow.WholeField(dst.Field).Mask(); word != flowtable.WEthSrc || mask&flowtable.VLANTCI == 0 {
		return
	}
	tci := in.f.Key().OuterTCI()
	switch {
	case len(in.tags) > 0 && tci&flowtable.VLANPresent == 0:
		in.tags = in.tags[1:]
	case len(in.tags) > 0:
		in.tags = append([]slowTag{{tci, in.tags[0].tpid}}, in.tags[1:]...)
	case tci&flowtable.VLANPresent != 0:
		in.tags = []slowTag{{tci, 0x8100}}
	}
}

func (in *interpreter) output(number uint32) {
	from := in.f.Key().InPort()
	dst := openflow.WholeField(openflow.FEthDst).Get(&in.f)[1]
	switch number {
	case openflow.PortInPort:
		in.send(from)
	case openflow.PortAll, openflow.PortFlood:
		in.flood(from, number == openflow.PortFlood)
	case openflow.PortNORMAL:
		if p, ok := in.env.Port(from); !ok || p.Kind == PortUplink || dst>>4 == 0x0180c2000000>>4 || in.f[flowtable.WEthSrc]>>56&1 != 0 {
			return
		}
		vid, tags, ok := in.enterVLAN(from)
		if !ok {
			return
		}
		to, known := in.env.Locate(in.segment(from), vid, dst)
		if p, ok := in.env.PortAt(to); known && dst>>40&1 == 0 && ok && in.accepts(from, &p) && (p.No == from || carriesVLAN(p.VLANs, vid, tags)) {
			if p.No != from {
				in.sendTagged(&p, in.segment(from), vid, tags)
			}
			return
		}
		ingress, _ := in.env.Port(from)
		for _, p := range in.env.ports {
			tunnels := ingress.Kind == PortTunnel && p.Kind == PortTunnel
			if p.No != from && in.accepts(from, &p) && !p.NoFlood && !tunnels && carriesVLAN(p.VLANs, vid, tags) {
				in.sendTagged(&p, in.segment(from), vid, tags)
			}
		}
	default:
		if number != from {
			in.send(number)
		}
	}
}

// enterVLAN follows xlate_normal of Open vSwitch: it returns the VLAN of a frame that arrives on this
// port, and the tags that the frame has within the switch. ok is false if the port does not carry the
// VLAN.
func (in *interpreter) enterVLAN(inPort uint32) (vid uint16, tags []slowTag, ok bool) {
	port, _ := in.env.Port(inPort)
	tags = slices.Clone(in.tags)
	if len(tags) > 0 {
		vid = tags[0].tci & flowtable.VLANID
	}
	p := port.VLANs
	switch {
	case p == nil:
		return vid, tags, true
	case p.Mode == VLANTunnel:
		return p.VID, append([]slowTag{{p.VID | flowtable.VLANPresent, p.TPID}}, tags...), p.CVLANs.Has(vid)
	case vid != 0:
		return vid, tags, p.Mode != VLANAccess && p.Trunks.Has(vid)
	case p.Mode == VLANTrunk:
		return 0, tags, p.Trunks.Has(0)
	case len(tags) == 0:
		return p.VID, []slowTag{{p.VID | flowtable.VLANPresent, packet.EtherTypeVLAN}}, true
	}
	tags[0].tci |= p.VID
	return p.VID, tags, true
}

// carriesVLAN reports whether a port carries a frame, as xbundle_includes_vlan of Open vSwitch does.
func carriesVLAN(p *PortVLANs, vid uint16, tags []slowTag) bool {
	inner := uint16(0)
	if len(tags) > 1 {
		inner = tags[1].tci & flowtable.VLANID
	}
	switch {
	case p == nil:
		return true
	case p.Mode == VLANAccess:
		return vid == p.VID && inner == 0
	case p.Mode == VLANTunnel:
		return vid == p.VID && p.CVLANs.Has(inner)
	}
	return p.Trunks.Has(vid)
}

// sendTagged sends the frame to a port, with the tags that the port's VLAN mode requires.
func (in *interpreter) sendTagged(p *PortInfo, s fdb.Segment, vid uint16, tags []slowTag) {
	pops := p.VLANs != nil && (p.VLANs.Mode == VLANAccess || p.VLANs.Mode == VLANTunnel || p.VLANs.Mode == VLANNativeUntagged && p.VLANs.VID == vid)
	if pops && len(tags) > 0 {
		tags = tags[1:]
	}
	own := in.tags
	in.tags = tags
	in.sendIn(p.No, s)
	in.tags = own
}

// segment returns 1 + the VNI of frames from this port. It returns 0 for a port without
// a VNI.
func (in *interpreter) segment(inPort uint32) fdb.Segment {
	trunk := fdb.Segment(in.p.Bridge()) << 25
	switch p, _ := in.env.Port(inPort); {
	case p.Kind == PortTunnel && p.FlowVNI:
		return trunk + fdb.Segment(in.f[flowtable.WTunID]&0xffffff) + 1
	case p.Kind == PortTunnel, p.InVNI:
		return trunk + fdb.Segment(p.VNI) + 1
	}
	return trunk
}

func (in *interpreter) accepts(inPort uint32, p *PortInfo) bool {
	s := in.segment(inPort) & (1<<25 - 1)
	bound := p.Kind == PortTunnel && !p.FlowVNI || p.Kind == PortNormal && p.InVNI
	return s == 0 || !bound || s == fdb.Segment(p.VNI)+1
}

func (in *interpreter) flood(inPort uint32, flags bool) {
	ingress, _ := in.env.Port(inPort)
	for _, p := range in.env.ports {
		tunnels := ingress.Kind == PortTunnel && p.Kind == PortTunnel
		if p.No != inPort && in.accepts(inPort, &p) && !(flags && (p.NoFlood || tunnels)) {
			in.sendIn(p.No, in.segment(inPort))
		}
	}
}

func (in *interpreter) send(number uint32) { in.sendIn(number, 0) }

// sendIn sends to a port in segment s.
func (in *interpreter) sendIn(number uint32, s fdb.Segment) {
	k := key(&in.f)
	f := frameOf(&k)
	f.tags = in.tags
	p, ok := in.env.Port(number)
	if !ok || p.Kind == PortUplink {
		return
	}
	if p.Kind == PortPatch {
		in.cross(&p)
		return
	}
	if p.Kind == PortNormal {
		in.sent = append(in.sent, fmt.Sprintf("port %d %s", p.At(), f.shown()))
		return
	}
	vni, remote, local := p.VNI, p.Remote, p.Local
	if p.FlowVNI {
		if vni = uint32(in.f[flowtable.WTunID]); p.Encap != EncapGRE {
			vni %= 1 << 24
		}
		dst, src := openflow.WholeField(openflow.FTunDst).Get(&in.f), openflow.WholeField(openflow.FTunSrc).Get(&in.f)
		if dst.IsZero() {
			return
		}
		if s &= 1<<25 - 1; s != 0 {
			vni = uint32(s - 1)
		}
		remote = openflow.ValueAddr(dst, 32)
		if !src.IsZero() {
			local = openflow.ValueAddr(src, 32)
		}
	}
	index, _ := in.env.Tunnel(p.At(), vni, local, remote)
	in.sent = append(in.sent, fmt.Sprintf("tunnel %d %d %s", index, vni, f.shown())+in.tunnelText(&p))
}

// checkTranslation compares megaflows with the interpreter while the tables change. It compares the
// translated frame and other frames that the megaflow matches. It returns the number of compared
// frames.
func checkTranslation(t *testing.T, seed uint64, keys, frames int) (compared int) {
	r := rand.New(rand.NewPCG(seed, 2))
	p := ofproto.NewTables(ofproto.Limits{})
	p.SetFragments([]ofproto.Fragments{ofproto.FragmentsNormal, ofproto.FragmentsNXMatch, ofproto.FragmentsNormal, ofproto.FragmentsDrop}[seed/2%4])
	texts := addDistinct(t, r, p)
	env := newEnv()
	env.setEncaps()
	if seed%4 == 3 {
		texts = append(texts, joinBridges(t, r, p, env)...)
	}
	if seed%2 == 1 {
		env.ports[0].Binding = bindingOf(t, "", "00:00:00:00:00:01 10.0.0.0/15 10.3.0.1 fe80::1,00:00:00:00:00:02")
		env.ports[1].Binding = bindingOf(t, "00:00:00:00:00:02,00:00:00:00:00:03", "")
	}
	env.macs.Learn(fdb.Learn{Valid: true, VLAN: 0, Port: 2, MAC: 2}, 0)
	env.macs.Learn(fdb.Learn{Valid: true, VLAN: 1, Port: 4, MAC: 3}, 0)
	var gone [3][]openflow.FlowMod
	for i := range keys {
		k, tables := openflowtest.Key(r), p
		bridge := i % max(len(env.bridges), 1)
		if bridge > 0 {
			tables = env.bridges[bridge].p
			k[flowtable.WPort] += uint64(10*bridge) << 32
		}
		gone[bridge] = changeTables(t, r, tables, gone[bridge])
		tr := Translate(p, &k, env)
		for range frames {
			compared++
			in := interpret(p, env, &k)
			if !realFrame(&k) {
				break
			}
			if in.budget <= 0 || tr.Drop != 0 && tr.Drop.String() == "loop" {
				break // a loop of resubmits may end after a different number of steps
			}
			want, got := strings.Join(in.sent, "\n"), strings.Join(runDatapath(&k, tr.Actions), "\n")
			if got != want {
				t.Fatalf("seed %d, frame %x\nmegaflow %s sends\n%s\nwant\n%s\nflows:\n%s", seed, k,
					openflow.FormatDatapathActions(tr.Actions, nil), got, want, strings.Join(texts, "\n"))
			}
			if want, got := strings.Join(in.learned, "\n"), strings.Join(learnedTexts(&tr), "\n"); want != got {
				t.Fatalf("seed %d, frame %x\nlearns\n%s\nwant\n%s\nflows:\n%s", seed, k, got, want, strings.Join(texts, "\n"))
			}
			if !slices.Equal(in.finished, tr.Finished) {
				t.Fatalf("seed %d, frame %x\nFinished is %+v, want %+v\nflows:\n%s", seed, k, tr.Finished, in.finished, strings.Join(texts, "\n"))
			}
			o := openflowtest.Key(r)
			for i := range o {
				o[i] = k[i]&tr.Mask[i] | o[i]&^tr.Mask[i]
			}
			k = o
		}
	}
	return compared
}

// joinBridges adds two bridges with random tables to the switch of p and env.
func joinBridges(t *testing.T, r *rand.Rand, p *ofproto.Tables, env *fakeEnv) (texts []string) {
	env.bridges = []fakeBridge{{p, env}}
	for b := uint8(1); b < 3; b++ {
		tables := p.NewBridge(b)
		more := addDistinct(t, r, tables)
		env.bridges = append(env.bridges, fakeBridge{tables, bridgeEnv(b, env.macs)})
		for _, text := range more {
			texts = append(texts, fmt.Sprintf("bridge %d: %s", b, text))
		}
	}
	connectBridges(env)
	for _, b := range env.bridges {
		const crossing = "priority=0,actions=clone(set_field:7->reg0,set_field:2->tun_id,set_field:1->metadata,2),1"
		texts = append(texts, crossing)
		mod, err := openflow.ParseFlowMod(crossing, openflow.Add, openflow.WithTLVs(nil, testTLVs))
		if err == nil {
			_, err = b.p.Apply([]openflow.FlowMod{mod}, 0)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return texts
}

// bridgeEnv returns the ports of newEnv in another bridge: port n of bridge b is b*10+n in
// the data path.
func bridgeEnv(b uint8, macs *fdb.Table) *fakeEnv {
	env := newEnv()
	env.setEncaps()
	env.macs = macs
	for i := range env.ports {
		env.ports[i].Datapath, env.ports[i].Bridge = uint32(b)*10+env.ports[i].No, b
	}
	return env
}

// connectBridges joins three bridges in a row. Port 2 of a bridge is the peer of port 1 of the next
// bridge.
func connectBridges(env *fakeEnv) {
	for b := range env.bridges {
		env.bridges[b].env.bridges = env.bridges
		if b > 0 {
			a, z := &env.bridges[b-1].env.ports[1], &env.bridges[b].env.ports[0]
			a.Kind, z.Kind, a.Peer, z.Peer = PortPatch, PortPatch, z.At(), a.At()
		}
	}
}

// addDistinct adds random rules to empty tables and returns their texts. The rules have
// different priorities, so that only one rule is the right result.
func addDistinct(t *testing.T, r *rand.Rand, p *ofproto.Tables) []string {
	texts := addRandom(p, r, 1+r.IntN(30))
	for i, rule := range p.Select(&openflow.FlowMod{Command: openflow.Delete, Table: openflow.TableAll}) {
		mod := rule.FlowMod()
		mod.Priority = uint16(1000 + int(rule.Priority)*100 + i)
		del := rule.FlowMod()
		del.Command = openflow.DeleteStrict
		if _, err := p.Apply([]openflow.FlowMod{del, mod}, 0); err != nil {
			t.Fatal(err)
		}
	}
	return texts
}

// changeTables deletes a random rule, or adds a rule that it deleted earlier.
func changeTables(t *testing.T, r *rand.Rand, p *ofproto.Tables, removed []openflow.FlowMod) []openflow.FlowMod {
	t.Helper()
	var mod openflow.FlowMod
	if rules := p.Select(&openflow.FlowMod{Command: openflow.Delete, Table: openflow.TableAll}); len(rules) > 0 && r.IntN(1+len(removed)) == 0 {
		mod = openflowtest.Pick(r, rules...).FlowMod()
		removed = append(removed, mod)
		mod.Command = openflow.DeleteStrict
	} else if len(removed) > 0 {
		i := r.IntN(len(removed))
		mod = removed[i]
		removed = append(removed[:i], removed[i+1:]...)
	} else {
		return removed
	}
	if _, err := p.Apply([]openflow.FlowMod{mod}, 0); err != nil {
		t.Fatal(err)
	}
	return removed
}

// realFrame reports whether a real frame can have this key.
func realFrame(k *flowtable.Key) bool {
	proto := k[flowtable.WIP] >> flowtable.ProtoShift
	if icmp := proto == packet.ProtoICMP || proto == packet.ProtoICMPv6; icmp && k[flowtable.WL4]&(0xff00<<flowtable.TPSrcShift|0xff00<<flowtable.TPDstShift) != 0 {
		return false
	}
	if n := k[flowtable.WTunOpts]; (n != 0 && openflowtest.IsCritical(openflowtest.Options[n-1])) != (k[flowtable.WTunMeta]&flowtable.TunCritical != 0) {
		return false
	}
	outer, inner := k[flowtable.WEthSrc]&0xffff, k[flowtable.WIP]>>flowtable.InnerTCIShift&0xffff
	return (outer == 0 || outer&flowtable.VLANPresent != 0) && (inner == 0 || inner&flowtable.VLANPresent != 0 && outer != 0)
}

func TestTranslationDoesWhatTheTablesSay(t *testing.T) {
	frames := 300_000 // FuzzTranslation continues with random seeds
	if testing.Short() {
		frames = 20_000
	}
	for seed := uint64(0); frames > 0; seed++ {
		frames -= checkTranslation(t, seed, 40, 40)
	}
}

func FuzzTranslation(f *testing.F) {
	for seed := range uint64(5) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) { checkTranslation(t, seed, 5, 4) })
}
