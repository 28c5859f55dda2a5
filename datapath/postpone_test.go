package datapath

import (
	"testing"

	"weft/packet"
	"weft/port/porttest"
)

// patientRig has a port 2 that puts every flush off.
func patientRig(t *testing.T) *rig {
	r := newRig(t, testSizes)
	r.w.fixed = 1
	r.addPort(1, porttest.Options{}, false)
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
