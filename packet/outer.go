package packet

// The checksum of a tunnel's UDP header covers the whole inner frame, so it is
// made by whoever copies that: in the same pass, and after the inner checksum
// where the sender left that to be finished as well. Until then its field holds
// the sum over the pseudo header without the length (OffloadOuter).

// gatherSummed is GatherFinished of a frame with OffloadOuter.
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

// finishOuter is FinishChecksum of a frame with OffloadOuter.
func (b *Batch) finishOuter(f *Frame) {
	h := f.Header()
	tail := b.sumFrom(f, len(h))
	f.finishBoth(h, tail)
	f.Offload.Flags &^= OffloadPartial | OffloadOuter
}

// finishBoth puts the inner checksum, if it is left to do, and then the outer
// one into a copy of the frame's header; tail is the sum over what follows it.
func (f *Frame) finishBoth(h []byte, tail uint16) {
	if o := &f.Offload; o.Flags&OffloadPartial != 0 {
		covered := h[o.CsumStart:]
		putChecksum(covered[o.CsumOffset:], sumWithTail(covered, tail), o.CsumOffset)
	}
	udp := UDP(h[f.OuterL4:])
	sum := AddSums(sumWithTail(udp, tail), uint16(udp.Len())) // the pseudo header has the length, too
	putChecksum(udp[udpCsumOffset:], sum, udpCsumOffset)
}

// sumWithTail is the sum over h and what follows it.
func sumWithTail(h []byte, tail uint16) uint16 {
	if len(h)&1 != 0 {
		tail = tail>>8 | tail<<8
	}
	return AddSums(Sum(h), tail)
}
