// SPDX-License-Identifier: Apache-2.0

package openflow

import (
	"encoding/hex"
	"strings"

	"weft/flowtable"
	"weft/packet"
)

// PacketOut is a frame that an operator sends with the command "packet-out", with the actions to execute on
// it.
type PacketOut struct {
	// Flow has the fields that are not part of the frame's bytes: in_port, tunnel fields, metadata and
	// registers.
	Flow    Flow
	Frame   []byte
	Actions []Action
}

// ParsePacketOut parses the argument of packet-out in ovs-ofctl's syntax:
// in_port=PORT,packet=HEX,actions=ACTION[,ACTION...]. The actions may output to TABLE, which sends the frame
// through the flow tables. Errors are *ParseError.
func ParsePacketOut(text string, names Names) (PacketOut, error) {
	words, actions, ok, err := cutActions(text)
	if err != nil {
		return PacketOut{}, err
	}
	if !ok {
		return PacketOut{}, wrong("", "actions=ACTION[,ACTION...] at the end of the packet-out")
	}
	var po PacketOut
	var match Match
	setField(&match, FInPort, Value64(uint64(PortController)), Ones(32)) // default in_port (OpenFlow 1.5, 7.3.6)
	for {
		t, rest, ok := nextToken(words)
		if !ok {
			break
		}
		words = rest
		if err := po.word(t, &match, names); err != nil {
			return PacketOut{}, err
		}
	}
	if po.Frame == nil {
		return PacketOut{}, wrong("", "packet=HEX, the frame in hexadecimal digits")
	}
	po.Flow = match.Value
	a := actionParser{names: names, check: actionChecker{table: TableAll, toTables: true}}
	if po.Actions, err = a.whole(actions); err != nil {
		return PacketOut{}, err
	}
	for i := range po.Actions {
		switch po.Actions[i].Kind {
		case ActGotoTable, ActWriteMetadata, ActWriteActions, ActClearActions:
			return PacketOut{}, wrong(formatAction(&po.Actions[i], names), "an action, such as TABLE or resubmit(,TABLE): a packet-out takes no instruction")
		}
	}
	return po, nil
}

// word parses one setting before the actions of a packet-out, such as in_port.
func (po *PacketOut) word(t token, match *Match, names Names) error {
	if t.key == "packet" {
		frame, err := hex.DecodeString(t.value)
		switch {
		case po.Frame != nil:
			return wrong(t.key, "packet once")
		case err != nil:
			return wrongHex(t)
		case len(frame) < packet.EthernetLen || len(frame) > packet.MaxFrameLen:
			return wrong(t.key, "a frame of %d to %d bytes, not of %d", packet.EthernetLen, packet.MaxFrameLen, len(frame))
		}
		po.Frame = frame
		return nil
	}
	id, ok := fieldNames[t.key]
	if !ok {
		return wrong(t.key, "in_port, packet, actions, or a field of the switch's own such as metadata, reg0 or tun_id")
	}
	if word := int(fields[id].word); id.IsTLV() {
		return parseMatchField(match, id, t, names)
	} else if id == FConjID || word < flowtable.KeyWords && id != FInPort && id != FInPortOXM && (word < flowtable.WTunID || word >= flowtable.WTunID+flowtable.TunnelWords) {
		return wrong(t.key, "a field that is not the frame's own, such as in_port, metadata or reg0")
	}
	if err := parseMatchField(match, id, t, names); err != nil {
		return err
	}
	if id == FInPort || id == FInPortOXM {
		switch no := match.Value.Key().InPort(); no {
		case PortLocal, PortNone, PortController:
		default:
			if no >= PortMax {
				return wrong(t.value, "a port that frames come from for in_port")
			}
		}
	}
	return nil
}

// wrongHex returns the error for a frame that is no hexadecimal number. The error does not repeat the frame,
// which may be long.
func wrongHex(t token) error {
	const want = "pairs of hexadecimal digits, not "
	for i, r := range t.value {
		if !strings.ContainsRune("0123456789abcdefABCDEF", r) {
			return wrong(t.key, want+"%q as digit %d", string(r), i+1)
		}
	}
	return wrong(t.key, want+"%d", len(t.value))
}
