// SPDX-License-Identifier: Apache-2.0

package packet

// This file computes the checksum of a tunnel's outer UDP or GRE header, which covers the whole inner
// frame. It does so while it copies the frame, and after it has finished a partial inner checksum. Until
// then OffloadOuter is set. The checksum field of UDP then holds the sum over the pseudo header without
// the length. The checksum field of GRE then holds 0.

// gatherSummed is GatherFinished for a frame with OffloadOuter.
func (b *Batch) gatherSummed(f *Frame, dst []byte) int {
	n := copy(dst, f.Header())
	tail, odd := uint16(0), false
	at := n
	for _, s := range b.Spans(f) {
		part := CopySum(dst[at:], Foreign(s.Addr, s.Len))
		if odd { // RFC 1071 section 2(B)
			part = part>>8 | part<<8
		}
		tail = AddSums(tail, part)
		odd = odd != (s.Len&1 != 0)
		at += int(s.Len)
	}
	f.finishBoth(dst[:n], tail)
	return at
}

// finishOuter is FinishChecksum for a frame with OffloadOuter.
func (b *Batch) finishOuter(f *Frame) {
	h := f.Header()
	tail := b.SumFrom(f, len(h))
	f.finishBoth(h, tail)
	f.Offload.Flags &^= OffloadPartial | OffloadOuter
}

// finishBoth writes the inner checksum, if it is partial, and then the outer checksum into h, which has
// the first bytes of the frame with all headers. tail is the sum over the frame's remaining bytes.
func (f *Frame) finishBoth(h []byte, tail uint16) {
	if o := &f.Offload; o.Flags&OffloadPartial != 0 {
		covered := h[o.CsumStart:]
		putChecksum(covered[o.CsumOffset:], sumWithTail(covered, tail), o.CsumOffset)
	}
	if f.Offload.Flags&OffloadGRE != 0 {
		gre := h[f.OuterL4:]
		putChecksum(gre[greCsumOffset:], sumWithTail(gre, tail), greCsumOffset)
		return
	}
	udp := UDP(h[f.OuterL4:])
	sum := AddSums(sumWithTail(udp, tail), uint16(udp.Len())) // the pseudo header contains the length
	putChecksum(udp[udpCsumOffset:], sum, udpCsumOffset)
}

// sumWithTail returns the sum over h and the bytes after it, whose sum is tail.
func sumWithTail(h []byte, tail uint16) uint16 {
	if len(h)&1 != 0 {
		tail = tail>>8 | tail<<8
	}
	return AddSums(Sum(h), tail)
}
