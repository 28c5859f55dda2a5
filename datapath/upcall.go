package datapath

import (
	"encoding/binary"

	"weft/flowtable"
	"weft/packet"
)

// miss holds frame i and asks control what to do with it.
func (w *Worker) miss(i int) {
	f := &w.batch.Frames[i]
	if f.Flags&packet.FrameResumed != 0 && w.tracks.resumedAt[i] == w.keys[i].Recirc() {
		w.drop(f, packet.DropMissAgain)
		return
	}
	slot, why := w.hold(i, flowtable.Action{})
	if why != packet.DropNone {
		w.drop(f, why)
		return
	}
	body := w.beginUpcall(UpMiss, slot, 8*flowtable.KeyWords)
	if body == nil {
		w.freeHeld(slot)
		w.drop(f, packet.DropMissRingFull)
		return
	}
	for at, word := range w.keys[i] {
		binary.LittleEndian.PutUint64(body[8*at:], word)
	}
	w.endUpcall()
	w.sh.Counters.Misses++
}

// awaitNeighbour holds frame i until the next hop of a's template is known, and
// asks control for it. Only the tunnel is left to do when it is resumed.
func (w *Worker) awaitNeighbour(i int, a *flowtable.Action) {
	f := &w.batch.Frames[i]
	if f.Held != 0 && w.sh.Held[f.Held-1].Then.Op != flowtable.OpNone {
		w.drop(f, packet.DropNoNeighbour) // it has waited for that before
		return
	}
	slot, why := w.hold(i, *a)
	if why != packet.DropNone {
		w.drop(f, why)
		return
	}
	body := w.beginUpcall(UpNeighbour, slot, 4)
	if body == nil {
		w.freeHeld(slot)
		w.drop(f, packet.DropMissRingFull)
		return
	}
	binary.LittleEndian.PutUint32(body, a.U32)
	w.endUpcall()
}

// maxFaultReason bounds the reason in UpFault, in bytes.
const maxFaultReason = 200

// reportFaults tells control of the ports that failed. What finds the ring full is
// told later, for nothing else would tell it.
func (w *Worker) reportFaults() {
	for at := range w.ports {
		p := &w.ports[at]
		if p.fault == "" {
			continue
		}
		reason := p.fault[:min(len(p.fault), maxFaultReason)]
		body := w.beginUpcall(UpFault, p.no, len(reason))
		if body == nil {
			return
		}
		copy(body, reason)
		w.endUpcall()
		p.fault = ""
		w.faults--
	}
	w.upcalls.Publish()
}

// beginUpcall reserves an upcall with a body of n bytes; nil if the ring is full.
func (w *Worker) beginUpcall(op UpcallOp, arg uint32, n int) []byte {
	msg := w.upcalls.Reserve(messageHeader + n)
	if msg == nil {
		return nil
	}
	binary.LittleEndian.PutUint32(msg, uint32(op))
	binary.LittleEndian.PutUint32(msg[4:], arg)
	return msg[messageHeader:]
}

// endUpcall adds it; control sees it at the end of the batch.
func (w *Worker) endUpcall() {
	w.upcalls.Commit()
	w.unpublished = true
}
