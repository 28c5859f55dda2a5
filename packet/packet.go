// Package packet holds what the whole data path passes around: a Batch of
// Frames. A Frame is not a buffer. It is a private copy of the first bytes of
// what arrived (all that is parsed, matched, tracked and rewritten, out of
// reach of the guest that sent it) and a list of Spans that say where the rest
// lies: guest memory, UMEM, a tap's buffer. Nothing of the rest is copied until
// an output gathers header and spans into its own buffer, once.
//
// Invariants:
//   - A Batch belongs to one worker. Its memory is allocated at start and has
//     no Go pointers.
//   - Spans are borrowed: valid until the receive queue that noted them is
//     released at the end of the pass.
//   - Private header first, spans after it: together they are the frame.
package packet

// Limits of a batch and a frame.
const (
	// BatchSize is the number of frames a pass takes from one queue at most.
	// Below 8 the cost a frame rises; above 32 it does not fall.
	BatchSize = 32
	// Headroom is the space kept free before a received header, for outer
	// headers: Ethernet 14, VLAN 4, IPv6 40, UDP 8, VXLAN 8 make 74 bytes, and
	// two inner VLAN tags 8 more. Rounded up so that a received header begins
	// with a cache line.
	Headroom = 128
	// MaxHeader is the largest private header a receive queue may copy: outer
	// headers of 74 bytes and 128 of the inner frame.
	MaxHeader = 224
	// InnerHeader is what a receive queue copies of a frame that carries no
	// tunnel: enough for Ethernet, two VLAN tags, IPv6 with some extension
	// headers and TCP with options.
	InnerHeader = 128
	// MaxSpans is the number of spans all frames of a batch have together. A
	// frame that needs more than are left ends the batch.
	MaxSpans = 1024
	// MaxFrameLen is the longest frame taken from any port, in bytes, headers
	// included: a 64 KiB segment, Ethernet and two tags.
	MaxFrameLen = 65536 + 22
)

// Span is a piece of a frame in foreign memory (guest memory, UMEM, a tap's
// buffer, a held slot), which the one who noted it keeps mapped until the end
// of the pass. The bytes may change under the reader; only copy them.
type Span struct {
	Addr uintptr // address in this process
	Len  uint32  // bytes, never 0
	_    uint32
}

// Frame is one frame in a pass. All offsets are relative to the start of the
// private header unless said otherwise.
type Frame struct {
	start, end uint16 // the private header is buf[start:end]
	spanCount  uint16
	// OuterL3 and OuterL4 are the offsets of the IP and UDP header of a tunnel
	// that was put before the frame, 0 without one.
	OuterL3, OuterL4 uint16
	// L3 and L4 are set by extraction: offsets of the IPv4 or IPv6 header (the
	// version is in its first nibble) and of the TCP, UDP, SCTP, ICMP or ICMPv6
	// header, 0 where there is none; later fragments have no L4. The fixed part
	// of both headers then lies in the private header.
	L3, L4 uint16
	// Drop is the reason for which the frame is dropped; 0 while it lives.
	Drop DropReason
	// Proto is the IP protocol at L4. Set by extraction, valid if L4 is not 0.
	Proto uint8
	// Flags is a set of the Frame* bits.
	Flags uint32
	// Held is the held slot a resumed frame came from, plus one; 0 otherwise.
	Held uint32
	// Offload is what is left to do to the frame, or was done to it.
	Offload Offload
	// origin is where buf[0] would lie in the foreign memory that the header was
	// copied from; 0: not known. See SetOrigin.
	origin uintptr

	tailLen   uint32 // bytes in spans
	spanFirst uint16 // first span, index into Batch.spans
	// InPort is the datapath port the frame is matched as: the port it was
	// received on, or the vxlan port once decapsulated.
	InPort uint32

	_   [12]byte // all above in one cache line, buf in whole ones
	buf [Headroom + MaxHeader]byte
	_   [32]byte
}

// Frame flags.
const (
	// FrameResumed marks a frame that has been held and looked up before; a
	// second miss drops it.
	FrameResumed uint32 = 1 << iota
	// FrameRouted marks an IPv6 frame whose routing header has segments left:
	// its checksum covers another destination (RFC 8200 section 8.1).
	FrameRouted
	// FrameFragment marks any IP fragment.
	FrameFragment
)

// Batch is up to BatchSize frames, in order of arrival, with the spans of all
// of them. Worker owns.
type Batch struct {
	Frames [BatchSize]Frame
	// N is the number of frames: Frames[:N] are in use.
	N int
	// Port is the datapath port the batch was received on.
	Port uint32

	spanUsed int
	spans    [MaxSpans]Span
}

// Reset empties the batch. Frames keep stale bytes; Next clears what matters.
func (b *Batch) Reset() { b.N, b.spanUsed = 0, 0 }

// Full tells whether no frame, or no useful number of spans, is left.
func (b *Batch) Full() bool { return b.N == BatchSize }

// SpansLeft is the number of spans that can still be added to the batch.
func (b *Batch) SpansLeft() int { return MaxSpans - b.spanUsed }

// Next begins frame number N: empty, its header space of MaxHeader bytes
// returned for the receive queue to fill. The frame counts only once Commit is
// called; a receive queue that gives up on it simply does not.
func (b *Batch) Next() (*Frame, *[MaxHeader]byte) {
	f := &b.Frames[b.N]
	f.begin(b.Port, b.spanUsed)
	return f, (*[MaxHeader]byte)(f.buf[Headroom:])
}

// begin makes the frame empty. The order is that of the fields, so that the
// compiler makes few wide stores of it.
func (f *Frame) begin(port uint32, span int) {
	f.start, f.end, f.spanCount, f.OuterL3 = Headroom, Headroom, 0, 0
	f.OuterL4, f.L3, f.L4, f.Drop, f.Proto = 0, 0, 0, 0, 0
	f.Flags, f.Held = 0, 0
	o := &f.Offload
	o.GSO, o.Flags, o.Size, o.CsumStart, o.CsumOffset = 0, 0, 0, 0, 0
	f.origin = 0
	f.tailLen, f.spanFirst, f.InPort = 0, uint16(span), port
}

// AddSpan appends a span to the frame begun last. n must not be 0. It reports
// false, and adds nothing, when the batch has no span left.
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

// Commit counts the frame begun last, whose private header is headerLen bytes.
func (b *Batch) Commit(f *Frame, headerLen int) {
	f.end = f.start + uint16(headerLen)
	b.N++
}

// SetOrigin says that the frame's first bytes were copied from addr, where they
// can still be read for as long as spans are valid, and that what its header
// holds lies there in one piece. Coalescing needs it.
func (f *Frame) SetOrigin(addr uintptr) { f.origin = addr - uintptr(f.start) }

// Abandon gives back the spans of a frame that was begun and not committed.
func (b *Batch) Abandon(f *Frame) {
	b.spanUsed = int(f.spanFirst)
	f.spanCount, f.tailLen = 0, 0
}

// Spans returns the frame's spans. Valid until the end of the pass.
func (b *Batch) Spans(f *Frame) []Span {
	return b.spans[f.spanFirst : f.spanFirst+f.spanCount]
}

// Fork keeps f as it is in was, and gives it spans of its own, so that what is pulled
// up or trimmed does not change those that was has. It reports false, having done
// nothing, where the batch has too few left. Join undoes it, of several the last
// one first; in between, no other spans are added.
func (b *Batch) Fork(f, was *Frame) bool {
	if int(f.spanCount) > b.SpansLeft() {
		return false
	}
	*was = *f
	first := b.spanUsed
	b.spanUsed += copy(b.spans[first:], b.Spans(f))
	f.spanFirst = uint16(first)
	return true
}

// Join makes f what it was before Fork.
func (b *Batch) Join(f, was *Frame) {
	b.spanUsed -= int(was.spanCount)
	*f = *was
}

// SpanCount is the number of the frame's spans.
func (f *Frame) SpanCount() int { return int(f.spanCount) }

// Header is the private header. It may be read and rewritten in place; it
// stays valid until the frame is reused.
func (f *Frame) Header() []byte { return f.buf[f.start:f.end] }

// Len is the length of the whole frame in bytes, header and spans.
func (f *Frame) Len() int { return int(f.end-f.start) + int(f.tailLen) }

// TailLen is the number of bytes in spans.
func (f *Frame) TailLen() int { return int(f.tailLen) }

// Push makes room for n bytes before the header and returns the new header,
// or nil where the headroom is used up. L3, L4 and the offload's offset move
// along.
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

// Pull takes n bytes off the front of the header; it reports false where the
// private header is shorter. L3, L4 and the offload's offset move along; what is
// passed is forgotten.
func (f *Frame) Pull(n int) bool {
	if int(f.end-f.start) < n {
		return false
	}
	f.start += uint16(n)
	f.L3 = pulled(f.L3, n)
	f.L4 = pulled(f.L4, n)
	if f.Offload.Flags&OffloadPartial != 0 {
		if f.Offload.CsumStart = pulled(f.Offload.CsumStart, n); f.Offload.CsumStart == 0 {
			f.Offload.Flags &^= OffloadPartial // went with its header
		}
	}
	return true
}

func pulled(off uint16, n int) uint16 {
	if int(off) < n {
		return 0
	}
	return off - uint16(n)
}

// Pullup makes the private header at least n bytes long, moving what is missing
// from the spans into it. It reports false, having moved nothing, where the
// frame is shorter or the private header cannot grow that far.
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

// Trim shortens the frame to n bytes in all, as an IP total length asks for
// after the padding of a short Ethernet frame. It never lengthens.
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
