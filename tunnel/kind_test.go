// SPDX-License-Identifier: Apache-2.0

package tunnel

import (
	"bytes"
	"encoding/binary"
	"math/rand"
	"testing"

	"weft/flowtable"
	"weft/packet"
	"weft/packet/packettest"
)

var optionsKey = flowtable.OptionsKey{11, 13}

func kindTermination(kind Kind) *Terminations {
	t := NewTerminations()
	t.OptionsKey = optionsKey
	t.Set(0, &Termination{Port: 42, VNI: AnyVNI, UDPPort: kind.Port(), Kind: kind})
	return t
}

// randomOptions returns up to n bytes of well-formed Geneve options.
func randomOptions(rng *rand.Rand, n int) (options []byte, critical bool) {
	for n = rng.Intn(n/4+1) * 4; n > 0; {
		length := min(4*(1+rng.Intn(32)), n)
		option := make([]byte, length)
		rng.Read(option)
		option[3] = option[3]&0xe0 | byte(length/4-1)
		critical = critical || option[2] > 0x7f
		options, n = append(options, option...), n-length
	}
	return options, critical
}

// slowHeader writes a tunnel header field by field, as the specifications say.
func slowHeader(kind Kind, vni uint32, x *Fields, critical bool) []byte {
	h := []byte{0, 0, 0, 0, byte(vni >> 16), byte(vni >> 8), byte(vni), 0}
	id, flags, oam := uint16(x.Meta>>48), byte(x.Meta>>40), x.Meta>>16&1 != 0
	switch kind {
	case KindVXLAN:
		h[0] = 0x08
	case KindGBP:
		if h[0] = 0x08; id != 0 || flags != 0 {
			h[0], h[1], h[2], h[3] = 0x88, flags, byte(id>>8), byte(id)
		}
	case KindGPE:
		h[0], h[3] = 0x0c, 3
	case KindGeneve:
		h[0], h[2], h[3] = byte(x.Options.Len/4), 0x65, 0x58
		if oam {
			h[1] |= 0x80
		}
		if critical {
			h[1] |= 0x40
		}
		h = append(h, x.Options.Raw()...)
	}
	return h
}

// slowWords returns the tunnel words for the header that slowHeader writes.
func slowWords(p *Params, kind Kind, vni uint32, x *Fields, critical bool) (words [flowtable.TunnelWords]uint64) {
	words[0] = uint64(vni)
	if p.Local.Is4() {
		words[1] = 0xac100001<<32 | 0xac100002
	} else {
		words[2], words[3], words[4], words[5] = 0x20010db8<<32, 1, 0x20010db8<<32, 2
	}
	switch kind {
	case KindGBP:
		words[7] = x.Meta & (0xffff<<48 | 0xff<<40)
	case KindGeneve:
		words[6], words[7] = optionsKey.Hash(x.Options.Raw()), x.Meta&(1<<16)
		if critical {
			words[7] |= 1
		}
	}
	return words
}

func checkKind(t *testing.T, a *packettest.Arena, seed int64) {
	rng := rand.New(rand.NewSource(seed))
	kind := Kind(rng.Intn(int(KindGRE)))
	p := params4
	if rng.Intn(2) == 0 {
		p = params6
	}
	p.VLAN, p.MTU, p.Kind, p.UDPPort = uint16(rng.Intn(2)*5), 65535, kind, kind.Port()
	vni := rng.Uint32() & 0xffffff
	options, critical := randomOptions(rng, flowtable.MaxTunOptions)
	x := &Fields{Meta: uint64(rng.Intn(3))<<48 | uint64(rng.Intn(2)*0x48)<<40 | uint64(rng.Intn(2))<<16}
	x.Options.Set(options)
	inner := make([]byte, 14+rng.Intn(1400))
	rng.Read(inner)

	a.Reset()
	var b packet.Batch
	f := a.Add(&b, inner, rng.Intn(packet.InnerHeader), 2+rng.Intn(700))
	tmpl := build(t, p)
	if reason := tmpl.Push(f, vni, 99, 0, x); reason != packet.DropNone {
		t.Fatalf("seed %d: %v", seed, reason)
	}
	data := packettest.Bytes(&b, f)
	header := slowHeader(kind, vni, x, critical)
	if want := append(bytes.Clone(header), inner...); !bytes.Equal(data[tmpl.Encap:], want) {
		t.Fatalf("seed %d, kind %d: sent\n%x, want\n%x", seed, kind, data[tmpl.Encap:], want)
	}
	if udp := packet.UDP(data[tmpl.UDP:]); udp.Len() != len(data)-int(tmpl.UDP) || tmpl.Outer(x) != len(data)-len(inner) {
		t.Fatalf("seed %d: UDP length %d, outer length %d of %d bytes", seed, udp.Len(), tmpl.Outer(x), len(data))
	}
	tmpl.Pop(f)
	if !bytes.Equal(packettest.Bytes(&b, f), inner) {
		t.Fatalf("seed %d, kind %d: Pop does not undo Push", seed, kind)
	}

	a.Reset()
	b.Reset()
	f = a.Add(&b, append(data, make([]byte, rng.Intn(2)*20)...), rng.Intn(packet.MaxHeader), 2+rng.Intn(400))
	var words [flowtable.TunnelWords]uint64
	var got flowtable.TunOptions
	if reason := kindTermination(kind).Decapsulate(&b, f, &words, &got); reason != packet.DropNone {
		t.Fatalf("seed %d, kind %d: %v", seed, kind, reason)
	}
	if want := slowWords(&p, kind, vni, x, critical); words != want || words[6] != 0 && !bytes.Equal(got.Raw(), options) {
		t.Fatalf("seed %d, kind %d: words %x, want %x; options %x", seed, kind, words, want, got.Raw())
	}
	if !bytes.Equal(packettest.Bytes(&b, f), inner) || f.InPort != 42 {
		t.Fatalf("seed %d, kind %d: another frame came out, at port %d", seed, kind, f.InPort)
	}
	if n := f.Push(packet.Headroom - 60); n == nil {
		t.Fatalf("seed %d: the received frame has no room for headers", seed)
	}
}

// For each kind, Push writes the header that the specification describes, and Decapsulate reads it,
// however the frame is divided into header buffer and spans.
func TestKinds(t *testing.T) {
	a := packettest.NewArena(t, 1<<18)
	for seed := range int64(6000) {
		checkKind(t, a, seed)
	}
}

func FuzzKinds(f *testing.F) {
	a := packettest.NewArena(f, 1<<18)
	f.Add(int64(1))
	f.Fuzz(func(t *testing.T, seed int64) { checkKind(t, a, seed) })
}

// Malformed headers are refused, each for a drop reason of its own.
func TestMalformedHeaders(t *testing.T) {
	inner := innerFrame(t, false, false, 0, 300)
	option := func(length byte) uint64 { return 0x0102_0300<<32 | uint64(length)<<32 } // of 4 bytes and length words
	for _, c := range []struct {
		name    string
		kind    Kind
		header  uint64
		options uint64 // first bytes behind the header
		want    packet.DropReason
	}{
		{"geneve", KindGeneve, geneveEthernet, 0, packet.DropNone},
		{"geneve version 1", KindGeneve, 1<<62 | geneveEthernet, 0, packet.DropBadGeneve},
		{"geneve with IPv4", KindGeneve, 0x0800 << 32, 0, packet.DropTunnelPayload},
		{"geneve reserved bits", KindGeneve, geneveEthernet | 0x3f<<48 | 0xff, 0, packet.DropNone},
		{"geneve of a control packet", KindGeneve, geneveEthernet | geneveO, 0, packet.DropNone},
		{"one option", KindGeneve, geneveEthernet | 1<<56, option(0), packet.DropNone},
		{"one option of 8 bytes", KindGeneve, geneveEthernet | 2<<56, option(1), packet.DropNone},
		{"reserved bits of an option", KindGeneve, geneveEthernet | 2<<56, option(0xe1), packet.DropNone},
		{"an option beyond the options", KindGeneve, geneveEthernet | 1<<56, option(1), packet.DropBadGeneve},
		{"the second option beyond", KindGeneve, geneveEthernet | 2<<56, option(0) | 1, packet.DropBadGeneve},
		{"63 words of options", KindGeneve, geneveEthernet | 0x3f<<56, option(31), packet.DropNone},
		{"gpe", KindGPE, 0x0c<<56 | 3<<32, 0, packet.DropNone},
		{"gpe without a protocol", KindGPE, 0x08 << 56, 0, packet.DropNone},
		{"gpe with IPv4", KindGPE, 0x0c<<56 | 1<<32, 0, packet.DropTunnelPayload},
		{"gpe with NSH", KindGPE, 0x0c<<56 | 4<<32, 0, packet.DropTunnelPayload},
		{"gpe version 1", KindGPE, 0x1c<<56 | 3<<32, 0, packet.DropBadVXLAN},
		{"gpe for maintenance", KindGPE, 0x0d<<56 | 3<<32, 0, packet.DropBadVXLAN},
		{"gpe without a VNI", KindGPE, 0x04<<56 | 3<<32, 0, packet.DropBadVXLAN},
		{"gpe broadcast", KindGPE, 0x0e<<56 | 3<<32, 0, packet.DropNone},
		{"gbp without its flag", KindGBP, 0x08<<56 | 5<<32, 0, packet.DropNone},
		{"gbp without a VNI", KindGBP, 0x80<<56 | 5<<32, 0, packet.DropBadVXLAN},
	} {
		p := params4
		p.Kind, p.UDPPort = c.kind, c.kind.Port()
		a := packettest.NewArena(t, 1<<16)
		data := datagram(t, a, p, inner, 7, 0)
		binary.BigEndian.PutUint64(data[42:], c.header|7<<8)
		if c.options != 0 {
			binary.BigEndian.PutUint64(data[50:], c.options)
		}
		for _, header := range []int{60, packet.InnerHeader, packet.MaxHeader} {
			var b packet.Batch
			b.Port = 3
			f := a.Add(&b, data, header, 50)
			var words [flowtable.TunnelWords]uint64
			got := kindTermination(c.kind).Decapsulate(&b, f, &words, new(flowtable.TunOptions))
			if got != c.want || got != packet.DropNone && f.InPort != 3 {
				t.Errorf("%s: %v, want %v; port %d", c.name, got, c.want, f.InPort)
			}
		}
	}
}

// A datagram that ends in the middle of its options is refused.
func TestTruncatedOptions(t *testing.T) {
	a := packettest.NewArena(t, 1<<18)
	p := params6
	p.Kind, p.UDPPort = KindGeneve, 6081
	data := datagram(t, a, p, nil, 7, 0)
	for n := range 62 {
		short := append(bytes.Clone(data), make([]byte, 4*n)...)
		short[62] = 63 // words of options
		binary.BigEndian.PutUint16(short[18:], uint16(16+4*n))
		binary.BigEndian.PutUint16(short[58:], uint16(16+4*n))
		var b packet.Batch
		f := a.Add(&b, short, packet.InnerHeader, 100)
		if got := kindTermination(KindGeneve).Decapsulate(&b, f, new([flowtable.TunnelWords]uint64), new(flowtable.TunOptions)); got != packet.DropBadGeneve {
			t.Errorf("%d bytes of 252: %v", 4*n, got)
		}
	}
}

// A frame that fits without options may be too long for the MTU with them.
func TestOptionsCountForTheMTU(t *testing.T) {
	a := packettest.NewArena(t, 1<<16)
	p := params4
	p.Kind = KindGeneve
	tmpl := build(t, p)
	x := new(Fields)
	x.Options.Set(make([]byte, 8))
	for extra, want := range map[int]packet.DropReason{57: packet.DropTooBigForTunnel, 58: packet.DropNone} {
		var b packet.Batch
		f := a.Add(&b, innerFrame(t, false, false, 0, 100), packet.InnerHeader, 0)
		tmpl.MTU = uint16(f.Len() + extra)
		if got := tmpl.Push(f, 1, 2, 0, x); got != want {
			t.Errorf("room for %d outer bytes: %v, want %v", extra, got, want)
		}
	}
}

func TestOptionsAllocateNothing(t *testing.T) {
	a := packettest.NewArena(t, 1<<16)
	p := params4
	p.Kind, p.UDPPort = KindGeneve, 6081
	x := new(Fields)
	x.Options.Set(bytes.Repeat([]byte{1, 2, 0x83, 0}, 63))
	table, tmpl := kindTermination(KindGeneve), build(t, p)
	var b packet.Batch
	var words [flowtable.TunnelWords]uint64
	var options flowtable.TunOptions
	inner := innerFrame(t, false, false, 1, 80)
	if n := testing.AllocsPerRun(100, func() {
		b.Reset()
		a.Reset()
		f := a.Add(&b, inner, packet.InnerHeader, 0)
		if tmpl.Push(f, 5, 6, 3, x) != packet.DropNone || table.Decapsulate(&b, f, &words, &options) != packet.DropNone {
			t.Fatal("dropped")
		}
	}); n != 0 {
		t.Fatalf("%v allocations, want 0", n)
	}
}
