// SPDX-License-Identifier: Apache-2.0

package offload

import (
	"encoding/binary"

	"weft/flowtable"
)

// Rewrite is what the ingress program does to a frame before the output. The zero Rewrite leaves
// frames as they are. Two equal values do the same.
type Rewrite struct {
	bits     uint32 // rewrite* bits
	dst, src [6]byte
}

// Bits of Rewrite.bits.
const (
	rewriteDst = 1 << iota
	rewriteSrc
	rewriteTTL // decrement the TTL; the filter leaves frames whose TTL ends to the worker
)

// Plan returns what the programs do for the actions of a megaflow, and its output port. It returns
// false if they do not know the actions: then the megaflow stays with the worker.
func Plan(actions []flowtable.Action) (r Rewrite, out uint32, known bool) {
	for i := range actions {
		switch a := &actions[i]; a.Op {
		case flowtable.OpSetEthDst:
			r.bits |= rewriteDst
			r.dst = address(a.U64)
		case flowtable.OpSetEthSrc:
			r.bits |= rewriteSrc
			r.src = address(a.U64)
		case flowtable.OpDecTTL:
			if r.bits&rewriteTTL != 0 {
				return Rewrite{}, 0, false
			}
			r.bits |= rewriteTTL
		case flowtable.OpOutput:
			return r, a.U32, i == len(actions)-1
		default:
			return Rewrite{}, 0, false
		}
	}
	return Rewrite{}, 0, false
}

func address(mac uint64) (a [6]byte) {
	var word [8]byte
	binary.BigEndian.PutUint64(word[:], mac)
	copy(a[:], word[2:])
	return a
}
