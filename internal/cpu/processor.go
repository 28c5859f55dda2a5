// SPDX-License-Identifier: Apache-2.0

package cpu

import (
	"runtime/debug"
	"unsafe"
)

// Processor lets a goroutine that is locked to its thread keep its P, the processor
// of the Go runtime.
//
// The runtime's monitor asks a goroutine to yield when it has run for 10 ms. It
// recognizes such a goroutine by the P's count of scheduling decisions, which has not
// changed (runtime/proc.go, retake). A locked goroutine yields by passing its P to
// another thread and back, which takes long on a busy machine. Keep increments the
// count, so that the monitor does not ask. Panics, faults and stopping the world work
// as usual.
//
// The runtime does not export the count. OwnProcessor finds it by the values of the
// fields around it. If these fields are not as expected, Keep does nothing.
type Processor struct {
	processor *uintptr // address of the thread's pointer to its P; nil: not found
}

// Offsets in bytes into the runtime's structs g, m and p. If an offset is wrong,
// TestProcessor fails.
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

// OwnProcessor returns the Processor of the calling goroutine, which must be locked
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

// isProcessor reports whether p points to the running P of the thread.
func isProcessor(p, thread uintptr) (ok bool) {
	defer func() { _ = recover() }() // p may not be a pointer, and reading it may fault
	return p >= 1<<16 && p%8 == 0 && word(p+threadOfP) == thread && *(*uint32)(pointer(p + statusOfP)) == statusRunning
}

// Keep keeps the runtime's monitor from taking the P away. The goroutine must call it
// every few milliseconds. The race detector does not know that only this thread
// writes the count.
//
//go:norace
func (s *Processor) Keep() {
	if s.processor != nil {
		if p := *s.processor; p != 0 {
			*(*uint32)(pointer(p + schedTickOfP))++ // only the thread that has the P writes the count
		}
	}
}

func word(addr uintptr) uintptr { return *(*uintptr)(pointer(addr)) }

// pointer converts an address in memory that the Go runtime never frees.
func pointer(addr uintptr) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&addr)) }
