// SPDX-License-Identifier: Apache-2.0

package xlate

import (
	"weft/openflow"
	"weft/packet"
)

// The actions push, pop and exit (ovs-actions(7), "The push and pop actions").

const (
	// maxStackBytes limits the stack of one translation, as in Open vSwitch. A push beyond it ends
	// the translation as DropLoop. A value of n bits counts as (n+7)/8+1 bytes.
	maxStackBytes = 1 << 16
	// maxFrozenStack limits the stack that is stored for the translation of a second look-up, in bytes. A
	// larger stack ends the translation as DropLoop. Without this limit, a sender could fill the memory
	// with stored states (MaxFrozen) of different stacks.
	maxFrozenStack = 1 << 10
)

// stacked is a value that the action push has put on the stack.
type stacked struct {
	v    openflow.Value128
	bits uint8
	// size is the size in bytes of the stack up to this value, counted as for maxStackBytes.
	size uint32
}

func (x *xlate) stackBytes() uint32 {
	if len(x.stack) == 0 {
		return 0
	}
	return x.stack[len(x.stack)-1].size
}

// push pushes a sub-field, or 0 if the frame does not have the field.
func (x *xlate) push(src openflow.Subfield) {
	s := stacked{bits: uint8(src.Bits), size: x.stackBytes() + (uint32(src.Bits)+7)/8 + 1}
	if s.size > maxStackBytes {
		x.halt(packet.DropLoop)
		return
	}
	if x.hasField(src.Field) {
		s.v = x.read(src)
	}
	x.stack = append(x.stack, s)
}

// pop moves the topmost value of the stack to a sub-field. A narrower value is extended
// with zeros, a wider one loses its high bits. Nothing happens if the stack is empty.
func (x *xlate) pop(dst openflow.Subfield) {
	if len(x.stack) == 0 {
		x.note("the stack is empty: nothing is popped")
		return
	}
	top := x.stack[len(x.stack)-1]
	x.stack = x.stack[:len(x.stack)-1]
	x.set(dst, top.v.And(dst.Ones()), dst.Ones())
}

// freezeStack returns the stack for a Frozen. It ends the translation if the stack is
// larger than maxFrozenStack.
func (x *xlate) freezeStack() string {
	if len(x.stack) == 0 {
		return ""
	}
	if x.stackBytes() > maxFrozenStack {
		x.halt(packet.DropLoop)
		return ""
	}
	var b []byte
	for _, s := range x.stack {
		b = append(b, s.bits)
		b = openflow.AppendValue(b, s.v, (s.bits+7)/8)
	}
	return string(b)
}

// thawStack returns the stack that freezeStack has encoded. It returns false if the text is no
// encoded stack.
func thawStack(text string) (stack []stacked, ok bool) {
	size := uint32(0)
	for b := []byte(text); len(b) > 0; {
		bits, n := b[0], (int(b[0])+7)/8
		if bits == 0 || bits > 128 || len(b) < 1+n {
			return nil, false
		}
		size += uint32(n) + 1
		stack = append(stack, stacked{openflow.ValueOf(b[1 : 1+n]), bits, size})
		b = b[1+n:]
	}
	return stack, true
}
