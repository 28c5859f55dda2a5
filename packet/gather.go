package packet

import "unsafe"

// Foreign returns n bytes of foreign memory at addr as a slice. The memory must
// be mapped outside the Go heap for as long as the slice is used.
func Foreign(addr uintptr, n uint32) []byte {
	// Not an address of the Go heap: the collector neither moves nor frees it.
	return unsafe.Slice((*byte)(*(*unsafe.Pointer)(unsafe.Pointer(&addr))), n)
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
