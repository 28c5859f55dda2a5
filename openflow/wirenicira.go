// SPDX-License-Identifier: Apache-2.0

package openflow

import "fmt"

// extension decodes one of Nicira's actions. b begins behind the subtype.
func (d *actionDecoder) extension(subtype uint16, b []byte) (Action, error) {
	row, known := niciraRows[subtype]
	switch {
	case !known || subtype == nxGroup && d.v != Version10:
		return Action{}, coded(ErrActionBadExpType, fmt.Sprintf("Nicira's action %d: expected one that weft supports", subtype))
	case len(b) < row.size:
		return Action{}, errActionLen
	}
	return row.decode(d, subtype, b)
}

func decodeSetTunnel(_ *actionDecoder, subtype uint16, b []byte) (Action, error) {
	if subtype == nxSetTunnel64 {
		return Action{Kind: ActSetTunnel, Value: Value64(be.Uint64(b[6:])), Wide: true}, nil
	}
	return Action{Kind: ActSetTunnel, Value: Value64(uint64(be.Uint32(b[2:])))}, nil
}

func (d *actionDecoder) regLoad2(_ uint16, b []byte) (Action, error) {
	e, rest, ok := readEntry(b)
	if !ok || len(rest) >= 8 {
		return Action{}, errActionLen
	}
	return d.setField(&e)
}

func decodeMetadata(_ *actionDecoder, _ uint16, b []byte) (Action, error) {
	v, mask := be.Uint64(b[6:]), be.Uint64(b[14:])
	return Action{Kind: ActWriteMetadata, Value: Value64(v & mask), Mask: Value64(mask)}, nil
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

func (d *actionDecoder) load(_ uint16, b []byte) (Action, error) {
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

func decodeController(_ *actionDecoder, _ uint16, b []byte) (Action, error) {
	c := &Controller{MaxLen: be.Uint16(b), ID: be.Uint16(b[2:])}
	return c.withReason(b[4])
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

// CutProperty cuts the first property off b, and the padding to a multiple of 8 bytes that follows it. A
// property has a type (16 bits), a length in bytes (16 bits) and a body. The length does not count the
// padding. Errors are *CodedError.
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
	if d.depth >= maxActionDepth {
		return Action{}, coded(ErrActionTooMany, fmt.Sprintf("clone: expected at most %d within each other", maxActionDepth))
	}
	inner := *d
	inner.depth++
	inner.check.nested, inner.check.rank = true, 0
	sub, err := inner.list(b)
	d.check.loose, d.check.looseNeeds = inner.check.loose, inner.check.looseNeeds
	return Action{Kind: ActClone, Sub: sub}, err
}
