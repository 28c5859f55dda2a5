// SPDX-License-Identifier: Apache-2.0

package openflow

import (
	"encoding/binary"

	"weft/flowtable"
	"weft/packet"
)

var be = binary.BigEndian

// actionEncoder encodes one list of actions for one version of OpenFlow.
type actionEncoder struct {
	v      Version
	tlvs   *TLVMap
	tagged bool // the frames surely have a VLAN tag at this place in the list
}

// AppendInstructions appends a flow's actions as instructions of OpenFlow 1.3 and later. m is the flow's
// match. These versions can set a VLAN only in a tagged frame. So if the match also has untagged frames, a
// push_vlan precedes mod_vlan_vid and mod_vlan_pcp.
func AppendInstructions(b []byte, actions []Action, m *Match, v Version, tlvs *TLVMap) []byte {
	e := actionEncoder{v: v, tlvs: tlvs, tagged: NeedVLAN.Met(m)}
	for i := 0; i < len(actions); i++ {
		a := &actions[i]
		if !e.isInstruction(a.Kind) {
			start := len(b)
			b = appendZeros(appendHeader(b, instructionApply), 4)
			for ; i < len(actions) && !e.isInstruction(actions[i].Kind); i++ {
				b = e.action(b, &actions[i])
			}
			i--
			b = endAction(b, start)
			continue
		}
		b = e.instruction(b, a)
	}
	return b
}

// isInstruction reports whether the action is an instruction in the encoder's version. For example, a meter
// is an instruction before OpenFlow 1.5, and an action since.
func (e *actionEncoder) isInstruction(k ActionKind) bool {
	switch k {
	case ActGotoTable, ActWriteMetadata, ActWriteActions, ActClearActions:
		return true
	}
	return k == ActMeter && e.v < Version15
}

func (e *actionEncoder) instruction(b []byte, a *Action) []byte {
	start := len(b)
	switch a.Kind {
	case ActGotoTable:
		b = append(appendHeader(b, instructionGoto), a.Table, 0, 0, 0)
	case ActWriteMetadata:
		b = appendZeros(appendHeader(b, instructionMetadata), 4)
		b = be.AppendUint64(be.AppendUint64(b, a.Value[1]), a.Mask[1])
	case ActWriteActions:
		b = appendZeros(appendHeader(b, instructionWrite), 4)
		b = e.list(b, a.Sub)
	case ActClearActions:
		b = appendZeros(appendHeader(b, instructionClear), 4)
	case ActMeter:
		b = be.AppendUint32(appendHeader(b, instructionMeter), uint32(a.Value[1]))
	}
	return endAction(b, start)
}

// AppendActions appends a list of actions: those of a flow in OpenFlow 1.0, of a bucket or of a packet-out.
// It leaves out actions that version v does not allow in such lists: write_actions, clear_actions and,
// before OpenFlow 1.5, meters. m is the flow's match, or nil if there is none.
func AppendActions(b []byte, actions []Action, m *Match, v Version, tlvs *TLVMap) []byte {
	e := actionEncoder{v: v, tlvs: tlvs, tagged: m != nil && NeedVLAN.Met(m)}
	return e.list(b, actions)
}

func (e *actionEncoder) list(b []byte, actions []Action) []byte {
	for i := range actions {
		b = e.action(b, &actions[i])
	}
	return b
}

func (e *actionEncoder) action(b []byte, a *Action) []byte {
	row := &actionRows[a.Kind]
	if row.encode == nil {
		return b
	}
	start := len(b)
	b = row.encode(e, b, a)
	if row.whole || len(b) == start {
		return b
	}
	return endAction(b, start)
}

func (e *actionEncoder) output(b []byte, port uint32, maxLen uint16) []byte {
	b = appendHeader(b, wireOutput)
	if e.v == Version10 {
		return be.AppendUint16(be.AppendUint16(b, uint16(port)), maxLen)
	}
	return appendZeros(be.AppendUint16(be.AppendUint32(b, WirePort(port)), maxLen), 6)
}

func (e *actionEncoder) outputReg(b []byte, a *Action) []byte {
	b = be.AppendUint16(appendNX(b, nxOutputReg), a.Src.bitsOf())
	b = e.tlvs.header(a.Src.Field, Version10).append(b, false)
	return appendZeros(append(b, 0xff, 0xff), 6)
}

func (e *actionEncoder) pushVLAN(b []byte, a *Action) []byte {
	e.tagged = true
	if e.v == Version10 {
		return b // OpenFlow 1.0 pushes a tag with the action that sets its fields
	}
	return be.AppendUint16(appendHeader(b, wirePushVLAN), uint16(a.Value[1]))
}

func (e *actionEncoder) popVLAN(b []byte, _ *Action) []byte {
	e.tagged = false
	if e.v == Version10 {
		return appendHeader(b, wire10StripVLAN)
	}
	return appendHeader(b, wirePopVLAN)
}

// group appends the action "group". OpenFlow 1.0 gets Nicira's action, because it has no groups.
func (e *actionEncoder) group(b []byte, a *Action) []byte {
	if e.v == Version10 {
		return be.AppendUint32(appendZeros(appendNX(b, nxGroup), 2), uint32(a.Value[1]))
	}
	return be.AppendUint32(appendHeader(b, wireGroup), uint32(a.Value[1]))
}

// meter appends a meter action. It appends nothing before OpenFlow 1.5, where a meter is an instruction.
func (e *actionEncoder) meter(b []byte, a *Action) []byte {
	if e.v < Version15 {
		return b
	}
	return be.AppendUint32(appendHeader(b, wireMeter), uint32(a.Value[1]))
}

// gotoTable appends a resubmit for goto_table, because OpenFlow 1.0 has no instructions.
func (e *actionEncoder) gotoTable(b []byte, a *Action) []byte {
	return append(be.AppendUint16(appendNX(b, nxResubmitTable), uint16(PortInPort)), a.Table, 0, 0, 0)
}

func (e *actionEncoder) writeMetadata(b []byte, a *Action) []byte {
	b = appendZeros(appendNX(b, nxWriteMetadata), 6)
	return be.AppendUint64(be.AppendUint64(b, a.Value[1]), a.Mask[1])
}

func (e *actionEncoder) setTunnel(b []byte, a *Action) []byte {
	switch {
	case e.v != Version10:
		return e.setWhole(b, FTunID, a.Value)
	case a.Wide:
		return be.AppendUint64(appendZeros(appendNX(b, nxSetTunnel64), 6), a.Value[1])
	}
	return be.AppendUint32(appendZeros(appendNX(b, nxSetTunnel), 2), uint32(a.Value[1]))
}

func (e *actionEncoder) resubmit(b []byte, a *Action) []byte {
	subtype := uint16(nxResubmitTable)
	switch {
	case a.Tuple:
		subtype = nxResubmitCT
	case a.Table == TableAll:
		subtype = nxResubmit
	}
	b = be.AppendUint16(appendNX(b, subtype), uint16(a.Port))
	table := a.Table
	if subtype == nxResubmit {
		table = 0
	}
	return append(b, table, 0, 0, 0)
}

// controller appends an action that sends the frame to the controller. It uses a standard output or one of
// Nicira's two controller actions: the simplest one that can carry the arguments.
func (e *actionEncoder) controller(b []byte, c *Controller) []byte {
	switch {
	case *c == (Controller{MaxLen: c.MaxLen}):
		return e.output(b, PortController, c.MaxLen)
	case c.Userdata == "" && !c.Pause && c.Meter == 0:
		b = be.AppendUint16(be.AppendUint16(appendNX(b, nxController), c.MaxLen), c.ID)
		return append(b, c.ReasonCode(), 0)
	}
	b = appendZeros(appendNX(b, nxController2), 6)
	if c.MaxLen != WholeFrame {
		b = appendProperty(b, 0, append(be.AppendUint16(nil, c.MaxLen), 0, 0))
	}
	if c.ID != 0 {
		b = appendProperty(b, controllerID, append(be.AppendUint16(nil, c.ID), 0, 0))
	}
	if c.Reason != "" {
		b = appendProperty(b, controllerReason, []byte{c.ReasonCode()})
	}
	if c.Userdata != "" {
		b = appendProperty(b, controllerData, []byte(c.Userdata))
	}
	if c.Pause {
		b = appendProperty(b, controllerPause, nil)
	}
	if c.Meter != 0 {
		b = appendProperty(b, controllerMeter, be.AppendUint32(nil, c.Meter))
	}
	return b
}

func appendProperty(b []byte, kind uint16, body []byte) []byte {
	start := len(b)
	b = be.AppendUint16(be.AppendUint16(b, kind), uint16(4+len(body)))
	return padFrom(append(b, body...), start)
}

// ReasonCode returns the number that the action's reason has in packet-in messages.
func (c *Controller) ReasonCode() uint8 {
	for i, r := range controllerReasonCodes {
		if r == c.Reason {
			return uint8(i)
		}
	}
	return 1 // the number of the reason "action"
}

func appendLoad(b []byte, dst Subfield, v uint64) []byte {
	b = be.AppendUint16(appendNX(b, nxRegLoad), dst.bitsOf())
	return be.AppendUint64(headersOf[dst.Field].nxm.append(b, false), v)
}

// load appends a load action. Before OpenFlow 1.5 it appends Nicira's reg_load, since then a set_field with
// a mask. If the field has the header of an experimenter, load appends what setField does.
func (e *actionEncoder) load(b []byte, a *Action) []byte {
	if a.Dst.Field.IsTLV() {
		return e.loadTLV(b, a)
	}
	shift := uint(a.Dst.Offset)
	set := Action{Kind: ActSetField, Dst: WholeField(a.Dst.Field), Value: a.Value.Shl(shift), Mask: a.Dst.Ones().Shl(shift)}
	if e.v < Version15 && headersOf[a.Dst.Field].nxm.vendor == 0 {
		return appendLoads(b, &set)
	}
	return e.setField(b, &set)
}

func (e *actionEncoder) move(b []byte, a *Action) []byte {
	numbers := func(b []byte) []byte {
		b = be.AppendUint16(b, uint16(a.Src.Bits))
		return be.AppendUint16(be.AppendUint16(b, uint16(a.Src.Offset)), uint16(a.Dst.Offset))
	}
	if e.v >= Version15 {
		b = appendZeros(numbers(appendHeader(b, wireCopyField)), 2)
		return e.tlvs.header(a.Dst.Field, e.v).append(e.tlvs.header(a.Src.Field, e.v).append(b, false), false)
	}
	b = numbers(appendNX(b, nxRegMove))
	return e.tlvs.header(a.Dst.Field, Version10).append(e.tlvs.header(a.Src.Field, Version10).append(b, false), false)
}

// setField appends a set_field action. OpenFlow 1.0 gets an action that sets the same field, or reg_load if
// there is none. OpenFlow 1.3 and 1.4 get reg_load if the action sets only some bits of the field. A field
// with the header of an experimenter gets reg_load2 in place of reg_load.
func (e *actionEncoder) setField(b []byte, a *Action) []byte {
	if a.TLV != nil {
		return e.setTLV(b, a.Dst.Field, a.TLV)
	}
	f := &fields[a.Dst.Field]
	width := Ones(uint(f.storedBits()))
	whole := a.Mask.And(width) == width || a.Dst.Field == FNwTOS
	start := len(b)
	switch {
	case e.v == Version10 && whole && f.legacySet != 0:
		return e.modField(b, a)
	case e.v == Version10 && whole && (a.Dst.Field == FVLANVID || a.Dst.Field == FDLVLAN):
		return endAction(be.AppendUint16(appendHeader(b, wire10SetVLANVID), uint16(a.Value[1])), start)
	case e.v == Version10 && whole && a.Dst.Field == FVLANPCP:
		return endAction(append(appendHeader(b, wire10SetVLANPCP), byte(a.Value[1])), start)
	case e.v == Version10, e.v < Version15 && !whole:
		return appendLoads(b, a)
	case whole:
		return endAction(e.setWhole(b, a.Dst.Field, a.Value), start)
	}
	id := wireField(a.Dst.Field)
	h := id.header(e.v)
	b = h.append(appendHeader(b, wireSetField), true)
	v, mask := a.Value, a.Mask
	if id == FVLANVID { // a set_field of vlan_vid keeps the tag, so its value includes OFPVID_PRESENT
		v, mask = v.Or(Value64(flowtable.VLANPresent)), mask.Or(Value64(flowtable.VLANPresent))
	}
	return endAction(AppendValue(AppendValue(b, v, h.length), mask, h.length), start)
}

// wireField returns the field that is on the wire in place of "id". dl_vlan has no header of its own, so
// vlan_vid takes its place.
func wireField(id FieldID) FieldID {
	if id == FDLVLAN {
		return FVLANVID
	}
	return id
}

// setWhole appends a set_field of a whole field. The caller adds the padding and the length with endAction.
func (e *actionEncoder) setWhole(b []byte, id FieldID, v Value128) []byte {
	id = wireField(id)
	switch id {
	case FVLANVID:
		v = v.Or(Value64(flowtable.VLANPresent))
	case FNwTOS:
		id, v = FIPDSCP, v.Shr(2)
	case FInPortOXM:
		v = Value64(uint64(WirePort(uint32(v[1]))))
	}
	h := id.header(e.v)
	return AppendValue(h.append(appendHeader(b, wireSetField), false), v, h.length)
}

// appendLoads appends reg_load actions that write the bits in the action's mask. Each reg_load writes one
// run of at most 64 consecutive bits. A reg_load has no room for the 8 bytes of an experimenter's header, so
// for such a field appendLoads appends one reg_load2.
func appendLoads(b []byte, a *Action) []byte {
	id := wireField(a.Dst.Field)
	if h := headersOf[id].nxm; h.vendor != 0 {
		start, width := len(b), Ones(uint(fields[id].storedBits()))
		masked := a.Mask.And(width) != width
		b = AppendValue(h.append(appendNX(b, nxRegLoad2), masked), a.Value, h.length)
		if masked {
			b = AppendValue(b, a.Mask, h.length)
		}
		return endAction(b, start)
	}
	for at := uint(0); at < uint(fields[id].bits); {
		if a.Mask.Shr(at)[1]&1 == 0 {
			at++
			continue
		}
		n := uint(0)
		for n < 64 && a.Mask.Shr(at + n)[1]&1 != 0 {
			n++
		}
		start := len(b)
		b = endAction(appendLoad(b, Subfield{id, uint16(at), uint16(n)}, a.Value.Shr(at)[1]&ones64(n)), start)
		at += n
	}
	return b
}

// modField appends an action such as mod_nw_src, which sets a whole field. OpenFlow 1.0 has an action for
// some fields; for others it gets an action of Nicira, such as reg_load. Later versions get set_field, or
// their actions for the TTL of IP and of MPLS.
func (e *actionEncoder) modField(b []byte, a *Action) []byte {
	start, id := len(b), a.Dst.Field
	kind := fields[id].legacySet
	switch {
	case id == FIPTTL && e.v != Version10:
		b = append(appendHeader(b, wireSetNWTTL), byte(a.Value[1]))
	case id == FMPLSTTL && e.v != Version10:
		b = append(appendHeader(b, wireSetMPLSTTL), byte(a.Value[1]))
	case e.v != Version10:
		b = e.setWhole(b, id, a.Value)
	case id == FMPLSLabel:
		b = be.AppendUint32(appendZeros(appendNX(b, nxSetMPLSLabel), 2), uint32(a.Value[1]))
	case id == FMPLSTC:
		b = append(appendNX(b, nxSetMPLSTC), byte(a.Value[1]))
	case id == FMPLSTTL:
		b = append(appendNX(b, nxSetMPLSTTL), byte(a.Value[1]))
	case kind == 0:
		b = appendLoad(b, WholeField(id), a.Value[1])
	case id == FEthSrc || id == FEthDst:
		b = appendZeros(AppendValue(appendHeader(b, kind), a.Value, 6), 6)
	case id == FIPSrc || id == FIPDst:
		b = AppendValue(appendHeader(b, kind), a.Value, 4)
	case id == FNwTOS:
		b = append(appendHeader(b, kind), byte(a.Value[1]))
	case id == FIPDSCP:
		b = append(appendHeader(b, kind), byte(a.Value[1]<<2))
	default:
		b = AppendValue(appendHeader(b, kind), a.Value, 2)
	}
	return endAction(b, start)
}

// modVLAN appends mod_vlan_vid or mod_vlan_pcp. Only OpenFlow 1.0 has these actions. Later versions get a
// set_field, with a push_vlan before it if the frame may be untagged.
func (e *actionEncoder) modVLAN(b []byte, a *Action) []byte {
	start := len(b)
	if e.v == Version10 {
		if a.Kind == ActModVLANVID {
			return endAction(be.AppendUint16(appendHeader(b, wire10SetVLANVID), uint16(a.Value[1])), start)
		}
		return endAction(append(appendHeader(b, wire10SetVLANPCP), byte(a.Value[1])), start)
	}
	if !e.tagged {
		b = endAction(be.AppendUint16(appendHeader(b, wirePushVLAN), packet.EtherTypeVLAN), start)
		start, e.tagged = len(b), true
	}
	id := FVLANVID
	if a.Kind == ActModVLANPCP {
		id = FVLANPCP
	}
	return endAction(e.setWhole(b, id, a.Value), start)
}
