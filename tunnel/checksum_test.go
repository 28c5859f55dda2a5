// SPDX-License-Identifier: Apache-2.0

package tunnel

import (
	"bytes"
	"encoding/binary"
	"math/rand"
	"testing"

	"weft/packet"
	"weft/packet/packettest"
)

// slowChecksum computes a UDP checksum byte by byte (RFC 768, RFC 8200 section 8.1). covered begins
// with the UDP header, in which the checksum must be 0. ip is the IP header.
func slowChecksum(ip, covered []byte) uint16 {
	sum := uint32(packet.ProtoUDP) + uint32(len(covered))
	addresses := ip[12:20]
	if ip[0]>>4 == 6 {
		addresses = ip[8:40]
	}
	for _, b := range [][]byte{addresses, covered} {
		for i, v := range b {
			sum += uint32(v) << (8 * (1 - i&1))
			sum = sum>>16 + sum&0xffff
		}
	}
	if ^uint16(sum) == 0 {
		return 0xffff
	}
	return ^uint16(sum)
}

func zeroed(frame []byte, i int) []byte {
	frame = bytes.Clone(frame)
	frame[i], frame[i+1] = 0, 0
	return frame
}

// checkOuterChecksum pushes outer headers with a checksum on a random frame. The frame's inner
// checksum may be unfinished. It compares both final checksums with those of slowChecksum.
func checkOuterChecksum(t *testing.T, a *packettest.Arena, seed int64) {
	t.Helper()
	rng := rand.New(rand.NewSource(seed))
	p := params4
	if rng.Intn(2) == 0 {
		p = params6
	}
	p.Checksum, p.MTU = true, 0xffff
	if rng.Intn(3) == 0 {
		p.VLAN = 7
	}
	v6 := rng.Intn(2) == 0
	inner := innerFrame(t, v6, false, 0, rng.Intn(1500))
	l4 := 34
	if v6 {
		l4 = 54
	}
	rng.Read(inner[l4+packet.UDPLen:])
	length := len(inner) - l4
	inner[l4+6], inner[l4+7] = 0, 0
	want := bytes.Clone(inner)
	binary.BigEndian.PutUint16(want[l4+6:], slowChecksum(inner[14:], inner[l4:]))
	partial := rng.Intn(2) == 0
	if partial {
		sum := packet.SumIPv4(0, 0, packet.ProtoUDP, length) // all addresses are 0, so IPv4 and IPv6 pseudo headers have the same sum
		binary.BigEndian.PutUint16(inner[l4+6:], sum)
	} else {
		inner = want
	}
	a.Reset()
	var b packet.Batch
	f := a.Add(&b, inner, min(len(inner), l4+8+rng.Intn(60)), 2+rng.Intn(700))
	f.L3, f.L4, f.Proto = 14, uint16(l4), packet.ProtoUDP
	if partial {
		f.Offload = packet.Offload{Flags: packet.OffloadPartial, CsumStart: f.L4, CsumOffset: 6}
	}
	tmpl := build(t, p)
	if reason := tmpl.Push(f, 5, rng.Uint32(), 0, nil); reason != packet.DropNone {
		t.Fatal(reason)
	}
	got := make([]byte, f.Len())
	if n := b.GatherFinished(f, got); n != len(got) {
		t.Fatalf("seed %d: %d bytes of %d", seed, n, len(got))
	}
	if !bytes.Equal(got[tmpl.Len:], want) {
		t.Fatalf("seed %d: the inner frame is\n%x, want\n%x", seed, got[tmpl.Len:], want)
	}
	have := packet.UDP(got[tmpl.UDP:]).Checksum()
	if sum := slowChecksum(got[tmpl.IP:], zeroed(got[tmpl.UDP:], 6)); have != sum {
		t.Fatalf("seed %d: outer checksum %#04x, want %#04x", seed, have, sum)
	}
	b.FinishChecksum(f)
	if again := packettest.Bytes(&b, f); !bytes.Equal(again, got) {
		t.Fatalf("seed %d: finished in place\n%x, while copied\n%x", seed, again, got)
	}
	tmpl.Pop(f)
	if f.Offload.Flags&packet.OffloadOuter != 0 {
		t.Fatalf("seed %d: Pop left a checksum to be made", seed)
	}
}

func TestOuterChecksum(t *testing.T) {
	a := packettest.NewArena(t, 1<<16)
	for seed := range int64(4000) {
		checkOuterChecksum(t, a, seed)
	}
}

func FuzzOuterChecksum(f *testing.F) {
	a := packettest.NewArena(f, 1<<16)
	f.Add(int64(1))
	f.Fuzz(func(t *testing.T, seed int64) { checkOuterChecksum(t, a, seed) })
}

// Every segment of a large frame gets its own outer checksum.
func TestOuterChecksumOfSegments(t *testing.T) {
	a := packettest.NewArena(t, 1<<17)
	p := params6
	p.Checksum, p.MTU = true, 1514
	inner := innerFrame(t, false, false, 0, 9000)
	rand.New(rand.NewSource(1)).Read(inner[42:])
	binary.BigEndian.PutUint16(inner[40:], packet.SumIPv4(0, 0, packet.ProtoUDP, len(inner)-34))
	var b, cut packet.Batch
	f := a.Add(&b, inner, packet.InnerHeader, 2000)
	f.L3, f.L4, f.Proto = 14, 34, packet.ProtoUDP
	f.Offload = packet.Offload{GSO: packet.GSOUDP, Size: 1000, Flags: packet.OffloadPartial, CsumStart: 34, CsumOffset: 6}
	tmpl := build(t, p)
	if reason := tmpl.Push(f, 5, 0, 0, nil); reason != packet.DropNone {
		t.Fatal(reason)
	}
	s := b.Segments(f)
	for s.Next(&cut) {
	}
	if cut.N != 9 || !s.Done() {
		t.Fatalf("the large frame has %d segments, want 9", cut.N)
	}
	for i := range cut.Frames[:cut.N] {
		seg := &cut.Frames[i]
		got := make([]byte, seg.Len())
		cut.GatherFinished(seg, got)
		at := int(tmpl.Len)
		for _, h := range []struct{ ip, udp int }{{int(tmpl.IP), int(tmpl.UDP)}, {at + 14, at + 34}} {
			have := packet.UDP(got[h.udp:]).Checksum()
			if sum := slowChecksum(got[h.ip:], zeroed(got[h.udp:], 6)); have != sum {
				t.Errorf("segment %d, header at %d: checksum %#04x, want %#04x", i, h.udp, have, sum)
			}
		}
	}
}

func TestOuterChecksumAllocatesNothing(t *testing.T) {
	a := packettest.NewArena(t, 1<<16)
	p := params6
	p.Checksum = true
	inner := innerFrame(t, false, false, 0, 1000)
	var b packet.Batch
	f := a.Add(&b, inner, packet.InnerHeader, 500)
	f.L3, f.L4 = 14, 34
	tmpl, dst := build(t, p), make([]byte, 2000)
	if n := testing.AllocsPerRun(100, func() {
		tmpl.Push(f, 5, 0, 0, nil)
		b.GatherFinished(f, dst)
		tmpl.Pop(f)
	}); n != 0 {
		t.Errorf("checksums make %v allocations, want 0", n)
	}
}
