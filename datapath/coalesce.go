// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"math/bits"

	"weft/flowtable"
	"weft/packet"
)

// coalesce merges TCP and UDP segments that came through a tunnel into large frames (GRO). The segments are
// live frames (not dropped) of the same megaflow, from index "first" to end-1. coalesce merges only if all
// outputs of the megaflow's actions take large frames. It runs after the look-up, which finds the outputs,
// and after the megaflow has counted every segment. It runs before the actions, so that they are executed
// once for a large frame.
func (w *Worker) coalesce(first, end int, actions []flowtable.Action) {
	takes := w.commonOffloads(actions)
	if takes&(packet.TakesTCPv4|packet.TakesTCPv6|packet.TakesUDP) == 0 {
		return
	}
	c, b := &w.coalescer, &w.batch
	c.Begin(takes)
	for i := first; i < end; i++ {
		if w.live>>i&1 != 0 && c.Add(b, i, w.origin(i)) {
			w.live &^= 1 << i
		}
	}
	c.Finish(b)
	for i := first; i < end; i++ {
		if w.live>>i&1 != 0 && b.Frames[i].Undone() {
			w.undone |= 1 << i
		}
	}
}

// commonOffloads returns the offloads that all output ports of an action list support. It returns 0 if the
// list has no output, or has actions whose outputs it does not know.
func (w *Worker) commonOffloads(actions []flowtable.Action) packet.Offloads {
	takes, outputs := packet.TakesAll, 0
	for at := range actions {
		switch a := &actions[at]; a.Op {
		case flowtable.OpOutput:
			if a.U32 >= uint32(len(w.ports)) || w.ports[a.U32].tx == nil {
				return 0
			}
			takes &= w.ports[a.U32].offloads
			outputs++
		case flowtable.OpTunnel, flowtable.OpDrop, flowtable.OpRecirc:
			return 0
		}
	}
	if outputs == 0 {
		return 0
	}
	return takes
}

// origin returns a hash of the tunnel through which frame i came. A megaflow may ignore
// the tunnel. Without this hash, segments with equal headers from two tunnels would be
// merged into one frame.
func (w *Worker) origin(i int) uint64 {
	words := &w.words[i]
	return words[0] ^ bits.RotateLeft64(words[1], 24) ^ bits.RotateLeft64(words[2], 1) ^
		bits.RotateLeft64(words[3], 2) ^ bits.RotateLeft64(words[4], 3) ^ bits.RotateLeft64(words[5], 4) ^
		words[6] ^ bits.RotateLeft64(words[7], 5)
}
