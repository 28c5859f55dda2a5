// SPDX-License-Identifier: Apache-2.0

package tunnel

import (
	"bytes"
	"math/rand"
	"net/netip"
	"testing"

	"weft/flowtable"
	"weft/packet"
	"weft/packet/packettest"
)

func address(s string) [16]byte { return netip.MustParseAddr(s).As16() }

func anyTermination() *Terminations {
	t := NewTerminations()
	t.Set(0, &Termination{Port: 42, VNI: AnyVNI, UDPPort: 4789})
	return t
}

func datagram(t testing.TB, a *packettest.Arena, p Params, inner []byte, vni uint32, tos uint8) []byte {
	var b packet.Batch
	p.MTU = 65535
	f := a.Add(&b, inner, packet.InnerHeader, 100)
	if reason := build(t, p).Push(f, vni, 99, tos, nil); reason != packet.DropNone {
		t.Fatal(reason)
	}
	return packettest.Bytes(&b, f)
}

// Decapsulate restores the frame that Push has encapsulated, however the datagram is divided into
// header and spans.
func TestPushDecapsulate(t *testing.T) {
	a := packettest.NewArena(t, 1<<18)
	rng := rand.New(rand.NewSource(1))
	table := anyTermination()
	for i := range 3000 {
		a.Reset()
		inner := make([]byte, 14+rng.Intn(1400))
		rng.Read(inner)
		p, vni := params4, rng.Uint32()&0xffffff
		words := [flowtable.TunnelWords]uint64{uint64(vni), 0xac100001<<32 | 0xac100002}
		if rng.Intn(2) == 0 {
			p = params6
			words = [flowtable.TunnelWords]uint64{uint64(vni), 0, 0x20010db8 << 32, 1, 0x20010db8 << 32, 2}
		}
		p.VLAN = uint16(rng.Intn(2) * 5)
		data := append(datagram(t, a, p, inner, vni, 0), make([]byte, rng.Intn(2)*20)...) // padding
		var b packet.Batch
		b.Port = 3
		f := a.Add(&b, data, rng.Intn(packet.MaxHeader), 2+rng.Intn(200))
		var got [flowtable.TunnelWords]uint64
		if reason := table.Decapsulate(&b, f, &got, new(flowtable.TunOptions)); reason != packet.DropNone {
			t.Fatalf("frame %d: %v", i, reason)
		}
		if !bytes.Equal(packettest.Bytes(&b, f), inner) || got != words || f.InPort != 42 {
			t.Fatalf("frame %d: port %d, words %x, want %x", i, f.InPort, got, words)
		}
	}
}

func TestDecapsulateMalformed(t *testing.T) {
	a := packettest.NewArena(t, 1<<18)
	inner := innerFrame(t, false, false, 0, 100)
	v4, v6 := datagram(t, a, params4, inner, 5, 0), datagram(t, a, params6, inner, 5, 0)
	tagged := params4
	tagged.VLAN = 5
	set := func(data []byte, offset int, v ...byte) []byte {
		data = append([]byte(nil), data...)
		copy(data[offset:], v)
		if data[12] == 8 && data[13] == 0 && len(data) >= 34 { // corrects the outer header's checksum
			packet.IPv4(data[14:34]).SetChecksum(0)
			packet.IPv4(data[14:34]).SetChecksum(packet.Checksum(data[14:34]))
		}
		return data
	}
	wrongSum := append([]byte(nil), v4...)
	wrongSum[24]++
	for _, c := range []struct {
		name string
		data []byte
		want packet.DropReason
	}{
		{"13 bytes", v4[:13], packet.DropRuntFrame},
		{"half a tag", datagram(t, a, tagged, inner, 5, 0)[:17], packet.DropBadVLAN},
		{"arp", set(v4, 12, 8, 6), packet.DropNotTunnel},
		{"tcp", set(v4, 23, 6), packet.DropNotTunnel},
		{"tcp over ipv6", set(v6, 20, 6), packet.DropNotTunnel},
		{"another udp port", set(v4, 36, 0, 53), packet.DropNotTunnel},
		{"ipv4 cut off", v4[:33], packet.DropBadOuter},
		{"ipv4 version", set(v4, 14, 0x55), packet.DropBadOuter},
		{"ipv4 header of 16", set(v4, 14, 0x44), packet.DropBadOuter},
		{"ipv4 longer than the frame", v4[:len(v4)-1], packet.DropBadOuter},
		{"ipv4 checksum", wrongSum, packet.DropBadOuter},
		{"first fragment", set(v4, 20, 0x20, 0), packet.DropBadOuter},
		{"later fragment", set(v4, 20, 0, 1), packet.DropBadOuter},
		{"ipv6 cut off", v6[:53], packet.DropBadOuter},
		{"ipv6 version", set(v6, 14, 0x40), packet.DropBadOuter},
		{"ipv6 longer than the frame", v6[:len(v6)-1], packet.DropBadOuter},
		{"udp cut off", set(v4, 16, 0, 27), packet.DropBadOuter},
		{"udp longer than ip", set(v4, 38, 0xff, 0xff), packet.DropBadOuter},
		{"udp without vxlan", set(v4, 38, 0, 15), packet.DropBadOuter},
		{"no I flag", set(v4, 42, 0xf7), packet.DropBadVXLAN},
		{"reserved bits", set(v4, 42, 0xff, 1, 2, 3), packet.DropNone},
		{"reserved byte", set(v4, 49, 0xff), packet.DropNone},
		{"inner runt", set(set(v4, 38, 0, 17), 16, 0, 37), packet.DropNone}, // the parser finds it
	} {
		for _, header := range []int{0, 14, 40, packet.MaxHeader} {
			var b packet.Batch
			a.Reset()
			b.Port = 3
			f := a.Add(&b, c.data, header, 10)
			var words [flowtable.TunnelWords]uint64
			got := anyTermination().Decapsulate(&b, f, &words, new(flowtable.TunOptions))
			if got != c.want || got != packet.DropNone && f.InPort != 3 {
				t.Errorf("%s: %v, want %v; port %d", c.name, got, c.want, f.InPort)
			}
		}
	}
	var b packet.Batch
	var words [flowtable.TunnelWords]uint64
	table := NewTerminations()
	table.Set(0, &Termination{Port: 42, VNI: 6, UDPPort: 4789})
	if got := table.Decapsulate(&b, a.Add(&b, v4, 128, 0), &words, new(flowtable.TunOptions)); got != packet.DropNoTunnelPort {
		t.Errorf("wrong VNI: %v", got)
	}
}

// Decapsulate sets the inner ECN field as RFC 6040 figure 4 says.
func TestECN(t *testing.T) {
	const drop = 255
	const n, e1, e0, ce = ecnNotECT, ecnECT1, ecnECT0, ecnCE
	figure := [4][4]uint8{ // [inner][outer]
		n:  {n: n, e0: n, e1: n, ce: drop},
		e0: {n: e0, e0: e0, e1: e1, ce: ce},
		e1: {n: e1, e0: e1, e1: e1, ce: ce},
		ce: {n: ce, e0: ce, e1: ce, ce: ce},
	}
	a := packettest.NewArena(t, 1<<16)
	for i := range 2 * 2 * 2 * 16 {
		outerV6, innerV6, vlan := i&1 != 0, i&2 != 0, i&4 != 0
		inner, outer := uint8(i>>3&3), uint8(i>>5&3)
		p := params4
		if outerV6 {
			p = params6
		}
		a.Reset()
		data := datagram(t, a, p, innerFrame(t, innerV6, vlan, 0xa0|inner, 30), 5, outer)
		var b packet.Batch
		var words [flowtable.TunnelWords]uint64
		f := a.Add(&b, data, packet.MaxHeader, 0)
		reason := anyTermination().Decapsulate(&b, f, &words, new(flowtable.TunOptions))
		want := figure[inner][outer]
		if (reason == packet.DropBadECN) != (want == drop) || want != drop && reason != packet.DropNone {
			t.Errorf("inner %02b, outer %02b: %v", inner, outer, reason)
		}
		if want != drop && !bytes.Equal(packettest.Bytes(&b, f), innerFrame(t, innerV6, vlan, 0xa0|want, 30)) {
			t.Errorf("inner %02b, outer %02b, IPv6 %v, tag %v: not the frame with %02b", inner, outer, innerV6, vlan, want)
		}
	}
}

// slowFind is a reference implementation of Terminations.find.
func slowFind(entries []Termination, remote, local [16]byte, vni uint32, udpPort uint16) uint32 {
	best, port := 0, uint32(0)
	for _, e := range entries {
		zero := [16]byte{}
		if e.Port == 0 || e.UDPPort != udpPort || e.VNI != AnyVNI && e.VNI != vni ||
			e.Remote != zero && e.Remote != remote || e.Local != zero && e.Local != local {
			continue
		}
		score := 1
		if e.Remote != zero {
			score += 4
			if e.VNI != AnyVNI {
				score += 2
			}
		} else if e.VNI != AnyVNI {
			score += 2
		}
		if e.Local != zero {
			score++
		}
		if score > best {
			best, port = score, e.Port
		}
	}
	return port
}

func checkTerminations(t *testing.T, seed int64, steps int) {
	rng := rand.New(rand.NewSource(seed))
	table, twin := NewTerminations(), make([]Termination, MaxTerminations)
	addresses := [][16]byte{{}, address("10.0.0.1"), address("10.0.0.2"), address("2001:db8::1")}
	vnis := []uint32{AnyVNI, 0, 1, 0xffffff}
	for range steps {
		i := uint32(rng.Intn(40))
		if rng.Intn(3) == 0 {
			table.Clear(i)
			twin[i] = Termination{}
		} else {
			e := Termination{
				Port: 1 + i, VNI: vnis[rng.Intn(4)], UDPPort: uint16(4789 + rng.Intn(2)),
				Local: addresses[rng.Intn(4)], Remote: addresses[rng.Intn(4)],
			}
			if !table.Set(i, &e) {
				t.Fatal("Set refused")
			}
			twin[i] = e
		}
		for range 20 {
			remote, local := addresses[1+rng.Intn(3)], addresses[1+rng.Intn(3)]
			vni, udpPort := vnis[1+rng.Intn(3)], uint16(4789+rng.Intn(3))
			got, want := uint32(0), slowFind(twin, remote, local, vni, udpPort)
			if e := table.find(halves(&remote), halves(&local), vni, uint32(udpPort)); e != nil {
				got = e.Port
			}
			if got != want {
				t.Fatalf("seed %d: port %d, want %d, for %v %v %d %d", seed, got, want, remote, local, vni, udpPort)
			}
			if want != 0 && table.family(udpPort) == 0 {
				t.Fatalf("seed %d: UDP port %d is not taken", seed, udpPort)
			}
		}
	}
}

func TestTerminations(t *testing.T) {
	for seed := range int64(10) {
		checkTerminations(t, seed, 300)
	}
	table := NewTerminations()
	e := Termination{Port: 1, VNI: AnyVNI, UDPPort: 4789}
	if table.Set(MaxTerminations, &e) || !table.Set(MaxTerminations-1, &e) {
		t.Error("wrong limit")
	}
}

func FuzzTerminations(f *testing.F) {
	f.Add(int64(1), uint8(50))
	f.Fuzz(func(t *testing.T, seed int64, steps uint8) { checkTerminations(t, seed, int(steps)) })
}

// Decapsulate and the parser accept any bytes without a panic. The inner frame is a part of the
// received bytes, except for the ECN field.
func FuzzDecapsulate(f *testing.F) {
	a := packettest.NewArena(f, 1<<18)
	for _, p := range []Params{params4, params6} {
		f.Add(datagram(f, a, p, innerFrame(f, false, true, 1, 80), 5, 0), uint8(60))
		f.Add(datagram(f, a, p, innerFrame(f, true, false, 1, 80), 5, 3), uint8(0))
	}
	f.Fuzz(func(t *testing.T, data []byte, header uint8) {
		if len(data) > 1<<17 {
			return
		}
		a.Reset()
		var b packet.Batch
		fr := a.Add(&b, data, int(header), 33)
		var words [flowtable.TunnelWords]uint64
		if reason := anyTermination().Decapsulate(&b, fr, &words, new(flowtable.TunOptions)); reason != packet.DropNone {
			return
		}
		got := packettest.Bytes(&b, fr)
		if len(got) > len(data)-50 {
			t.Fatalf("the inner frame has %d bytes, the datagram only %d", len(got), len(data))
		}
		var k flowtable.Key
		flowtable.Extract(&b, fr, &k)
		fits := false
		for at := 50; at+len(got) <= len(data) && !fits; at++ {
			changed := 0
			for i := range got {
				if got[i] != data[at+i] {
					changed++
				}
			}
			fits = changed <= 3
		}
		if !fits {
			t.Fatal("what came out is no part of what went in")
		}
	})
}

func TestTunnelAllocatesNothing(t *testing.T) {
	a := packettest.NewArena(t, 1<<16)
	data := datagram(t, a, params4, innerFrame(t, false, false, 1, 80), 5, 3)
	table, tmpl := anyTermination(), build(t, params4)
	var b packet.Batch
	var options flowtable.TunOptions
	var words [flowtable.TunnelWords]uint64
	e := Termination{Port: 42, VNI: AnyVNI, UDPPort: 4789}
	encoded := e.AppendTo(nil)
	if n := testing.AllocsPerRun(100, func() {
		b.Reset()
		a.Reset()
		f := a.Add(&b, data, packet.MaxHeader, 0)
		if table.Decapsulate(&b, f, &words, &options) != packet.DropNone || tmpl.Push(f, 5, 6, 3, nil) != packet.DropNone {
			t.Fatal("dropped")
		}
		tmpl.Pop(f)
		e.Parse(encoded)
		table.Set(1, &e)
		table.Clear(1)
	}); n != 0 {
		t.Fatalf("decapsulation makes %v allocations, want 0", n)
	}
}

// One operation is one frame.
func BenchmarkPushPop(b *testing.B) {
	a := packettest.NewArena(b, 1<<16)
	batch := new(packet.Batch)
	f := a.Add(batch, innerFrame(b, false, false, 0, 18), packet.InnerHeader, 0)
	tmpl := build(b, params4)
	for b.Loop() {
		tmpl.Push(f, 5, 6, 0, nil)
		tmpl.Pop(f)
	}
}

func BenchmarkDecapsulate(b *testing.B) {
	a := packettest.NewArena(b, 1<<16)
	data := datagram(b, a, params4, innerFrame(b, false, false, 0, 18), 5, 0)
	batch := new(packet.Batch)
	f := a.Add(batch, data, packet.MaxHeader, 0)
	table := anyTermination()
	var options flowtable.TunOptions
	var words [flowtable.TunnelWords]uint64
	for b.Loop() {
		if table.Decapsulate(batch, f, &words, &options) != packet.DropNone {
			b.Fatal("dropped")
		}
		f.Push(50)
	}
}
