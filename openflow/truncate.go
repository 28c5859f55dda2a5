// SPDX-License-Identifier: Apache-2.0

package openflow

import (
	"fmt"
	"strings"

	"weft/packet"
)

// nxOutputTrunc is the subtype of Nicira's action for output with max_len.
const nxOutputTrunc = 39

// The row of ActOutputTrunc has no words: the parser of the word "output" also parses
// output(port=PORT,max_len=BYTES).
func init() {
	addAction(ActOutputTrunc, actionRow{format: formatTruncation, encode: appendTruncation, nicira: map[uint16]niciraRow{nxOutputTrunc: {6, decodeTruncation}}})
}

// The action output(port=PORT,max_len=BYTES) sends a frame to a port, but only its first BYTES bytes
// (ovs-actions(7), "The output action").

// minTruncated is the smallest max_len, in bytes. The frame keeps at least its Ethernet header.
const minTruncated = packet.EthernetLen

func isTruncation(t token) bool {
	return strings.Contains(t.value, "port") && strings.Contains(t.value, "max_len")
}

func (p *actionParser) outputTruncation(t token) (Action, error) {
	a := Action{Kind: ActOutputTrunc, Port: PortNone}
	for text := t.value; ; {
		one, rest, ok := nextToken(text)
		if !ok {
			break
		}
		text = rest
		switch one.key {
		case "port":
			no, err := parsePort(one.value, p.names)
			if err != nil {
				return a, err
			}
			if !isOnePort(no) {
				return a, wrong(one.text, "a port's number or name, in_port or local beside max_len")
			}
			a.Port = no
		case "max_len":
			v, ok := parseUint(one.value, 1<<32-1)
			if !ok || v < minTruncated {
				return a, wrong(one.text, "a number of bytes from %d", minTruncated)
			}
			a.Value = Value64(v)
		default:
			return a, wrong(one.text, "output(port=PORT,max_len=BYTES)")
		}
	}
	if a.Port == PortNone || a.Value.IsZero() {
		return a, wrong(t.text, "output(port=PORT,max_len=BYTES)")
	}
	return a, nil
}

func formatTruncation(a *Action, names Names) string {
	return fmt.Sprintf("output(port=%s,max_len=%d)", formatPort(a.Port, names), a.Value[1])
}

// formatLimit returns trunc(BYTES) and a comma. ovs-dpctl shows the limit of an output in this form, before
// the output. If there is no limit (0), formatLimit returns "".
func formatLimit(limit uint64) string {
	if limit == 0 {
		return ""
	}
	return fmt.Sprintf("trunc(%d),", limit)
}

func appendTruncation(_ *actionEncoder, b []byte, a *Action) []byte {
	return be.AppendUint32(be.AppendUint16(appendNX(b, nxOutputTrunc), uint16(a.Port)), uint32(a.Value[1]))
}

func decodeTruncation(_ *actionDecoder, _ uint16, b []byte) (Action, error) {
	port, limit := uint32(be.Uint16(b)), be.Uint32(b[2:])
	if !isOnePort(port) {
		return Action{}, coded(ErrActionBadOutPort, fmt.Sprintf("output: %d: expected a port, in_port or local beside max_len", port))
	}
	if limit < minTruncated {
		return Action{}, coded(ErrActionBadArgument, fmt.Sprintf("output: max_len %d: expected at least %d", limit, minTruncated))
	}
	return Action{Kind: ActOutputTrunc, Port: port, Value: Value64(uint64(limit))}, nil
}
