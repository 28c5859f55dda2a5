// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"testing"

	"weft/packet"
	"weft/port/porttest"
)

func gathering(t *testing.T) *rig {
	r := newRig(t, testSizes)
	for no := uint32(1); no <= 3; no++ {
		r.addPort(no, porttest.Options{}, false)
	}
	r.tx(3).Discard.Store(true)
	r.install(0, 1, 0xa, output(3))
	r.install(1, 2, 0xa, output(3))
	r.w.fixed = r.w.clock()
	r.turn()
	return r
}

// gatheringPasses runs n passes, stepNS apart. Before each pass one frame of port 2
// arrives. It returns the number of passes that have received frames of port 2.
func (r *rig) gatheringPasses(n int, stepNS uint64) (visits int) {
	for range n {
		r.inject(2, ethernet(0xa, 60, 0))
		before := r.sh.Ports[2].RxPackets
		r.w.fixed += stepNS
		r.turn()
		if r.sh.Ports[2].RxPackets > before {
			visits++
		}
	}
	return visits
}

// While another queue fills each batch, a queue with few frames is polled once in gatherNS. Otherwise
// it is polled in each pass. No frame is lost, and none waits longer than gatherNS.
func TestFewFramesGather(t *testing.T) {
	r := gathering(t)
	const step = gatherNS / 5
	if n := r.gatheringPasses(20, step); n != 20 {
		t.Errorf("visited in %d of 20 passes of a worker with little to do", n)
	}
	for range packet.BatchSize {
		r.inject(1, ethernet(0xa, 60, 0))
	}
	r.rx(1).Replay(1 << 50)
	if n := r.gatheringPasses(busyPasses, step); n != busyPasses {
		t.Errorf("visited in %d of the first %d passes with a full batch", n, busyPasses)
	}
	if n := r.gatheringPasses(50, step); n != 10 {
		t.Errorf("visited in %d of 50 passes, %d of which take %d ns", n, 5, gatherNS)
	}
	if n := r.gatheringPasses(10, gatherNS); n != 10 {
		t.Errorf("visited in %d of 10 passes that take as long as it gathers", n)
	}
	r.rx(1).Replay(0)
	r.gatheringPasses(64, step) // drains the queue of the other port
	if n := r.gatheringPasses(20, step); n != 20 {
		t.Errorf("visited in %d of 20 passes after the other queue has ended", n)
	}
	r.equal("frames", r.sh.Ports[2].RxPackets, 20+busyPasses+50+10+64+20)
	r.drops(nil)
}

// An empty queue is polled in each pass, however many frames other queues have, so its first frame does not
// wait.
func TestFirstFrameWaitsForNothing(t *testing.T) {
	r := gathering(t)
	for range packet.BatchSize {
		r.inject(1, ethernet(0xa, 60, 0))
	}
	r.rx(1).Replay(1 << 50)
	for range 2 * busyPasses {
		r.w.fixed += 1000
		r.turn()
	}
	if n := r.gatheringPasses(1, 1000); n != 1 {
		t.Error("the first frame was not received in its pass")
	}
	if n := r.gatheringPasses(1, 1000); n != 0 {
		t.Error("the second frame did not gather")
	}
}
