// SPDX-License-Identifier: Apache-2.0

package cpu

import (
	"runtime"
	"runtime/debug"
	"testing"
	"time"
)

// Keep changes the counter that the runtime's monitor reads. A panic after Keep can still be
// recovered.
func TestProcessor(t *testing.T) {
	if self() == 0 {
		t.Skip("not on this processor")
	}
	done := make(chan string)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		done <- keeping()
	}()
	if reason := <-done; reason != "" {
		t.Fatal(reason)
	}
}

func keeping() (reason string) {
	s := OwnProcessor()
	if s.processor == nil {
		return "the runtime is not laid out as expected"
	}
	seen := false
	for end := time.Now().Add(60 * time.Second); !seen && time.Now().Before(end); {
		s.Keep()
		p := *s.processor
		tick := *(*uint32)(pointer(p + schedTickOfP))
		for again := time.Now().Add(9 * time.Millisecond); !seen && time.Now().Before(again); {
			seen = p == *s.processor && *(*uint32)(pointer(p + seenSchedTickOfP)) == tick
		}
	}
	if !seen {
		return "the monitor does not look at the number that Keep writes"
	}
	recovered := func() (recovered bool) {
		defer func() { recovered = recover() != nil }()
		var table []int
		return table[len(reason)] == 0
	}()
	if !recovered {
		return "no panic"
	}
	runtime.GC() // stop the world
	return ""
}

// isProcessor rejects words that do not point to the thread's P (the runtime's processor).
func TestNoProcessor(t *testing.T) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	thread := uintptr(1 << 40)
	for _, p := range []uintptr{0, 1, 1 << 20, 1<<63 + 8, thread} {
		if isProcessor(p, thread) {
			t.Errorf("%#x", p)
		}
	}
	var none Processor
	none.Keep()
}
