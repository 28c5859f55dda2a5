// SPDX-License-Identifier: Apache-2.0

package openflow

import (
	"fmt"
	"strings"

	"weft/flowtable"
)

// Subtypes of Nicira's actions for learn. The second one has room for limit and result_dst.
const (
	nxLearn  = 16
	nxLearn2 = 45
)

func init() {
	addAction(ActLearn, actionRow{words: map[string]actionParse{"learn": (*actionParser).learn},
		format: func(a *Action, names Names) string { return a.Learn.format(names) },
		encode: func(_ *actionEncoder, b []byte, a *Action) []byte { return appendLearn(b, a.Learn) },
		nicira: map[uint16]niciraRow{nxLearn: {22, (*actionDecoder).decodeLearn}, nxLearn2: {30, (*actionDecoder).decodeLearn}}})
}

// LearnSpec holds the arguments of a learn action, which adds a flow whose match and actions have values from
// the frame (ovs-actions(7), "The learn action").
type LearnSpec struct {
	Table                    uint8
	Priority                 uint16
	Cookie                   uint64
	IdleTimeout, HardTimeout uint16
	// FinIdle and FinHard are the timeouts of the fin_timeout action in the learned flow. Both are 0 if it has
	// no such action.
	FinIdle, FinHard uint16
	Flags            Flags
	DeleteLearned    bool
	Limit            uint32   // largest number of flows with this Table and Cookie; 0: no limit
	Result           Subfield // field bit that a successful learn action sets to 1; Bits 0: no such bit
	Items            []LearnItem
}

// LearnKind says whether a LearnItem is a match field, a load or an output of the learned flow.
type LearnKind uint8

// A LearnItem is of one of these kinds.
const (
	LearnMatch  LearnKind = iota // the learned flow matches Dst against the value
	LearnLoad                    // the learned flow writes the value to Dst
	LearnOutput                  // the learned flow outputs to the port whose number is the value of Src
)

// LearnItem is one match field or one action of a learned flow. Its value is that of the sub-field Src in
// the frame that executes the learn action. If Src.Bits is 0, the value is the constant Value.
type LearnItem struct {
	Kind     LearnKind
	Dst, Src Subfield
	Value    Value128
}

// SetSubfield makes match m require value v in a sub-field.
func SetSubfield(m *Match, s Subfield, v Value128) {
	if s == WholeField(FInPort) || s == WholeField(FInPortOXM) {
		setField(m, s.Field, v, Ones(32))
		return
	}
	word, hi, lo := s.Words(v)
	_, mhi, mlo := s.Mask()
	SetBits(m, word, hi, mhi)
	if mlo != 0 || fields[s.Field].bits > 64 {
		SetBits(m, word+1, lo, mlo)
	}
}

func (p *actionParser) learn(t token) (Action, error) {
	l := learnParser{names: p.names, check: learnChecker{outer: &p.check}, spec: &LearnSpec{Table: 1, Priority: DefaultPriority}, text: t.text}
	text := t.value
	for {
		word, rest, ok := nextToken(text)
		if !ok {
			return Action{Kind: ActLearn, Learn: l.spec}, nil
		}
		text = rest
		if err := l.word(word); err != nil {
			return Action{}, err
		}
	}
}

// learnParser parses the arguments of one learn action.
type learnParser struct {
	names Names
	check learnChecker
	spec  *LearnSpec
	text  string
}

func (l *learnParser) word(t token) error {
	s := l.spec
	switch t.key {
	case "table":
		v, ok := parseDecimal(t.value, Tables-1)
		if !ok {
			return wrong(t.text, "a table number from 0 to 254")
		}
		s.Table = uint8(v)
	case "priority":
		s.Priority = uint16(leadingDecimal(t.value))
	case "idle_timeout":
		s.IdleTimeout = uint16(leadingDecimal(t.value))
	case "hard_timeout":
		s.HardTimeout = uint16(leadingDecimal(t.value))
	case "fin_idle_timeout":
		s.FinIdle = uint16(leadingDecimal(t.value))
	case "fin_hard_timeout":
		s.FinHard = uint16(leadingDecimal(t.value))
	case "cookie":
		digits, negative := strings.CutPrefix(t.value, "-")
		v, _ := parseUint(leadingNumber(digits), ^uint64(0)) // 0 if there is no number
		if s.Cookie = v; negative {
			s.Cookie = -v
		}
	case "send_flow_rem":
		s.Flags |= SendFlowRem
	case "delete_learned":
		s.DeleteLearned = true
	case "limit":
		s.Limit = uint32(leadingDecimal(t.value))
	case "result_dst":
		dst, ok := parseSubfield(t.value)
		if !ok || dst.Bits != 1 {
			return wrong(t.text, "one bit of a field, such as reg0[0]")
		}
		s.Result = dst
		return l.check.outer.writable(t.text, dst)
	case "output":
		src, ok := parseSubfield(t.value)
		if !ok {
			return wrong(t.text, "output:FIELD")
		}
		s.Items = append(s.Items, LearnItem{Kind: LearnOutput, Src: src})
		return l.check.outer.readable(t.text, src)
	case "load":
		return l.load(t)
	default:
		return l.field(t)
	}
	return nil
}

func (l *learnParser) load(t token) error {
	value, name, err := splitArrow(t)
	if err != nil {
		return err
	}
	item := LearnItem{Kind: LearnLoad}
	var ok bool
	if item.Dst, ok = parseSubfield(name); !ok {
		return wrong(name, expectedSubfield)
	}
	if item.Src, ok = parseSubfield(value); ok {
		if item.Src.Bits != item.Dst.Bits {
			return wrong(name, "as many bits as %s has, %d", value, item.Src.Bits)
		}
		if err := l.check.outer.readable(t.text, item.Src); err != nil {
			return err
		}
	} else if item.Value, ok = parseNumber(value); !ok || item.Value.BitLen() > int(item.Dst.Bits) {
		return wrong(value, "a field or a number of at most %d bits", item.Dst.Bits)
	}
	l.spec.Items = append(l.spec.Items, item)
	return l.check.inner().writable(t.text, item.Dst)
}

// field parses a match field of the learned flow. The text has the form field, field=src or field=value.
func (l *learnParser) field(t token) error {
	item := LearnItem{Kind: LearnMatch}
	var ok bool
	if item.Dst, ok = parseSubfield(t.key); !ok {
		return wrong(t.text, "a field to match, load, output or a setting such as table or idle_timeout")
	}
	switch {
	case t.value == "":
		item.Src = item.Dst
	default:
		if item.Src, ok = parseSubfield(t.value); ok && item.Src.Bits != item.Dst.Bits {
			return wrong(t.text, "as many bits as %s has, %d", t.key, item.Dst.Bits)
		} else if !ok {
			v, err := l.immediate(t, item.Dst)
			if err != nil {
				return err
			}
			item.Value = v
		}
	}
	if err := l.check.inner().readable(t.text, item.Dst); err != nil {
		return err
	}
	if item.Src.Bits != 0 {
		if err := l.check.outer.readable(t.text, item.Src); err != nil {
			return err
		}
	} else {
		SetSubfield(&l.check.match, item.Dst, item.Value)
	}
	l.spec.Items = append(l.spec.Items, item)
	return nil
}

// immediate parses the value of a sub-field. The value has the text format of the field
// if the sub-field is the whole field; otherwise it is a number.
func (l *learnParser) immediate(t token, dst Subfield) (Value128, error) {
	if dst != WholeField(dst.Field) {
		v, ok := parseNumber(t.value)
		if !ok || v.BitLen() > int(dst.Bits) {
			return v, wrong(t.text, "a field or a number of at most %d bits", dst.Bits)
		}
		return v, nil
	}
	v, mask, err := parseFieldValue(dst.Field, t.value, l.names)
	f := &fields[dst.Field]
	if dst.Field == FVLANVID {
		v = v.AndNot(Value64(flowtable.VLANPresent)) // OFPVID_PRESENT is optional
	}
	switch {
	case err != nil:
		return v, err
	case strings.Contains(t.value, "/") || mask != Ones(8*uint(f.bytes)) && f.format != asTCPFlags && f.format != asFrag:
		return v, wrong(t.text, "a field or a value without a mask")
	case v.BitLen() > int(f.bits):
		return v, wrong(t.text, "a field or a number of at most %d bits", f.bits)
	}
	return v, nil
}

func (s *LearnSpec) format(names Names) string {
	words := []string{fmt.Sprintf("table=%d", s.Table)}
	add := func(format string, args ...any) { words = append(words, fmt.Sprintf(format, args...)) }
	number := func(name string, v uint16) {
		if v != 0 {
			add("%s=%d", name, v)
		}
	}
	number("idle_timeout", s.IdleTimeout)
	number("hard_timeout", s.HardTimeout)
	number("fin_idle_timeout", s.FinIdle)
	number("fin_hard_timeout", s.FinHard)
	if s.Priority != DefaultPriority {
		add("priority=%d", s.Priority)
	}
	if s.Flags&SendFlowRem != 0 {
		add("send_flow_rem")
	}
	if s.DeleteLearned {
		add("delete_learned")
	}
	if s.Cookie != 0 {
		add("cookie=0x%x", s.Cookie)
	}
	if s.Limit != 0 {
		add("limit=%d", s.Limit)
	}
	if s.Result.Bits != 0 {
		add("result_dst=%s", s.Result)
	}
	for i := range s.Items {
		add("%s", s.Items[i].format(names))
	}
	return "learn(" + strings.Join(words, ",") + ")"
}

func (i *LearnItem) format(names Names) string {
	switch {
	case i.Kind == LearnOutput:
		return "output:" + i.Src.String()
	case i.Kind == LearnLoad && i.Src.Bits != 0:
		return "load:" + i.Src.String() + "->" + i.Dst.String()
	case i.Kind == LearnLoad:
		return "load:" + i.Value.hex() + "->" + i.Dst.String()
	case i.Src == i.Dst:
		return i.Dst.String()
	case i.Src.Bits != 0:
		return i.Dst.String() + "=" + i.Src.String()
	case i.Dst == WholeField(i.Dst.Field) && (fields[i.Dst.Field].format == asHex4 || fields[i.Dst.Field].format == asHex5):
		return fields[i.Dst.Field].name + "=" + i.Value.hex() // ovs-ofctl writes no leading zeros here
	case i.Dst == WholeField(i.Dst.Field):
		return fields[i.Dst.Field].name + "=" + formatField(i.Dst.Field, i.Value, i.Dst.Ones(), names)
	}
	return i.Dst.String() + "=" + i.Value.hex()
}
