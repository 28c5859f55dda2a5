// SPDX-License-Identifier: Apache-2.0

package openflow

import (
	"fmt"

	"weft/flowtable"
)

// This file has the encoding of learn. It is Nicira's action 16, or 45 if it has a limit or a result.

// A learn action on the wire has a specification for each match field and each action of the learned flow.
// These constants are the bits in the header of a specification. The last three are flags of the whole learn
// action.
const (
	learnBits      = 0x3ff // number of bits of the value
	learnDst       = 3 << 11
	learnDstMatch  = 0 << 11
	learnDstLoad   = 1 << 11
	learnDstOutput = 2 << 11
	learnImmediate = 1 << 13
	learnReserved  = 0xc400

	learnFlagRemoved = 1
	learnFlagDelete  = 2
	learnFlagResult  = 4
)

var learnDsts = map[LearnKind]uint16{LearnMatch: learnDstMatch, LearnLoad: learnDstLoad, LearnOutput: learnDstOutput}

func appendLearn(b []byte, s *LearnSpec) []byte {
	second := s.Limit != 0 || s.Result.Bits != 0
	subtype, flags := uint16(nxLearn), uint16(0)
	if second {
		subtype = nxLearn2
	}
	if s.Flags&SendFlowRem != 0 {
		flags |= learnFlagRemoved
	}
	if s.DeleteLearned {
		flags |= learnFlagDelete
	}
	if s.Result.Bits != 0 {
		flags |= learnFlagResult
	}
	b = appendNX(b, subtype)
	b = be.AppendUint16(be.AppendUint16(be.AppendUint16(b, s.IdleTimeout), s.HardTimeout), s.Priority)
	b = be.AppendUint16(be.AppendUint64(b, s.Cookie), flags)
	b = append(b, s.Table, 0)
	b = be.AppendUint16(be.AppendUint16(b, s.FinIdle), s.FinHard)
	if second {
		b = be.AppendUint16(be.AppendUint32(b, s.Limit), uint16(s.Result.Offset))
		b = append(b, 0, 0)
		if s.Result.Bits != 0 {
			b = headersOf[s.Result.Field].nxm.append(b, false)
		}
	}
	for i := range s.Items {
		b = s.Items[i].append(b)
	}
	return b
}

func (i *LearnItem) append(b []byte) []byte {
	bits := i.Src.Bits
	if i.Kind != LearnOutput {
		bits = i.Dst.Bits
	}
	header := uint16(bits) | learnDsts[i.Kind]
	if i.Src.Bits == 0 {
		header |= learnImmediate
	}
	b = be.AppendUint16(b, header)
	if i.Src.Bits == 0 {
		v := i.Value
		if i.Kind == LearnMatch && i.Dst == WholeField(FVLANVID) {
			v = v.AndNot(Value64(flowtable.VLANPresent))
		}
		b = AppendValue(b, v, uint8(2*((int(bits)+15)/16)))
	} else {
		b = be.AppendUint16(headersOf[i.Src.Field].nxm.append(b, false), uint16(i.Src.Offset))
	}
	if i.Kind == LearnOutput {
		return b
	}
	return be.AppendUint16(headersOf[i.Dst.Field].nxm.append(b, false), uint16(i.Dst.Offset))
}

// decodeLearn decodes both of Nicira's actions for learn. b begins behind the subtype.
func (d *actionDecoder) decodeLearn(subtype uint16, b []byte) (Action, error) {
	flags := be.Uint16(b[14:])
	s := &LearnSpec{IdleTimeout: be.Uint16(b), HardTimeout: be.Uint16(b[2:]), Priority: be.Uint16(b[4:]), Cookie: be.Uint64(b[6:]),
		Table: b[16], FinIdle: be.Uint16(b[18:]), FinHard: be.Uint16(b[20:]), DeleteLearned: flags&learnFlagDelete != 0}
	if flags&learnFlagRemoved != 0 {
		s.Flags |= SendFlowRem
	}
	known := uint16(learnFlagRemoved | learnFlagDelete)
	rest := b[22:]
	if subtype == nxLearn2 {
		known |= learnFlagResult
		s.Limit = be.Uint32(b[22:])
		offset := be.Uint16(b[26:])
		rest = b[30:]
		if flags&learnFlagResult != 0 {
			id, more, err := readSubfieldHeader(rest)
			if err != nil {
				return Action{}, err
			}
			if s.Result, err = subfieldOf(id, offset, 1, nil); err != nil {
				return Action{}, err
			}
			if err := d.codeOf(s.Result, d.check.writable("learn", s.Result)); err != nil {
				return Action{}, err
			}
			rest = more
		}
	}
	if flags&^known != 0 || s.Table >= Tables {
		return Action{}, coded(ErrActionBadArgument, "learn: unknown flags or table")
	}
	l := learnChecker{outer: &d.check}
	for len(rest) >= 2 && be.Uint16(rest) != 0 {
		var err error
		if rest, err = d.learnItem(&l, s, rest); err != nil {
			return Action{}, err
		}
	}
	for _, c := range rest {
		if c != 0 {
			return Action{}, coded(ErrActionMustBeZero, "learn: expected zeros behind the last specification")
		}
	}
	return Action{Kind: ActLearn, Learn: s}, nil
}

// learnItem decodes one specification (a match field or an action of the learned flow) at the start of b,
// and adds it to s. It returns the bytes that follow.
func (d *actionDecoder) learnItem(l *learnChecker, s *LearnSpec, b []byte) ([]byte, error) {
	header := be.Uint16(b)
	bits := header & learnBits
	item := LearnItem{}
	switch header & learnDst {
	case learnDstLoad:
		item.Kind = LearnLoad
	case learnDstOutput:
		item.Kind = LearnOutput
	case learnDst:
		return nil, coded(ErrActionBadArgument, "learn: a specification of an unknown kind")
	}
	if header&learnReserved != 0 || bits == 0 || item.Kind == LearnOutput && header&learnImmediate != 0 {
		return nil, coded(ErrActionBadArgument, "learn: a specification of an unknown kind")
	}
	b = b[2:]
	var err error
	if header&learnImmediate == 0 {
		if item.Src, b, err = readLearnField(b, bits); err != nil {
			return nil, err
		}
		if err := d.codeOf(item.Src, l.outer.readable("learn", item.Src)); err != nil {
			return nil, err
		}
	} else {
		n := 2 * ((int(bits) + 15) / 16)
		if n > 16 || len(b) < n {
			return nil, errActionLen
		}
		item.Value, b = ValueOf(b[:n]), b[n:]
	}
	if item.Kind == LearnOutput {
		s.Items = append(s.Items, item)
		return b, nil
	}
	if item.Dst, b, err = readLearnField(b, bits); err != nil {
		return nil, err
	}
	if item.Src.Bits == 0 && item.Dst == WholeField(FVLANVID) {
		item.Value = item.Value.AndNot(Value64(flowtable.VLANPresent))
	}
	if item.Src.Bits == 0 && item.Value.BitLen() > int(bits) {
		return nil, coded(ErrActionBadArgument, fmt.Sprintf("learn: expected a number of at most %d bits", bits))
	}
	if err := l.checkDst(d, &item); err != nil {
		return nil, err
	}
	s.Items = append(s.Items, item)
	return b, nil
}

// checkDst returns an error if the learned flow cannot match on the field item.Dst, or load to it. The flow
// can only do so if the match items before it meet the field's prerequisite. If the item is a match on a
// constant, checkDst adds it to these.
func (l *learnChecker) checkDst(d *actionDecoder, item *LearnItem) error {
	c := l.inner()
	c.checked = l.outer.checked
	inner := actionDecoder{v: d.v, check: *c}
	if item.Kind == LearnLoad {
		return inner.codeOf(item.Dst, c.writable("learn", item.Dst))
	}
	if err := inner.codeOf(item.Dst, c.readable("learn", item.Dst)); err != nil {
		return err
	}
	if item.Src.Bits == 0 {
		SetSubfield(&l.match, item.Dst, item.Value)
	}
	return nil
}

func readLearnField(b []byte, bits uint16) (Subfield, []byte, error) {
	id, rest, err := readSubfieldHeader(b)
	if err != nil {
		return Subfield{}, nil, err
	}
	if len(rest) < 2 {
		return Subfield{}, nil, errActionLen
	}
	s, err := subfieldOf(id, be.Uint16(rest), bits, nil)
	return s, rest[2:], err
}
