// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"encoding/binary"

	"weft/flowtable"
	"weft/internal/shm"
	"weft/packet"
	"weft/tunnel"
)

// upcalls is the ring of messages to the control process. The worker publishes them at the end of a batch.
type upcalls struct {
	ring        *shm.Producer
	unpublished bool // upcalls were written but not published
}

// begin reserves room in the ring for an upcall with a body of n bytes, and writes its header. It returns the
// body, which the caller fills before it calls the method end. The result is nil if the ring is full.
func (u *upcalls) begin(op UpcallOp, arg uint32, n int) []byte {
	msg := u.ring.Reserve(messageHeader + n)
	if msg == nil {
		return nil
	}
	binary.LittleEndian.PutUint32(msg, uint32(op))
	binary.LittleEndian.PutUint32(msg[4:], arg)
	return msg[messageHeader:]
}

func (u *upcalls) end() {
	u.ring.Commit()
	u.unpublished = true
}

// publish shows the upcalls of the batch to the control process.
func (u *upcalls) publish() {
	if u.unpublished {
		u.unpublished = false
		u.ring.Publish()
	}
}

// miss copies frame i, which matches no megaflow, into a slot and asks the control process for an answer
// (UpMiss). A frame that missed before at the same look-up is dropped.
func (w *Worker) miss(i int) {
	f := &w.batch.Frames[i]
	if f.Flags&packet.FrameResumed != 0 && w.tracks.resumedAt[i] == w.keys[i].Recirc() {
		w.drop(f, packet.DropMissAgain)
		return
	}
	slot, reason := w.held.hold(i, flowtable.Action{})
	if reason != packet.DropNone {
		w.drop(f, reason)
		return
	}
	var options []byte
	if w.keys[i][flowtable.WTunOpts] != 0 {
		options = w.options[i].Raw()
	}
	body := w.upcalls.begin(UpMiss, w.held.refOf(slot), 8*flowtable.KeyWords+len(options))
	if body == nil {
		w.held.release(slot)
		w.drop(f, packet.DropMissRingFull)
		return
	}
	for at, word := range w.keys[i] {
		binary.LittleEndian.PutUint64(body[8*at:], word)
	}
	copy(body[8*flowtable.KeyWords:], options)
	w.upcalls.end()
	w.sh.Counters.Misses++
}

// awaitNeighbour copies frame i into a slot and asks the control process for the next hop of the tunnel
// template of action a. After the answer, only this tunnel action is executed on the frame, with the tunnel
// fields x; nil: none. The slot keeps a copy of x.
func (w *Worker) awaitNeighbour(i int, a *flowtable.Action, x *tunnel.Fields) {
	f := &w.batch.Frames[i]
	if f.Held != 0 && w.sh.Held[f.Held-1].Then.Op != flowtable.OpNone {
		w.dropAt(uint32(a.U16), i, packet.DropNoNeighbour) // the frame has already waited for its neighbour
		return
	}
	slot, reason := w.held.hold(i, *a)
	if reason != packet.DropNone {
		w.drop(f, reason)
		return
	}
	if x != nil {
		w.sh.Held[slot].ThenMeta = x.Meta
		w.sh.HeldFields[slot].Set(x.Options.Raw())
	} else {
		w.sh.HeldFields[slot].Len = 0
	}
	body := w.upcalls.begin(UpNeighbour, w.held.refOf(slot), 4)
	if body == nil {
		w.held.release(slot)
		w.drop(f, packet.DropMissRingFull)
		return
	}
	binary.LittleEndian.PutUint32(body, a.U32)
	w.upcalls.end()
}

// maxFaultReason is the largest length in bytes of the reason in an UpFault. Longer reasons are cut.
const maxFaultReason = 200

// reportFaults reports failed ports to the control process. If the upcall ring is full, the next pass of the
// worker's loop tries again.
func (w *Worker) reportFaults() {
	for at := range w.ports {
		p := &w.ports[at]
		if p.fault == "" {
			continue
		}
		reason := p.fault[:min(len(p.fault), maxFaultReason)]
		body := w.upcalls.begin(UpFault, p.port, len(reason))
		if body == nil {
			return
		}
		copy(body, reason)
		w.upcalls.end()
		p.fault = ""
		w.faults--
	}
	w.upcalls.ring.Publish()
}
