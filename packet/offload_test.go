// SPDX-License-Identifier: Apache-2.0

package packet_test

import (
	"bytes"
	"encoding/hex"
	"math/rand"
	"testing"

	"weft/packet"
	"weft/packet/packettest"
)

// A rewritten frame is the same if its checksum was partial and is finished after the rewrite, and if it was
// complete before.
func TestRewritesOfPartialChecksums(t *testing.T) {
	a := packettest.NewArena(t, 1<<17)
	for seed := range int64(3000) {
		rng := rand.New(rand.NewSource(seed))
		s := randomStream(rng)
		payload := randomBytes(rng, rng.Intn(400))
		var b packet.Batch
		a.Reset()
		span := rng.Intn(60)
		whole := a.Add(&b, s.frame(payload, 0, 0, 0x10, false), 128, span)
		part := a.Add(&b, s.frame(payload, 0, 0, 0x10, true), 128, span)
		s.note(whole, 0)
		s.note(part, 1)
		part.Offload.GSO, part.Offload.Size = packet.GSONone, 0
		for range 1 + rng.Intn(10) {
			which, v, w := rng.Intn(11), rng.Uint64(), rng.Uint64()
			for _, f := range []*packet.Frame{whole, part} {
				rewriteRandomly(f, which, v, w)
			}
		}
		b.FinishChecksum(part)
		if got, want := packettest.Bytes(&b, part), packettest.Bytes(&b, whole); !bytes.Equal(got, want) {
			t.Fatalf("seed %d: got\n%swant\n%s", seed, hex.Dump(got), hex.Dump(want))
		}
		if !b.ValidChecksum(whole) {
			t.Fatalf("seed %d: checksum does not verify", seed)
		}
	}
}

func rewriteRandomly(f *packet.Frame, field int, v, w uint64) {
	switch field {
	case 0:
		f.SetIPv4Src(uint32(v))
	case 1:
		f.SetIPv4Dst(uint32(v))
	case 2:
		f.SetIPv6Src(v, w)
	case 3:
		f.SetIPv6Dst(v, w)
	case 4:
		f.SetTOS(uint8(v))
	case 5:
		f.SetTTL(uint8(v))
	case 6:
		f.SetTpSrc(uint16(v))
	case 7:
		f.SetTpDst(uint16(v))
	case 8:
		f.PushVLAN(packet.EtherTypeVLAN, uint16(v))
	case 9:
		f.PopVLAN()
	case 10:
		f.SetEthDst(v)
	}
}

// CheckOffload finishes ICMPv6's partial checksum at once, because rewrites need a
// complete one.
func TestPartialICMPv6(t *testing.T) {
	a := packettest.NewArena(t, 1<<12)
	var b packet.Batch
	s := &stream{v6: true, udp: true, proto: packet.ProtoICMPv6, eth: []byte{12: 0x86, 13: 0xdd}, ttl: 64}
	data := s.frame([]byte("echo"), 0, 0, 0, true)
	data[54], data[55] = 128, 0 // ICMPv6 type and code; its checksum is at offset 2
	sum := [2]byte{data[60], data[61]}
	copy(data[58:], []byte{0, 1, 0, 1})
	copy(data[56:], sum[:])
	f := a.Add(&b, data, 60, 0)
	f.L3, f.L4, f.Proto = 14, 54, packet.ProtoICMPv6
	f.Offload = packet.Offload{Flags: packet.OffloadPartial, CsumStart: 54, CsumOffset: 2}
	if reason := b.CheckOffload(f); reason != packet.DropNone || f.Undone() {
		t.Fatalf("CheckOffload of ICMPv6 returned %v and left %+v", reason, f.Offload)
	}
	got := packettest.Bytes(&b, f)
	pseudo := append(bytes.Clone(got[22:54]), 0, packet.ProtoICMPv6, 0, byte(len(got)-54))
	if slowSum(append(pseudo, got[54:]...)) != 0xffff {
		t.Fatalf("checksum of % x", got)
	}
}

// EncodeVnet and DecodeVnet preserve an offload. DecodeVnet refuses one that was not
// negotiated.
func TestVnet(t *testing.T) {
	a := packettest.NewArena(t, 1<<17)
	for seed := range int64(3000) {
		rng := rand.New(rand.NewSource(seed))
		s := randomStream(rng)
		s.fixedID = false // the virtio-net header cannot express it
		a.Reset()
		var b packet.Batch
		flags := byte(0x10 | rng.Intn(2)<<7)
		data := s.frame(randomBytes(rng, 3000), 0, 0, flags, true)
		f, g := a.Add(&b, data, 128, 0), a.Add(&b, data, 128, 0)
		s.note(f, rng.Intn(2)*(1+rng.Intn(2000)))
		s.note(g, 0)
		if f.Offload.GSO == packet.GSONone && rng.Intn(2) == 0 {
			f.Offload.Flags |= packet.OffloadValid
		}
		var h [packet.VnetLen]byte
		rng.Read(h[:])
		f.EncodeVnet(&h)
		allowed := packet.Offloads(rng.Intn(int(packet.TakesAll) + 1))
		g.DecodeVnet(&h, allowed, true)
		// A guest may set CWR in the TCP header even if ECN was not negotiated.
		if want := (allowed | packet.TakesECN).Takes(f); (g.Drop == packet.DropNone) != want {
			t.Fatalf("seed %d: %+v with %#x allowed: dropped as %v", seed, f.Offload, allowed, g.Drop)
		}
		if g.Offload != f.Offload {
			t.Fatalf("seed %d: header %x of %+v read as %+v", seed, h, f.Offload, g.Offload)
		}
		ecn := f.Offload.GSO != packet.GSONone && !s.udp && flags&0x80 != 0
		if (h[1]&0x80 != 0) != ecn || (h[2] != 0 && int(h[2])|int(h[3])<<8 != s.headers()) {
			t.Fatalf("seed %d: header %x", seed, h)
		}
	}
}

// DecodeVnet does not panic, whatever bytes the header has. It does not believe a guest that a checksum is
// valid, and refuses unknown kinds of large frames.
func TestVnetGarbage(t *testing.T) {
	var b packet.Batch
	rng := rand.New(rand.NewSource(1))
	var h [packet.VnetLen]byte
	for range 20000 {
		rng.Read(h[:])
		h[1] &= 0x87
		f, _ := b.Next()
		f.DecodeVnet(&h, packet.TakesAll, false)
		if f.Offload.Flags&packet.OffloadValid != 0 {
			t.Fatal("a guest vouched for itself")
		}
		known := map[byte]bool{0: true, 1: true, 4: true, 5: true}[h[1]&^0x80]
		if (f.Drop == packet.DropNone) != known {
			t.Fatalf("header %x: %v", h, f.Drop)
		}
	}
}

func TestTakes(t *testing.T) {
	a := packettest.NewArena(t, 1<<17)
	var b packet.Batch
	rng := rand.New(rand.NewSource(1))
	for range 500 {
		s := randomStream(rng)
		a.Reset()
		b.Reset()
		flags := byte(0x10 | rng.Intn(2)<<7)
		f := a.Add(&b, s.frame(randomBytes(rng, 3000), 0, 0, flags, true), 128, 0)
		s.note(f, 1000)
		need := packet.TakesPartial
		switch {
		case s.udp:
			need |= packet.TakesUDP
		case s.v6:
			need |= packet.TakesTCPv6
		default:
			need |= packet.TakesTCPv4
		}
		if !s.udp && flags&0x80 != 0 {
			need |= packet.TakesECN
		}
		for o := range packet.TakesAll + 1 {
			if o.Takes(f) != (o&need == need) {
				t.Fatalf("%#x takes a frame that needs %#x: %v", o, need, o.Takes(f))
			}
		}
	}
}
