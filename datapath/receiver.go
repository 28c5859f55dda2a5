// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"slices"

	"weft/packet"
	"weft/port"
)

// This file makes a guest wait for the time of slow copies into its memory. The measured time of a sender's
// visit (account.go) includes the copies into the memory of receivers. The time of a copy depends on the
// receiver: on missing pages of its memory, and on the number of descriptors in its chains. Without this
// file, the whole time would count for the sender.
//
// After a visit of at least sliceNS, the worker measures each Send to a guest for measuredSendsNS. Before a
// Send it reads a byte of each page of the frames, so that waits for the sender's pages count for the sender.
// The time of the Send beyond freeFrameNS and freeBytesPerNS counts for the receiver, and not for the sender.
// It becomes the receiver's debt only if a third port has frames. A receiver whose debt exceeds
// receiverSlackNS gets no frames (packet.DropSlowReceiver). All these debts together fall by 1/receiverShare
// of the elapsed time, so slow receivers take at most this part of a busy worker's time
// (docs/decisions/0058-receivers-pay-for-slow-copies.md).

const (
	// measuredSendsNS is the time in nanoseconds for which the worker measures each Send after a slow visit (one
	// poll of a queue and the handling of its frames). After it, the next slow visit counts for no port, so this
	// time is much longer than a visit. It is shorter than the usual time between two pauses of a virtual
	// machine, because a pause looks like a slow visit.
	measuredSendsNS = 200_000_000
	// A copy may take freeFrameNS for each frame, and 1 ns for every freeBytesPerNS bytes, before its time
	// counts for the receiver. This is several times the duration of a copy into pages that exist.
	freeFrameNS    = 500
	freeBytesPerNS = 4
	receiverShare  = 8
	// receiverSlackNS is the largest debt in nanoseconds with which a receiver still gets frames. If the virtual
	// machine pauses during a copy that also finds a page missing, the pause looks like slow memory. A pause
	// shorter than receiverSlackNS costs the receiver no frame.
	receiverSlackNS = 10_000_000
	pageBytes       = 4096
)

// receivers has the debts of ports into whose memory copies are slow.
type receivers struct {
	sh *Shared
	*passTime
	accounting *accounting
	reception  *reception
	ports      *[port.MaxPorts]txPort

	untilNS uint64 // time until which each Send is measured
	visitNS uint64 // time of the present visit that was charged to receivers
	debtors []uint16
	byte    byte // sum of the bytes that readPages has read, so that the compiler keeps the loads
}

func (r *receivers) init(w *Worker) {
	r.sh, r.passTime, r.accounting, r.reception, r.ports = w.sh, &w.passTime, &w.accounting, &w.reception, &w.ports
	r.debtors = make([]uint16, 0, port.MaxPorts)
}

// deliver calls Send of port p's transmit queue for frames of b, and returns its result. While the worker
// measures copies, it adds the time of a slow Send to the debt of port p.
func (w *Worker) deliver(p *txPort, b *packet.Batch, order []uint8) int {
	if w.now >= w.receivers.untilNS || !p.foreign || w.rxInUse == nil {
		return p.tx.Send(b, order)
	}
	bytes := w.receivers.readPages(b, order)
	began := w.clock()
	n := p.tx.Send(b, order)
	w.receivers.charge(p, began, uint64(len(order))*freeFrameNS+uint64(bytes)/freeBytesPerNS)
	return n
}

// senderPart is called after a slow visit (one poll of a queue and the handling of its frames), which took
// spentNS. From then on, the worker measures copies for measuredSendsNS. senderPart returns the time that
// counts for the sender. It is 0 if the copies of this visit were not measured, because a receiver may have
// caused the delay.
func (r *receivers) senderPart(spentNS uint64) uint64 {
	if r.now >= r.untilNS {
		spentNS = 0
	}
	r.untilNS = r.now + measuredSendsNS
	return spentNS
}

// readPages reads a byte of each page of the frames' spans. It returns the length of the frames in bytes.
func (r *receivers) readPages(b *packet.Batch, order []uint8) (bytes int) {
	for _, i := range order {
		f := &b.Frames[i%packet.BatchSize]
		bytes += f.Len()
		for _, s := range b.Spans(f) {
			for at, end := s.Addr, s.Addr+uintptr(s.Len); at < end; at = at&^(pageBytes-1) + pageBytes {
				r.byte += packet.Foreign(at, 1)[0]
			}
		}
	}
	return bytes
}

// charge adds the time of a Send to port p to the port's debt. The Send began at the time "began" and has
// just ended. The first freeNS of its duration do not count.
func (r *receivers) charge(p *txPort, began, freeNS uint64) {
	now := r.clock()
	spentNS := now - began
	if spentNS <= freeNS {
		return
	}
	if spentNS >= sliceNS {
		stalledNS, thread := r.accounting.stalledNS(now)
		spentNS -= min(spentNS, stalledNS)
		if thread.pageFaults == r.accounting.thread.pageFaults {
			// No page was missing, so the virtual machine was without a core for most of this time.
			spentNS = min(spentNS, sliceNS)
		}
	}
	spentNS -= min(spentNS, freeNS)
	r.visitNS += spentNS
	r.sh.SpentNS[p.port] += spentNS
	if !r.thirdHasFrames(p) {
		return
	}
	if p.slowNS == 0 {
		r.debtors = append(r.debtors, uint16(p.port))
	}
	p.slowNS = min(p.slowNS+spentNS, maxOwedNS)
}

// thirdHasFrames reports whether a port besides the sender of the batch and the receiver p had frames in the
// last turn of the worker's loop, or within the last maxAwayNS. A port that has used too much of the worker's
// time (account.debtNS) does not count.
func (r *receivers) thirdHasFrames(p *txPort) bool {
	if r.reception.rxInUse == nil {
		return false
	}
	t := r.accounting
	return t.recent(t.active.lastBesideTwo(r.reception.rxInUse.port, p.port), r.now)
}

// refuse drops the frames in the list "order" if their receiver p owes more than receiverSlackNS of the
// worker's time and a third port has frames (thirdHasFrames). It reports whether it has dropped them.
func (w *Worker) refuse(p *txPort, order []uint8) bool {
	if p.slowNS <= receiverSlackNS || !w.receivers.thirdHasFrames(p) {
		return false
	}
	for _, i := range order {
		w.captures.result(p, int(i), w.overlay[i].port, packet.DropSlowReceiver)
		w.countSent(p, int(i), packet.DropSlowReceiver)
	}
	return true
}

// forget clears the debt of port p for slow copies into its memory. The worker calls it when it gets the
// port.
func (r *receivers) forget(p *txPort) {
	p.slowNS = 0
	if i := slices.Index(r.debtors, uint16(p.port)); i >= 0 {
		r.debtors = slices.Delete(r.debtors, i, i+1)
	}
}

// payDebts reduces the receivers' debts for elapsedNS, the time since the previous pass of the worker's loop
// began.
func (r *receivers) payDebts(elapsedNS uint64) {
	if len(r.debtors) == 0 {
		return
	}
	part := max(elapsedNS/receiverShare/uint64(len(r.debtors)), 1)
	still := r.debtors[:0]
	for _, no := range r.debtors {
		p := &r.ports[no]
		if p.slowNS -= min(p.slowNS, part); p.slowNS > 0 {
			still = append(still, no)
		}
	}
	r.debtors = still
}
