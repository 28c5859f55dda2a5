// SPDX-License-Identifier: Apache-2.0

package openflow

// Subtypes of Nicira's actions for push, pop and exit.
const (
	nxExit      = 17
	nxStackPush = 27
	nxStackPop  = 28
)

func init() {
	addAction(ActPush, actionRow{words: map[string]actionParse{"push": (*actionParser).push},
		format: func(a *Action, _ Names) string { return "push:" + a.Src.String() },
		encode: func(e *actionEncoder, b []byte, a *Action) []byte { return appendStack(b, nxStackPush, a.Src, e.tlvs) },
		nicira: map[uint16]niciraRow{nxStackPush: {14, (*actionDecoder).decodeStack}}})
	addAction(ActPop, actionRow{words: map[string]actionParse{"pop": (*actionParser).pop},
		format: func(a *Action, _ Names) string { return "pop:" + a.Dst.String() },
		encode: func(e *actionEncoder, b []byte, a *Action) []byte { return appendStack(b, nxStackPop, a.Dst, e.tlvs) },
		nicira: map[uint16]niciraRow{nxStackPop: {14, (*actionDecoder).decodeStack}}})
	addAction(ActExit, actionRow{words: map[string]actionParse{"exit": (*actionParser).exit}, format: called("exit"), encode: encodeBare(nxExit),
		nicira: map[uint16]niciraRow{nxExit: {6, decodeBare(ActExit)}}})
}

// This file has the actions push, pop and exit in text and on the wire (ovs-actions(7), "The push and pop
// actions").

func (p *actionParser) push(t token) (Action, error) {
	src, ok := parseSubfieldOf(t.value, tlvsOf(p.names))
	if !ok || src.Bits > MaxChunk {
		return Action{}, wrong(t.text, "%s:FIELD, with at most 128 bits within the field, such as reg0[0..15]", t.key)
	}
	return Action{Kind: ActPush, Src: src}, p.check.readable(t.text, src)
}

func (p *actionParser) pop(t token) (Action, error) {
	dst, ok := parseSubfieldOf(t.value, tlvsOf(p.names))
	if !ok || dst.Bits > MaxChunk {
		return Action{}, wrong(t.text, "%s:FIELD, with at most 128 bits within the field, such as reg0[0..15]", t.key)
	}
	return Action{Kind: ActPop, Dst: dst}, p.check.writable(t.text, dst)
}

func (p *actionParser) exit(token) (Action, error) { return Action{Kind: ActExit}, nil }

// appendStack appends a push or pop of the sub-field s. Behind the subtype are the offset, the header of the
// field and the number of bits.
func appendStack(b []byte, subtype uint16, s Subfield, tlvs *TLVMap) []byte {
	start := len(b)
	b = be.AppendUint16(appendNX(b, subtype), s.Offset)
	b = be.AppendUint16(tlvs.header(s.Field, Version10).append(b, false), s.Bits)
	return appendZeros(b, start+stackActionLen-len(b))
}

// stackActionLen is the length of a push or pop in bytes.
const stackActionLen = 24

// decodeStack decodes a push or pop. b begins behind the subtype.
func (d *actionDecoder) decodeStack(subtype uint16, b []byte) (Action, error) {
	if len(b) != stackActionLen-nxHeader {
		return Action{}, errActionLen
	}
	id, rest, err := readSubfieldHeader(b[2:])
	if err != nil {
		return Action{}, err
	}
	s, err := subfieldOf(id, be.Uint16(b), be.Uint16(rest), d.tlvs)
	if err != nil {
		return Action{}, err
	}
	if s.Bits > MaxChunk {
		return Action{}, coded(ErrActionBadArgument, "push or pop: expected at most 128 bits")
	}
	for _, c := range rest[2:] {
		if c != 0 {
			return Action{}, coded(ErrActionMustBeZero, "push or pop: expected zeros behind the field")
		}
	}
	if subtype == nxStackPush {
		return Action{Kind: ActPush, Src: s}, d.codeOf(s, d.check.readable("push", s))
	}
	return Action{Kind: ActPop, Dst: s}, d.codeOf(s, d.check.writable("pop", s))
}
