// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"testing"

	"weft/flowtable"
	"weft/packet"
)

// A capture of ControllerPort gets the frames for the controller, at a limited rate. A frame that neither
// a capture nor an output gets is dropped as DropFlow.
func TestController(t *testing.T) {
	r := twoPorts(t)
	r.install(1, 1, 0xa, flowtable.Action{Op: flowtable.OpSetEthSrc, U64: 7}, flowtable.Action{Op: flowtable.OpController, U32: 0xffff})
	r.inject(1, ethernet(0xa, 60, 0))
	r.turn()
	r.drops(map[packet.DropReason]uint64{packet.DropFlow: 1})
	r.capture(0, Capture{Kind: CapturePort, Port: ControllerPort})
	r.turn()
	const frames = controllerBurst + 20
	for i := range frames {
		r.inject(1, ethernet(0xa, 60, uint32(i)))
		if i%packet.BatchSize == packet.BatchSize-1 || i == frames-1 {
			r.turn()
		}
	}
	got := r.captures()
	if len(got) < controllerBurst+controllerReserve || len(got) > frames {
		t.Fatalf("%d of %d frames seen, want a burst of %d", len(got), frames, controllerBurst+controllerReserve)
	}
	if r.w.captures.controllerDue < r.w.now {
		t.Error("the burst did not move controllerDue")
	}
	for i := range got {
		if no := number(got[i].Data); no != uint32(i) || got[i].Data[11] != 7 || got[i].Port != ControllerPort {
			t.Fatalf("capture %d is frame %d to port %d", i, no, got[i].Port)
		}
	}
	if sum := uint64(len(got)) + r.sh.Counters.Drops[packet.DropFlow]; sum != 1+frames {
		t.Errorf("%d frames shown or dropped, want %d", sum, 1+frames)
	}
}

// The controller still gets a few frames of a port when another port's frames use up the rate.
func TestControllerReserve(t *testing.T) {
	r := twoPorts(t)
	for port := range uint32(2) {
		r.install(port, 1+port, 0xa, flowtable.Action{Op: flowtable.OpController, U32: 0xffff})
	}
	r.capture(0, Capture{Kind: CapturePort, Port: ControllerPort})
	r.turn()
	r.w.fixed = r.w.clock()
	flood := func(frames int) {
		for range frames / packet.BatchSize {
			for range packet.BatchSize {
				r.inject(1, ethernet(0xa, 60, 0))
			}
			r.turn()
		}
	}
	flood(2 * controllerBurst)
	r.captures()
	for n := range uint32(controllerReserve + 1) {
		r.inject(2, ethernet(0xa, 60, 1+n))
	}
	r.turn()
	if got := len(r.captures()); got != controllerReserve {
		t.Errorf("%d of the second port's frames are seen, want %d", got, controllerReserve)
	}
}

// The record of a tracked frame for the controller has the original tuple of the frame's connection. This
// holds for all frames of an established connection, because such a connection is not fused.
func TestControllerOfTracked(t *testing.T) {
	r := firewall(t)
	r.capture(0, Capture{Kind: CapturePort, Port: ControllerPort})
	for slot := range uint32(6) {
		r.command(AppendCommand(nil, CmdRemove, slot, nil))
	}
	commit := flowtable.CTRequest{Zone: 5, Bits: flowtable.CTCommit}
	for port := range uint32(2) {
		r.megaflow(10+port, 1+port, 0, 0, 0, append(commit.AppendTo(nil), flowtable.Action{Op: flowtable.OpRecirc, U32: 9})...)
		r.megaflow(20+port, 1+port, 9, 0, 0, flowtable.Action{Op: flowtable.OpController, U32: 0xffff})
	}
	r.turn()
	const client, server = 0x0a000001, 0x0a000002
	for round := range 4 {
		r.inject(1, udp(client, server, 1000, 53), udp(client, server, 1000, 53))
		r.turn()
		r.inject(2, udp(server, client, 53, 1000), udp(server, client, 53, 1000))
		r.turn()
		got := r.captures()
		if len(got) != 4 {
			t.Fatalf("round %d: %d records, want 4", round, len(got))
		}
		for i, c := range got {
			ct := c.Key.CT()
			if !c.Keyed || ct[1] != 1000<<48|53<<32 || ct[5] != client || ct[7] != server || uint8(ct[0]>>16) != packet.ProtoUDP || len(c.Data) != 52 {
				t.Fatalf("round %d: record %d: keyed %v, connection %x, %d bytes", round, i, c.Keyed, ct, len(c.Data))
			}
		}
	}
	// The record of a frame that was not tracked before its look-up has no key.
	r.command(AppendCommand(nil, CmdRemove, 10, nil))
	r.megaflow(10, 1, 0, 0, 0, append(commit.AppendTo(nil), flowtable.Action{Op: flowtable.OpController, U32: 0xffff})...)
	r.turn()
	r.inject(1, udp(client, server, 1000, 53))
	r.turn()
	if got := r.captures(); len(got) != 1 || got[0].Keyed {
		t.Errorf("without tracking: %+v", got)
	}
}

func TestControllerRate(t *testing.T) {
	r := twoPorts(t)
	r.capture(0, Capture{Kind: CapturePort, Port: ControllerPort})
	r.turn()
	r.inject(2, ethernet(0xb, 60, 0))
	r.turn() // a pass without frames captures nothing
	r.w.batch.N = 1
	r.w.now = 1 << 50
	show := func() (n int) {
		for range 2 * controllerBurst {
			if r.w.captures.count = 0; r.w.captures.toController(0, 0xffff, 0) {
				n++
			}
		}
		return n
	}
	if n := show(); n != controllerBurst+controllerReserve {
		t.Errorf("%d frames shown at once, want %d", n, controllerBurst+controllerReserve)
	}
	r.w.now += 5 * controllerIntervalNS
	if n := show(); n != 5 {
		t.Errorf("%d frames shown after 5 intervals, want 5", n)
	}
	r.w.batch.Reset()
	r.w.captures.count = 0
}

// The action's max_len limits the captured bytes of a frame, but not the length in
// the record.
func TestControllerMaxLen(t *testing.T) {
	r := twoPorts(t)
	r.capture(0, Capture{Kind: CapturePort, Port: ControllerPort})
	limits := []uint32{0, 1, 64, 700, 0xffff}
	for i, limit := range limits {
		r.install(uint32(i), 1, uint64(0xa+i), flowtable.Action{Op: flowtable.OpController, U32: limit})
		r.inject(1, ethernet(uint64(0xa+i), 700, 0))
	}
	r.turn()
	got := r.captures()
	if len(got) != len(limits) {
		t.Fatalf("%d frames seen, want %d", len(got), len(limits))
	}
	for i := range got {
		if want := min(int(limits[i]), 700); len(got[i].Data) != want || got[i].Len != 700 {
			t.Errorf("max_len=%d: %d bytes of %d seen, want %d of 700", limits[i], len(got[i].Data), got[i].Len, want)
		}
	}
}
