// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"testing"

	"weft/packet"
	"weft/port"
	"weft/port/porttest"
)

// slowTx is a guest's transmit queue whose copies take as long as the test says, on the worker's clock.
type slowTx struct {
	*porttest.Tx
	w      *Worker
	lastNS func(frames int) uint64
}

var _ port.ForeignTx = slowTx{}

func (q slowTx) Foreign() {}

func (q slowTx) Send(b *packet.Batch, order []uint8) int {
	n := q.Tx.Send(b, order)
	q.w.fixed += q.lastNS(len(order))
	return n
}

const (
	slowSender   = 1
	otherSender  = 2
	slowReceiver = 3
)

// slowRig returns a worker with three ports: slowSender sends all the time, to slowReceiver, a guest whose
// memory is slow. otherSender sends when the test makes it send, to port 9.
func slowRig(t testing.TB, lastNS func(frames int) uint64) *rig {
	r := timedRig(t)
	r.timedPortTo(slowReceiver, slowSender, 1, always(4_000))
	r.timedPort(otherSender, 1, always(4_000))
	r.addPort(slowReceiver, porttest.Options{}, false)
	r.tx(slowReceiver).Discard.Store(true)
	p := &r.w.ports[slowReceiver]
	p.tx, p.foreign = slowTx{r.tx(slowReceiver), r.w, lastNS}, true
	faults := int64(0)
	r.w.accounting.times = func() threadTimes {
		faults++
		return threadTimes{cpuNS: r.w.fixed, pageFaults: faults}
	}
	r.turn()
	r.replay(slowSender, 1<<50)
	return r
}

// A receiver whose memory is slow takes at most an eighth of the worker's time. The port that sends to it
// has its part of the rest. Frames for the receiver are dropped under a reason of their own.
func TestSlowReceiversPay(t *testing.T) {
	for name, lastNS := range map[string]func(int) uint64{
		"slow": func(frames int) uint64 { return 20_000 * uint64(frames) }, "very slow": func(int) uint64 { return 2_000_000 },
	} {
		r := slowRig(t, lastNS)
		r.replay(otherSender, 1<<50)
		for range 64 {
			r.turn()
		}
		began, sent := r.w.fixed, [4]uint64{}
		spent := r.sh.SpentNS[slowReceiver]
		for i := range sent {
			sent[i] = r.sh.Ports[i].RxPackets
		}
		for r.w.fixed-began < 200_000_000 {
			r.turn()
		}
		elapsedNS := float64(r.w.fixed - began)
		for _, number := range []int{slowSender, otherSender} {
			const batchNS = 4_000
			time := float64(r.sh.Ports[number].RxPackets-sent[number]) / packet.BatchSize * batchNS
			between(t, name+": time of a sender", time/elapsedNS, 0.8*0.5, 0.5)
		}
		between(t, name+": time of the receiver", float64(r.sh.SpentNS[slowReceiver]-spent)/elapsedNS, 0.01, 1.2/receiverShare)
		p := &r.sh.Ports[slowReceiver]
		if p.TxReasons[packet.DropSlowReceiver] == 0 || p.TxReasons[packet.DropSlowReceiver] != p.TxDrops || p.TxPackets == 0 {
			t.Errorf("%s: of the receiver's frames, %d arrived, %d were dropped for it, %d in all", name, p.TxPackets,
				p.TxReasons[packet.DropSlowReceiver], p.TxDrops)
		}
	}
}

// The first slow visit, whose copies were not measured, is not charged to the sender.
func TestUnmeasuredCopiesAreFree(t *testing.T) {
	r := slowRig(t, func(int) uint64 { return 50_000_000 })
	r.replay(otherSender, 1<<50)
	for range 100 {
		if r.turn(); r.w.accounting.accounts[slowSender].debtNS > 2*maxPassNS {
			t.Fatalf("the sender owes %d ns", r.w.accounting.accounts[slowSender].debtNS)
		}
	}
	if r.w.ports[slowReceiver].slowNS == 0 {
		t.Error("the receiver owes nothing")
	}
}

// A single pause of the machine during a copy costs the receiver no frame.
func TestPauseCostsReceiverNothing(t *testing.T) {
	pauseNS := uint64(0)
	r := slowRig(t, func(int) uint64 { paused := pauseNS; pauseNS = 0; return paused })
	r.replay(otherSender, 1<<50)
	r.turn()
	r.w.receivers.untilNS, pauseNS = 1<<62, receiverSlackNS-1_000_000
	for range 500 {
		r.turn()
	}
	if p := &r.sh.Ports[slowReceiver]; p.TxDrops != 0 || p.TxPackets < 500 || r.sh.SpentNS[slowReceiver] == 0 {
		t.Errorf("%d frames arrived, %d were dropped, %d ns are charged", p.TxPackets, p.TxDrops, r.sh.SpentNS[slowReceiver])
	}
}

// A long pause of the machine during a copy that finds all pages costs the receiver no frame.
func TestPauseWithoutFaultCostsReceiverNothing(t *testing.T) {
	pauseNS := uint64(0)
	r := slowRig(t, func(int) uint64 { paused := pauseNS; pauseNS = 0; return paused })
	r.w.accounting.times = func() threadTimes { return threadTimes{cpuNS: r.w.fixed} }
	r.replay(otherSender, 1<<50)
	r.turn()
	r.w.receivers.untilNS, pauseNS = 1<<62, 20*receiverSlackNS
	for range 500 {
		r.turn()
	}
	if p := &r.sh.Ports[slowReceiver]; p.TxDrops != 0 || p.TxPackets < 500 || pauseNS != 0 {
		t.Errorf("%d frames arrived, %d were dropped, a pause of %d ns is left", p.TxPackets, p.TxDrops, pauseNS)
	}
}

// While no third port has frames, a slow receiver loses nothing.
func TestSlowReceiversWithoutOthers(t *testing.T) {
	r := slowRig(t, func(frames int) uint64 { return 20_000 * uint64(frames) })
	for range 500 {
		r.turn()
	}
	if p := &r.sh.Ports[slowReceiver]; p.TxDrops != 0 || r.w.ports[slowReceiver].slowNS != 0 || p.TxPackets < 500 {
		t.Errorf("%d frames arrived, %d were dropped, the receiver owes %d ns", p.TxPackets, p.TxDrops, r.w.ports[slowReceiver].slowNS)
	}
}

// Copies that take a few times as long as usual cost the receiver nothing.
func TestSoundReceiversOweNothing(t *testing.T) {
	r := slowRig(t, func(frames int) uint64 { return freeFrameNS * uint64(frames) })
	r.replay(otherSender, 1<<50)
	r.w.receivers.untilNS = 1 << 62
	for range 500 {
		r.turn()
	}
	if p := &r.sh.Ports[slowReceiver]; p.TxDrops != 0 || r.w.ports[slowReceiver].slowNS != 0 || p.TxPackets < 500 {
		t.Errorf("%d frames arrived, %d were dropped, the receiver owes %d ns", p.TxPackets, p.TxDrops, r.w.ports[slowReceiver].slowNS)
	}
}

// Time in which another thread had the core costs the receiver nothing.
func TestReceiversDoNotPayForPreemption(t *testing.T) {
	r := slowRig(t, func(int) uint64 { return 4_000_000 })
	r.replay(otherSender, 1<<50)
	r.w.accounting.times = func() threadTimes { return threadTimes{} }
	for range 500 {
		r.turn()
	}
	if slow := r.w.ports[slowReceiver].slowNS; slow != 0 {
		t.Errorf("the receiver owes %d ns", slow)
	}
}

// A port that gets the number of a slow receiver begins without debt.
func TestNewReceiversOweNothing(t *testing.T) {
	r := slowRig(t, func(int) uint64 { return 50_000_000 })
	r.replay(otherSender, 1<<50)
	for n := 0; n < 100_000 && r.w.ports[slowReceiver].slowNS == 0; n++ {
		r.turn()
	}
	if r.w.ports[slowReceiver].slowNS == 0 {
		t.Fatal("the slow receiver owes nothing")
	}
	r.w.detach(slowReceiver)
	r.ports[slowReceiver].Close()
	r.addPort(slowReceiver, porttest.Options{}, false)
	if p := &r.w.ports[slowReceiver]; p.slowNS != 0 || len(r.w.receivers.debtors) != 0 || p.foreign {
		t.Errorf("the new port owes %d ns", p.slowNS)
	}
}

// The worker reads the sender's pages before it measures a copy. A memory fault of this read detaches the
// sender's port.
func TestFaultBeforeAMeasuredCopy(t *testing.T) {
	panicOnFault(t)
	r := newRig(t, testSizes)
	for no := uint32(1); no <= 2; no++ {
		r.addPort(no, porttest.Options{}, false)
	}
	r.w.ports[2].tx, r.w.ports[2].foreign = slowTx{r.tx(2), r.w, always(0)}, true
	r.install(0, 1, 0xa, output(2))
	r.w.queues.queue(0).rx = &hookedRx{Rx: r.rx(1), hook: r.rx(1).Truncate}
	r.w.receivers.untilNS = 1 << 62
	r.inject(1, ethernet(0xa, 1000, 0))
	r.turn()
	r.mustFault(1, "memory failed")
	r.equal("calls of Send", r.tx(2).Sends.Load(), 0)
	r.drops(map[packet.DropReason]uint64{packet.DropPortFault: 1})
}

// Measured copies and refused frames allocate nothing.
func TestReceiversDoNotAllocate(t *testing.T) {
	r := slowRig(t, func(frames int) uint64 { return 20_000 * uint64(frames) })
	r.replay(otherSender, 1<<50)
	for range 50 {
		r.turn()
	}
	if n := testing.AllocsPerRun(500, func() { r.w.pass() }); n != 0 {
		t.Errorf("a pass makes %v allocations, want 0", n)
	}
}
