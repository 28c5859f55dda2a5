package datapath

import (
	"fmt"
	"os"
	"runtime/debug"

	"weft/packet"
)

// A guest that cuts off the file behind its memory makes our next access fault.
// The fault arrives as a panic (debug.SetPanicOnFault) in the middle of a pass.
// The port whose queue was in use, or in whose memory the address lies, is taken
// out, the batch in hand is dropped, and the other ports go on. Until the next
// attempt to attach it, outputs to the port drop as DropNoPort.

// addressed is a runtime error about memory at an address.
type addressed interface {
	error
	Addr() uintptr
}

// recoverFault turns a fault in a port's memory into that port's failure. The
// batch is finished by the next call of passes, itself guarded: a further port
// may fail in it.
func (w *Worker) recoverFault() {
	cause := recover()
	if cause == nil {
		return
	}
	blamed, reason := w.blame(cause)
	if blamed == 0 {
		panic(cause) // a mistake of our own
	}
	w.abandon(blamed)
	w.visited()
	w.failPort(blamed, reason)
}

// blame names the port that cause is due to, 0 if none.
func (w *Worker) blame(cause any) (no uint32, reason string) {
	fault, isFault := cause.(addressed)
	switch {
	case w.txInUse != nil && w.rxInUse != nil && isFault && w.borrowed(fault.Addr()):
		no = w.rxInUse.port
	case w.txInUse != nil:
		no = w.txInUse.no
	case w.rxInUse != nil:
		no = w.rxInUse.port
	default:
		return 0, ""
	}
	if isFault {
		return no, fmt.Sprintf("its memory failed at %#x", fault.Addr())
	}
	// No fault of the memory: a mistake of ours, which one port brings out. It
	// must not take the others along, nor pass unseen.
	fmt.Fprintf(os.Stderr, "port %d: %v\n%s", no, cause, debug.Stack())
	return no, fmt.Sprintf("internal error: %v", cause)
}

// borrowed tells whether addr lies in a span of the batch in hand.
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

// abandon drops what the fault of port no leaves of the batch in hand: frames not
// executed yet, and frames pending for the port. Frames pending for other ports lie in
// memory that is there, unless the port is the one that they came from: the next finish
// sends them.
func (w *Worker) abandon(no uint32) {
	if w.txInUse != nil {
		w.leaveTx()
	}
	b := &w.batch
	lost := w.live&^(1<<w.cursor-1) | w.tracks.again | w.fused.waiting
	w.tracks.again, w.tracks.forked, w.fused.waiting = 0, 0, 0
	own := w.rxInUse != nil && w.rxInUse.port == no
	pending := uint32(0)
	for _, to := range w.touched.ports[:w.touched.count] {
		p := &w.ports[to]
		set := &pending
		if own || to == uint16(no) {
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
			continue // it reaches somebody
		}
		if lost>>i&1 != 0 {
			w.drop(&b.Frames[i], packet.DropPortFault)
		}
		w.overlay[i] = overlay{}
	}
	w.live = 0
}

// failPort takes a port out of the worker's hands because of a fault, and has
// control told.
func (w *Worker) failPort(no uint32, reason string) {
	if reason == "" {
		reason = "broken"
	}
	w.detach(no)
	if p := &w.ports[no]; p.fault == "" {
		p.fault = reason
		w.faults++
	}
	w.reportFaults()
}

// detach forgets everything of a port, for which nothing is pending.
func (w *Worker) detach(no uint32) {
	if q := w.rxInUse; q != nil && q.port == no {
		w.rxInUse = nil
	}
	for at := w.queues.count - 1; at >= 0; at-- {
		if q := w.queues.at(at); q.port == no {
			w.waiter.forget(q)
			w.queues.remove(at)
		}
	}
	p := &w.ports[no]
	p.tx, p.lock = nil, nil
}
