// SPDX-License-Identifier: Apache-2.0

package openflow

import (
	"fmt"

	"weft/flowtable"
	"weft/packet"
)

// ActionContext says what a list of actions belongs to, because this decides which actions are valid.
type ActionContext struct {
	Version Version
	Match   *Match // the flow's match; nil: the match is unknown, and prerequisites are not checked
	Table   uint8  // the flow's table; TableAll: unknown
	Bucket  bool   // the list is a group's bucket
	TLVs    *TLVMap
	// PacketOut is true if the actions are those of a packet-out. Only these may output to TABLE.
	PacketOut bool
}

// actionDecoder decodes one list of actions. A nested list gets a copy of the decoder, which shares the
// counter of actions.
type actionDecoder struct {
	v     Version
	tlvs  *TLVMap
	check actionChecker
	depth int
	count *int // number of actions so far, nested lists included
}

var errActionLen = coded(ErrActionBadLen, "an action has a wrong length")

func newDecoder(c *ActionContext) *actionDecoder {
	d := &actionDecoder{v: c.Version, tlvs: c.TLVs, count: new(int)}
	d.check = actionChecker{table: c.Table, nested: c.Bucket, toTables: c.PacketOut}
	if c.Match != nil {
		d.check.checked, d.check.match = true, *c.Match
	}
	return d
}

// DecodeActions decodes a list of actions: those of a flow in OpenFlow 1.0, of a bucket or of a packet-out.
// Flows of later versions have instructions (DecodeInstructions). Errors are *CodedError.
func DecodeActions(b []byte, c ActionContext) ([]Action, error) {
	d := newDecoder(&c)
	list, err := d.list(b)
	if err == nil {
		err = d.consistent(list)
	}
	return list, err
}

// consistent checks two rules for the complete list, and returns an error if one is broken. Only OpenFlow
// 1.0 allows actions on fields that the flow's match does not guarantee. Beside conjunction, only a note is
// allowed.
func (d *actionDecoder) consistent(list []Action) error {
	if other := checkConjunctions(list); other != "" {
		return coded(ErrActionBadConjunction, other+": expected no action but note beside conjunction")
	}
	if d.check.loose != "" && d.v != Version10 {
		return d.inconsistent(d.check.loose)
	}
	return nil
}

func (d *actionDecoder) inconsistent(action string) error {
	return coded(ErrActionMatchInconsistent, action+": expected a flow whose match has what the action needs")
}

func (d *actionDecoder) list(b []byte) ([]Action, error) {
	if len(b) == 0 {
		return nil, nil
	}
	list := make([]Action, 0, min(len(b)/8, 8))
	for len(b) > 0 {
		one, rest, err := cutAction(b)
		if err != nil {
			return nil, err
		}
		b = rest
		a, err := d.decodeAction(one)
		if err != nil {
			return nil, err
		}
		if *d.count++; *d.count > maxListed {
			return nil, coded(ErrActionTooMany, fmt.Sprintf("expected at most %d actions", maxListed))
		}
		name := actionName(a.Kind)
		if err := d.check.order(name, name, a.Kind); err != nil {
			if d.check.inSet {
				return nil, coded(ErrActionBadType, err.Error())
			}
			return nil, coded(ErrActionUnsupportedOrder, err.Error())
		}
		list = append(list, a)
	}
	return list, nil
}

// actionName returns the name of an action for actionChecker.order and for its errors. It is the name of the
// instruction, or "action" if the action is no instruction.
func actionName(k ActionKind) string {
	switch k {
	case ActGotoTable:
		return "goto_table"
	case ActWriteMetadata:
		return "write_metadata"
	case ActMeter:
		return "meter"
	}
	return "action"
}

// cutAction cuts the first action or instruction, with its header, off b. It returns an error if the length
// in the header is not a multiple of 8 within b.
func cutAction(b []byte) (action, rest []byte, err error) {
	if len(b) < 8 {
		return nil, nil, errActionLen
	}
	n := int(be.Uint16(b[2:]))
	if n < 8 || n%8 != 0 || n > len(b) {
		return nil, nil, errActionLen
	}
	return b[:n], b[n:], nil
}

// nxBody returns the subtype of one of Nicira's actions, and the bytes behind the subtype. ok is false if
// the action is not one of Nicira's.
func nxBody(a []byte) (body []byte, subtype uint16, ok bool) {
	if be.Uint16(a) != wireExperimenter || len(a) < 16 || be.Uint32(a[4:]) != NiciraVendor {
		return nil, 0, false
	}
	return a[nxHeader:], be.Uint16(a[8:]), true
}

func (d *actionDecoder) decodeAction(a []byte) (Action, error) {
	kind := be.Uint16(a)
	switch {
	case kind == wireExperimenter && be.Uint32(a[4:]) != NiciraVendor:
		return Action{}, coded(ErrActionBadExperimenter, fmt.Sprintf("action of experimenter %#x: expected Nicira's", be.Uint32(a[4:])))
	case kind == wireExperimenter:
		body, subtype, ok := nxBody(a)
		if !ok {
			return Action{}, errActionLen
		}
		return d.extension(subtype, body)
	case kind == wireOutput:
		return d.output(a)
	case d.v == Version10:
		return d.one10(kind, a)
	}
	return d.standard(kind, a)
}

func (d *actionDecoder) output(a []byte) (Action, error) {
	var no uint32
	var maxLen uint16
	switch {
	case d.v == Version10 && len(a) == 8:
		no, maxLen = uint32(be.Uint16(a[4:])), be.Uint16(a[6:])
	case d.v != Version10 && len(a) == 16:
		var ok bool
		if no, ok = PortFromWire(be.Uint32(a[4:])); !ok {
			return Action{}, coded(ErrActionBadOutPort, fmt.Sprintf("output: %d: expected a port number below %d", be.Uint32(a[4:]), PortMax))
		}
		maxLen = be.Uint16(a[8:])
	default:
		return Action{}, errActionLen
	}
	if no == PortController {
		return Action{Kind: ActController, Controller: &Controller{MaxLen: maxLen}}, nil
	}
	out, err := d.check.outputTo(no, "output")
	if err != nil {
		return out, coded(ErrActionBadOutPort, err.Error())
	}
	out.Value = Value64(uint64(maxLen))
	return out, nil
}

// one10 decodes a standard action of OpenFlow 1.0. "kind" is its type. The caller has handled output.
func (d *actionDecoder) one10(kind uint16, a []byte) (Action, error) {
	size := 8
	if kind == wire10Enqueue {
		return decodeEnqueue(a)
	}
	if kind == wire10SetDLSrc || kind == wire10SetDLDst {
		size = 16
	}
	if len(a) != size {
		return Action{}, errActionLen
	}
	mod := func(id FieldID, v uint64, prerequisite Prereq) (Action, error) {
		d.check.lenient("mod_"+fields[id].name, prerequisite)
		mask := Ones(uint(fields[id].bits))
		if id == FNwTOS {
			mask, v = Value64(tosDSCP), v&tosDSCP
		}
		return Action{Kind: ActModField, Dst: WholeField(id), Value: Value64(v), Mask: mask}, nil
	}
	switch kind {
	case wire10SetVLANVID:
		v := be.Uint16(a[4:])
		if v > flowtable.VLANID {
			return Action{}, coded(ErrActionBadArgument, "set_vlan_vid: expected a VLAN number from 0 to 4095")
		}
		d.check.assumeTag()
		return Action{Kind: ActModVLANVID, Value: Value64(uint64(v))}, nil
	case wire10SetVLANPCP:
		if a[4] > 7 {
			return Action{}, coded(ErrActionBadArgument, "set_vlan_pcp: expected a VLAN priority from 0 to 7")
		}
		d.check.assumeTag()
		return Action{Kind: ActModVLANPCP, Value: Value64(uint64(a[4]))}, nil
	case wire10StripVLAN:
		return d.check.popVLAN("strip_vlan"), nil
	case wire10SetDLSrc:
		return mod(FEthSrc, ValueOf(a[4:10])[1], NeedNothing)
	case wire10SetDLDst:
		return mod(FEthDst, ValueOf(a[4:10])[1], NeedNothing)
	case wire10SetNWSrc:
		return mod(FIPSrc, uint64(be.Uint32(a[4:])), NeedIPv4)
	case wire10SetNWDst:
		return mod(FIPDst, uint64(be.Uint32(a[4:])), NeedIPv4)
	case wire10SetNWTOS:
		return mod(FNwTOS, uint64(a[4]), NeedIP)
	case wire10SetTPSrc:
		return mod(FTCPSrc, uint64(be.Uint16(a[4:])), NeedPorts)
	case wire10SetTPDst:
		return mod(FTCPDst, uint64(be.Uint16(a[4:])), NeedPorts)
	}
	return Action{}, coded(ErrActionBadType, fmt.Sprintf("action of type %d: expected one that weft supports", kind))
}

// standard decodes a standard action of OpenFlow 1.3 and later. "kind" is its type. The caller has handled
// output.
func (d *actionDecoder) standard(kind uint16, a []byte) (Action, error) {
	if kind != wireSetField && kind != wireCopyField && len(a) != 8 {
		return Action{}, errActionLen
	}
	if action, ok, err := d.decodeShim(kind, a[4:8]); ok {
		return action, err
	}
	switch kind {
	case wirePushVLAN:
		v := uint64(be.Uint16(a[4:]))
		if v != packet.EtherTypeVLAN && v != packet.EtherTypeSVLAN {
			return Action{}, coded(ErrActionBadArgument, "push_vlan: expected 0x8100 or 0x88a8")
		}
		return d.check.pushVLAN(v), nil
	case wirePopVLAN:
		return d.check.popVLAN("pop_vlan"), nil
	case wireSetQueue:
		return Action{Kind: ActSetQueue, Value: Value64(uint64(be.Uint32(a[4:])))}, nil
	case wireGroup:
		return Action{Kind: ActGroup, Value: Value64(uint64(be.Uint32(a[4:])))}, nil
	case wireSetNWTTL:
		d.check.lenient("set_nw_ttl", NeedIP)
		return Action{Kind: ActModField, Dst: WholeField(FIPTTL), Value: Value64(uint64(a[4])), Mask: Ones(8)}, nil
	case wireDecNWTTL:
		d.check.lenient("dec_ttl", NeedIP)
		return Action{Kind: ActDecTTL}, nil
	case wireSetField:
		e, rest, ok := readEntry(a[4:])
		if !ok || len(rest) >= 8 {
			return Action{}, errActionLen
		}
		if e.masked && d.v < Version15 {
			return Action{}, coded(ErrActionBadSetMask, "set_field: expected no mask before OpenFlow 1.5")
		}
		return d.setField(&e)
	case wireCopyField:
		if d.v >= Version15 && len(a) > 12 {
			return d.move(a[4:10], a[12:])
		}
	case wireMeter:
		if d.v >= Version15 {
			return d.meter(be.Uint32(a[4:]))
		}
	}
	return Action{}, coded(ErrActionBadType, fmt.Sprintf("action of type %d: expected one that weft supports", kind))
}

func (d *actionDecoder) meter(id uint32) (Action, error) {
	if id == 0 || id > MaxMeter {
		return Action{}, coded(ErrMeterInvalid, fmt.Sprintf("meter %d: expected a number from 1 to %d", id, uint32(MaxMeter)))
	}
	return Action{Kind: ActMeter, Value: Value64(uint64(id))}, nil
}

// settable returns an error if set_field and reg_load may not write the sub-field.
func (d *actionDecoder) settable(dst Subfield) error {
	return d.codeOf(dst, d.check.settable("set_field", dst))
}

// codeOf returns an error of actionChecker with the OpenFlow error code that fits. The error is about the
// sub-field s. If err is nil, codeOf returns nil.
func (d *actionDecoder) codeOf(s Subfield, err error) error {
	f := &fields[s.Field]
	switch {
	case err == nil:
		return nil
	case d.check.lacks(f.prerequisite) && s.Field != FDLVLAN:
		return coded(ErrActionMatchInconsistent, err.Error())
	}
	return coded(ErrActionBadSetArgument, err.Error())
}

func (d *actionDecoder) setField(e *oxmEntry) (Action, error) {
	switch {
	case e.badLen:
		return Action{}, coded(ErrActionBadSetLen, "set_field: a field with a wrong length")
	case e.id == FNone:
		return Action{}, coded(ErrActionBadSetType, fmt.Sprintf("set_field: field %#04x:%d: expected a field that weft supports", e.header.class, e.header.number))
	}
	f, dst := &fields[e.id], WholeField(e.id)
	if err := d.settable(dst); err != nil {
		return Action{}, err
	}
	if e.id.IsTLV() {
		v, err := e.tlv(d.tlvs)
		return Action{Kind: ActSetField, Dst: d.tlvs.Whole(e.id), TLV: &v}, err
	}
	width := Ones(uint(f.storedBits()))
	v, mask := e.v, e.mask
	switch e.id {
	case FVLANVID:
		v, mask = v.AndNot(Value64(flowtable.VLANPresent)), mask.AndNot(Value64(flowtable.VLANPresent))
	case FNwTOS:
		width = Value64(tosDSCP)
	case FInPortOXM:
		no, ok := PortFromWire(uint32(v[1]))
		if !ok {
			return Action{}, coded(ErrActionBadSetArgument, "set_field: expected the number of a port")
		}
		v = Value64(uint64(no))
	}
	switch {
	case e.masked && !f.maskable && mask.And(width) != width:
		return Action{}, coded(ErrActionBadSetMask, "set_field: expected no mask for "+f.name)
	case !v.AndNot(width).IsZero():
		return Action{}, coded(ErrActionBadSetArgument, "set_field: a value out of range for "+f.name)
	}
	mask = mask.And(width)
	v = v.And(mask)
	d.check.assume(dst, v, mask)
	return Action{Kind: ActSetField, Dst: dst, Value: v, Mask: mask}, nil
}

// readSubfield decodes a sub-field. b begins with the header of the field. "bits" is the offset and the
// number of bits, encoded as by bitsOf. It also returns the bytes behind the header.
func readSubfield(b []byte, bits uint16, tlvs *TLVMap) (Subfield, []byte, error) {
	id, rest, err := readSubfieldHeader(b)
	if err != nil {
		return Subfield{}, nil, err
	}
	s, err := subfieldOf(id, bits>>6, bits&0x3f+1, tlvs)
	return s, rest, err
}

// subfieldOf returns the sub-field of n bits from bit "offset" on. It returns an error if the field does not
// have all of these bits.
func subfieldOf(id FieldID, offset, n uint16, tlvs *TLVMap) (Subfield, error) {
	if id.IsTLV() && tlvs.Field(id) == nil {
		return Subfield{}, coded(ErrFlowInvalidTLV, unmapped(id).Error())
	}
	if n == 0 || int(offset)+int(n) > int(tlvs.Whole(id).Bits) {
		return Subfield{}, coded(ErrActionBadSetLen, fmt.Sprintf("bits %d to %d of %s: expected bits within it", offset, int(offset)+int(n)-1, fields[id].name))
	}
	return Subfield{Field: id, Offset: offset, Bits: n}, nil
}

// move decodes the arguments of reg_move or copy_field. "numbers" has three numbers of 16 bits: the number
// of bits, the offset in the source and the offset in the destination. b begins with the headers of the two
// fields.
func (d *actionDecoder) move(numbers, b []byte) (Action, error) {
	srcID, b, err := readSubfieldHeader(b)
	if err != nil {
		return Action{}, err
	}
	dstID, b, err := readSubfieldHeader(b)
	if err != nil {
		return Action{}, err
	}
	if len(b) >= 8 {
		return Action{}, errActionLen
	}
	n := be.Uint16(numbers)
	src, err := subfieldOf(srcID, be.Uint16(numbers[2:]), n, d.tlvs)
	if err != nil {
		return Action{}, err
	}
	dst, err := subfieldOf(dstID, be.Uint16(numbers[4:]), n, d.tlvs)
	if err != nil {
		return Action{}, err
	}
	if err := d.codeOf(src, d.check.readable("move", src)); err != nil {
		return Action{}, err
	}
	if err := d.codeOf(dst, d.check.writable("move", dst)); err != nil {
		return Action{}, err
	}
	return Action{Kind: ActMove, Src: src, Dst: dst}, nil
}
