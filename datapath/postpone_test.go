package datapath

import (
	"testing"

	"weft/packet"
	"weft/port/porttest"
)

// patientRig has a port 2 that puts every flush off.
func patientRig(t *testing.T) *rig { return patientRigOver(t, porttest.Options{}) }

// patientRigOver is one whose port 1, from which frames come, has options.
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

// A full batch may wait for the next one, for a pass; one that is not full for
// nothing.
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

// A guest's buffers go back behind the frames that came in them, of two batches at most
// and whatever ports they went to: those that an engine has given back when it dies,
// its successor cannot receive again.
func TestABatchIsGivenBackBehindItsFrames(t *testing.T) {
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

// In a stream of full batches buffers may go back late: until a batch is not full, the
// next does not come in time, the port goes or the worker sleeps.
func TestBuffersGoBackLateInAStream(t *testing.T) {
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
			r.injectMany(1) // which keeps it awake
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

// A batch whose frames went to many ports waits for none of them.
func TestABatchToManyPortsIsGivenBackAtOnce(t *testing.T) {
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

// A port that goes, and a worker that ends, leave no guest without its buffers.
func TestBuffersGoBackBeforeTheirPort(t *testing.T) {
	r := patientRig(t)
	r.injectMany(packet.BatchSize)
	r.turn()
	m := &mail{remove: 1}
	r.w.mail.Store(m)
	r.turn()
	r.equal("frames out", r.tx(2).Packets.Load(), packet.BatchSize)
	r.equal("buffers out", uint64(r.rx(1).Lent()), 0)
}

// Frames of one port do not wait for as long as others keep the worker busy.
func TestOwedFlushesWaitForNobodyElse(t *testing.T) {
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

// What waits goes before its port does, and a trace's batches do not wait.
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

// failingTx faults in the next flush, if it is told to.
type failingTx struct {
	*porttest.Tx
	armed bool
}

// Flush implements port.Tx.
func (t *failingTx) Flush() {
	if t.armed {
		t.armed = false
		panic(cutOff{})
	}
	t.Tx.Flush()
}

// cutOff is what an access to memory that is gone panics with.
type cutOff struct{}

func (cutOff) Error() string { return "memory is gone" }
func (cutOff) Addr() uintptr { return 0x1000 }

// failing gives the rig a port 2 that puts every flush off, and can fail.
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

// failingRig is patientRig with a port 2 that can fail.
func failingRig(t *testing.T) (*rig, *failingTx) {
	r := newRig(t, testSizes)
	r.w.fixed = 1
	r.addPort(1, porttest.Options{}, false)
	r.install(0, 1, 0xa, output(2))
	tx := r.failing()
	r.turn()
	return r, tx
}

// What a port owed that failed in the flush that made up for it, the next port of its
// number does not: it gets on the list of those that owe.
func TestAFailedFlushIsOwedNoMore(t *testing.T) {
	r, tx := failingRig(t)
	r.addPort(3, porttest.Options{}, false)
	r.install(1, 3, 0xa, output(2))
	r.injectMany(packet.BatchSize)
	r.turn()
	tx.armed = true
	r.rx(1).Break() // and its batch is forgotten
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

// Nothing that a worker owes stays behind where a port fails while it ends.
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

// A command is executed once, whatever fails in the pass that it holds up.
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

// A ring that holds little more than a batch is given it back at once, for its guest
// has nothing else to go on with.
func TestNothingIsKeptOfASmallRing(t *testing.T) {
	r := patientRigOver(t, porttest.Options{Slots: packet.BatchSize})
	for range 3 {
		r.injectMany(packet.BatchSize)
		r.turn()
	}
	r.equal("frames out", r.tx(2).Packets.Load(), 3*packet.BatchSize)
}

// What nobody can receive again is shown before it is given back, in its own pass.
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

// A queue that breaks ends the pass, and the worker may sleep behind it.
func TestBuffersGoBackWhenAnotherQueueBreaks(t *testing.T) {
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

// A batch whose frames were shown with another queue's does not count as one that
// waits: the queue's next may.
func TestAQueueWaitsAgainAfterAnothersFlush(t *testing.T) {
	r := patientRig(t)
	r.addPort(3, porttest.Options{}, false)
	r.install(1, 3, 0xa, output(2))
	r.injectMany(packet.BatchSize)
	r.turn()
	r.tx(2).Flush()
	r.w.ports[2].owedIn = 0 // as it is when the queue says that nothing is left
	r.injectMany(packet.BatchSize)
	r.turn()
	r.equal("frames out", r.tx(2).Packets.Load(), packet.BatchSize)
	r.equal("buffers out", uint64(r.rx(1).Lent()), packet.BatchSize)
}
