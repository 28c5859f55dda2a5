package cpu

import (
	"runtime/debug"
	"unsafe"
)

// Processor is the runtime's processor under a goroutine that is locked to its
// thread and means to keep it.
//
// The runtime's monitor asks a goroutine to give way once it has run for 10 ms,
// which it tells from a number: the processor's count of scheduling decisions has
// not changed (runtime/proc.go, retake). A locked goroutine gives way by handing
// its processor to another thread, which hands it back as soon as it runs: late, on
// a busy machine. Keep changes the number, and nobody
// asks. Panics, faults and a stop of the world go on as ever, for no lock of the
// runtime's is held.
//
// The number has no public name. It is found by what surrounds it; where that is
// not as expected, the goroutine stays as preemptible as any.
type Processor struct {
	processor *uintptr // the thread's present processor; nil: not found
}

// Of runtime.g, .m and .p; TestProcessor fails if they no longer hold.
const (
	threadOfG        = 48
	searchFrom       = 128 // in m: behind its gsignal and sigmask
	searchTo         = 384
	statusOfP        = 4
	statusRunning    = 1
	schedTickOfP     = 16
	seenSchedTickOfP = 24 // as the monitor has seen it last
	threadOfP        = 48
)

// OwnProcessor finds the processor of the calling goroutine, which must be locked
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

// isProcessor tells whether a word is a pointer to the processor that runs a
// thread: it is in use, and names the thread.
func isProcessor(p, thread uintptr) (is bool) {
	defer func() { _ = recover() }() // a word that is no pointer faults
	return p >= 1<<16 && p%8 == 0 && word(p+threadOfP) == thread && *(*uint32)(pointer(p + statusOfP)) == statusRunning
}

// Keep has nobody ask for the processor. Call it at least every few milliseconds.
// The number is of whoever has the processor, one after the other, which the race
// detector does not know.
//
//go:norace
func (s *Processor) Keep() {
	if s.processor != nil {
		if p := *s.processor; p != 0 {
			*(*uint32)(pointer(p + schedTickOfP))++ // ours while we run
		}
	}
}

func word(at uintptr) uintptr { return *(*uintptr)(pointer(at)) }

// pointer is a pointer to the runtime's own memory, which it keeps for good.
func pointer(at uintptr) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&at)) }
