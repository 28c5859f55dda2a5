// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"bytes"
	"testing"

	"weft/flowtable"
	"weft/packet"
)

// An injected frame is sent whole, and leaves no held slot in use.
func TestInject(t *testing.T) {
	r := twoPorts(t)
	frames := [][]byte{ethernet(0xa, 60, 0), ethernet(0xa, packet.MaxFrameLen, 1)}
	for _, f := range frames {
		r.command(AppendInject(nil, 1, []flowtable.Action{output(2), {Op: flowtable.OpSetEthSrc, U64: 9}, output(2)}, f))
	}
	r.command(AppendInject(nil, 0, []flowtable.Action{output(1)}, frames[0]))
	r.turn()
	got := r.tx(2).TakeAll()
	if len(got) != 4 || !bytes.Equal(got[0], frames[0]) || !bytes.Equal(got[2], frames[1]) || got[1][11] != 9 || got[3][11] != 9 {
		t.Fatalf("%d frames sent", len(got))
	}
	if got := r.tx(1).TakeAll(); len(got) != 1 || !bytes.Equal(got[0], frames[0]) {
		t.Fatalf("%d frames of no port sent", len(got))
	}
	r.equal("received", r.sh.Ports[1].RxPackets, 0)
	r.equal("free slots", uint64(len(r.w.held.free)), uint64(testSizes.Held))
	r.drops(nil)

	// Invalid commands are refused. An injected frame that finds no free held slot
	// counts as dropped.
	short := AppendInject(nil, 1, []flowtable.Action{output(2)}, nil)
	r.command(short[:len(short)-1])
	r.command(AppendInject(nil, 5000, nil, frames[0]))
	r.command(AppendInject(nil, 1, nil, make([]byte, HeldBytes+1)))
	r.turn()
	r.equal("refused", r.sh.Counters.CommandsRefused, 3)
	free := r.w.held.free
	r.w.held.free = nil
	r.command(AppendInject(nil, 1, []flowtable.Action{output(2)}, frames[0]))
	r.turn()
	r.w.held.free = free
	r.drops(map[packet.DropReason]uint64{packet.DropHeldFull: 1})
}
