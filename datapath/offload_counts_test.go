// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"testing"

	"weft/port"
	"weft/port/porttest"
)

// offloadedRx is a receive queue of a port whose flows run in the kernel.
type offloadedRx struct {
	*porttest.Rx
	counts map[uint32]port.OffloadCounts
	active []uint32
}

func (q *offloadedRx) TakeCounts(slot uint32) port.OffloadCounts {
	n := q.counts[slot]
	delete(q.counts, slot)
	return n
}

func (q *offloadedRx) OffloadSlots() uint32 { return 10 }

func (q *offloadedRx) NextOffloaded(from uint32) (slot uint32, found bool) {
	for _, slot := range q.active {
		if slot >= from {
			return slot, true
		}
	}
	return 0, false
}

// The worker adds the kernel's counts to those of the megaflow, of both ports and of the worker itself. It
// does so every offloadEveryNS, before it removes a megaflow, and before it detaches the port.
func TestCountsOfFlowsInTheKernel(t *testing.T) {
	r := newRig(t, testSizes)
	r.w.fixed = r.w.clock()
	r.addPort(2, porttest.Options{}, false)
	d := porttest.New(1, porttest.Options{})
	r.ports[1] = d
	rx := &offloadedRx{Rx: d.RxQueues[0], counts: map[uint32]port.OffloadCounts{}, active: []uint32{3, 5}}
	if err := r.w.addPort(&PortQueues{Port: 1, Rx: []port.Rx{rx}, Tx: d.Tx()[0]}); err != nil {
		t.Fatal(err)
	}
	for _, slot := range []uint32{3, 4, 5} {
		r.install(slot, 1, uint64(slot), output(2))
	}
	r.turn()
	count := func(slot uint32) {
		rx.counts[slot] = port.OffloadCounts{Packets: 2, Bytes: 300, UsedNS: r.w.now - 7, Out: 2}
	}
	flow := func(slot uint32, packets uint64) {
		t.Helper()
		r.equal("frames of the megaflow", r.w.cache.Flow(slot).Packets, packets)
		r.equal("bytes of the megaflow", r.w.cache.Flow(slot).Bytes, 150*packets)
	}
	for _, slot := range []uint32{3, 4, 5} {
		count(slot)
	}
	r.turn()
	flow(3, 0) // the worker does not take the kernel's counts yet
	r.w.fixed += offloadEveryNS
	r.turn()
	flow(3, 2)
	flow(4, 0) // no longer in the kernel
	flow(5, 2)
	r.equal("time of the last frame", r.w.cache.Flow(3).UsedNS, r.w.now-offloadEveryNS-7)
	r.command(AppendCommand(nil, CmdRemove, 4, nil))
	r.turn()
	flow(4, 2)
	count(5)
	count(9) // a slot without a megaflow counts for the ports
	// frames whose tag is removed before 50 bytes of outer headers are added
	rx.counts[8] = port.OffloadCounts{Packets: 3, Bytes: 300, Out: 7, Tunnel: 6, Growth: 46, Outer: 50}
	// frames that came from a tunnel of port 6
	rx.counts[7] = port.OffloadCounts{Packets: 2, Bytes: 200, Out: 2, Tunnel: 6, Outer: 50, Received: true}
	r.w.detach(1)
	flow(5, 4)
	in, out := r.sh.Ports[1], r.sh.Ports[2]
	for name, got := range map[string]uint64{"received": in.RxPackets, "sent": out.TxPackets, "frames": r.sh.Counters.Frames,
		"hits": r.sh.Counters.MegaflowHits, "offloaded": r.sh.Counters.OffloadedFrames} {
		want := uint64(15)
		if name == "sent" {
			want = 12
		}
		r.equal(name, got, want)
	}
	r.equal("bytes received", in.RxBytes, 2000+2*50)
	r.equal("bytes sent", out.TxBytes, 1700)
	tunnel := r.sh.Ports[6]
	r.equal("frames into the tunnel", tunnel.TxPackets, 3)
	r.equal("bytes into the tunnel", tunnel.TxBytes, 300-3*4)
	r.equal("frames from the tunnel", tunnel.RxPackets, 2)
	r.equal("bytes from the tunnel", tunnel.RxBytes, 200)
	r.equal("bytes of the uplink", r.sh.Ports[7].TxBytes, 300+3*46)
	r.equal("queues with flows in the kernel", uint64(r.w.queues.offloaded), 0)
}
