// SPDX-License-Identifier: Apache-2.0

package openflow

import "fmt"

// instructionOrder lists the types of instructions in the order in which a switch executes them.
// DecodeInstructions returns the actions in this order, whatever the order in the message.
var instructionOrder = []uint16{instructionMeter, instructionApply, instructionClear, instructionWrite, instructionMetadata, instructionGoto}

// instructionSizes has the size in bytes of each type of instruction. 0 means that the size varies.
var instructionSizes = map[uint16]int{instructionGoto: 8, instructionMetadata: 24, instructionWrite: 0, instructionApply: 0,
	instructionClear: 8, instructionMeter: 8}

// DecodeInstructions decodes the instructions of a flow in OpenFlow 1.3 and later to one list of actions.
// Errors are *CodedError.
func DecodeInstructions(b []byte, c ActionContext) ([]Action, error) {
	var found [instructionMeter + 1][]byte
	for len(b) > 0 {
		one, rest, err := cutAction(b)
		if err != nil {
			return nil, coded(ErrInstructionBadLen, "an instruction has a wrong length")
		}
		b = rest
		kind := be.Uint16(one)
		size, known := instructionSizes[kind]
		switch {
		case !known:
			return nil, coded(ErrUnknownInstruction, fmt.Sprintf("instruction %d: expected one that weft supports", kind))
		case size != 0 && len(one) != size:
			return nil, coded(ErrInstructionBadLen, fmt.Sprintf("instruction %d: expected %d bytes", kind, size))
		case found[kind] != nil:
			return nil, coded(ErrDupInstruction, fmt.Sprintf("instruction %d: expected it once", kind))
		}
		found[kind] = one
	}
	d := newDecoder(&c)
	var list []Action
	for _, kind := range instructionOrder {
		if found[kind] == nil {
			continue
		}
		more, err := d.instruction(kind, found[kind])
		if err != nil {
			return nil, err
		}
		if list == nil {
			list = more
		} else {
			list = append(list, more...)
		}
	}
	return list, d.consistent(list)
}

func (d *actionDecoder) instruction(kind uint16, body []byte) ([]Action, error) {
	var a Action
	var err error
	switch kind {
	case instructionApply:
		return d.list(body[8:])
	case instructionMeter:
		a, err = d.meter(be.Uint32(body[4:]))
	case instructionClear:
		a = Action{Kind: ActClearActions}
	case instructionWrite:
		inner := *d
		inner.check.nested, inner.check.inSet, inner.check.rank, inner.check.last = true, true, 0, ""
		a = Action{Kind: ActWriteActions}
		a.Sub, err = inner.list(body[8:])
	case instructionMetadata:
		v, mask := be.Uint64(body[8:]), be.Uint64(body[16:])
		a = Action{Kind: ActWriteMetadata, Value: Value64(v & mask), Mask: Value64(mask)}
	case instructionGoto:
		a = Action{Kind: ActGotoTable, Table: body[4]}
		if a.Table >= Tables || d.check.table != TableAll && a.Table <= d.check.table {
			err = coded(ErrInstructionBadTableID, fmt.Sprintf("goto_table: %d: expected a table behind the flow's own", a.Table))
		}
	}
	if err != nil {
		return nil, err
	}
	return []Action{a}, nil
}
