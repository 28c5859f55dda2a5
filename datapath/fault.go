// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"fmt"
	"os"
	"runtime/debug"

	"weft/packet"
	"weft/port"
)

// This file handles memory faults. If a guest truncates the file of its memory, the worker's next access
// to the missing part raises SIGBUS, which Go turns into a panic (debug.SetPanicOnFault). The worker
// detaches the port whose memory failed, drops the frames that it was forwarding, and continues with
// the other ports. Later frames for the detached port are dropped as DropNotAttached.

// addressed is the runtime error of a memory fault. Addr returns the address of the faulting access.
type addressed interface {
	error
	Addr() uintptr
}

// recoverFault is deferred by passes. It turns a memory fault into the failure of the port that has caused
// it. Other panics while the worker uses a queue are handled likewise.
func (w *Worker) recoverFault() {
	cause := recover()
	if cause == nil {
		return
	}
	blamed, reason := w.blame(cause)
	if blamed == 0 {
		panic(cause) // this is a bug of the worker, which no port has caused
	}
	w.abandon(blamed)
	w.next = nil // it may be a queue of the failed port
	w.visited()
	w.failPort(blamed, reason)
}

// blame returns the port whose queue was in use at the panic (0: none), and the reason for the operator.
func (w *Worker) blame(cause any) (number uint32, reason string) {
	fault, isFault := cause.(addressed)
	switch {
	case w.txInUse != nil && w.rxInUse != nil && isFault && w.borrowed(fault.Addr()):
		number = w.rxInUse.port
	case w.txInUse != nil:
		number = w.txInUse.port
	case w.rxInUse != nil:
		number = w.rxInUse.port
	default:
		return 0, ""
	}
	if isFault {
		return number, fmt.Sprintf("its memory failed at %#x", fault.Addr())
	}
	// The panic is no memory fault but a bug of the worker. Frames of this port may have provoked it, so the
	// worker gives up only this port.
	fmt.Fprintf(os.Stderr, "port %d: %v\n%s", number, cause, debug.Stack())
	return number, fmt.Sprintf("internal error: %v", cause)
}

// borrowed reports whether addr is in a span of the current batch. A span is a part of a received frame that
// is still in the sender's memory: a guest's or the kernel's. A fault at such an address is caused by the
// port that has received the batch.
func (w *Worker) borrowed(addr uintptr) bool {
	b := &w.batch
	for i := range b.Frames[:b.N] {
		for _, s := range b.Spans(&b.Frames[i]) {
			if addr-s.Addr < uintptr(s.Len) {
				return true
			}
		}
	}
	return false
}

// abandon drops the unfinished frames of the batch after the port with this number has failed. Frames that
// wait to be sent to other ports stay in the batch. But if the failed port has received the batch, abandon
// drops these frames too, because they are in the port's memory.
func (w *Worker) abandon(number uint32) {
	if p := w.txInUse; p != nil {
		if p.port != number {
			w.countTaken(p)
		}
		p.count = uint8(copy(p.pending[:], p.pending[p.sent:p.count]))
		p.sent, p.sending = 0, false
		w.leaveTx()
	}
	b := &w.batch
	lost := w.live&^(1<<w.cursor-1) | w.tracks.repeats | w.fused.waiting
	w.tracks.repeats, w.tracks.forked, w.fused.waiting = 0, 0, 0
	own := w.rxInUse != nil && w.rxInUse.port == number
	pending := uint32(0)
	for _, to := range w.touched.ports[:w.touched.count] {
		p := &w.ports[to]
		set := &pending
		if own || to == uint16(number) {
			set = &lost
		}
		for _, i := range p.pending[:p.count] {
			*set |= 1 << i
		}
		if set == &lost {
			p.count = 0
		}
	}
	for i := range b.Frames[:b.N] {
		if pending>>i&1 != 0 {
			continue // another port still sends the frame
		}
		if lost>>i&1 != 0 {
			w.drop(&b.Frames[i], packet.DropPortFault)
		}
		w.overlay[i] = overlay{}
	}
	w.live = 0
}

// countTaken is called after a fault in the memory of another port has interrupted Send of port p. It counts
// the frames that the transmit queue of p had accepted before. The next flush delivers these frames.
func (w *Worker) countTaken(p *txPort) {
	q, ok := p.tx.(port.TakingTx)
	if !ok || !p.sending {
		return
	}
	taken := p.pending[p.sent:min(int(p.sent)+q.Taken(), int(p.count))]
	w.captures.sent(p, taken, len(taken))
	for _, i := range taken {
		f := &w.batch.Frames[i]
		w.countSent(p, int(i), f.Drop)
		f.Drop = packet.DropNone
	}
	p.sent += uint8(len(taken))
}

// failPort detaches a broken port from the worker, and reports the reason to the control process as soon as
// the upcall ring has room.
func (w *Worker) failPort(number uint32, reason string) {
	if reason == "" {
		reason = "broken"
	}
	w.detach(number)
	if p := &w.ports[number]; p.fault == "" {
		p.fault = reason
		w.faults++
	}
	w.reportFaults()
}

// detach removes all queues of a port from the worker. The caller makes sure that no
// frames wait to be sent to the port.
func (w *Worker) detach(number uint32) {
	if q := w.rxInUse; q != nil && q.port == number {
		w.rxInUse = nil
	}
	for at := w.queues.count - 1; at >= 0; at-- {
		if q := w.queues.queue(at); q.port == number {
			w.kernelFlows.closeQueue(q, w.now)
			w.waiter.forget(q)
			w.queues.remove(at)
		}
	}
	p := &w.ports[number]
	p.tx, p.lock = nil, nil
}
