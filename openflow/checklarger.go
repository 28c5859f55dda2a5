// SPDX-License-Identifier: Apache-2.0

package openflow

import (
	"fmt"
	"strings"

	"weft/flowtable"
)

// nxCheckLarger is the subtype of Nicira's action for check_pkt_larger.
const nxCheckLarger = 49

func init() {
	addAction(ActCheckLarger, actionRow{words: map[string]actionParse{"check_pkt_larger": (*actionParser).checkLarger}, format: formatCheckLarger,
		encode: appendCheckLarger, nicira: map[uint16]niciraRow{nxCheckLarger: {14, decodeCheckLarger}}})
}

// formatLonger returns the text of a datapath action OpLonger, which compares the frame's length with a
// limit and looks the frame up again in one of two ways. The text has the form that ovs-dpctl shows.
func formatLonger(list []flowtable.Action) string {
	return fmt.Sprintf("check_pkt_len(size=%d,gt(recirc(0x%x)),le(recirc(0x%x)))", list[0].U32, list[1].U32, list[2].U32)
}

// withDestination adds the destination ->FIELD[BIT], which follows the parenthesis, to the token
// check_pkt_larger(BYTES). It returns other tokens unchanged.
func withDestination(t token, rest string) (token, string) {
	if t.key != "check_pkt_larger" || t.delim != '(' || !strings.HasPrefix(rest, "->") {
		return t, rest
	}
	end := valueEnd(rest, 0, separators)
	t.value += rest[:end]
	t.text += rest[:end]
	return t, rest[end:]
}

func (p *actionParser) checkLarger(t token) (Action, error) {
	length, name, ok := strings.Cut(t.value, "->")
	if !ok {
		return Action{}, wrong(t.text, "check_pkt_larger(BYTES)->FIELD[BIT]")
	}
	v, ok := parseUint(strings.TrimSpace(length), 0xffff)
	if !ok {
		return Action{}, wrong(t.text, "a number of bytes from 0 to 65535")
	}
	dst, ok := parseSubfield(strings.TrimSpace(name))
	if !ok || dst.Bits != 1 {
		return Action{}, wrong(t.text, "one bit of a field, such as reg0[0]")
	}
	if err := mayTakeBit(t.text, dst); err != nil {
		return Action{}, err
	}
	return Action{Kind: ActCheckLarger, Dst: dst, Value: Value64(v)}, nil
}

// mayTakeBit returns an error if no action may write the field. As in Open vSwitch, the
// flow's match need not have the field: a frame without it stays unchanged.
func mayTakeBit(word string, dst Subfield) error {
	var c actionChecker
	return c.writable(word, dst)
}

func formatCheckLarger(a *Action, _ Names) string {
	return fmt.Sprintf("check_pkt_larger(%d)->%s", a.Value[1], a.Dst)
}

func appendCheckLarger(_ *actionEncoder, b []byte, a *Action) []byte {
	b = be.AppendUint16(appendNX(b, nxCheckLarger), uint16(a.Value[1]))
	return headersOf[a.Dst.Field].nxm.append(be.AppendUint16(b, uint16(a.Dst.Offset)), false)
}

func decodeCheckLarger(_ *actionDecoder, _ uint16, b []byte) (Action, error) {
	id, _, err := readSubfieldHeader(b[4:])
	if err != nil {
		return Action{}, err
	}
	dst, err := subfieldOf(id, be.Uint16(b[2:]), 1, nil)
	if err != nil {
		return Action{}, err
	}
	if err := mayTakeBit("check_pkt_larger", dst); err != nil {
		return Action{}, coded(ErrActionBadSetArgument, err.Error())
	}
	return Action{Kind: ActCheckLarger, Dst: dst, Value: Value64(uint64(be.Uint16(b)))}, nil
}
