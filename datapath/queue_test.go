// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"testing"

	"weft/flowtable"
	"weft/packet"
	"weft/port/porttest"
)

// OpQueue drops frames beyond its rate only at its own output, and counts them there.
func TestQueueLimitsItsOutput(t *testing.T) {
	const slot = flowtable.MaxMeters - 1
	r := newRig(t, testSizes)
	for _, no := range []uint32{1, 2, 3} {
		r.addPort(no, porttest.Options{SlotBytes: 2048, MTU: 1514}, false)
	}
	m := NewMeter(true, 1, 3)
	r.command(AppendMeter(nil, slot, &m))
	r.install(0, 1, 0xa, flowtable.Action{Op: flowtable.OpQueue, U16: 2, U32: slot}, output(2), output(3))
	r.turn()
	for n := range 5 {
		r.inject(1, ethernet(0xa, 100, uint32(n)))
	}
	r.turn()
	if got := r.tx(2).TakeAll(); len(got) != 3 || number(got[2]) != 2 {
		t.Errorf("%d frames through the queue, want 3", len(got))
	}
	if got := r.tx(3).TakeAll(); len(got) != 5 {
		t.Errorf("%d frames beside the queue, want 5", len(got))
	}
	r.drops(map[packet.DropReason]uint64{packet.DropQueue: 2})
	r.equal("drops of port 2", r.sh.Ports[2].TxReasons[packet.DropQueue], 2)
	c := &r.sh.Meters[slot]
	r.equal("frames of the queue", c.Packets, 5)
	r.equal("dropped by the queue", c.DroppedPackets, 2)
}

// OpQueue, OpLonger, and pushes of Ethernet and MPLS headers allocate nothing.
func TestQueueAndEncapAllocateNothing(t *testing.T) {
	r := newRig(t, testSizes)
	for _, no := range []uint32{1, 2} {
		r.addPort(no, porttest.Options{SlotBytes: 2048, MTU: 1514}, false)
	}
	r.tx(2).Discard.Store(true)
	m := NewMeter(true, 1000, 3)
	r.command(AppendMeter(nil, 5000, &m))
	install := func(slot, id uint32, list ...flowtable.Action) {
		key, mask := flowtable.Key{flowtable.WPort: 1<<32 | uint64(id)}, flowtable.Key{flowtable.WPort: ^uint64(0)}
		r.command(AppendInstall(nil, slot, &key, &mask, list))
	}
	install(0, 0, longer(50, 7, 8)...)
	install(1, 7, flowtable.Action{Op: flowtable.OpEncapMPLS, U16: packet.EtherTypeMPLS}, flowtable.Action{Op: flowtable.OpDecapMPLS},
		flowtable.Action{Op: flowtable.OpQueue, U16: 2, U32: 5000}, output(2))
	frame := ethernet(0xa, 100, 1)
	r.turn()
	if n := testing.AllocsPerRun(50, func() {
		r.rx(1).Inject(frame)
		r.w.pass()
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
	r.equal("frames of the queue", r.sh.Meters[5000].Packets, 51)
}
