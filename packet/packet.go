// SPDX-License-Identifier: Apache-2.0

// Package packet has the types with which all parts of the data path work: a Batch of Frames. A Frame is
// a header buffer and a list of Spans. The header buffer begins as a copy of the first bytes of a
// received frame. The guest that sent the frame cannot change this copy. All parsing, matching, tracking
// and rewriting uses it. The spans refer to the rest of the frame: in guest memory, UMEM or a tap's
// buffer. An output copies the rest once, into its own buffer.
//
// Invariants:
//   - A Batch belongs to one worker. It is allocated when the worker starts and has
//     no Go pointers.
//   - Spans refer to memory of the sender. They are valid until the worker has handled
//     the batch and the receive queue returns the buffers to the sender.
//   - The header buffer followed by the spans is the whole frame.
package packet

// Limits of a batch and a frame.
const (
	// BatchSize is the largest number of frames in a batch. By measurement, fewer
	// than 8 cost more per frame, and more than 32 save nothing.
	BatchSize = 32
	// Headroom is the space in bytes for outer headers in front of a received header:
	// Ethernet 14, VLAN 4, IPv6 40, UDP 8, tunnel header 8 and Geneve options 252, and two
	// inner VLAN tags, rounded up to cache lines.
	Headroom = 384
	// MaxHeader is the largest number of bytes that a receive queue copies into a header
	// buffer: outer headers of 74 bytes without Geneve options, and 128 bytes of the inner
	// frame, rounded up to a multiple of 32.
	MaxHeader = 224
	// InnerHeader is the length in bytes of the header buffer that a receive queue
	// copies for a frame without a tunnel.
	InnerHeader = 128
	// MaxSpans is the largest number of spans of all frames in a batch together. A receive
	// queue ends the batch before a frame that would need more.
	MaxSpans = 1024
	// MaxFrameLen is the length in bytes of the longest frame that any port accepts: an IP
	// datagram of 64 KiB with an Ethernet header and two VLAN tags.
	MaxFrameLen = 65536 + 22
)

// Span refers to a part of a frame in memory that others can change: guest memory, UMEM, a tap's buffer,
// or the slot in which a frame waited. The memory stays mapped until the worker has handled the batch.
// The bytes may change at any time, so they must be read only once, by copying them.
type Span struct {
	Addr uintptr // address in this process
	Len  uint32  // bytes, never 0
	_    uint32
}

// Frame is one frame that a worker is handling: a header buffer and spans. Offsets are in bytes from the
// start of the header buffer unless stated otherwise.
type Frame struct {
	start, end uint16 // the header buffer is buf[start:end]
	spanCount  uint16
	// OuterL3 is the offset of the outer IP header of a tunnel that the worker has pushed, and
	// OuterL4 that of the outer UDP or GRE header; 0: none.
	OuterL3, OuterL4 uint16
	// L3 is the offset of the IPv4 or IPv6 header, and L4 the offset of the TCP, UDP, SCTP, ICMP or
	// ICMPv6 header; 0: none. Fragments other than the first have no L4. Extraction sets both. It
	// makes sure that the fixed parts of these headers are in the header buffer.
	L3, L4 uint16
	// Drop is the reason why the frame is dropped, or DropNone.
	Drop DropReason
	// Proto is the IP protocol of the header at L4. Extraction sets it. It is valid if
	// L4 is not 0.
	Proto uint8
	// Flags is a set of the Frame* bits.
	Flags uint32
	// Held is 0 for a frame from a receive queue. For a frame that has waited in a slot of the worker's
	// memory and is now looked up again, it is 1 + the number of the slot.
	Held uint32
	// Offload is the work that the sender has left to the switch. It also says whether the
	// checksum was verified.
	Offload Offload
	// origin is the address in the sender's memory from which the byte buf[0] was copied, or would have
	// been copied; 0: unknown.
	origin uintptr

	tailLen   uint32 // total length of the spans in bytes
	spanFirst uint16 // index in Batch.spans of the first span
	// InPort is the number of the input port that flows match: the port that received the frame
	// or, after decapsulation, the tunnel's port.
	InPort uint32

	_   [12]byte // padding of the fields above to one cache line
	buf [Headroom + MaxHeader]byte
	_   [32]byte
}

// Bits of Frame.Flags.
const (
	// FrameResumed marks a frame that has waited in the worker's memory, for example because it missed. If
	// the look-up that missed before misses again, the frame is dropped.
	FrameResumed uint32 = 1 << iota
	// FrameRouted marks an IPv6 frame with an unfinished routing header. Its
	// transport checksum covers the final destination (RFC 8200 section 8.1).
	FrameRouted
	// FrameFragment marks an IP fragment, the first one or a later one.
	FrameFragment
	// FrameHidden marks a frame with a partial checksum, or a large frame, that got an MPLS, PBB or NSH
	// header. A receiver would not find the IP header, so the worker itself finishes the checksum or cuts
	// the frame at each output.
	FrameHidden
)

// Batch holds up to BatchSize frames in order of arrival, with their spans. The
// worker owns it.
type Batch struct {
	Frames [BatchSize]Frame
	// N is the number of frames: Frames[:N] are in use.
	N int
	// Port is the number of the datapath port that received the batch.
	Port uint32

	spanUsed int // number of spans in use
	reserved int // number of frames that Room leaves out, see Reserve
	spans    [MaxSpans]Span
}

// Reset removes all frames and spans from the batch. It also ends the limit that Reserve has set.
func (b *Batch) Reset() { b.N, b.spanUsed, b.reserved = 0, 0, 0 }

// Reserve limits the batch to n frames fewer than BatchSize until the next Reset. Room reports the
// limit.
func (b *Batch) Reserve(n int) { b.reserved = n }

// Room returns how many frames a receive queue may still add to the batch. Only queues that receive
// large frames must observe the limit that Reserve has set.
func (b *Batch) Room() int { return max(BatchSize-b.reserved-b.N, 0) }

// Full reports whether the batch already has BatchSize frames.
func (b *Batch) Full() bool { return b.N == BatchSize }

// SpansLeft returns the number of spans that can still be added to the batch.
func (b *Batch) SpansLeft() int { return MaxSpans - b.spanUsed }

// Next begins frame number N. It returns the empty frame, and the memory for its first MaxHeader bytes,
// which the receive queue fills. Commit adds the frame to the batch.
func (b *Batch) Next() (*Frame, *[MaxHeader]byte) {
	f := &b.Frames[b.N]
	f.begin(b.Port, b.spanUsed)
	return f, (*[MaxHeader]byte)(f.buf[Headroom:])
}

// begin resets the frame's fields in the order of their declaration, so that the compiler merges the
// stores. port is the input port, and span is the index of the frame's first span.
func (f *Frame) begin(port uint32, span int) {
	f.start, f.end, f.spanCount, f.OuterL3 = Headroom, Headroom, 0, 0
	f.OuterL4, f.L3, f.L4, f.Drop, f.Proto = 0, 0, 0, 0, 0
	f.Flags, f.Held = 0, 0
	o := &f.Offload
	o.GSO, o.Flags, o.Size, o.CsumStart, o.CsumOffset = 0, 0, 0, 0, 0
	f.origin = 0
	f.tailLen, f.spanFirst, f.InPort = 0, uint16(span), port
}

// AddSpan appends a span of n bytes, at least 1, at addr to the frame that Next has begun. It returns
// false and adds nothing if the batch has no span left.
func (b *Batch) AddSpan(f *Frame, addr uintptr, n uint32) bool {
	if b.spanUsed == MaxSpans {
		return false
	}
	b.spans[b.spanUsed] = Span{Addr: addr, Len: n}
	b.spanUsed++
	f.spanCount++
	f.tailLen += n
	return true
}

// Commit adds the frame that Next has begun to the batch. headerLen is the number of bytes that the caller
// has written to its header buffer.
func (b *Batch) Commit(f *Frame, headerLen int) {
	f.end = f.start + uint16(headerLen)
	b.N++
}

// SetOrigin records addr, the address in the sender's memory from which the header buffer was copied. A
// Coalescer needs it. When the Coalescer merges the frame into another one, payload bytes in the header
// buffer become a span at this address. The bytes must stay readable there until the worker has handled
// the batch.
func (f *Frame) SetOrigin(addr uintptr) { f.origin = addr - uintptr(f.start) }

// Abandon releases the spans of a frame that was begun with Next but not committed.
func (b *Batch) Abandon(f *Frame) {
	b.spanUsed = int(f.spanFirst)
	f.spanCount, f.tailLen = 0, 0
}

// Spans returns the references to the frame's bytes behind the header buffer, in order. The slice refers to
// the batch's own array, which the batch reuses after Reset.
func (b *Batch) Spans(f *Frame) []Span {
	return b.spans[f.spanFirst : f.spanFirst+f.spanCount]
}

// Fork copies the frame f to savedFrame, and gives f its own copies of the spans. Pullup and Trim of
// f then do not change the saved frame. Join restores f. Fork returns false if the
// batch has too few spans left. Several forks must be joined in reverse order, and no other
// spans may be added in between.
func (b *Batch) Fork(f, savedFrame *Frame) bool {
	if int(f.spanCount) > b.SpansLeft() {
		return false
	}
	*savedFrame = *f
	first := b.spanUsed
	b.spanUsed += copy(b.spans[first:], b.Spans(f))
	f.spanFirst = uint16(first)
	return true
}

// Join restores f from savedFrame, the copy that Fork made.
func (b *Batch) Join(f, savedFrame *Frame) {
	b.spanUsed -= int(savedFrame.spanCount)
	*f = *savedFrame
}

// Take overwrites frame f of batch b with a copy of source.Frames[index], and adds copies of that
// frame's spans to b. The caller saves f before the call. Afterwards it restores f by assignment and
// calls Rewind with "mark". Take returns false and changes nothing if b has too few spans left.
func (b *Batch) Take(f *Frame, source *Batch, index int) (mark int, ok bool) {
	from := &source.Frames[index]
	if int(from.spanCount) > b.SpansLeft() {
		return 0, false
	}
	mark = b.spanUsed
	b.spanUsed += copy(b.spans[mark:], source.Spans(from))
	*f = *from
	f.spanFirst = uint16(mark)
	return mark, true
}

// Rewind releases the spans that were added since the call of Take that returned mark.
func (b *Batch) Rewind(mark int) { b.spanUsed = mark }

// Truncate shortens the frame to at most n bytes. If it removes bytes, the frame's Offload becomes zero,
// and L3 and L4 become 0 if the headers there are no longer complete.
func (b *Batch) Truncate(f *Frame, n int) {
	if n >= f.Len() {
		return
	}
	b.Trim(f, n)
	f.Offload = Offload{}
	if f.L4 == 0 && n < int(f.L3)+IPv6Len || n < int(f.L4) {
		f.L3 = 0
	}
	if n < int(f.L4)+TCPLen {
		f.L4 = 0
	}
}

// SpanCount returns the number of the frame's spans.
func (f *Frame) SpanCount() int { return int(f.spanCount) }

// Header returns the frame's header buffer without copying. The caller may read and rewrite it. The result
// is valid until the frame is used for another one, or until Push, Pull, Pullup or Trim changes it.
func (f *Frame) Header() []byte { return f.buf[f.start:f.end] }

// Len returns the length of the whole frame in bytes: header buffer and spans.
func (f *Frame) Len() int { return int(f.end-f.start) + int(f.tailLen) }

// TailLen returns the total length of the spans in bytes.
func (f *Frame) TailLen() int { return int(f.tailLen) }

// Push adds n bytes, whose contents are undefined, in front of the header buffer. It returns the header
// buffer, or nil if the headroom is too small. It adjusts L3, L4 and the offsets in the Offload.
func (f *Frame) Push(n int) []byte {
	if int(f.start) < n {
		return nil
	}
	f.start -= uint16(n)
	if f.L3 != 0 {
		f.L3 += uint16(n)
	}
	if f.L4 != 0 {
		f.L4 += uint16(n)
	}
	if f.Offload.Flags&OffloadPartial != 0 {
		f.Offload.CsumStart += uint16(n)
	}
	return f.buf[f.start:f.end]
}

// Pull removes the first n bytes of the header buffer. It adjusts L3, L4 and the offsets in the Offload.
// It returns false and changes nothing if the header buffer is shorter than n bytes.
func (f *Frame) Pull(n int) bool {
	if int(f.end-f.start) < n {
		return false
	}
	f.start += uint16(n)
	f.L3 = pulled(f.L3, n)
	f.L4 = pulled(f.L4, n)
	if f.Offload.Flags&OffloadPartial != 0 {
		if f.Offload.CsumStart = pulled(f.Offload.CsumStart, n); f.Offload.CsumStart == 0 {
			f.Offload.Flags &^= OffloadPartial // the checksum was in the removed header
		}
	}
	return true
}

func pulled(offset uint16, n int) uint16 {
	if int(offset) < n {
		return 0
	}
	return offset - uint16(n)
}

// Pullup extends the header buffer to at least n bytes, with bytes that it copies from the spans. It returns
// false and changes nothing if the frame has fewer bytes or the header buffer has too little space.
func (b *Batch) Pullup(f *Frame, n int) bool {
	header := int(f.end - f.start)
	if n <= header {
		return true
	}
	if n > f.Len() || int(f.start)+n > len(f.buf) {
		return false
	}
	dst := f.buf[f.end : int(f.start)+n]
	f.end += uint16(len(dst))
	f.tailLen -= uint32(len(dst))
	for len(dst) > 0 {
		s := &b.spans[f.spanFirst]
		m := copy(dst, Foreign(s.Addr, s.Len))
		dst = dst[m:]
		s.Addr += uintptr(m)
		if s.Len -= uint32(m); s.Len == 0 {
			f.spanFirst++
			f.spanCount--
		}
	}
	return true
}

// Strip moves the first len(dst) bytes of the frame to dst, such as the outer headers of a tunnel. It then
// fills the header buffer up to InnerHeader bytes from the spans. L3 and L4 of the frame must be 0. Strip
// returns false and changes nothing if the frame is shorter than dst.
func (b *Batch) Strip(f *Frame, dst []byte) bool {
	if f.Len() < len(dst) {
		return false
	}
	n := copy(dst, f.buf[f.start:f.end])
	f.Pull(n)
	if f.Offload.Flags&OffloadPartial != 0 {
		f.Offload.CsumStart = pulled(f.Offload.CsumStart, len(dst)-n)
	}
	for dst = dst[n:]; len(dst) > 0; dst = dst[n:] {
		s := &b.spans[f.spanFirst]
		n = copy(dst, Foreign(s.Addr, s.Len))
		f.tailLen -= uint32(n)
		s.Addr += uintptr(n)
		f.origin = s.Addr - uintptr(f.start)
		if s.Len -= uint32(n); s.Len == 0 {
			f.spanFirst++
			f.spanCount--
		}
	}
	// The header moves back to the end of the headroom, so that more bytes fit after it.
	left := copy(f.buf[Headroom:], f.buf[f.start:f.end])
	if f.origin != 0 {
		f.origin += uintptr(f.start) - Headroom
	}
	f.start, f.end = Headroom, Headroom+uint16(left)
	if more := min(f.Len(), InnerHeader) - left; more > 0 {
		if s := &b.spans[f.spanFirst]; s.Addr != f.origin+uintptr(f.end) || s.Len < uint32(more) {
			f.origin = 0 // the bytes of the header buffer are no longer contiguous in foreign memory
		}
		b.Pullup(f, left+more)
	}
	return true
}

// Trim shortens the frame to at most n bytes. The offload and the offsets of headers do not change.
func (b *Batch) Trim(f *Frame, n int) {
	header := int(f.end - f.start)
	if n <= header {
		f.end = f.start + uint16(n)
		f.spanCount, f.tailLen = 0, 0
		return
	}
	left := uint32(n - header)
	if left >= f.tailLen {
		return
	}
	f.tailLen = left
	spans := b.Spans(f)
	for i := range spans {
		if left <= spans[i].Len {
			spans[i].Len = left
			f.spanCount = uint16(i + 1)
			return
		}
		left -= spans[i].Len
	}
}
