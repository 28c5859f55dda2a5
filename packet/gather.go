package packet

import "unsafe"

// Foreign returns n bytes of foreign memory at addr as a slice. The memory must
// be mapped outside the Go heap for as long as the slice is used.
func Foreign(addr uintptr, n uint32) []byte {
	// Not an address of the Go heap: the collector neither moves nor frees it.
	return unsafe.Slice((*byte)(*(*unsafe.Pointer)(unsafe.Pointer(&addr))), n)
}

// Frames and their headers begin with a cache line: this compiles if they do.
const _ = -(unsafe.Offsetof(Frame{}.buf)%64 + unsafe.Sizeof(Frame{})%64)

// pointer makes a pointer to foreign memory.
func pointer(addr uintptr) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&addr)) }

// copy64 copies 64 bytes from one place to another that does not overlap it. Word
// by word, for the copy of an array that might overlap another is a call, which
// costs more than the moves.
func copy64(to, from unsafe.Pointer) {
	p, q := (*[8]uint64)(to), (*[8]uint64)(from)
	p[0], p[1], p[2], p[3] = q[0], q[1], q[2], q[3]
	p[4], p[5], p[6], p[7] = q[4], q[5], q[6], q[7]
}

// isWide tells whether two calls of copy64 that overlap copy n bytes. Nearly every
// private header is one of those.
func isWide(n uint32) bool { return n-64 <= InnerHeader-64 }

// Append appends a frame for each span, as far as there is room in the batch, and
// returns how many: private header first, the rest as a span. Spans are not empty.
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

// GatherAll is Gather for the frames of order, each to its address in foreign
// memory, where there is room for all of it.
func (b *Batch) GatherAll(order []uint8, to []uintptr) {
	for n, i := range order {
		if n >= len(to) {
			return
		}
		f := &b.Frames[i%BatchSize]
		k := uint32(f.end - f.start)
		if f.spanCount != 0 || !isWide(k) {
			b.Gather(f, Foreign(to[n], uint32(f.Len())))
			continue
		}
		from, dst := unsafe.Pointer(&f.buf[f.start]), pointer(to[n])
		copy64(dst, from)
		if k > 64 {
			copy64(unsafe.Add(dst, k-64), unsafe.Add(from, k-64))
		}
	}
}

// Gather copies the whole frame, private header first, into dst and returns
// the number of bytes copied: the frame's length, or len(dst) if that is less.
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

// Cursor reads a frame from front to back into buffers of any sizes, for
// outputs that scatter (mergeable receive buffers). The zero Cursor is not
// useful; take one from Batch.Cursor. It is a value and allocates nothing.
type Cursor struct {
	header []byte
	spans  []Span
	offset uint32 // into spans[0]
}

// Cursor starts at the frame's first byte. Valid until the end of the pass.
func (b *Batch) Cursor(f *Frame) Cursor {
	return Cursor{header: f.buf[f.start:f.end], spans: b.Spans(f)}
}

// Read fills dst as far as the frame reaches and returns the bytes copied.
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

// Address is the address of b's first byte, for a span. b must not be empty and
// must lie in memory mapped outside the Go heap.
func Address(b []byte) uintptr { return uintptr(unsafe.Pointer(&b[0])) }
