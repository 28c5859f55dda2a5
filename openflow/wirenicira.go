// SPDX-License-Identifier: Apache-2.0

package openflow

import "fmt"

// nxSizes has the minimum size in bytes of the body of Nicira's actions. The body
// begins after the subtype.
var nxSizes = map[uint16]int{
	nxResubmit: 6, nxSetTunnel: 6, nxRegMove: 14, nxRegLoad: 14, nxNote: 6, nxSetTunnel64: 14, nxResubmitTable: 6, nxResubmitCT: 6, nxOutputReg: 14,
	nxLearn: 22, nxDecTTL: 6, nxFinTimeout: 6, nxController: 6, nxDecTTLIDs: 6, nxWriteMetadata: 22, nxOutputReg2: 14, nxRegLoad2: 6,
	nxCT: 14, nxController2: 6, nxClone: 6, nxCTClear: 6, nxLearn2: 30, nxConjunction: 6,
	nxOutputTrunc: 6, nxDeleteField: 14, nxGroup: 6, nxSample: 14, nxSample2: 22, nxSample3: 22,
	nxStackPush: 14, nxStackPop: 14, nxExit: 6, nxMultipath: 22, nxBundle: 22, nxBundleLoad: 22,
	nxPushMPLS: 6, nxPopMPLS: 6, nxSetMPLSTTL: 6, nxDecMPLSTTL: 6, nxSetMPLSLabel: 6, nxSetMPLSTC: 6,
	nxCheckLarger: 14, nxEncap: 6, nxDecap: 6, nxSetQueue: 6, nxPopQueue: 6,
}

// extension decodes one of Nicira's actions. The argument b has the bytes of the action
// after the subtype.
func (d *actionDecoder) extension(subtype uint16, b []byte) (Action, error) {
	size, known := nxSizes[subtype]
	switch {
	case !known || subtype == nxGroup && d.v != Version10:
		return Action{}, coded(ErrActionBadExpType, fmt.Sprintf("Nicira's action %d: expected one that weft supports", subtype))
	case len(b) < size:
		return Action{}, errActionLen
	}
	switch subtype {
	case nxResubmit, nxResubmitTable, nxResubmitCT:
		return d.decodeResubmit(subtype, b)
	case nxSetTunnel:
		return Action{Kind: ActSetTunnel, Value: Value64(uint64(be.Uint32(b[2:])))}, nil
	case nxGroup:
		return Action{Kind: ActGroup, Value: Value64(uint64(be.Uint32(b[2:])))}, nil
	case nxSetTunnel64:
		return Action{Kind: ActSetTunnel, Value: Value64(be.Uint64(b[6:])), Wide: true}, nil
	case nxRegMove:
		return d.move(b, b[6:])
	case nxRegLoad:
		return d.load(b)
	case nxRegLoad2:
		e, rest, ok := readEntry(b)
		if !ok || len(rest) >= 8 {
			return Action{}, errActionLen
		}
		return d.setField(&e)
	case nxDeleteField:
		return d.deleteField(b)
	case nxNote:
		return Action{Kind: ActNote, Text: string(b)}, nil
	case nxOutputReg, nxOutputReg2:
		return d.outputReg(subtype, b)
	case nxDecTTL, nxDecTTLIDs:
		d.check.lenient("dec_ttl", NeedIP)
		return Action{Kind: ActDecTTL}, nil
	case nxPushMPLS, nxPopMPLS, nxSetMPLSTTL, nxDecMPLSTTL, nxSetMPLSLabel, nxSetMPLSTC:
		return d.niciraShim(subtype, b)
	case nxFinTimeout:
		d.check.lenient("fin_timeout", NeedTCP)
		return FinTimeout(be.Uint16(b), be.Uint16(b[2:])), nil
	case nxController:
		c := &Controller{MaxLen: be.Uint16(b), ID: be.Uint16(b[2:])}
		return c.withReason(b[4])
	case nxController2:
		return decodeController2(b[6:])
	case nxWriteMetadata:
		v, mask := be.Uint64(b[6:]), be.Uint64(b[14:])
		return Action{Kind: ActWriteMetadata, Value: Value64(v & mask), Mask: Value64(mask)}, nil
	case nxSetQueue:
		return Action{Kind: ActSetQueue, Value: Value64(uint64(be.Uint32(b[2:])))}, nil
	case nxPopQueue:
		return Action{Kind: ActPopQueue}, nil
	case nxEncap, nxDecap:
		return d.decodeEncap(subtype, b)
	case nxCheckLarger:
		return d.checkLarger(b)
	case nxOutputTrunc:
		return decodeTruncation(b)
	case nxStackPush, nxStackPop:
		return d.decodeStack(subtype, b)
	case nxSample, nxSample2, nxSample3:
		return decodeSample(subtype, b)
	case nxExit:
		return Action{Kind: ActExit}, nil
	case nxMultipath:
		return d.decodeMultipath(b)
	case nxBundle, nxBundleLoad:
		return d.decodeBundle(subtype, b)
	case nxCTClear:
		return Action{Kind: ActCTClear}, nil
	case nxCT:
		if d.depth >= MaxActionDepth {
			return Action{}, coded(ErrActionTooMany, "ct: too many actions within each other")
		}
		return d.decodeCT(b)
	case nxClone:
		return d.clone(b[6:])
	case nxConjunction:
		c := Conjunction{ID: be.Uint32(b[2:]), Part: b[0] + 1, Parts: b[1]}
		if err := c.check(); err != nil {
			return Action{}, Errorf(ErrActionBadConjunction, "conjunction: %v", err)
		}
		return c.action(), nil
	}
	return d.decodeLearn(subtype, b)
}

func (d *actionDecoder) decodeResubmit(subtype uint16, b []byte) (Action, error) {
	a := Action{Kind: ActResubmit, Port: uint32(be.Uint16(b)), Table: TableAll, Tuple: subtype == nxResubmitCT}
	if subtype != nxResubmit {
		a.Table = b[2]
	}
	if a.Port == PortInPort && a.Table == TableAll {
		return a, coded(ErrActionBadArgument, "resubmit: expected a port or a table")
	}
	if a.Tuple && d.check.checked && !ctMet(&d.check.match) {
		return a, coded(ErrActionMatchInconsistent, "resubmit with ct: expected a flow that matches a valid ct_state such as +trk-inv or +est")
	}
	return a, nil
}

func (d *actionDecoder) load(b []byte) (Action, error) {
	dst, rest, err := readSubfield(b[2:], be.Uint16(b), d.tlvs)
	if err != nil {
		return Action{}, err
	}
	if len(rest) < 8 {
		return Action{}, errActionLen
	}
	v := Value64(be.Uint64(rest))
	if v.BitLen() > int(dst.Bits) {
		return Action{}, coded(ErrActionBadArgument, fmt.Sprintf("load: expected a number of at most %d bits", dst.Bits))
	}
	if err := d.settable(dst); err != nil {
		return Action{}, err
	}
	d.check.assume(dst, v, Ones(uint(dst.Bits)))
	return Action{Kind: ActLoad, Dst: dst, Value: v}, nil
}

func (d *actionDecoder) outputReg(subtype uint16, b []byte) (Action, error) {
	header := b[2:6]
	if subtype == nxOutputReg2 {
		header = b[4:]
	}
	src, _, err := readSubfield(header, be.Uint16(b), d.tlvs)
	if err != nil {
		return Action{}, err
	}
	if err := d.codeOf(src, d.check.readable("output", src)); err != nil {
		return Action{}, err
	}
	return Action{Kind: ActOutputReg, Src: src}, nil
}

func (c *Controller) withReason(code uint8) (Action, error) {
	if int(code) >= len(controllerReasonCodes) {
		return Action{}, coded(ErrActionBadArgument, fmt.Sprintf("controller: reason %d: expected one below %d", code, len(controllerReasonCodes)))
	}
	if r := controllerReasonCodes[code]; r != "action" {
		c.Reason = r
	}
	return Action{Kind: ActController, Controller: c}, nil
}

func decodeController2(b []byte) (Action, error) {
	c, reason := &Controller{MaxLen: WholeFrame}, uint8(1)
	for len(b) > 0 {
		kind, body, rest, err := CutProperty(b)
		if err != nil {
			return Action{}, err
		}
		b = rest
		switch {
		case kind == 0 && len(body) >= 2: // 16 bits with padding
			c.MaxLen = be.Uint16(body)
		case kind == controllerID && len(body) >= 2:
			c.ID = be.Uint16(body)
		case kind == controllerReason && len(body) >= 1:
			reason = body[0]
		case kind == controllerData:
			c.Userdata = string(body)
		case kind == controllerPause && len(body) == 0:
			c.Pause = true
		case kind == controllerMeter && len(body) == 4:
			if c.Meter = be.Uint32(body); c.Meter != 0 && !isMeter(c.Meter) {
				return Action{}, Errorf(ErrMeterInvalid, "controller: meter %d: expected a number from 1 to %d", c.Meter, uint32(MaxMeter))
			}
		case kind <= controllerMeter:
			return Action{}, coded(ErrPropBadLen, "controller: a property with a wrong length")
		default:
			return Action{}, coded(ErrPropBadType, fmt.Sprintf("controller: property %d: expected one that weft supports", kind))
		}
	}
	return c.withReason(reason)
}

// CutProperty cuts a property off b. A property has a type (16 bits), a length (16
// bits), and a body. Padding to 8 bytes follows, which the length does not count.
func CutProperty(b []byte) (kind uint16, body, rest []byte, err error) {
	if len(b) < 4 {
		return 0, nil, nil, coded(ErrPropBadLen, "a property ends within its header")
	}
	n := int(be.Uint16(b[2:]))
	if n < 4 || n > len(b) {
		return 0, nil, nil, coded(ErrPropBadLen, "a property has a wrong length")
	}
	return be.Uint16(b), b[4:n], b[min((n+7)&^7, len(b)):], nil
}

func (d *actionDecoder) clone(b []byte) (Action, error) {
	if d.depth >= MaxActionDepth {
		return Action{}, coded(ErrActionTooMany, fmt.Sprintf("clone: expected at most %d within each other", MaxActionDepth))
	}
	inner := *d
	inner.depth++
	inner.check.nested, inner.check.rank = true, 0
	sub, err := inner.list(b)
	d.check.loose, d.check.looseNeeds = inner.check.loose, inner.check.looseNeeds
	return Action{Kind: ActClone, Sub: sub}, err
}
