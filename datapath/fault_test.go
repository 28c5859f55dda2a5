// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"strings"
	"testing"

	"weft/packet"
	"weft/port"
	"weft/port/porttest"
)

func guardedRig(t *testing.T) *rig {
	t.Helper()
	panicOnFault(t)
	r := newRig(t, testSizes)
	for no := uint32(1); no <= 3; no++ {
		r.addPort(no, porttest.Options{}, false)
	}
	return r
}

func (r *rig) total() uint64 {
	n := uint64(0)
	for i := range r.sh.Ports {
		n += r.sh.Ports[i].TxPackets
	}
	for _, d := range r.sh.Counters.Drops {
		n += d
	}
	return n
}

func (r *rig) mustFault(number uint32, word string) {
	r.t.Helper()
	up := r.mustUpcall(UpFault)
	if up.Arg != number || !strings.Contains(up.Reason, word) {
		r.t.Fatalf("fault %+v, want one of port %d with %q", up, number, word)
	}
}

// A port whose receive queue reports a fault is detached. All other queues continue.
func TestBrokenQueue(t *testing.T) {
	r := guardedRig(t)
	r.install(0, 2, 0xa, output(3))
	r.install(1, 2, 0xb, output(1))
	r.rx(1).Break()
	r.inject(2, ethernet(0xa, 60, 0), ethernet(0xb, 60, 0))
	r.turn()
	r.turn()
	r.mustFault(1, "broken by the test")
	r.equal("sent", r.sh.Ports[3].TxPackets, 1)
	r.drops(map[packet.DropReason]uint64{packet.DropNotAttached: 1})
	recvs := r.rx(1).Recvs.Load()
	r.turn()
	r.equal("polls of a broken queue", r.rx(1).Recvs.Load(), recvs)
	if _, ok := r.upcall(); ok {
		t.Fatal("the fault was reported twice")
	}
}

// If a guest truncates memory with frames in progress, the frames are dropped and
// counted, and only its port is detached.
func TestFaultOfReceiver(t *testing.T) {
	r := guardedRig(t)
	r.install(0, 1, 0xa, output(2))
	r.install(1, 2, 0xa, output(3))
	for i := range uint32(5) {
		r.inject(1, ethernet(0xa, 1000, i)) // frames longer than the header buffer, so that they have spans
		r.inject(2, ethernet(0xa, 1000, i))
	}
	r.rx(1).Truncate()
	r.turn()
	r.mustFault(1, "memory failed")
	r.turn()
	r.turn()
	r.equal("sent", r.sh.Ports[3].TxPackets, 5)
	r.equal("given back", uint64(r.rx(2).Lent()), 0)
	r.equal("queues", uint64(r.w.queues.count), 2)
}

// A fault in Send detaches the port that owns the memory, not the sending port.
func TestFaultWhileSending(t *testing.T) {
	for _, c := range []struct {
		name     string
		blamed   uint32
		truncate func(*rig)
	}{
		{"sender's memory", 1, func(r *rig) { r.rx(1).Truncate() }},
		{"receiver's memory", 2, func(r *rig) { r.tx(2).Truncate() }},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := guardedRig(t)
			r.install(0, 1, 0xa, output(2))
			r.install(1, 1, 0xb, output(3))
			r.install(2, 3, 0xb, output(1))
			// Port 1's memory disappears between receiving and sending its frames.
			rx := &hookedRx{Rx: r.rx(1)}
			r.w.queues.queue(0).rx = rx
			rx.hook = func() { c.truncate(r) }
			for i := range uint32(5) {
				r.inject(1, ethernet(0xa+uint64(i%2), 1000, i))
			}
			r.turn()
			r.mustFault(c.blamed, "memory failed")
			r.turn()
			r.equal("frames accounted for", r.total(), 5)
			if r.sh.Counters.Drops[packet.DropPortFault] == 0 {
				t.Fatal("no frame was dropped: the test is void")
			}
			if c.blamed == 2 {
				r.equal("buffers lent", uint64(r.rx(1).Lent()), 0)
				r.equal("polled queues", uint64(r.w.queues.count), 2)
			}
			// The other ports continue, and frames to the failed port are dropped as
			// DropNotAttached.
			before := r.sh.Ports[3].RxPackets
			r.inject(3, ethernet(0xb, 60, 9))
			r.turn()
			r.equal("received by another port", r.sh.Ports[3].RxPackets, before+1)
			r.equal("frames accounted for", r.total(), 6)
		})
	}
}

// A fault at the third of five frames interrupts Send. Two frames are delivered and
// count as sent; three are dropped.
func TestFaultAfterDelivery(t *testing.T) {
	r := guardedRig(t)
	r.install(0, 1, 0xa, output(2))
	r.install(1, 1, 0xb, output(3))
	long := &faultingTx{Tx: r.tx(2), limit: 2, rx: r.rx(1)}
	r.w.ports[2].tx = long
	for i := range uint32(5) {
		r.inject(1, ethernet(0xa, 1000, i))
	}
	r.inject(1, ethernet(0xb, 1000, 5))
	r.turn()
	r.mustFault(1, "memory failed")
	r.turn()
	r.equal("delivered", uint64(len(r.tx(2).TakeAll())), 2)
	r.equal("sent", r.sh.Ports[2].TxPackets, 2)
	r.equal("sent by another port", r.sh.Ports[3].TxPackets, 0)
	r.drops(map[packet.DropReason]uint64{packet.DropPortFault: 4})
	r.equal("dropped by the sender", r.sh.Ports[1].RxDrops[packet.DropPortFault], 4)
	r.equal("frames accounted for", r.total(), 6)
}

// faultingTx is a transmit queue whose Send truncates the memory of rx before it copies the frame with
// index "limit", so that the copy faults.
type faultingTx struct {
	*porttest.Tx
	limit int
	rx    *porttest.Rx
}

func (q *faultingTx) Send(b *packet.Batch, order []uint8) int {
	if len(order) <= q.limit {
		return q.Tx.Send(b, order)
	}
	q.Tx.Send(b, order[:q.limit])
	q.rx.Truncate()
	n := q.Tx.Send(b, order[q.limit:])
	panic(n) // unreachable if the memory faults as expected
}

// Taken counts the frames before the fault.
func (q *faultingTx) Taken() int { return q.limit + q.Tx.Taken() }

type hookedRx struct {
	port.Rx
	hook func()
}

func (h *hookedRx) Recv(b *packet.Batch) int {
	n := h.Rx.Recv(b)
	if n > 0 && h.hook != nil {
		h.hook()
		h.hook = nil
	}
	return n
}

// A fault while a frame is copied into a held slot does not lose the slot.
func TestFaultWhileHolding(t *testing.T) {
	r := guardedRig(t)
	rx := &hookedRx{Rx: r.rx(1), hook: r.rx(1).Truncate}
	r.w.queues.queue(0).rx = rx
	r.inject(1, ethernet(0xa, 1000, 0))
	r.turn()
	r.mustFault(1, "memory failed")
	r.turn()
	r.drops(map[packet.DropReason]uint64{packet.DropPortFault: 1})
	r.equal("free slots", uint64(len(r.w.held.free)), uint64(testSizes.Held))
}

// prefetchedRx counts the calls of Prefetch.
type prefetchedRx struct {
	port.Rx
	calls int
}

func (q *prefetchedRx) Prefetch() { q.calls++ }

// After a fault, the next command does not prefetch from the queue behind the faulty one.
func TestFaultEndsPrefetching(t *testing.T) {
	r := guardedRig(t)
	r.install(0, 1, 0xa, output(3))
	behind := &prefetchedRx{Rx: r.rx(2)}
	r.w.queues.queue(1).rx, r.w.queues.queue(1).ahead = behind, behind
	r.inject(1, ethernet(0xa, 1000, 0))
	r.rx(1).Truncate()
	r.turn()
	r.mustFault(1, "memory failed")
	r.w.prefetchNext() // a command that looks up held frames calls it before the next pass visits a queue
	r.equal("calls", uint64(behind.calls), 0)
}

// A failed port's transmit lock is released for other workers.
func TestFaultUnlocks(t *testing.T) {
	r := guardedRig(t)
	lock := new(TxLock)
	r.w.ports[2].lock = lock
	r.install(0, 1, 0xa, output(2))
	r.inject(1, ethernet(0xa, 60, 0))
	r.tx(2).Truncate()
	r.turn()
	r.mustFault(2, "memory failed")
	if !lock.held.CompareAndSwap(0, 1) {
		t.Fatal("the failed port left its lock locked")
	}
}

// A panic in the code of a port's queue detaches only this port, and the engine runs on. A panic while no
// queue is in use is not caught.
func TestMistakes(t *testing.T) {
	r := guardedRig(t)
	rx := &hookedRx{Rx: r.rx(1), hook: func() { panic("a mistake, printed by this test on purpose") }}
	r.w.queues.queue(0).rx = rx
	r.inject(1, ethernet(0xa, 60, 0))
	r.turn()
	r.mustFault(1, "a mistake")
	defer func() {
		if recover() == nil {
			t.Fatal("the panic outside of all queues was caught")
		}
	}()
	func() {
		defer r.w.recoverFault()
		panic("ours")
	}()
}

// If the upcall ring is full, a fault is reported as soon as the ring has room.
func TestFaultIsReportedLater(t *testing.T) {
	r := guardedRig(t)
	for r.w.upcalls.ring.Push(make([]byte, 1000)) {
	}
	for r.w.upcalls.ring.Push(make([]byte, 1)) {
	}
	r.rx(1).Break()
	r.turn()
	for r.upcalls.Next() != nil {
	}
	r.upcalls.Release()
	r.turn()
	r.mustFault(1, "broken by the test")
}
