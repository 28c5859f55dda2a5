// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"testing"

	"weft/packet"
	"weft/port/porttest"
)

func patientRig(t *testing.T) *rig { return patientRigOver(t, porttest.Options{}) }

func patientRigOver(t *testing.T, source porttest.Options) *rig {
	r := newRig(t, testSizes)
	r.w.fixed = 1
	r.addPort(1, source, false)
	r.addPort(2, porttest.Options{}, false)
	r.tx(2).Patient.Store(true)
	r.install(0, 1, 0xa, output(2))
	r.turn()
	return r
}

func (r *rig) injectMany(n int) {
	for i := range uint32(n) {
		r.inject(1, ethernet(0xa, 60, i))
	}
}

// An output may postpone only the flush after a full batch, and only by one pass.
func TestAFullBatchMayWait(t *testing.T) {
	r := patientRig(t)
	r.injectMany(2*packet.BatchSize - 1)
	r.turn()
	r.equal("frames out after a full batch", r.tx(2).Packets.Load(), 0)
	r.turn()
	r.equal("frames out after the rest", r.tx(2).Packets.Load(), 2*packet.BatchSize-1)
	r.injectMany(packet.BatchSize)
	r.turn()
	r.equal("frames out in the pass of a full batch", r.tx(2).Packets.Load(), 2*packet.BatchSize-1)
	r.turn()
	r.equal("frames out a pass later", r.tx(2).Packets.Load(), 3*packet.BatchSize-1)
	r.equal("flushes", r.tx(2).Flushes.Load(), 2)
}

// The buffers of a guest are released only after their frames were published. At most
// two batches are unreleased at a time. The next engine never receives a released frame
// again.
func TestABatchIsReleasedBehindItsFrames(t *testing.T) {
	r := patientRig(t)
	r.addPort(3, porttest.Options{}, false)
	r.tx(3).Patient.Store(true)
	r.install(1, 1, 0xb, output(3))
	for i := range uint32(packet.BatchSize) {
		r.inject(1, ethernet(0xa+uint64(i&1), 60, i))
	}
	r.turn()
	r.equal("buffers out after the first batch", uint64(r.rx(1).Lent()), packet.BatchSize)
	r.equal("frames out", r.tx(2).Packets.Load()+r.tx(3).Packets.Load(), 0)
	r.injectMany(packet.BatchSize)
	r.turn()
	r.equal("buffers out after the second", uint64(r.rx(1).Lent()), 0)
	r.equal("frames out", r.tx(2).Packets.Load()+r.tx(3).Packets.Load(), 2*packet.BatchSize)
	r.injectMany(packet.BatchSize)
	r.turn()
	r.equal("buffers out after the third", uint64(r.rx(1).Lent()), packet.BatchSize)
	r.turn()
	r.equal("buffers out when no more come", uint64(r.rx(1).Lent()), 0)
	r.equal("frames out", r.tx(2).Packets.Load()+r.tx(3).Packets.Load(), 3*packet.BatchSize)
}

// In a stream of full batches, a queue may release its newest buffers late. A smaller batch, a pause, the
// removal of the port and the worker's sleep make it release all of them.
func TestBuffersAreReleasedLateInAStream(t *testing.T) {
	r := patientRig(t)
	r.rx(1).Retains.Store(true)
	for name, end := range map[string]func(){
		"a batch that is not full": func() {
			r.injectMany(1)
			r.turn()
		},
		"time": func() {
			r.w.fixed += streamNS
			r.turn()
		},
		"sleep": func() {
			r.injectMany(1) // the worker does not sleep while a frame waits
			r.w.sleep()
			r.equal("buffers out", uint64(r.rx(1).Lent()), 1)
			r.turn()
		},
		"a port that goes": func() {
			r.w.mail.Store(&mail{remove: 9})
			r.turn()
		},
	} {
		for range 3 {
			r.injectMany(packet.BatchSize)
			r.turn()
		}
		r.turn()
		r.equal("buffers out before "+name, uint64(r.rx(1).Lent()), 3*packet.BatchSize)
		end()
		r.equal("buffers out after "+name, uint64(r.rx(1).Lent()), 0)
	}
}

// A batch whose frames went to more than maxKeptFor ports is published and released
// at once.
func TestABatchToManyPortsIsReleasedAtOnce(t *testing.T) {
	r := patientRig(t)
	const ports = maxKeptFor + 1
	for i := range uint32(ports) {
		r.addPort(10+i, porttest.Options{}, false)
		r.tx(10 + i).Patient.Store(true)
		r.install(10+i, 1, 0x100+uint64(i), output(10+i))
	}
	for i := range uint32(packet.BatchSize) {
		r.inject(1, ethernet(0x100+uint64(i%ports), 60, i))
	}
	r.turn()
	r.equal("buffers out", uint64(r.rx(1).Lent()), 0)
	out := uint64(0)
	for i := range uint32(ports) {
		out += r.tx(10 + i).Packets.Load()
	}
	r.equal("frames out", out, packet.BatchSize)
}

// Removing a port, or ending a worker, releases all of a guest's buffers.
func TestBuffersAreReleasedBeforeTheirPort(t *testing.T) {
	r := patientRig(t)
	r.injectMany(packet.BatchSize)
	r.turn()
	m := &mail{remove: 1}
	r.w.mail.Store(m)
	r.turn()
	r.equal("frames out", r.tx(2).Packets.Load(), packet.BatchSize)
	r.equal("buffers out", uint64(r.rx(1).Lent()), 0)
}

// A postponed flush of one port is executed in the next pass, even if other ports postpone theirs again.
func TestOwedFlushesDoNotWaitForOthers(t *testing.T) {
	r := patientRig(t)
	r.addPort(3, porttest.Options{}, false)
	r.addPort(4, porttest.Options{}, false)
	r.install(1, 3, 0xa, output(4))
	r.injectMany(packet.BatchSize)
	for i := range uint32(5 * packet.BatchSize) {
		r.inject(3, ethernet(0xa, 60, i))
	}
	r.turn()
	r.turn()
	r.equal("frames out", r.tx(2).Packets.Load(), packet.BatchSize)
	r.equal("others", r.tx(4).Packets.Load(), 2*packet.BatchSize)
}

// Frames whose flush was postponed are flushed before their output port is removed.
func TestNothingStaysBehindAPortThatGoes(t *testing.T) {
	r := patientRig(t)
	r.injectMany(packet.BatchSize)
	r.turn()
	m := &mail{remove: 2}
	r.w.mail.Store(m)
	r.turn()
	r.equal("frames out", r.tx(2).Packets.Load(), packet.BatchSize)
	if !m.read.Load() || r.w.owed.count != 0 || r.w.ports[2].owed {
		t.Error("the port is still owed a flush")
	}
}

// failingTx is a transmit queue whose next Flush causes a memory fault if the field armed is set.
type failingTx struct {
	*porttest.Tx
	armed bool
}

// Flush implements port.Tx.
func (t *failingTx) Flush() {
	if t.armed {
		t.armed = false
		panic(goneMemory{})
	}
	t.Tx.Flush()
}

type goneMemory struct{}

func (goneMemory) Error() string { return "memory is gone" }
func (goneMemory) Addr() uintptr { return 0x1000 }

// failing adds port 2, which postpones every flush and can be made to fail.
func (r *rig) failing() *failingTx {
	r.t.Helper()
	d := porttest.New(1, porttest.Options{})
	r.ports[2] = d
	tx := &failingTx{Tx: d.TxQueues[0]}
	tx.Patient.Store(true)
	if err := r.w.addPort(&PortQueues{Port: 2, Rx: d.Rx(), Tx: tx}); err != nil {
		r.t.Fatal(err)
	}
	return tx
}

// failingRig returns a patientRig whose port 2 can be made to fail.
func failingRig(t *testing.T) (*rig, *failingTx) {
	r := newRig(t, testSizes)
	r.w.fixed = 1
	r.addPort(1, porttest.Options{}, false)
	r.install(0, 1, 0xa, output(2))
	tx := r.failing()
	r.turn()
	return r, tx
}

// If a port fails in a postponed flush, the next port with the same number begins without a postponed
// flush.
func TestAFailedFlushIsOwedNoMore(t *testing.T) {
	r, tx := failingRig(t)
	r.addPort(3, porttest.Options{}, false)
	r.install(1, 3, 0xa, output(2))
	r.injectMany(packet.BatchSize)
	r.turn()
	tx.armed = true
	r.rx(1).Break() // discards the batch of port 1
	r.turn()
	if r.w.ports[2].tx != nil {
		t.Fatal("the port has not failed")
	}
	old := r.ports[2]
	t.Cleanup(old.Close)
	r.failing()
	for i := range uint32(packet.BatchSize) {
		r.inject(3, ethernet(0xa, 60, i))
	}
	r.turn()
	r.equal("ports that owe a flush", uint64(r.w.owed.count), 1)
	r.turn()
	r.equal("frames out", r.tx(2).Packets.Load(), packet.BatchSize)
}

// If a port fails while the worker ends, the other ports are still flushed.
func TestAPortFailsAtTheEnd(t *testing.T) {
	r, tx := failingRig(t)
	r.addPort(3, porttest.Options{}, false)
	r.tx(3).Patient.Store(true)
	r.addPort(4, porttest.Options{}, false)
	r.install(1, 4, 0xa, output(3))
	r.injectMany(packet.BatchSize)
	for i := range uint32(packet.BatchSize) {
		r.inject(4, ethernet(0xa, 60, i))
	}
	r.turn()
	tx.armed = true
	r.w.stopping.Store(true)
	for !r.w.passes() {
	}
	r.equal("frames of the other port out", r.tx(3).Packets.Load(), packet.BatchSize)
	r.equal("buffers out", uint64(r.rx(1).Lent()+r.rx(4).Lent()), 0)
}

// CmdHold is executed once, even if a memory fault ends its pass.
func TestHoldIsExecutedOnce(t *testing.T) {
	r, tx := failingRig(t)
	r.injectMany(packet.BatchSize)
	r.turn()
	tx.armed = true
	r.command(AppendCommand(nil, CmdHold, 1, nil))
	before := r.sh.Counters.Commands
	r.turn()
	r.turn()
	r.equal("commands", r.sh.Counters.Commands-before, 1)
	r.equal("buffers out", uint64(r.rx(1).Lent()), 0)
	if r.w.ports[2].tx != nil {
		t.Error("the port has not failed")
	}
}

// The buffers of a queue with a short ring (MayKeep returns false) are released at once.
func TestNothingIsKeptOfASmallRing(t *testing.T) {
	r := patientRigOver(t, porttest.Options{Slots: packet.BatchSize})
	for range 3 {
		r.injectMany(packet.BatchSize)
		r.turn()
	}
	r.equal("frames out", r.tx(2).Packets.Load(), 3*packet.BatchSize)
}

// Frames of a queue that does not implement port.Keeper are flushed and released in the
// same pass.
func TestNothingIsPostponedThatCannotComeAgain(t *testing.T) {
	r := newRig(t, testSizes)
	r.w.fixed = 1
	r.addPort(1, porttest.Options{Polled: true}, false)
	r.addPort(2, porttest.Options{}, false)
	r.tx(2).Patient.Store(true)
	r.install(0, 1, 0xa, output(2))
	r.turn()
	r.injectMany(packet.BatchSize)
	r.turn()
	r.equal("frames out", r.tx(2).Packets.Load(), packet.BatchSize)
	r.equal("buffers out", uint64(r.rx(1).Lent()), 0)
}

// If one queue breaks, the buffers of the other queues are released before the pass
// ends.
func TestBuffersAreReleasedWhenAnotherQueueBreaks(t *testing.T) {
	r := patientRig(t)
	r.addPort(3, porttest.Options{}, false)
	r.install(1, 3, 0xa, output(2))
	for i := range uint32(packet.BatchSize) {
		r.inject(3, ethernet(0xa, 60, i))
	}
	r.turn()
	r.equal("buffers out", uint64(r.rx(3).Lent()), packet.BatchSize)
	r.rx(1).Break()
	r.turn()
	r.equal("buffers out", uint64(r.rx(3).Lent()), 0)
	r.equal("frames out", r.tx(2).Packets.Load(), packet.BatchSize)
}

// A kept batch is released as soon as its frames are published, even by a flush for the batch of another
// queue.
func TestAQueueWaitsAgainAfterAnothersFlush(t *testing.T) {
	r := patientRig(t)
	r.addPort(3, porttest.Options{}, false)
	r.install(1, 3, 0xa, output(2))
	r.injectMany(packet.BatchSize)
	r.turn()
	r.tx(2).Flush()
	r.w.ports[2].owedIn = 0
	r.injectMany(packet.BatchSize)
	r.turn()
	r.equal("frames out", r.tx(2).Packets.Load(), packet.BatchSize)
	r.equal("buffers out", uint64(r.rx(1).Lent()), packet.BatchSize)
}
