// SPDX-License-Identifier: Apache-2.0

package cpu

import (
	"runtime/debug"
	"unsafe"
)

// Processor lets a goroutine keep its P, a slot of the Go scheduler. The goroutine must be locked to
// its thread.
//
// The runtime's monitor asks a goroutine to yield when it has run for 10 ms. The
// monitor recognizes such a goroutine by its P: the count of scheduling decisions has
// not changed (runtime/proc.go, retake). A locked goroutine yields by passing its P to
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

// isProcessor reports whether p is the address of the P that runs on the thread whose struct m is at
// threadAddr.
func isProcessor(p, threadAddr uintptr) (ok bool) {
	defer func() { _ = recover() }() // p may be no pointer, so reading the memory at p may fault
	return p >= 1<<16 && p%8 == 0 && word(p+threadOfP) == threadAddr && *(*uint32)(pointer(p + statusOfP)) == statusRunning
}

// Keep prevents the runtime's monitor from taking the P away. The goroutine must call it every few
// milliseconds. Only this thread writes the count, but the race detector does not know that.
//
//go:norace
func (s *Processor) Keep() {
	if s.processor != nil {
		if p := *s.processor; p != 0 {
			// only the thread that has the P writes the count of scheduling decisions
			*(*uint32)(pointer(p + schedTickOfP))++
		}
	}
}

func word(addr uintptr) uintptr { return *(*uintptr)(pointer(addr)) }

// pointer converts an address to a pointer. The address must be in memory that the Go
// runtime never frees.
func pointer(addr uintptr) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&addr)) }
