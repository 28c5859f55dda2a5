// SPDX-License-Identifier: Apache-2.0

package packet

import "encoding/binary"

// Offload is the work that a frame's sender has left to the switch. It may be to finish a checksum,
// which is called partial until then. It may also be to cut the payload of a large frame into segments.
// An output does this work, or leaves it to its device or guest. The zero Offload means that nothing is
// left to do. On rings and taps, the virtio-net header has the same contents (virtio 1.2 section 5.1.6);
// see vnet.go.
type Offload struct {
	// GSO is the kind of a large frame. A large frame must be cut into segments with Size bytes
	// of payload each; the last may be shorter.
	GSO GSO
	// Flags is a set of the Offload* bits.
	Flags uint8
	Size  uint16
	// CsumStart and CsumOffset are valid if OffloadPartial is set. The checksum covers the frame from
	// offset CsumStart on. The checksum field is at offset CsumStart+CsumOffset. Until the checksum
	// is finished, the field holds the sum over the pseudo header.
	CsumStart, CsumOffset uint16
}

// Bits of Offload.Flags.
const (
	// OffloadPartial means that the transport checksum is not finished.
	OffloadPartial uint8 = 1 << iota
	// OffloadValid means that the kernel, a device or this package has verified the transport checksum.
	OffloadValid
	// OffloadFixedID means that all segments of a large IPv4 frame get the same identification
	// (RFC 6864 section 4.1 allows this with DF). Without the flag, the identification
	// increases by one from segment to segment.
	OffloadFixedID
	// OffloadOuter means that the checksum of the outer UDP or GRE header, at OuterL4, is not
	// finished; see outer.go.
	OffloadOuter
	// OffloadGRE means that the header at OuterL4 is GRE, and not UDP. No port accepts a large frame
	// (GSO) in GRE, so Weft itself cuts such a frame into segments.
	OffloadGRE
)

// GSO is the kind of a large frame.
type GSO uint8

// Kinds of large frames. A frame of kind GSOUDP is cut into UDP datagrams of equal size (USO, UDP_L4 in
// virtio). The older UFO, which cuts into IP fragments, is not supported: see decision 0006.
const (
	GSONone GSO = iota
	GSOTCPv4
	GSOTCPv6
	GSOUDP
)

// Offloads is a set of the work that an Offload can describe: what an output can do itself, or what a
// sender may leave to the switch.
type Offloads uint8

// Bits of Offloads.
const (
	// TakesPartial is in the set if checksums may be partial.
	TakesPartial Offloads = 1 << iota
	// TakesTCPv4 and TakesTCPv6 are in the set if large TCP frames are allowed. TakesECN is in the set if
	// these may have the flag CWR, which only their first segment gets (RFC 3168 section 6.1.2).
	TakesTCPv4
	TakesTCPv6
	TakesECN
	// TakesUDP is in the set if large UDP frames are allowed, over IPv4 and IPv6.
	TakesUDP
	// TakesTunnel is in the set if frames with an offload may have the outer headers of a tunnel. The
	// length fields in the outer headers of a large frame need not be right.
	TakesTunnel

	TakesAll = TakesPartial | TakesTCPv4 | TakesTCPv6 | TakesECN | TakesUDP
)

// Takes reports whether an output that accepts the set o accepts the frame f with its Offload. It is
// false for a large frame in GRE, and for a frame whose IP header is hidden (FrameHidden) if a checksum
// is partial or the frame is large.
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
		if f.Offload.Flags&OffloadGRE != 0 && f.Offload.GSO != GSONone {
			return false
		}
		need |= TakesTunnel
	}
	return need&^o == 0 && (need == 0 || f.Flags&FrameHidden == 0)
}

// congestion returns TakesECN if the TCP flag CWR of the frame is set, otherwise 0.
func (f *Frame) congestion() Offloads {
	if f.Header()[f.L4+13]&tcpCWR != 0 {
		return TakesECN
	}
	return 0
}

// The lower eight TCP flags, as in byte 13 of the TCP header.
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

// Undone reports whether the frame's transport checksum is partial, or the frame is a large frame, which
// must still be cut.
func (f *Frame) Undone() bool { return f.Offload.GSO != GSONone || f.Offload.Flags&OffloadPartial != 0 }

// CheckOffload compares the frame's Offload, which a guest may have written, with its headers.
// Extraction must have set L3 and L4. CheckOffload extends the header buffer to all headers that later
// steps need. It returns DropBadOffload if the Offload contradicts the headers, or if a large frame has
// more than maxSegments segments. It returns other reasons if headers are incomplete or too long. A
// large frame of one segment becomes an ordinary frame.
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
			b.FinishChecksum(f) // rare; rewrites can update only TCP and UDP checksums that are partial
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
	} else if f.SegmentCount() > maxSegments {
		return DropBadOffload
	}
	return DropNone
}

// maxSegments is the largest number of segments of a large frame. It limits the time to cut one. A frame
// of 64 KiB with the smallest MSS that Linux accepts (48) and timestamps has 1,819 segments.
const maxSegments = 2048

// headersLen returns the length in bytes of all headers of a TCP or UDP frame, tunnel
// headers included.
func (f *Frame) headersLen() int {
	if f.Proto == ProtoTCP {
		return int(f.L4) + TCP(f.Header()[f.L4:]).HeaderLen()
	}
	return int(f.L4) + UDPLen
}

// SegmentLen returns the length in bytes of the longest segment of a large frame,
// headers included, or the length of an ordinary frame.
func (f *Frame) SegmentLen() int {
	if f.Offload.GSO == GSONone {
		return f.Len()
	}
	return f.headersLen() + int(f.Offload.Size)
}

// SegmentCount returns the number of segments of a large frame, or 1 for an ordinary
// frame.
func (f *Frame) SegmentCount() int {
	if f.Offload.GSO == GSONone {
		return 1
	}
	size := int(f.Offload.Size)
	return (f.Len() - f.headersLen() + size - 1) / size
}

// LimitSegments reduces the segment size of a large TCP frame so that no segment is longer than maxBytes
// bytes, headers included. It returns true if all segments are then short enough, and for an ordinary
// frame of at most maxBytes bytes. Otherwise it returns false and changes nothing.
func (f *Frame) LimitSegments(maxBytes int) bool {
	if f.SegmentLen() <= maxBytes {
		return true
	}
	if f.Offload.GSO != GSOTCPv4 && f.Offload.GSO != GSOTCPv6 {
		return false
	}
	if maxBytes -= f.headersLen(); maxBytes < minSegment {
		return false
	}
	f.Offload.Size = uint16(maxBytes)
	return true
}

// minSegment is the smallest segment size in bytes that LimitSegments sets: the smallest MSS that Linux
// accepts. It limits the number of segments if a path MTU is too small.
const minSegment = 48

// FinishChecksum finishes the partial checksum of an ordinary frame, and its outer checksum. It does nothing
// if both are finished.
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
	putChecksum(h[o.CsumOffset:], b.SumFrom(f, int(o.CsumStart)), o.CsumOffset)
}

// SumFrom returns the ones' complement sum over the frame without its first length bytes. These bytes
// must be in the header buffer.
func (b *Batch) SumFrom(f *Frame, length int) uint16 {
	h := f.Header()[length:]
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

// Offsets of the checksum in UDP, TCP and GRE headers.
const (
	udpCsumOffset = 6
	tcpCsumOffset = 16
	greCsumOffset = 4 // RFC 2784 section 2.1
)

// putChecksum writes the inverted sum to the first 2 bytes of "field". offset is the offset of the
// checksum in its header, by which putChecksum recognizes UDP. For UDP it writes 0xffff instead of 0,
// which would mean "no checksum" (RFC 768).
func putChecksum(field []byte, sum uint16, offset uint16) {
	sum = ^sum
	if sum == 0 && offset == udpCsumOffset {
		sum = 0xffff
	}
	binary.BigEndian.PutUint16(field, sum)
}

// ValidChecksum reports whether the TCP or UDP checksum of an unfragmented datagram is valid. It reads
// the whole frame, unless OffloadValid is already set. It sets OffloadValid for a valid checksum. It
// returns false for other protocols, for a partial checksum, and for UDP without a checksum.
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
	if AddSums(f.pseudoSum(f.Len()-int(f.L4)), b.SumFrom(f, int(f.L4))) != 0xffff {
		return false
	}
	f.Offload.Flags |= OffloadValid
	return true
}

// pseudoSum returns the sum over the pseudo header of the frame's transport protocol. n is the length of
// transport header and payload in bytes.
func (f *Frame) pseudoSum(n int) uint16 {
	if ip := f.ipv4(); ip != nil {
		return SumIPv4(ip.Src(), ip.Dst(), f.Proto, n)
	}
	ip := f.ipv6()
	return SumIPv6(ip[8:], ip[24:], f.Proto, n)
}

// GatherFinished copies the whole frame into dst and finishes its checksums there, in one pass over the
// frame. The frame does not change. dst must have space for the whole frame. GatherFinished returns the
// number of bytes copied.
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
		if odd { // as in SumFrom
			part = part>>8 | part<<8
		}
		sum = AddSums(sum, part)
		odd = odd != (s.Len&1 != 0)
		n += int(s.Len)
	}
	putChecksum(covered[o.CsumOffset:], sum, o.CsumOffset)
	return n
}
