package packet

import "encoding/binary"

// Offload is what the sender of a frame has left to do: a checksum to finish
// (Linux calls it partial), or a payload to cut into segments. It travels with
// the frame until an output either does it or passes it on to a device that
// will. All zero: nothing. The virtio-net header (virtio 1.2 section 5.1.6) says
// the same on the rings and taps; see vnet.go.
type Offload struct {
	// GSO is the kind of a large frame, whose payload stands for several frames
	// of Size bytes of payload each, the last perhaps less.
	GSO GSO
	// Flags is a set of the Offload* bits.
	Flags uint8
	Size  uint16
	// CsumStart and CsumOffset are valid with OffloadPartial: the checksum covers
	// everything from CsumStart on (relative to the start of the header) and goes
	// to CsumStart+CsumOffset, where the sum over the pseudo header stands now.
	CsumStart, CsumOffset uint16
}

// Offload flags.
const (
	// OffloadPartial: the transport checksum is to be finished.
	OffloadPartial uint8 = 1 << iota
	// OffloadValid: somebody trusted has verified the transport checksum.
	OffloadValid
	// OffloadFixedID: the segments of a large IPv4 frame all have its
	// identification (RFC 6864 section 4.1 allows it with DF); otherwise they
	// count up from it.
	OffloadFixedID
	// OffloadOuter: the checksum of the UDP header at OuterL4 is to be made; see
	// outer.go.
	OffloadOuter
)

// GSO is the kind of a large frame.
type GSO uint8

// Kinds of large frames. UDP is USO, datagrams of equal size (virtio's UDP_L4);
// the older UFO, which makes IP fragments, is not taken: see docs/decisions.
const (
	GSONone GSO = iota
	GSOTCPv4
	GSOTCPv6
	GSOUDP
)

// Offloads is what an output takes undone, or a sender may leave undone.
type Offloads uint8

// Bits of Offloads.
const (
	// TakesPartial: partial checksums.
	TakesPartial Offloads = 1 << iota
	// TakesTCPv4 and TakesTCPv6: large TCP frames; TakesECN: also such whose
	// first segment has CWR set (RFC 3168 section 6.1.2).
	TakesTCPv4
	TakesTCPv6
	TakesECN
	// TakesUDP: large UDP frames over IPv4 and IPv6.
	TakesUDP
	// TakesTunnel: the same behind the outer headers of a tunnel, whose lengths may
	// say less than the large frame has, for want of bits.
	TakesTunnel

	TakesAll = TakesPartial | TakesTCPv4 | TakesTCPv6 | TakesECN | TakesUDP
)

// Takes tells whether all that is left to do of f is among o.
func (o Offloads) Takes(f *Frame) bool {
	need := Offloads(0)
	if f.Offload.Flags&OffloadPartial != 0 {
		need = TakesPartial
	}
	switch f.Offload.GSO {
	case GSOTCPv4:
		need |= TakesTCPv4 | f.congestion()
	case GSOTCPv6:
		need |= TakesTCPv6 | f.congestion()
	case GSOUDP:
		need |= TakesUDP
	}
	if f.OuterL3 != 0 && need != 0 {
		need |= TakesTunnel
	}
	return need&^o == 0
}

// congestion is TakesECN if the TCP header has CWR set.
func (f *Frame) congestion() Offloads {
	if f.Header()[f.L4+13]&tcpCWR != 0 {
		return TakesECN
	}
	return 0
}

// TCP flags, the lower eight of them.
const (
	tcpFIN = 1 << iota
	tcpSYN
	tcpRST
	tcpPSH
	tcpACK
	tcpURG
	tcpECE
	tcpCWR
)

// Undone tells whether anything is left to do.
func (f *Frame) Undone() bool { return f.Offload.GSO != GSONone || f.Offload.Flags&OffloadPartial != 0 }

// CheckOffload validates what the sender left to do against the frame itself,
// once extraction has set L3 and L4, and sees to it that the headers up to and
// including the one to be finished or repeated lie in the private header. What
// contradicts the frame is dropped as DropBadOffload: nothing after this need
// look again. A large frame of one segment becomes an ordinary one, and one of more
// than MaxSegments is none that any sender makes.
func (b *Batch) CheckOffload(f *Frame) DropReason {
	o := &f.Offload
	if o.Flags&OffloadPartial == 0 {
		if o.GSO != GSONone {
			return DropBadOffload // virtio 1.2 section 5.1.6.2.1
		}
		return DropNone
	}
	end := int(o.CsumStart) + int(o.CsumOffset) + 2
	if o.CsumStart < EthernetLen || end > f.Len() {
		return DropBadOffload
	}
	if !b.Pullup(f, end) {
		return DropDeepHeader
	}
	if o.GSO == GSONone {
		if f.partial() && f.Proto != ProtoTCP && f.Proto != ProtoUDP {
			b.FinishChecksum(f) // rare, and rewrites know but those two
		}
		return DropNone
	}
	if f.L4 == 0 || f.Flags&FrameFragment != 0 || o.CsumStart != f.L4 || o.Size == 0 {
		return DropBadOffload
	}
	v4 := f.Header()[f.L3]>>4 == 4
	switch {
	case o.GSO == GSOTCPv4 && v4 && f.Proto == ProtoTCP && o.CsumOffset == tcpCsumOffset:
	case o.GSO == GSOTCPv6 && !v4 && f.Proto == ProtoTCP && o.CsumOffset == tcpCsumOffset:
	case o.GSO == GSOUDP && f.Proto == ProtoUDP && o.CsumOffset == udpCsumOffset:
	default:
		return DropBadOffload
	}
	n := f.headersLen()
	if n > f.Len() {
		return DropBadTransport
	}
	if !b.Pullup(f, n) {
		return DropDeepHeader
	}
	if f.Len()-n <= int(o.Size) {
		o.GSO, o.Size = GSONone, 0
	} else if f.SegmentCount() > MaxSegments {
		return DropBadOffload
	}
	return DropNone
}

// MaxSegments is the number of frames that a large one may stand for: 64 KiB with the
// least MSS that Linux accepts (48) and timestamps in each segment make 1,819. Without
// a bound a guest could have 64 KiB cut into single bytes.
const MaxSegments = 2048

// headersLen is the length of all headers of a TCP or UDP frame, tunnel
// included: where the payload begins.
func (f *Frame) headersLen() int {
	if f.Proto == ProtoTCP {
		return int(f.L4) + TCP(f.Header()[f.L4:]).HeaderLen()
	}
	return int(f.L4) + UDPLen
}

// SegmentLen is the length in bytes of the longest frame that f stands for: of f
// itself if it is not large.
func (f *Frame) SegmentLen() int {
	if f.Offload.GSO == GSONone {
		return f.Len()
	}
	return f.headersLen() + int(f.Offload.Size)
}

// SegmentCount is the number of frames that f stands for, 1 if it is not large.
func (f *Frame) SegmentCount() int {
	if f.Offload.GSO == GSONone {
		return 1
	}
	size := int(f.Offload.Size)
	return (f.Len() - f.headersLen() + size - 1) / size
}

// LimitSegments has the segments of a large TCP frame be at most limit bytes long,
// headers included: a stream can be cut anywhere. It reports false, f unchanged,
// where that is not possible (a datagram can not be cut, nor a header), and for
// an ordinary frame longer than limit.
func (f *Frame) LimitSegments(limit int) bool {
	if f.SegmentLen() <= limit {
		return true
	}
	if f.Offload.GSO != GSOTCPv4 && f.Offload.GSO != GSOTCPv6 {
		return false
	}
	if limit -= f.headersLen(); limit < minSegment {
		return false
	}
	f.Offload.Size = uint16(limit)
	return true
}

// minSegment is the least payload that a TCP stream is cut into to fit a path:
// the least MSS Linux accepts, so that a mistaken MTU does not flood the path.
const minSegment = 48

// FinishChecksum does what is left of the checksum of a frame that is not large,
// in the private header; the spans are read. It changes nothing of a frame
// whose checksum is complete.
func (b *Batch) FinishChecksum(f *Frame) {
	o := &f.Offload
	if o.Flags&OffloadOuter != 0 {
		b.finishOuter(f)
		return
	}
	if o.Flags&OffloadPartial == 0 {
		return
	}
	o.Flags &^= OffloadPartial
	h := f.Header()[o.CsumStart:]
	putChecksum(h[o.CsumOffset:], b.sumFrom(f, int(o.CsumStart)), o.CsumOffset)
}

// sumFrom is the sum over the frame from byte at of its private header on.
func (b *Batch) sumFrom(f *Frame, at int) uint16 {
	h := f.Header()[at:]
	sum, odd := Sum(h), len(h)&1 != 0
	for _, s := range b.Spans(f) {
		part := Sum(Foreign(s.Addr, s.Len))
		if odd { // RFC 1071 section 2(B)
			part = part>>8 | part<<8
		}
		sum = AddSums(sum, part)
		odd = odd != (s.Len&1 != 0)
	}
	return sum
}

// Where UDP and TCP headers have their checksum.
const (
	udpCsumOffset = 6
	tcpCsumOffset = 16
)

// putChecksum writes the checksum of a sum. 0 would say in UDP that there is none
// (RFC 768).
func putChecksum(field []byte, sum uint16, offset uint16) {
	sum = ^sum
	if sum == 0 && offset == udpCsumOffset {
		sum = 0xffff
	}
	binary.BigEndian.PutUint16(field, sum)
}

// ValidChecksum tells whether the TCP or UDP checksum of a whole datagram is
// right; false for anything else, for a partial checksum, and for a UDP
// datagram without one. It reads all of the frame; OffloadValid remembers.
func (b *Batch) ValidChecksum(f *Frame) bool {
	if f.Offload.Flags&OffloadValid != 0 {
		return true
	}
	if f.L4 == 0 || f.Flags&(FrameFragment|FrameRouted) != 0 || f.Undone() {
		return false
	}
	h := f.Header()
	switch f.Proto {
	case ProtoTCP:
	case ProtoUDP:
		if u := UDP(h[f.L4:]); u.Checksum() == 0 || u.Len() != f.Len()-int(f.L4) {
			return false
		}
	default:
		return false
	}
	if AddSums(f.pseudoSum(f.Len()-int(f.L4)), b.sumFrom(f, int(f.L4))) != 0xffff {
		return false
	}
	f.Offload.Flags |= OffloadValid
	return true
}

// pseudoSum is the sum over the pseudo header for n bytes from the transport
// header on.
func (f *Frame) pseudoSum(n int) uint16 {
	if ip := f.ipv4(); ip != nil {
		return SumIPv4(ip.Src(), ip.Dst(), f.Proto, n)
	}
	ip := f.ipv6()
	return SumIPv6(ip[8:], ip[24:], f.Proto, n)
}

// GatherFinished copies the whole frame into dst, as Gather does, with its checksum
// finished there, summed in the same pass; the frame itself stays as it is. dst
// must hold all of it.
func (b *Batch) GatherFinished(f *Frame, dst []byte) int {
	o := &f.Offload
	if o.Flags&OffloadOuter != 0 {
		return b.gatherSummed(f, dst)
	}
	if o.Flags&OffloadPartial == 0 {
		return b.Gather(f, dst)
	}
	n := copy(dst, f.Header())
	covered := dst[o.CsumStart:n]
	sum, odd := Sum(covered), len(covered)&1 != 0
	for _, s := range b.Spans(f) {
		part := CopySum(dst[n:], Foreign(s.Addr, s.Len))
		if odd { // as in sumFrom
			part = part>>8 | part<<8
		}
		sum = AddSums(sum, part)
		odd = odd != (s.Len&1 != 0)
		n += int(s.Len)
	}
	putChecksum(covered[o.CsumOffset:], sum, o.CsumOffset)
	return n
}
