// SPDX-License-Identifier: Apache-2.0

package openflow

import (
	"fmt"
	"strings"

	"weft/flowtable"
	"weft/packet"
)

// The action output(port=PORT,max_len=BYTES) sends the first bytes of a frame
// (ovs-actions(7), "The output action").

// minTruncated is the smallest max_len in bytes: an Ethernet header.
const minTruncated = packet.EthernetLen

// outputTruncated executes output(port=number,max_len=limit). As in Open vSwitch it sends
// nothing to a patch port: the peer's tables would see a frame without its end.
func (x *xlate) outputTruncated(number uint32, limit uint64) {
	if number == PortInPort {
		number = x.inPort()
	} else if number == x.inPort() {
		x.note("not sent back to its input port")
		return
	}
	if port, ok := x.env.Port(number); ok && port.Kind == PortPatch {
		x.usedPorts = true
		x.noteDrop(packet.DropNoPort)
		x.note("a truncated frame is not sent to a patch port")
		return
	}
	x.limit = uint32(limit)
	x.send(number)
	x.limit = 0
}

// truncated returns an output to a port or a tunnel that sends at most x.limit bytes.
func (x *xlate) truncated(out flowtable.Action) flowtable.Action {
	switch {
	case x.limit == 0:
	case out.Op == flowtable.OpTunnel:
		out.U64 |= uint64(x.limit) << 32
	default:
		out.Op, out.U64 = flowtable.OpOutputTruncated, uint64(x.limit)
	}
	return out
}

// Parsing

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
			a.Value = value64(v)
		default:
			return a, wrong(one.text, "output(port=PORT,max_len=BYTES)")
		}
	}
	if a.Port == PortNone || a.Value.isZero() {
		return a, wrong(t.text, "output(port=PORT,max_len=BYTES)")
	}
	return a, nil
}

func formatTruncation(a *Action, names Names) string {
	return fmt.Sprintf("output(port=%s,max_len=%d)", formatPort(a.Port, names), a.Value[1])
}

// formatLimit returns trunc(BYTES) and a comma, as ovs-dpctl shows it before an output;
// "" for 0.
func formatLimit(limit uint64) string {
	if limit == 0 {
		return ""
	}
	return fmt.Sprintf("trunc(%d),", limit)
}

// On the wire

func appendTruncation(b []byte, a *Action) []byte {
	return be.AppendUint32(be.AppendUint16(appendNX(b, nxOutputTrunc), uint16(a.Port)), uint32(a.Value[1]))
}

func decodeTruncation(b []byte) (Action, error) {
	port, limit := uint32(be.Uint16(b)), be.Uint32(b[2:])
	if !isOnePort(port) {
		return Action{}, coded(ErrActionBadOutPort, fmt.Sprintf("output: %d: expected a port, in_port or local beside max_len", port))
	}
	if limit < minTruncated {
		return Action{}, coded(ErrActionBadArgument, fmt.Sprintf("output: max_len %d: expected at least %d", limit, minTruncated))
	}
	return Action{Kind: ActOutputTrunc, Port: port, Value: value64(uint64(limit))}, nil
}
