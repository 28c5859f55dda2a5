// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"testing"

	"weft/packet"
	"weft/port"
	"weft/port/porttest"
)

// watchingRx and watchingTx are queues for tests. At each call of a method they copy the
// worker's InHand (the record of its current activity).
type watchingRx struct {
	port.Rx
	hand  *InHand
	calls map[string]InHand
}

func (q *watchingRx) note(call string) { q.calls[call] = *q.hand }

func (q *watchingRx) Recv(b *packet.Batch) int { q.note("Recv"); return q.Rx.Recv(b) }
func (q *watchingRx) Release()                 { q.note("Release"); q.Rx.Release() }
func (q *watchingRx) Arm() bool                { q.note("Arm"); return q.Rx.Arm() }
func (q *watchingRx) Disarm()                  { q.note("Disarm"); q.Rx.Disarm() }

type watchingTx struct {
	port.Tx
	hand  *InHand
	calls map[string]InHand
}

func (q *watchingTx) Send(b *packet.Batch, order []uint8) int {
	q.calls["Send"] = *q.hand
	return q.Tx.Send(b, order)
}

func (q *watchingTx) Flush() { q.calls["Flush"] = *q.hand; q.Tx.Flush() }

func (q *watchingTx) Postpone() bool { q.calls["Flush"] = *q.hand; return q.Tx.Postpone() }

// InHand has the port and the number of a queue exactly while the worker calls methods of the queue.
func TestInHandNamesTheQueue(t *testing.T) {
	for _, lock := range []*TxLock{nil, new(TxLock)} {
		r := newRig(t, testSizes)
		in, out := porttest.New(1, porttest.Options{}), porttest.New(1, porttest.Options{})
		defer in.Close()
		defer out.Close()
		hand, calls := r.sh.InHand, map[string]InHand{}
		rx, tx := &watchingRx{in.Rx()[0], hand, calls}, &watchingTx{out.Tx()[0], hand, calls}
		if err := r.w.addPort(&PortQueues{Port: 7, Rx: []port.Rx{rx}, RxNumbers: []uint16{3}}); err != nil {
			t.Fatal(err)
		}
		if err := r.w.addPort(&PortQueues{Port: 9, Tx: tx, TxNumber: 2, Lock: lock}); err != nil {
			t.Fatal(err)
		}
		r.install(0, 7, 0xa, output(9))
		in.RxQueues[0].Inject(ethernet(0xa, 100, 1))
		r.turn()
		r.w.config.SpinUS, r.w.fixed = 0, 0
		r.w.stopping.Store(true)
		for range 2 {
			r.turn()
		}
		for _, call := range []string{"Recv", "Release", "Arm", "Disarm"} {
			if v := Visit(calls[call].Visit); v.Port() != 7 || v.Queue() != 3 {
				t.Errorf("%s: port %d, queue %d in hand, want 7 and 3", call, v.Port(), v.Queue())
			}
			if s := Sending(calls[call].Sending); s != 0 {
				t.Errorf("%s: sends to port %d", call, s.Port())
			}
		}
		for _, call := range []string{"Send", "Flush"} {
			s := Sending(calls[call].Sending)
			if s.Port() != 9 || s.Queue() != 2 || s.Awaiting() || s.Flushing() != (call == "Flush") {
				t.Errorf("%s: %#x: port %d, queue %d, flushing %v", call, uint64(s), s.Port(), s.Queue(), s.Flushing())
			}
			if v := Visit(calls[call].Visit); v.Port() != 7 {
				t.Errorf("%s: the frames are said to be of port %d, want 7", call, v.Port())
			}
		}
		if v := Visit(hand.Visit); v.Port() != 0 || hand.Sending != 0 || hand.Asleep != 0 {
			t.Errorf("nothing is in hand: %+v", *hand)
		}
	}
}

// Each poll has a new number in InHand, so that progress is visible during long passes.
func TestVisitsDiffer(t *testing.T) {
	r := newRig(t, testSizes)
	r.addPort(1, porttest.Options{}, false)
	r.w.visit(r.w.queues.queue(0))
	was := r.sh.InHand.Visit
	r.w.visit(r.w.queues.queue(0))
	if now := r.sh.InHand.Visit; now == was || Visit(now).Port() != 1 {
		t.Errorf("visits %#x and %#x of port 1", was, now)
	}
}

// InHand shows when the worker sleeps and when it is awake again.
func TestAsleepIsShown(t *testing.T) {
	r := newRig(t, testSizes)
	r.addPort(1, porttest.Options{}, false)
	r.addPort(2, porttest.Options{}, false)
	r.install(0, 1, 0xa, output(2))
	r.run(50)
	hand := r.sh.InHand
	await(t, "the worker to say that it sleeps", func() bool { return hand.Asleep == 1 })
	r.inject(1, ethernet(0xa, 100, 1))
	await(t, "a frame", func() bool { return r.tx(2).Take() != nil })
	if hand.Thread == 0 {
		t.Error("the thread is not named")
	}
	r.w.Stop()
	if hand.Thread != 0 {
		t.Error("a worker that has ended names its thread, which the watchdog would take for hung")
	}
}
