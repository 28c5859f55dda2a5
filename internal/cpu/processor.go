// SPDX-License-Identifier: Apache-2.0

package cpu

import (
	"runtime/debug"
	"unsafe"
)

// Processor is the Go runtime's processor (P) of a goroutine that is locked to its
// thread and wants to keep the P.
//
// The runtime's monitor asks a goroutine to yield once it has run for 10 ms. The
// monitor measures this by a number, the P's count of scheduling decisions, which has
// not changed (runtime/proc.go, retake). A locked goroutine yields by passing its P
// to another thread, which passes the P back as soon as it runs. On a busy machine
// this takes long. Keep changes the number, so the monitor does not ask. Panics,
// faults and stopping the world work as usual, because Keep holds no lock of the
// runtime.
//
// The number has no public name. OwnProcessor finds it by the fields around it. If
// they are not as expected, Keep does nothing and the goroutine stays preemptible.
type Processor struct {
	processor *uintptr // address of the thread's pointer to its P; nil if not found
}

// Offsets into runtime.g, .m and .p in bytes. TestProcessor fails if they are wrong.
const (
	threadOfG        = 48
	searchFrom       = 128 // in m: behind gsignal and sigmask
	searchTo         = 384
	statusOfP        = 4
	statusRunning    = 1
	schedTickOfP     = 16
	seenSchedTickOfP = 24 // the count that the monitor saw last
	threadOfP        = 48
)

// OwnProcessor returns the processor of the calling goroutine, which must be locked
// to its thread.
func OwnProcessor() (s Processor) {
	g := self()
	if g == 0 {
		return s
	}
	old := debug.SetPanicOnFault(true)
	defer debug.SetPanicOnFault(old)
	thread := word(g + threadOfG)
	for at := thread + searchFrom; at < thread+searchTo; at += 8 {
		if isProcessor(word(at), thread) {
			s.processor = (*uintptr)(pointer(at))
			return s
		}
	}
	return s
}

// isProcessor reports whether p points to the P of the thread: a P in use that names
// the thread.
func isProcessor(p, thread uintptr) (is bool) {
	defer func() { _ = recover() }() // reading through a word that is no pointer faults
	return p >= 1<<16 && p%8 == 0 && word(p+threadOfP) == thread && *(*uint32)(pointer(p + statusOfP)) == statusRunning
}

// Keep keeps the monitor from asking for the P. Call it at least every few
// milliseconds. The number has one owner at a time, whichever thread has the P; the
// race detector does not know this.
//
//go:norace
func (s *Processor) Keep() {
	if s.processor != nil {
		if p := *s.processor; p != 0 {
			*(*uint32)(pointer(p + schedTickOfP))++ // only the thread that has the P writes this word
		}
	}
}

func word(at uintptr) uintptr { return *(*uintptr)(pointer(at)) }

// pointer converts an address of memory that the runtime never frees to a pointer.
func pointer(at uintptr) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&at)) }
