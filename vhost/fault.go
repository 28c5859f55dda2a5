// SPDX-License-Identifier: Apache-2.0

package vhost

import (
	"fmt"
	"sync/atomic"

	"weft/internal/shm"
)

// faultKind is a kind of fault: a violation of the virtio specification by the driver, or a call event that
// takes too long to signal.
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

// faultTexts are the error messages of the faults. Each is a format for the fields a and b of a fault.
var faultTexts = [faultKinds]string{
	faultIndexJump:    "avail index jumped from %d to %d",
	faultHead:         "avail entry names descriptor %d of %d",
	faultNext:         "chain continues at descriptor %d of %d",
	faultLoop:         "chain from %#x loops: more than %d descriptors",
	faultTooLong:      "chain at %#x has more than %d buffers",
	faultEmpty:        "descriptor at %#x has %d bytes",
	faultAddress:      "address %#x with %d bytes is outside of guest memory",
	faultDirection:    "descriptor at %#x has the wrong direction, flags %#x",
	faultTable:        "indirect table at %#x has %d bytes",
	faultNested:       "indirect table at %#x has an indirect descriptor at %d",
	faultIndirectNext: "descriptor %d is indirect and also has a next descriptor, flag %d",
	faultShort:        "chain of %d bytes is shorter than its header of %d",
	faultLength:       "chain of %d bytes is longer than %d",
	faultWaiters:      "%d signals of the call event in a row took more than %d ns each: too many threads wait for it",
}

// fault is the first fault of a device, shared by all its queues. The worker of any queue may store it
// once, with the method raise. All workers read it.
type fault struct {
	raised atomic.Uint32 // 0: no fault; 1: the other fields are being written; 2: they are complete
	vring  int
	kind   faultKind
	a, b   uint64
	wake   []int // event descriptors of the workers that own the receive queues
}

// set reports whether a fault has been stored. The device is broken from then on.
func (f *fault) set() bool { return f.raised.Load() == 2 } // pairs with raise

// raise stores the first fault of the device. It formats no text, because it must not
// allocate.
func (f *fault) raise(vring int, kind faultKind, a, b uint64) {
	if !f.raised.CompareAndSwap(0, 1) {
		return
	}
	f.vring, f.kind, f.a, f.b = vring, kind, a, b
	f.raised.Store(2) // pairs with set
	f.wakeWorkers()
}

// wakeWorkers wakes sleeping workers, so that they see the fault.
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
