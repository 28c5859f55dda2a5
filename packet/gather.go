// SPDX-License-Identifier: Apache-2.0

package packet

import "unsafe"

// Foreign returns n bytes at addr as a slice, without copying. The memory is foreign: a guest or the kernel
// may change it. It must stay mapped, outside of the Go heap, while the slice is used.
func Foreign(addr uintptr, n uint32) []byte {
	// Memory outside of the Go heap is neither moved nor freed by the garbage
	// collector.
	return unsafe.Slice((*byte)(*(*unsafe.Pointer)(unsafe.Pointer(&addr))), n)
}

// The build fails here if not every Frame and every header buffer start on a cache line.
const _ = -(unsafe.Offsetof(Frame{}.buf)%64 + unsafe.Sizeof(Frame{})%64)

// pointer converts the address of foreign memory to an unsafe.Pointer.
func pointer(addr uintptr) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&addr)) }

// copy64 copies 64 bytes between buffers that do not overlap. On amd64 the compiler moves each array of
// 16 bytes with one load and one store. An assignment of 64 bytes would call memmove, which
// takes longer.
func copy64(dst, src unsafe.Pointer) {
	p, q := (*[4][2]uint64)(dst), (*[4][2]uint64)(src)
	p[0] = q[0]
	p[1] = q[1]
	p[2] = q[2]
	p[3] = q[3]
}

// isWide reports whether n is from 64 to InnerHeader, so that two calls of copy64, whose ranges may overlap,
// copy exactly n bytes.
func isWide(n uint32) bool { return n-64 <= InnerHeader-64 }

// Append appends one frame for each span until the batch is full, and returns the number of frames. It
// copies the first InnerHeader bytes of a span into the header buffer; the rest stays a span. Spans
// must not be empty.
func (b *Batch) Append(spans []Span) int {
	for n, s := range spans {
		if b.N >= BatchSize || b.spanUsed == MaxSpans {
			return n
		}
		f := &b.Frames[b.N]
		f.begin(b.Port, b.spanUsed)
		k := min(s.Len, InnerHeader)
		if isWide(k) {
			copy64(unsafe.Pointer(&f.buf[Headroom]), pointer(s.Addr))
			if k > 64 {
				copy64(unsafe.Pointer(&f.buf[Headroom+k-64]), pointer(s.Addr+uintptr(k)-64))
			}
		} else {
			copy(f.buf[Headroom:], Foreign(s.Addr, k))
		}
		f.end = Headroom + uint16(k)
		if s.Len > k {
			b.AddSpan(f, s.Addr+uintptr(k), s.Len-k)
		}
		b.N++
	}
	return len(spans)
}

// GatherAll copies whole frames of the batch to foreign memory. order has the indexes of the frames. The
// memory at each of the addresses must have space for the whole frame.
func (b *Batch) GatherAll(order []uint8, addresses []uintptr) {
	for n, i := range order {
		if n >= len(addresses) {
			return
		}
		f := &b.Frames[i%BatchSize]
		k := uint32(f.end - f.start)
		if f.spanCount != 0 || !isWide(k) {
			b.Gather(f, Foreign(addresses[n], uint32(f.Len())))
			continue
		}
		from, dst := unsafe.Pointer(&f.buf[f.start]), pointer(addresses[n])
		copy64(dst, from)
		if k > 64 {
			copy64(unsafe.Add(dst, k-64), unsafe.Add(from, k-64))
		}
	}
}

// Gather copies the frame, first the header buffer and then the spans, into dst. It returns the number of
// bytes copied: the smaller of the frame's length and len(dst).
func (b *Batch) Gather(f *Frame, dst []byte) int {
	n := copy(dst, f.buf[f.start:f.end])
	for _, s := range b.Spans(f) {
		if n == len(dst) {
			break
		}
		n += copy(dst[n:], Foreign(s.Addr, s.Len))
	}
	return n
}

// Cursor reads a frame from front to back into buffers of any size. It allocates no memory.
// Batch.Cursor makes one. The zero Cursor is a frame without bytes.
type Cursor struct {
	header []byte
	spans  []Span
	offset uint32 // offset into spans[0] in bytes
}

// Cursor returns a Cursor at the frame's first byte. It is valid until the batch's next Reset, or until a
// method changes the frame.
func (b *Batch) Cursor(f *Frame) Cursor {
	return Cursor{header: f.buf[f.start:f.end], spans: b.Spans(f)}
}

// Read copies the frame's next bytes to dst and returns their number. The number is less than len(dst)
// only at the end of the frame.
func (c *Cursor) Read(dst []byte) int {
	n := copy(dst, c.header)
	c.header = c.header[n:]
	for n < len(dst) && len(c.spans) > 0 {
		s := c.spans[0]
		m := copy(dst[n:], Foreign(s.Addr+uintptr(c.offset), s.Len-c.offset))
		n += m
		c.offset += uint32(m)
		if c.offset == s.Len {
			c.spans, c.offset = c.spans[1:], 0
		}
	}
	return n
}

// Address returns the address of the first byte of b, for a span. b must not be
// empty, and must be in memory that is mapped outside the Go heap.
func Address(b []byte) uintptr { return uintptr(unsafe.Pointer(&b[0])) }
