// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"fmt"
	"testing"

	"weft/packet"
	"weft/port/porttest"
)

// pingPong is a pair of guests that send each other what they receive, on the worker's clock. One program
// plays both guests and takes answerNS for each frame, so a port's ring seldom has a full batch.
type pingPong struct {
	answerNS uint64
	rings    [2]int // frames that wait for the worker, by guest
	arrived  [2]int // frames that the guests have not answered yet
	doneNS   uint64 // time until which the guests have used their core
}

// The method answer puts the frames that the guests have answered until now into the rings for the worker.
func (l *pingPong) answer(now uint64) {
	for l.arrived[0]+l.arrived[1] > 0 && l.doneNS+l.answerNS <= now {
		l.doneNS += l.answerNS
		guest := 0
		if l.arrived[1] > l.arrived[0] {
			guest = 1
		}
		l.arrived[guest]--
		l.rings[guest]++
	}
	if l.arrived[0]+l.arrived[1] == 0 {
		l.doneNS = now
	}
}

// pingPongRx is the receive queue of one guest of a pingPong. A visit takes frameNS for each frame.
type pingPongRx struct {
	*porttest.Rx
	w       *Worker
	loop    *pingPong
	guest   int
	frameNS uint64
}

func (q pingPongRx) Recv(b *packet.Batch) int {
	q.loop.answer(q.w.fixed)
	q.Replay(int64(q.loop.rings[q.guest]))
	n := q.Rx.Recv(b)
	q.loop.rings[q.guest] -= n
	q.loop.arrived[q.guest^1] += n
	q.w.fixed += 20 + q.frameNS*uint64(n)
	return n
}

// pair adds ports 1 and 2, whose guests send each other what they receive.
func (r *rig) pair(inFlight int, frameNS, answerNS uint64) {
	r.t.Helper()
	loop := &pingPong{answerNS: answerNS, rings: [2]int{inFlight, inFlight}}
	for guest := range 2 {
		number := uint32(guest + 1)
		d := porttest.New(1, porttest.Options{})
		r.ports[number] = d
		add := PortQueues{Port: number, Tx: d.Tx()[0]}
		add.Rx = append(add.Rx, pingPongRx{d.RxQueues[0], r.w, loop, guest, frameNS})
		if err := r.w.addPort(&add); err != nil {
			r.t.Fatal(err)
		}
		d.TxQueues[0].Discard.Store(true)
		d.RxQueues[0].Inject(ethernet(0x020000000000+uint64(number), 60, number))
		r.install(number, number, 0x020000000000+uint64(number), output(9))
	}
}

// Two guests that answer each other want more than their part of the time, but seldom have full batches,
// because their own core is nearly as busy as the worker. They get their part all the same.
func TestTimeIsDividedWithPartialBatches(t *testing.T) {
	for _, c := range []struct {
		name     string
		answerNS uint64 // time that the two guests need for a frame; the worker needs 100 ns
		queues   int
		visitNS  uint64
	}{
		{"long visits", 117, 16, 140_000},
		{"short visits", 117, 16, 30_000},
		{"four queues", 117, 4, 40_000},
	} {
		r := timedRig(t)
		r.pair(128, 100, c.answerNS)
		r.timedPort(3, c.queues, always(c.visitNS))
		r.turn()
		r.replay(3, 1<<50)
		part := r.shares()
		for number := 1; number <= 3; number++ {
			between(t, fmt.Sprintf("%s: port %d", c.name, number), part[number], 0.8/3, 1.2/3)
		}
	}
}

// Ports that want as much time as they can get have their parts beside a busy uplink, which never waits.
func TestTimeIsDividedBesideAnUplink(t *testing.T) {
	for _, uplinkNS := range []uint64{1_000, 15_000} {
		r := timedRig(t)
		r.timedPort(1, 1, always(uplinkNS))
		r.timedPort(2, 1, always(20_000))
		r.timedPort(3, 1, always(300_000))
		r.w.accounting.accounts[1].exempt = true
		r.turn()
		for number := uint32(1); number <= 3; number++ {
			r.replay(number, 1<<50)
		}
		part := r.shares()
		for number := 1; number <= 3; number++ {
			between(t, fmt.Sprintf("uplink's visits of %d ns: port %d", uplinkNS, number), part[number], 0.8/3, 1.2/3)
		}
	}
}
