// SPDX-License-Identifier: Apache-2.0

// Package packettest makes frames for tests. A frame consists of a header buffer and of
// spans in memory outside the Go heap, as a receive queue would leave them.
package packettest

import (
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"weft/packet"
)

// Arena is memory for spans. One test owns it.
type Arena struct {
	mem  []byte
	used int
}

// NewArena maps size bytes of memory. The end of the test unmaps them.
func NewArena(t testing.TB, size int) *Arena {
	t.Helper()
	mem, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Munmap(mem) })
	return &Arena{mem: mem}
}

// Reset makes all memory of the arena free for further frames. Spans of earlier frames become invalid.
func (a *Arena) Reset() { a.used = 0 }

// Add appends data to b as one frame. headerBytes is the number of bytes in the header
// buffer. The rest of data becomes spans of at most span bytes each (0: a single span).
// The caller sets b.Port.
func (a *Arena) Add(b *packet.Batch, data []byte, headerBytes, span int) *packet.Frame {
	f, buf := b.Next()
	headerBytes = min(headerBytes, len(data), packet.MaxHeader)
	copy(buf[:], data[:headerBytes])
	if copy(a.mem[a.used:], data) != len(data) {
		panic("packettest: arena full")
	}
	f.SetOrigin(uintptr(unsafe.Pointer(&a.mem[a.used])))
	rest := a.mem[a.used+headerBytes : a.used+len(data)]
	a.used += len(data)
	for len(rest) > 0 {
		n := len(rest)
		if span > 0 {
			n = min(n, span)
		}
		if !b.AddSpan(f, uintptr(unsafe.Pointer(&rest[0])), uint32(n)) {
			panic("packettest: no spans left")
		}
		rest = rest[n:]
	}
	b.Commit(f, headerBytes)
	return f
}

// Bytes returns a copy of the whole frame: header buffer and spans.
func Bytes(b *packet.Batch, f *packet.Frame) []byte {
	data := make([]byte, f.Len())
	return data[:b.Gather(f, data)]
}
