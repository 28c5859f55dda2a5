package vhost

import (
	"fmt"
	"sync/atomic"

	"weft/internal/shm"
)

// faultKind is what a guest did that no driver may do.
type faultKind uint32

const (
	faultNone faultKind = iota
	faultIndexJump
	faultHead
	faultNext
	faultLoop
	faultTooLong
	faultEmpty
	faultAddress
	faultDirection
	faultTable
	faultNested
	faultIndirectNext
	faultShort
	faultLength
	faultWaiters

	faultKinds
)

// faultTexts take the fault's two values.
var faultTexts = [faultKinds]string{
	faultIndexJump:    "avail index jumped from %d to %d",
	faultHead:         "avail entry names descriptor %d of %d",
	faultNext:         "chain goes on at descriptor %d of %d",
	faultLoop:         "chain from %#x loops: more than %d descriptors",
	faultTooLong:      "chain at %#x has more than %d pieces",
	faultEmpty:        "descriptor at %#x has %d bytes",
	faultAddress:      "address %#x with %d bytes is outside of guest memory",
	faultDirection:    "descriptor at %#x has the wrong direction, flags %#x",
	faultTable:        "indirect table at %#x has %d bytes",
	faultNested:       "indirect table at %#x has an indirect descriptor at %d",
	faultIndirectNext: "descriptor %d is indirect and has a successor, flag %d",
	faultShort:        "chain of %d bytes is shorter than its header of %d",
	faultLength:       "chain of %d bytes is longer than %d",
	faultWaiters:      "%d signals of the call event in a row took more than %d ns each: too many wait for it",
}

// fault is the first fault of a device, shared by its queues: a guest that
// breaks one ring loses all. Any queue's worker raises it once; all read it.
type fault struct {
	raised atomic.Uint32 // 1: being written, 2: complete
	vring  int
	kind   faultKind
	a, b   uint64
	wake   []int // own events of the workers that have the receive queues; they report
}

// set tells whether the device is broken.
func (f *fault) set() bool { return f.raised.Load() == 2 } // pairs with raise

// raise keeps the values as they are: making a text of them would allocate.
func (f *fault) raise(vring int, kind faultKind, a, b uint64) {
	if !f.raised.CompareAndSwap(0, 1) {
		return
	}
	f.vring, f.kind, f.a, f.b = vring, kind, a, b
	f.raised.Store(2) // pairs with set
	f.wakeWorkers()
}

// wakeWorkers wakes the workers that sleep on the device, to find it broken.
func (f *fault) wakeWorkers() {
	for _, fd := range f.wake {
		shm.SignalOwn(fd)
	}
}

func (f *fault) text() string {
	if !f.set() {
		return ""
	}
	return fmt.Sprintf("vring %d: "+faultTexts[f.kind], f.vring, f.a, f.b)
}
