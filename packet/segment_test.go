// SPDX-License-Identifier: Apache-2.0

package packet_test

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"math/rand"
	"testing"

	"weft/packet"
	"weft/packet/packettest"
)

// stream is the reference for large frames and segments. It has the header fields of a connection and writes
// its frames byte by byte.
type stream struct {
	outer   []byte // outer headers of a tunnel, with lengths and IPv4 checksum 0
	outerL3 int    // offset in outer
	eth     []byte // Ethernet header, tags and EtherType
	v6, udp bool
	ext     []byte // IPv6 extension header or IPv4 options
	tcp     []byte // header of 20 bytes and options
	proto   byte
	ttl     byte
	tos     byte
	df      bool
	fixedID bool
	id      uint16
	outerID uint16
	seq     uint32
	src     [16]byte
	dst     [16]byte
	ports   [4]byte
}

func randomStream(rng *rand.Rand) *stream {
	s := &stream{v6: rng.Intn(2) == 0, udp: rng.Intn(3) == 0, ttl: byte(1 + rng.Intn(255)), tos: byte(rng.Intn(256)),
		df: rng.Intn(2) == 0, id: uint16(rng.Intn(1 << 16)), outerID: uint16(rng.Intn(1 << 16)), seq: rng.Uint32()}
	s.fixedID = s.df && !s.v6 && rng.Intn(2) == 0
	rng.Read(s.src[:])
	rng.Read(s.dst[:])
	rng.Read(s.ports[:])
	s.eth = randomBytes(rng, 12)
	for range rng.Intn(3) {
		s.eth = append(s.eth, 0x81, 0, byte(rng.Intn(256)), byte(rng.Intn(256)))
	}
	s.eth = append(s.eth, 8, 0)
	if s.v6 {
		s.eth = append(s.eth[:len(s.eth)-2], 0x86, 0xdd)
	}
	s.proto = packet.ProtoUDP
	if !s.udp {
		s.proto = packet.ProtoTCP
		s.tcp = randomBytes(rng, 20+4*rng.Intn(11))
		s.tcp[12] = byte(len(s.tcp)/4)<<4 | s.tcp[12]&15
		copy(s.tcp, s.ports[:])
	}
	return s
}

// tunnel adds outer headers of VXLAN to the stream.
func (s *stream) tunnel(rng *rand.Rand) {
	h := randomBytes(rng, 12)
	if rng.Intn(3) == 0 {
		h = append(h, 0x81, 0, 0, 7)
	}
	if rng.Intn(2) == 0 {
		h = append(h, 8, 0)
		s.outerL3 = len(h)
		flags := byte(0)
		if rng.Intn(2) == 0 {
			flags = 0x40
		}
		h = append(h, 0x45, 0, 0, 0, 0, 0, flags, 0, 64, packet.ProtoUDP, 0, 0, 172, 16, 0, 1, 172, 16, 0, 2)
	} else {
		h = append(h, 0x86, 0xdd)
		s.outerL3 = len(h)
		h = append(h, 0x60, 0, 0, 0, 0, 0, packet.ProtoUDP, 64)
		h = append(h, randomBytes(rng, 32)...)
	}
	s.outer = append(h, 0xc0, 1, 0x12, 0xb5, 0, 0, 0, 0, 8, 0, 0, 0, 0, 0, 100, 0)
}

// frame returns frame number index of the stream. Its payload begins at offset in the
// connection's data. If partial is true, the checksum is unfinished.
func (s *stream) frame(payload []byte, index, offset int, flags byte, partial bool) []byte {
	l4 := make([]byte, 8)
	csum := 6
	if s.udp {
		copy(l4, s.ports[:])
		binary.BigEndian.PutUint16(l4[4:], uint16(8+len(payload)))
	} else {
		l4, csum = bytes.Clone(s.tcp), 16
		binary.BigEndian.PutUint32(l4[4:], s.seq+uint32(offset))
		l4[13] = flags
	}
	l4[csum], l4[csum+1] = 0, 0
	l4 = append(l4, payload...)
	var l3, pseudo []byte
	if s.v6 {
		l3 = []byte{0x60 | s.tos>>4, s.tos << 4, 1, 2, 0, 0, s.proto, s.ttl}
		l3 = append(append(l3, s.src[:]...), s.dst[:]...)
		if len(s.ext) > 0 {
			l3[6] = packet.ProtoDestOpts
			l3 = append(l3, s.ext...)
		}
		binary.BigEndian.PutUint16(l3[4:], uint16(len(s.ext)+len(l4)))
		pseudo = append(append(pseudo, s.src[:]...), s.dst[:]...)
	} else {
		l3 = []byte{0x45 + byte(len(s.ext)/4), s.tos, 0, 0, 0, 0, 0, 0, s.ttl, s.proto, 0, 0}
		l3 = append(append(append(l3, s.src[:4]...), s.dst[:4]...), s.ext...)
		if s.df {
			l3[6] = 0x40
		}
		id := s.id
		if !s.fixedID {
			id += uint16(index)
		}
		binary.BigEndian.PutUint16(l3[2:], uint16(len(l3)+len(l4)))
		binary.BigEndian.PutUint16(l3[4:], id)
		binary.BigEndian.PutUint16(l3[10:], ^slowSum(l3))
		pseudo = append(append(pseudo, s.src[:4]...), s.dst[:4]...)
	}
	pseudo = append(pseudo, 0, s.proto, byte(len(l4)>>8), byte(len(l4)))
	if partial {
		binary.BigEndian.PutUint16(l4[csum:], slowSum(pseudo))
	} else {
		sum := ^slowSum(append(pseudo, l4...))
		if sum == 0 && s.udp {
			sum = 0xffff
		}
		binary.BigEndian.PutUint16(l4[csum:], sum)
	}
	inner := append(append(bytes.Clone(s.eth), l3...), l4...)
	return append(s.outerFor(index, len(inner)), inner...)
}

func (s *stream) outerFor(index, inner int) []byte {
	h := bytes.Clone(s.outer)
	if len(h) == 0 {
		return nil
	}
	l3 := h[s.outerL3:]
	length := len(l3) + inner
	if l3[0]>>4 == 4 {
		binary.BigEndian.PutUint16(l3[2:], uint16(length))
		binary.BigEndian.PutUint16(l3[4:], s.outerID+uint16(index))
		if l3[6] == 0x40 {
			binary.BigEndian.PutUint16(l3[4:], s.outerID)
		}
		binary.BigEndian.PutUint16(l3[10:], ^slowSum(l3[:20]))
		binary.BigEndian.PutUint16(l3[24:], uint16(length-20))
	} else {
		binary.BigEndian.PutUint16(l3[4:], uint16(length-40))
		binary.BigEndian.PutUint16(l3[44:], uint16(length-40))
	}
	return h
}

func (s *stream) l3() int { return len(s.outer) + len(s.eth) }

func (s *stream) l4() int {
	if s.v6 {
		return s.l3() + 40 + len(s.ext)
	}
	return s.l3() + 20 + len(s.ext)
}

func (s *stream) headers() int {
	if s.udp {
		return s.l4() + 8
	}
	return s.l4() + len(s.tcp)
}

func (s *stream) note(f *packet.Frame, size int) {
	f.L3, f.L4, f.Proto = uint16(s.l3()), uint16(s.l4()), s.proto
	if len(s.outer) > 0 {
		f.OuterL3, f.OuterL4 = uint16(s.outerL3), uint16(len(s.outer)-16)
	}
	if size == 0 {
		return
	}
	f.Offload = packet.Offload{GSO: packet.GSOTCPv4, Flags: packet.OffloadPartial, Size: uint16(size), CsumStart: f.L4, CsumOffset: 16}
	if s.v6 {
		f.Offload.GSO = packet.GSOTCPv6
	}
	if s.udp {
		f.Offload.GSO, f.Offload.CsumOffset = packet.GSOUDP, 6
	}
	if s.fixedID {
		f.Offload.Flags |= packet.OffloadFixedID
	}
}

// cut returns the segments into which a large frame with this payload must be cut. size is the payload of a
// segment in bytes.
func (s *stream) cut(payload []byte, size int, flags byte) (frames [][]byte) {
	for at := 0; at < len(payload); at += size {
		end := min(at+size, len(payload))
		own := flags
		if end < len(payload) {
			own &^= 0x09 // FIN, PSH
		}
		if at > 0 {
			own &^= 0x80 // CWR
		}
		frames = append(frames, s.frame(payload[at:end], len(frames), at, own, false))
	}
	return frames
}

// segments cuts f with Next, as an output with batches does. If inPlace is true, it finishes the checksums in
// the segments, otherwise while it copies them out (GatherFinished).
func segments(b *packet.Batch, f *packet.Frame, inPlace bool) (frames [][]byte) {
	s := b.Segments(f)
	var dst packet.Batch
	for !s.Done() {
		dst.Reset()
		for s.Next(&dst) {
		}
		if dst.N == 0 {
			return nil
		}
		for i := range dst.Frames[:dst.N] {
			seg := &dst.Frames[i]
			data := make([]byte, seg.Len())
			if inPlace {
				dst.FinishChecksum(seg)
			}
			dst.GatherFinished(seg, data)
			frames = append(frames, data)
		}
	}
	return frames
}

// written cuts f with Write, as an output without batches does. It compares calls with and without the outer
// headers.
func written(t *testing.T, b *packet.Batch, f *packet.Frame) (frames [][]byte) {
	t.Helper()
	var dst, bare [packet.MaxFrameLen + packet.Headroom]byte
	outer := 0
	if f.OuterL3 != 0 {
		outer = int(f.OuterL4) + packet.UDPLen
	}
	untouched := bytes.Repeat([]byte{0xa5}, outer)
	inner := b.Segments(f)
	for s := b.Segments(f); !s.Done(); {
		copy(bare[:], untouched)
		m := inner.Write(bare[:], false)
		n := s.Write(dst[:], true)
		if n != m || !bytes.Equal(bare[:outer], untouched) || !bytes.Equal(bare[outer:n], dst[outer:n]) {
			t.Fatalf("without outer headers, %d bytes\n% x\ninstead of %d\n% x", m, bare[:m], n, dst[:n])
		}
		frames = append(frames, bytes.Clone(dst[:n]))
	}
	return frames
}

func checkSegments(t *testing.T, a *packettest.Arena, seed int64) {
	rng := rand.New(rand.NewSource(seed))
	s := randomStream(rng)
	if rng.Intn(3) == 0 {
		s.ext = make([]byte, 8) // IPv6: a destination option with padding; IPv4: end of options
		s.ext[0], s.ext[2], s.ext[3] = s.proto, 1, 4
		if !s.v6 {
			s.ext[0] = 0
		}
	}
	if rng.Intn(2) == 0 {
		s.tunnel(rng)
	}
	size := 1 + rng.Intn(1<<(1+rng.Intn(13)))
	total := size + 1 + rng.Intn(min(size*100, 65535-200-size))
	flags := byte(rng.Intn(256)) &^ 6
	payload := randomBytes(rng, total)
	large := s.frame(payload, 0, 0, flags, true)
	a.Reset()
	var b packet.Batch
	header := s.headers() + rng.Intn(1+max(0, 224-s.headers()))
	span := 0
	if rng.Intn(2) == 0 {
		span = 1 + len(large)/200 + rng.Intn(5000)
	}
	f := a.Add(&b, large, header, span)
	s.note(f, size)
	if len(s.outer) == 0 {
		if reason := b.CheckOffload(f); reason != packet.DropNone {
			t.Fatalf("seed %d: CheckOffload: %v", seed, reason)
		}
	}
	want := s.cut(payload, size, flags)
	if f.SegmentCount() != len(want) || f.SegmentLen() != len(want[0]) {
		t.Fatalf("seed %d: %d segments of %d bytes, want %d of %d", seed, f.SegmentCount(), f.SegmentLen(), len(want), len(want[0]))
	}
	got := segments(&b, f, rng.Intn(2) == 0)
	compareFrames(t, seed, got, want)
	compareFrames(t, seed, written(t, &b, f), want)
	if !bytes.Equal(packettest.Bytes(&b, f), large) {
		t.Fatalf("seed %d: the large frame was changed", seed)
	}
}

func compareFrames(t *testing.T, seed int64, got, want [][]byte) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("seed %d: %d frames, want %d", seed, len(got), len(want))
	}
	for i := range want {
		if !bytes.Equal(got[i], want[i]) {
			t.Fatalf("seed %d: frame %d of %d:\ngot\n%swant\n%s", seed, i, len(want), hex.Dump(got[i]), hex.Dump(want[i]))
		}
	}
}

func TestSegments(t *testing.T) {
	a := packettest.NewArena(t, 1<<17)
	for seed := range seeds(1500) {
		checkSegments(t, a, seed)
	}
}

func seeds(n int64) int64 {
	if testing.Short() {
		return n / 10
	}
	return n
}

func FuzzSegments(f *testing.F) {
	f.Add(int64(1))
	a := packettest.NewArena(f, 1<<17)
	f.Fuzz(func(t *testing.T, seed int64) { checkSegments(t, a, seed) })
}

// LimitSegments makes the segments of a large TCP frame smaller, and returns false for a large UDP frame.
func TestLimitSegments(t *testing.T) {
	a := packettest.NewArena(t, 1<<17)
	rng := rand.New(rand.NewSource(1))
	for range 200 {
		s := randomStream(rng)
		payload := randomBytes(rng, 20000)
		a.Reset()
		var b packet.Batch
		f := a.Add(&b, s.frame(payload, 0, 0, 0x18, true), 128, 0)
		s.note(f, 1448)
		if !f.LimitSegments(s.headers()+1448) || f.Offload.Size != 1448 {
			t.Fatal("a limit that fits changed the size")
		}
		if f.LimitSegments(s.headers()+1400) == s.udp {
			t.Fatalf("a limit below the segment size: UDP %v, LimitSegments returned %v", s.udp, !s.udp)
		}
		if s.udp {
			continue
		}
		compareFrames(t, 0, segments(&b, f, false), s.cut(payload, 1400, 0x18))
		if f.LimitSegments(s.headers() + 1) {
			t.Fatal("segments of one byte granted")
		}
	}
}

// CheckOffload refuses offloads that contradict the frame, and does not read beyond the frame's end.
func TestCheckOffloadRefuses(t *testing.T) {
	a := packettest.NewArena(t, 1<<17)
	for seed := range seeds(20000) {
		rng := rand.New(rand.NewSource(seed))
		s := randomStream(rng)
		a.Reset()
		var b packet.Batch
		data := s.frame(randomBytes(rng, rng.Intn(300)), 0, 0, 0x10, true)
		f := a.Add(&b, data, 128, 1+rng.Intn(200))
		s.note(f, 0)
		o := packet.Offload{GSO: packet.GSO(rng.Intn(4)), Flags: uint8(rng.Intn(4)), Size: uint16(rng.Intn(300) * rng.Intn(2)),
			CsumStart: uint16(rng.Intn(400)), CsumOffset: uint16(rng.Intn(40))}
		if rng.Intn(2) == 0 {
			o.CsumStart, o.CsumOffset = f.L4, uint16(6+10*rng.Intn(2))
		}
		if rng.Intn(8) == 0 {
			o.CsumStart, o.CsumOffset = uint16(rng.Intn(1<<16)), uint16(rng.Intn(1<<16))
		}
		f.Offload = o
		partial := o.Flags&packet.OffloadPartial != 0
		end := int(o.CsumStart) + int(o.CsumOffset) + 2
		want := partial && o.CsumStart >= 14 && end <= len(data)
		if o.GSO != packet.GSONone {
			kind := packet.GSOTCPv4
			switch {
			case s.udp:
				kind = packet.GSOUDP
			case s.v6:
				kind = packet.GSOTCPv6
			}
			want = want && o.GSO == kind && o.Size > 0 && o.CsumStart == f.L4 && (o.CsumOffset == 6) == s.udp && (o.CsumOffset == 16) == !s.udp
		} else {
			want = want || !partial
		}
		reason := b.CheckOffload(f)
		if deep := end > packet.MaxHeader; (reason == packet.DropNone) != want && !(deep && want && reason == packet.DropDeepHeader) {
			t.Fatalf("seed %d: %+v of a frame of %d bytes, L4 %d: %v", seed, o, len(data), f.L4, reason)
		}
		if reason == packet.DropNone {
			if f.Offload.GSO != packet.GSONone {
				segments(&b, f, false)
			} else {
				b.FinishChecksum(f)
			}
		}
	}
}

func TestSegmentsAllocateNothing(t *testing.T) {
	a := packettest.NewArena(t, 1<<17)
	rng := rand.New(rand.NewSource(1))
	s := randomStream(rng)
	var b, dst packet.Batch
	f := a.Add(&b, s.frame(randomBytes(rng, 60000), 0, 0, 0x18, true), 128, 0)
	s.note(f, 1448)
	out := make([]byte, 2000)
	if n := testing.AllocsPerRun(10, func() {
		for g := b.Segments(f); !g.Done(); {
			dst.Reset()
			for g.Next(&dst) {
			}
			for i := range dst.Frames[:dst.N] {
				dst.GatherFinished(&dst.Frames[i], out)
			}
		}
	}); n != 0 {
		t.Fatalf("segmenting makes %v allocations, want 0", n)
	}
}
