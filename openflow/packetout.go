package openflow

import (
	"encoding/hex"
	"strings"

	"weft/flowtable"
	"weft/packet"
)

// PacketOut is a frame of the operator's own, and what is to be done with it.
type PacketOut struct {
	// Flow is what the frame does not say itself: in_port, tunnel fields, metadata
	// and registers.
	Flow    Flow
	Frame   []byte
	Actions []Action
}

// ParsePacketOut parses the argument of packet-out in ovs-ofctl's syntax:
// in_port=PORT,packet=HEX,actions=ACTION[,ACTION...]. Among the actions, TABLE
// stands for the tables. Errors are *ParseError.
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
	setField(&match, FInPort, value64(uint64(PortController)), ones(32)) // OpenFlow 1.5, 7.3.6: of no port
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
	a := actionParser{names: names, table: TableAll, toTables: true}
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

// word takes one word before the actions.
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
	if word := int(fields[id].word); word < flowtable.KeyWords && id != FInPort && id != FInPortOXM && (word < flowtable.WTunID || word >= flowtable.WTunID+flowtable.TunnelWords) {
		return wrong(t.key, "a field that is not the frame's own, such as in_port, metadata or reg0")
	}
	if err := parseMatchField(match, id, t, names); err != nil {
		return err
	}
	if id == FInPort || id == FInPortOXM {
		switch no := uint32(match.Value[flowtable.WPort] >> 32); no {
		case PortLocal, PortNone, PortController:
		default:
			if no >= PortMax {
				return wrong(t.value, "a port that frames come from for in_port")
			}
		}
	}
	return nil
}

// wrongHex says where a text, of a frame perhaps too long to be shown, is not
// hexadecimal.
func wrongHex(t token) error {
	const want = "pairs of hexadecimal digits, not "
	for i, r := range t.value {
		if !strings.ContainsRune("0123456789abcdefABCDEF", r) {
			return wrong(t.key, want+"%q as digit %d", string(r), i+1)
		}
	}
	return wrong(t.key, want+"%d", len(t.value))
}

// Execute runs actions on a frame whose flow is given. The translation is of that
// frame alone: its Mask means nothing.
func (p *Pipeline) Execute(actions []Action, flow *Flow, env Env) (Translation, error) {
	if err := p.checkReferences(actions); err != nil {
		return Translation{}, err
	}
	x := xlates.Get().(*xlate)
	x.begin(p, (*flowtable.Key)(flow[:flowtable.KeyWords]), env, nil)
	copy(x.flow[flowtable.KeyWords:], flow[flowtable.KeyWords:])
	for w := flowtable.WTunID; w < flowtable.WTunID+flowtable.TunnelWords; w++ {
		x.keep[w] = 0 // as if an action had set them: the frame has none
	}
	x.base, x.baseKeep = x.flow, x.keep
	x.list(actions)
	x.runSet()
	return x.done(), nil
}

// intoTables runs the frame as it is now through the tables from the first.
func (x *xlate) intoTables() {
	if x.descend() {
		x.pipeline(0, true)
		x.depth--
	}
}
