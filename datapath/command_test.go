// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"encoding/binary"
	"testing"

	"weft/flowtable"
	"weft/packet"
	"weft/port/porttest"
)

// Whatever commands the worker gets, it continues to run, loses no held slot and counts every frame.
func FuzzCommands(f *testing.F) {
	key, mask := flowtable.Key{}, flowtable.Key{}
	for _, msg := range [][]byte{
		AppendCommand(nil, CmdRetry, 1, nil),
		AppendExecute(nil, 0, []flowtable.Action{toTunnel(1), output(2), {Op: 200}, {Op: flowtable.OpDrop, U32: 999}}),
		AppendInstall(nil, 0, &key, &mask, []flowtable.Action{output(2), {Op: flowtable.OpSetIPv6Src}}),
		AppendDropHeld(nil, 2, packet.DropLoop),
		AppendInject(nil, 1, []flowtable.Action{output(2)}, ethernet(0xa, 60, 0)),
	} {
		f.Add(msg, AppendCommand(nil, CmdRetry, 0, nil))
	}
	f.Fuzz(func(t *testing.T, first, second []byte) {
		sizes := testSizes
		sizes.Held = 8
		r := newRig(t, sizes)
		r.addPort(1, porttest.Options{}, false)
		r.addPort(2, porttest.Options{}, false)
		for i := range uint32(4) {
			r.inject(1, ethernet(0xa, 300, i))
		}
		r.turn()
		for _, msg := range [][]byte{first, second, first} {
			if len(msg) < 100_000 {
				r.command(msg)
			}
			r.inject(1, ethernet(0xa, 60, 9))
			r.turn()
		}
		r.command(AppendCommand(nil, CmdHold, 0, nil))
		r.turn()
		waiting := 0
		for i := range r.sh.Held {
			if r.sh.Held[i].State == HeldWaiting {
				waiting++
			}
		}
		if waiting != r.w.held.count || waiting+len(r.w.held.free) != sizes.Held {
			t.Fatalf("held slots: %d waiting, %d counted, %d free", waiting, r.w.held.count, len(r.w.held.free))
		}
		if r.w.batch.N != 0 || r.rx(1).Lent() != 0 {
			t.Fatal("the batch is not empty after the pass")
		}
		if total := r.total() + uint64(waiting); total < 7 {
			t.Fatalf("%d frames accounted for", total)
		}
	})
}

// After CmdHold 1 a worker receives no frames. After CmdHold 0 it receives all of
// them.
func TestHold(t *testing.T) {
	r := newRig(t, testSizes)
	r.addPort(1, porttest.Options{}, false)
	r.command(AppendCommand(nil, CmdHold, 1, nil))
	r.inject(1, ethernet(0xa, 300, 1))
	r.turn()
	if n := r.sh.Ports[1].RxPackets; n != 0 {
		t.Fatalf("%d frames received on hold, want 0", n)
	}
	r.command(AppendCommand(nil, CmdHold, 0, nil))
	r.turn()
	if n := r.sh.Ports[1].RxPackets; n != 1 {
		t.Fatalf("%d frames received after the hold, want all", n)
	}
}

// If the last record of an action list is truncated, the record is ignored.
func TestReadActions(t *testing.T) {
	list := []flowtable.Action{output(7), {Op: flowtable.OpPushVLAN, U16: 0x8100, U32: 5, U64: 1 << 60}}
	body := appendActions(nil, list)
	if len(body) != len(list)*actionBytes || binary.LittleEndian.Uint32(body[4:]) != 7 {
		t.Fatalf("% x", body)
	}
	var room [4]flowtable.Action
	got := readActions(body[:len(body)-1], room[:0])
	if len(got) != 1 || got[0] != list[0] {
		t.Fatalf("%+v", got)
	}
	if got = readActions(body, room[:0]); len(got) != 2 || got[1] != list[1] {
		t.Fatalf("%+v", got)
	}
	if n := testing.AllocsPerRun(100, func() { readActions(body, room[:0]) }); n != 0 {
		t.Fatalf("%v allocations, want 0", n)
	}
}
