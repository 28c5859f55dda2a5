// SPDX-License-Identifier: Apache-2.0

package flowtable

import (
	"math/rand"
	"net"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"weft/packet"
	"weft/packet/packettest"
)

// extractAll runs Extract on a frame. The argument headerBytes is the length of its
// header buffer.
func extractAll(a *packettest.Arena, data []byte, headerBytes int) (x extracted) {
	var b packet.Batch
	a.Reset()
	b.Port = 7
	f := a.Add(&b, data, headerBytes, 24)
	f.Flags = packet.FrameRouted | packet.FrameFragment // left over from an earlier extraction
	x.reason = Extract(&b, f, &x.key)
	x.l3, x.l4, x.length, x.flags = int(f.L3), int(f.L4), f.Len(), f.Flags
	if f.L4 != 0 {
		x.proto = f.Proto
	}
	if f.L3 != 0 && x.reason == packet.DropNone && max(x.l3+20, x.l4+4) > len(f.Header()) {
		panic("L3 or L4 beyond the header buffer")
	}
	return x
}

// checkExtract compares Extract with slowExtract. For a dropped frame it compares only
// the reason.
func checkExtract(t *testing.T, a *packettest.Arena, data []byte, header int) {
	t.Helper()
	got, want := extractAll(a, data, header), slowExtract(data, 7)
	if want.reason != packet.DropNone {
		got, want = extracted{reason: got.reason}, extracted{reason: want.reason}
	}
	if got != want {
		t.Fatalf("header buffer of %d bytes:\n%s\n%x", header,
			cmp.Diff(want, got, cmp.AllowUnexported(extracted{})), data)
	}
}

func serialize(t testing.TB, ls ...gopacket.SerializableLayer) []byte {
	t.Helper()
	buf := gopacket.NewSerializeBuffer()
	opts := gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}
	if err := gopacket.SerializeLayers(buf, opts, ls...); err != nil {
		t.Fatal(err)
	}
	return append([]byte(nil), buf.Bytes()...)
}

var (
	macA = net.HardwareAddr{2, 0, 0, 0, 0, 0xa}
	macB = net.HardwareAddr{2, 0, 0, 0, 0, 0xb}
	ip4A = net.IP{10, 0, 0, 1}
	ip4B = net.IP{10, 0, 0, 2}
	ip6A = net.ParseIP("2001:db8::a")
	ip6B = net.ParseIP("2001:db8::b")
)

const (
	wordA = 0x02000000000a << 16
	wordB = 0x02000000000b << 16
)

func eth(t layers.EthernetType) *layers.Ethernet {
	return &layers.Ethernet{SrcMAC: macA, DstMAC: macB, EthernetType: t}
}

func ipv4(proto layers.IPProtocol) *layers.IPv4 {
	return &layers.IPv4{Version: 4, TOS: 0xb9, TTL: 63, Protocol: proto, SrcIP: ip4A, DstIP: ip4B}
}

func ipv6(next layers.IPProtocol) *layers.IPv6 {
	return &layers.IPv6{Version: 6, TrafficClass: 0xb9, FlowLabel: 0xabcde, HopLimit: 63, NextHeader: next, SrcIP: ip6A, DstIP: ip6B}
}

func ext(next byte, n int) gopacket.Payload {
	p := make(gopacket.Payload, n)
	p[0], p[1] = next, byte(n/8-1)
	return p
}

func tcp(l gopacket.NetworkLayer) *layers.TCP {
	h := &layers.TCP{SrcPort: 1000, DstPort: 80, SYN: true, ECE: true, Options: []layers.TCPOption{{OptionType: 2, OptionLength: 4, OptionData: []byte{5, 180}}}}
	h.SetNetworkLayerForChecksum(l)
	return h
}

func udp(l gopacket.NetworkLayer) *layers.UDP {
	h := &layers.UDP{SrcPort: 1000, DstPort: 53}
	h.SetNetworkLayerForChecksum(l)
	return h
}

const (
	ports53   = 1000<<48 | 53<<32
	ports80   = 1000<<48 | 80<<32
	ipCommon  = 0xb9<<48 | 63<<40
	addresses = 0x0a000001<<32 | 0x0a000002
	db8       = 0x20010db8 << 32
)

func wellFormed(t testing.TB) []struct {
	name string
	data []byte
	want Key
} {
	nd := append([]byte{135, 0, 0, 0, 0x60, 0, 0, 5, 0xfe, 0x80, 15: 0, 23: 9}, 1, 1, 2, 0, 0, 0, 0, 0xa)
	frag4 := ipv4(layers.IPProtocolUDP)
	frag4.FragOffset = 3
	arp := &layers.ARP{
		AddrType: 1, Protocol: 0x800, HwAddressSize: 6, ProtAddressSize: 4, Operation: 2,
		SourceHwAddress: macA, SourceProtAddress: ip4A, DstHwAddress: macB, DstProtAddress: ip4B,
	}
	mpls := eth(0x8847)
	key := func(etherType, tci, ip, l4 uint64) Key {
		return Key{WPort: 7 << 32, WEthDst: wordB | etherType, WEthSrc: wordA | tci, WIP: ip, WL4: l4}
	}
	v4 := func(k Key) Key { k[WIPv4] = addresses; return k }
	v6 := func(k Key) Key {
		k[WIPv6Src], k[WIPv6Src+1], k[WIPv6Dst], k[WIPv6Dst+1] = db8, 0xa, db8, 0xb
		k[WL4] |= 0xabcde
		return k
	}
	with := func(k Key, w int, v uint64) Key { k[w] |= v; return k }
	ndKey := with(v6(key(0x86dd, 0, 58<<56|ipCommon, 135<<48)), WARPSha, wordA)
	ndKey[WNDTarget], ndKey[WNDTarget+1], ndKey[WND] = 0xfe80<<48, 9, 0x60000005<<32|1<<24
	arpKey := with(with(v4(key(0x806, 0, 2<<56, 0)), WARPSha, wordA), WARPTha, wordB)
	q := func(id uint16, next layers.EthernetType) *layers.Dot1Q {
		return &layers.Dot1Q{VLANIdentifier: id, Priority: 5, Type: next}
	}
	ip4t, ip4u, ip6t, ip6u := ipv4(6), ipv4(17), ipv6(6), ipv6(17)
	return []struct {
		name string
		data []byte
		want Key
	}{
		{"udp", serialize(t, eth(0x800), ip4u, udp(ip4u), gopacket.Payload("hello")), v4(key(0x800, 0, 17<<56|ipCommon, ports53))},
		{"tcp", serialize(t, eth(0x800), ip4t, tcp(ip4t)), v4(key(0x800, 0, 6<<56|ipCommon|0x42, ports80))},
		{"icmp", serialize(t, eth(0x800), ipv4(1), &layers.ICMPv4{TypeCode: 0x0301}), v4(key(0x800, 0, 1<<56|ipCommon, 3<<48|1<<32))},
		{"sctp", serialize(t, eth(0x800), ipv4(132), &layers.SCTP{SrcPort: 1000, DstPort: 80}), v4(key(0x800, 0, 132<<56|ipCommon, ports80))},
		{"later fragment", serialize(t, eth(0x800), frag4, gopacket.Payload("rest")), v4(key(0x800, 0, 17<<56|ipCommon|3<<32, 0))},
		{"vlan", serialize(t, eth(0x8100), q(100, 0x800), ip4u, udp(ip4u)), v4(key(0x800, 0xb064, 17<<56|ipCommon, ports53))},
		{"two tags", serialize(t, eth(0x88a8), q(100, 0x8100), q(7, 0x800), ip4u, udp(ip4u)), v4(key(0x800, 0xb064, 17<<56|ipCommon|0xb007<<16, ports53))},
		{"three tags", serialize(t, eth(0x88a8), q(100, 0x8100), q(7, 0x8100), q(8, 0x800), ip4u, udp(ip4u)), key(0x8100, 0xb064, 0xb007<<16, 0)},
		{"arp", serialize(t, eth(0x806), arp), arpKey},
		{"rarp", serialize(t, eth(0x8035), arp), with(arpKey, WEthDst, 0x8035)},
		{"udp6", serialize(t, eth(0x86dd), ip6u, udp(ip6u), gopacket.Payload("hello")), v6(key(0x86dd, 0, 17<<56|ipCommon, ports53))},
		{"tcp6", serialize(t, eth(0x86dd), ip6t, tcp(ip6t)), v6(key(0x86dd, 0, 6<<56|ipCommon|0x42, ports80))},
		{"extensions", serialize(t, eth(0x86dd), ipv6(0), ext(60, 8), ext(43, 16), ext(17, 24), udp(ip6u)), v6(key(0x86dd, 0, 17<<56|ipCommon, ports53|(ExtHop|ExtDest|ExtRouter)<<ExtHdrShift))},
		{"extensions out of order", serialize(t, eth(0x86dd), ipv6(43), ext(0, 8), ext(0, 8), ext(59, 8)),
			v6(key(0x86dd, 0, 59<<56|ipCommon, (ExtHop|ExtRouter|ExtNoNext|ExtRepeated|ExtUnsequenced)<<ExtHdrShift))},
		{"esp", serialize(t, eth(0x86dd), ipv6(50)), v6(key(0x86dd, 0, 50<<56|ipCommon, ExtESP<<ExtHdrShift))},
		{"later fragment6", serialize(t, eth(0x86dd), ipv6(44), gopacket.Payload{17, 0, 0, 8, 0, 0, 0, 1, 1, 2, 3}), v6(key(0x86dd, 0, 44<<56|ipCommon|3<<32, ExtFragment<<ExtHdrShift))},
		{"nd", serialize(t, eth(0x86dd), ipv6(58), gopacket.Payload(nd)), ndKey},
		{"802.3", append(serialize(t, eth(3))[:14], 0x42, 0x42, 3), key(EthTypeNone, 0, 0, 0)},
		{"snap", append(append(serialize(t, eth(100))[:14], 0xaa, 0xaa, 3, 0, 0, 0), serialize(t, eth(0x800), ip4u, udp(ip4u))[12:]...), v4(key(0x800, 0, 17<<56|ipCommon, ports53))},
		{"mpls", serialize(t, mpls, gopacket.Payload("label")), with(key(0x8847, 0, 0, 0), WIPv4, 0x6c616265<<32)},
		{"nsh", serialize(t, eth(0x894f), gopacket.Payload("\x2f\xc6\x01\x03\x00\x01\x02\xffcontextscontextS"), eth(0x800)),
			with(with(with(key(0x894f, 0, 0, 0), WIPv4, 2<<56|63<<48|1<<40|3<<32|0x102ff), WIPv6Src, 0x636f6e7465787473), WIPv6Src+1, 0x636f6e7465787453)},
		{"nsh of md type 2", serialize(t, eth(0x894f), gopacket.Payload("\x00\x43\x02\x01\x00\x01\x02\x03opt.")), with(key(0x894f, 0, 0, 0), WIPv4, 1<<48|2<<40|1<<32|0x10203)},
		{"pbb in a tag", serialize(t, eth(0x88a8), q(5, 0x88e7), gopacket.Payload("itag")), with(key(0x88e7, 0xb005, 0, 0), WIPv4, 0x69746167<<32)},
	}
}

func TestExtractWellFormed(t *testing.T) {
	a := packettest.NewArena(t, 1<<17)
	for _, c := range wellFormed(t) {
		for _, header := range []int{0, 14, 20, 60, packet.InnerHeader} {
			got := extractAll(a, c.data, header)
			if got.reason != packet.DropNone || c.name != "rarp" && got.key != c.want {
				t.Errorf("%s, header buffer %d: %v\n%s", c.name, header, got.reason, cmp.Diff(c.want, got.key))
			}
			checkExtract(t, a, c.data, header)
		}
	}
}

// Extract removes the padding after the IP datagram.
func TestExtractTrims(t *testing.T) {
	a := packettest.NewArena(t, 1<<17)
	ip := ipv4(17)
	data := serialize(t, eth(0x800), ip, udp(ip), gopacket.Payload("x"))
	if len(data) != 60 {
		t.Fatalf("no padding: %d bytes", len(data))
	}
	for header := range 61 {
		if got := extractAll(a, data, header).length; got != 43 {
			t.Fatalf("header buffer %d: %d bytes left, want 43", header, got)
		}
	}
}

func TestExtractMalformed(t *testing.T) {
	a := packettest.NewArena(t, 1<<17)
	ip, ip6 := ipv4(6), ipv6(17)
	tcp4 := serialize(t, eth(0x800), ip, tcp(ip))
	udp6 := serialize(t, eth(0x86dd), ip6, udp(ip6), gopacket.Payload("payload that is there"))
	manyExt := []gopacket.SerializableLayer{eth(0x86dd), ipv6(60)}
	for range 9 {
		manyExt = append(manyExt, ext(60, 8))
	}
	change := func(data []byte, offset int, v ...byte) []byte {
		data = append([]byte(nil), data...)
		copy(data[offset:], v)
		return data
	}
	arp := append(serialize(t, eth(0x806))[:14], []byte{0, 1, 8, 0, 6, 4, 0, 1, 27: 0}...)
	for _, c := range []struct {
		name string
		data []byte
		want packet.DropReason
	}{
		{"13 bytes", tcp4[:13], packet.DropRuntFrame},
		{"half a tag", append(change(tcp4[:14], 12, 0x81, 0), 1), packet.DropBadVLAN},
		{"cut inner tag", append(change(tcp4[:14], 12, 0x81, 0), 0, 1, 0x81, 0, 0), packet.DropBadVLAN},
		{"arp cut off", arp[:41], packet.DropBadARP},
		{"arp of 8 bytes a hardware address", change(arp, 18, 8), packet.DropBadARP},
		{"ipv4 cut off", tcp4[:33], packet.DropBadIPv4},
		{"ipv4 version 5", change(tcp4, 14, 0x55), packet.DropBadIPv4},
		{"ipv4 header of 16", change(tcp4, 14, 0x44), packet.DropBadIPv4},
		{"ipv4 longer than the frame", change(tcp4, 16, 1, 0)[:59], packet.DropBadIPv4},
		{"ipv4 shorter than its header", change(tcp4, 16, 0, 19), packet.DropBadIPv4},
		{"tcp cut off by the datagram", change(tcp4, 16, 0, 39), packet.DropBadTransport},
		{"tcp header of 16", change(tcp4, 46, 0x40), packet.DropBadTransport},
		{"tcp options cut off", change(tcp4, 46, 0xf0), packet.DropBadTransport},
		{"ipv6 cut off", udp6[:53], packet.DropBadIPv6},
		{"ipv6 version 4", change(udp6, 14, 0x45), packet.DropBadIPv6},
		{"ipv6 longer than the frame", change(udp6, 18, 1, 0)[:59], packet.DropBadIPv6},
		{"ipv6 without end", serialize(t, manyExt...), packet.DropBadIPv6},
		{"ipv6 extension cut off", serialize(t, eth(0x86dd), ipv6(0), ext(17, 8)[:7]), packet.DropBadIPv6},
		{"udp length 7", change(udp6, 58, 0, 7), packet.DropBadTransport},
		{"udp length beyond the datagram", change(udp6, 58, 0, 60), packet.DropBadTransport},
		{"nsh of version 1", serialize(t, eth(0x894f), gopacket.Payload("\x40\x02\x02\x03spi.")), packet.DropBadNSH},
		{"nsh of 4 bytes", serialize(t, eth(0x894f), gopacket.Payload("\x00\x01\x02\x03spi.")), packet.DropBadNSH},
		{"nsh longer than the frame", serialize(t, eth(0x894f), gopacket.Payload("\x00\x3f\x02\x03spi.")), packet.DropBadNSH},
		{"nsh of md type 1 without context", serialize(t, eth(0x894f), gopacket.Payload("\x00\x02\x01\x03spi.")), packet.DropBadNSH},
		{"headers of 250 bytes", serialize(t, eth(0x86dd), ipv6(0), ext(17, 200), udp(ip6)), packet.DropDeepHeader},
		{"nd cut off", serialize(t, eth(0x86dd), ipv6(58), gopacket.Payload{135, 22: 0}), packet.DropBadTransport},
		{"nd of 300 bytes", serialize(t, eth(0x86dd), ipv6(58), gopacket.Payload{135, 299: 0}), packet.DropDeepHeader},
	} {
		if got := extractAll(a, c.data, packet.InnerHeader).reason; got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
		checkExtract(t, a, c.data, packet.InnerHeader)
	}
}

// A frame that has only a part of an IP datagram, and is too long for a device to pad it, is not dropped. It
// keeps its Ethernet fields and has no IP fields.
func TestExtractCutOff(t *testing.T) {
	a := packettest.NewArena(t, 1<<17)
	ip, ip6 := ipv4(17), ipv6(17)
	payload := gopacket.Payload(make([]byte, 200))
	for _, data := range [][]byte{serialize(t, eth(0x800), ip, udp(ip), payload), serialize(t, eth(0x86dd), ip6, udp(ip6), payload)} {
		for n := packet.EthernetLen + leastPayload; n < len(data); n++ {
			got := extractAll(a, data[:n], packet.InnerHeader)
			want := Key{WPort: 7 << 32, WEthDst: wordB | uint64(data[12])<<8 | uint64(data[13]), WEthSrc: wordA}
			if got.reason != packet.DropNone || got.key != want || got.l3 != 0 || got.l4 != 0 || got.length != n {
				t.Fatalf("%d of %d bytes: %+v", n, len(data), got)
			}
			checkExtract(t, a, data[:n], packet.InnerHeader)
		}
	}
}

// Extract and slowExtract agree on truncated and corrupted frames.
func TestExtractAgainstTwin(t *testing.T) {
	a := packettest.NewArena(t, 1<<17)
	rng := rand.New(rand.NewSource(1))
	for _, c := range wellFormed(t) {
		for n := range c.data {
			checkExtract(t, a, c.data[:n], packet.InnerHeader)
		}
		for range 6000 {
			data := append([]byte(nil), c.data...)
			for range 1 + rng.Intn(4) {
				data[12+rng.Intn(len(data)-12)] = byte([...]int{0, 1, 4, 44, 58, 60, 135, 255, rng.Int()}[rng.Intn(9)])
			}
			checkExtract(t, a, data, rng.Intn(packet.InnerHeader))
		}
	}
}

// ExtractAll and Extract give the same keys, whatever the keys contained before.
func TestExtractAll(t *testing.T) {
	a := packettest.NewArena(t, 1<<17)
	rng := rand.New(rand.NewSource(2))
	var keys [packet.BatchSize]Key
	wide, frames := uint32(0), wellFormed(t)
	for range 2000 {
		var b packet.Batch
		a.Reset()
		b.Port = 7
		var want [packet.BatchSize]extracted
		skip := rng.Intn(packet.BatchSize)
		for i := range 1 + rng.Intn(packet.BatchSize) {
			data := frames[rng.Intn(len(frames))].data
			data = data[:len(data)-rng.Intn(2)*rng.Intn(len(data))]
			want[i] = slowExtract(data, 7)
			f := a.Add(&b, data, packet.InnerHeader, 24)
			if i == skip {
				f.Drop = packet.DropFlow
			}
		}
		var odd uint32
		wide, odd = ExtractAll(&b, &keys, wide)
		for i := range b.Frames[:b.N] {
			f := &b.Frames[i]
			reason := want[i].reason
			if i == skip {
				reason = packet.DropFlow
			}
			if f.Drop != reason || odd>>i&1 != 0 != (reason != packet.DropNone) {
				t.Fatalf("frame %d: drop %v, want %v; odd %#x", i, f.Drop, reason, odd)
			}
			if reason == packet.DropNone && keys[i] != want[i].key {
				t.Fatal(cmp.Diff(want[i].key, keys[i]))
			}
		}
	}
}

func FuzzExtract(f *testing.F) {
	a := packettest.NewArena(f, 1<<20)
	for _, c := range wellFormed(f) {
		f.Add(c.data, uint8(128))
	}
	f.Fuzz(func(t *testing.T, data []byte, header uint8) {
		if len(data) <= packet.MaxFrameLen {
			checkExtract(t, a, data, int(header))
		}
	})
}

func TestExtractAllocatesNothing(t *testing.T) {
	a := packettest.NewArena(t, 1<<17)
	for _, c := range wellFormed(t) {
		var b packet.Batch
		a.Reset()
		f := a.Add(&b, c.data, packet.InnerHeader, 0)
		var k Key
		if n := testing.AllocsPerRun(100, func() { Extract(&b, f, &k) }); n != 0 {
			t.Errorf("%s: extraction makes %v allocations, want 0", c.name, n)
		}
	}
}

// One operation of the benchmark is the extraction of one frame. Each batch has 32 different frames.
func BenchmarkExtract(b *testing.B) {
	for _, c := range wellFormed(b) {
		b.Run(c.name, func(b *testing.B) {
			a := packettest.NewArena(b, 1<<17)
			batch := new(packet.Batch)
			for range packet.BatchSize {
				a.Add(batch, c.data, packet.InnerHeader, 0)
			}
			keys := new([packet.BatchSize]Key)
			for n := 0; n < b.N; n += packet.BatchSize {
				for i := range batch.N {
					Extract(batch, &batch.Frames[i], &keys[i])
				}
			}
		})
	}
}
