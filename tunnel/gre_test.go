// SPDX-License-Identifier: Apache-2.0

package tunnel

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"math/rand"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"weft/flowtable"
	"weft/packet"
	"weft/packet/packettest"
)

// greTerminations has two tunnels that accept all keys: GRE at port 42 and ERSPAN at port 43.
func greTerminations() *Terminations {
	t := anyTermination()
	t.Set(1, &Termination{Port: 42, VNI: AnyVNI, Kind: KindGRE})
	t.Set(2, &Termination{Port: 43, VNI: AnyVNI, Kind: KindERSPAN1})
	return t
}

// slowGRE writes the GRE header of datagram number count, and the ERSPAN header behind it. It follows
// the specifications field by field. The checksum is 0.
func slowGRE(p *Params, key, count, timestamp uint32) (h []byte) {
	word := func(v uint32) { h = binary.BigEndian.AppendUint32(h, v) }
	switch p.Kind {
	case KindGRE:
		first := uint32(0x6558)
		if p.Checksum {
			first |= 1 << 31
		}
		if p.Key {
			first |= 1 << 29
		}
		if p.Sequence {
			first |= 1 << 28
		}
		word(first)
		if p.Checksum {
			word(0)
		}
		if p.Key {
			word(key)
		}
		if p.Sequence {
			word(count)
		}
	case KindERSPAN1:
		word(0x100088be)
		word(count)
		word(0x10000000 | key%1024)
		word(p.Index)
	case KindERSPAN2:
		word(0x100022eb)
		word(count)
		word(0x20000000 | key%1024)
		word(timestamp)
		last := 0x8000 | uint32(p.HardwareID)<<4
		if p.Egress {
			last += 8
		}
		word(last)
	}
	return h
}

func checkGRE(t *testing.T, a *packettest.Arena, table *Terminations, seed int64) {
	rng := rand.New(rand.NewSource(seed))
	flip := func() bool { return rng.Intn(2) == 0 }
	p := params4
	if flip() {
		p = params6
	}
	p.VLAN, p.MTU, p.Kind, p.UDPPort = uint16(rng.Intn(2)*5), 65535, KindGRE+Kind(rng.Intn(3)), 0
	p.Checksum, p.Key, p.Sequence, p.Egress = flip(), flip(), flip(), flip()
	p.Index, p.HardwareID = rng.Uint32()&0xfffff, uint8(rng.Intn(64))
	key, count := rng.Uint32(), 1+rng.Intn(3)
	inner := make([]byte, 14+rng.Intn(1400))
	rng.Read(inner)
	tmpl := build(t, p)
	tmpl.SetClock(uint64(seed)*timestampNS + uint64(rng.Intn(timestampNS)))

	var data []byte
	for n := range count {
		a.Reset()
		var b packet.Batch
		f := a.Add(&b, inner, rng.Intn(packet.InnerHeader), 2+rng.Intn(700))
		if reason := tmpl.Push(f, key, 99, 0, nil); reason != packet.DropNone {
			t.Fatalf("seed %d: %v", seed, reason)
		}
		data = make([]byte, f.Len())
		b.GatherFinished(f, data)
		header := slowGRE(&p, key, uint32(n), uint32(seed))
		if p.Kind == KindGRE && p.Checksum {
			binary.BigEndian.PutUint16(header[4:], ^packet.Sum(append(bytes.Clone(header), inner...)))
		}
		if want := append(header, inner...); !bytes.Equal(data[tmpl.Encap:], want) {
			t.Fatalf("seed %d, kind %d: sent\n%x, want\n%x", seed, p.Kind, data[tmpl.Encap:], want)
		}
		if tmpl.Outer(nil) != len(data)-len(inner) {
			t.Fatalf("seed %d: outer length %d of %d bytes", seed, tmpl.Outer(nil), len(data))
		}
		tmpl.Pop(f)
		if !bytes.Equal(packettest.Bytes(&b, f), inner) || f.Offload != (packet.Offload{}) {
			t.Fatalf("seed %d, kind %d: Pop does not undo Push", seed, p.Kind)
		}
	}

	a.Reset()
	var b packet.Batch
	f := a.Add(&b, append(data, make([]byte, rng.Intn(2)*20)...), rng.Intn(packet.MaxHeader), 2+rng.Intn(400))
	var words [flowtable.TunnelWords]uint64
	if reason := table.Decapsulate(&b, f, &words, new(flowtable.TunOptions)); reason != packet.DropNone {
		t.Fatalf("seed %d, kind %d: %v", seed, p.Kind, reason)
	}
	port := uint32(42)
	if p.Kind != KindGRE {
		port, key = 43, key&0x3ff
	} else if !p.Key {
		key = 0
	}
	if want := slowWords(&p, KindVXLAN, key, nil, false); words != want {
		t.Fatalf("seed %d, kind %d: words %x, want %x", seed, p.Kind, words, want)
	}
	if !bytes.Equal(packettest.Bytes(&b, f), inner) || f.InPort != port {
		t.Fatalf("seed %d, kind %d: another frame came out, at port %d", seed, p.Kind, f.InPort)
	}
}

// Push writes the GRE and ERSPAN headers that the specifications describe. Decapsulate reads them,
// however the frame is divided into header buffer and spans.
func TestGRE(t *testing.T) {
	a, table := packettest.NewArena(t, 1<<16), greTerminations()
	for seed := range int64(1500) {
		checkGRE(t, a, table, seed)
	}
}

func FuzzGRE(f *testing.F) {
	a, table := packettest.NewArena(f, 1<<16), greTerminations()
	f.Add(int64(1))
	f.Fuzz(func(t *testing.T, seed int64) { checkGRE(t, a, table, seed) })
}

// gopacket decodes the fields that Push has written.
func TestGREAsGopacket(t *testing.T) {
	a := packettest.NewArena(t, 1<<16)
	inner := innerFrame(t, false, false, 0x41, 200)
	for _, p := range []Params{params4, params6} {
		p.Kind, p.Checksum, p.Key, p.Sequence = KindGRE, true, true, true
		tmpl := build(t, p)
		for sequence := range uint32(3) {
			a.Reset()
			var b packet.Batch
			f := a.Add(&b, inner, packet.InnerHeader, 50)
			f.L3, f.L4 = 14, 34
			if reason := tmpl.Push(f, 0xfedcba98, 1, InnerTOS(f), nil); reason != packet.DropNone {
				t.Fatal(reason)
			}
			data := make([]byte, f.Len())
			b.GatherFinished(f, data)
			got := gopacket.NewPacket(data, layers.LayerTypeEthernet, gopacket.Default)
			if err := got.ErrorLayer(); err != nil {
				t.Fatal(err)
			}
			switch ip := got.NetworkLayer().(type) {
			case *layers.IPv4:
				if ip.Protocol != layers.IPProtocolGRE || int(ip.Length) != len(data)-14 || packet.Sum(ip.Contents) != 0xffff || ip.TOS != 0xb9 {
					t.Errorf("outer IPv4 %+v", ip)
				}
			case *layers.IPv6:
				if ip.NextHeader != layers.IPProtocolGRE || int(ip.Length) != len(data)-54 || ip.TrafficClass != 0xb9 {
					t.Errorf("outer IPv6 %+v", ip)
				}
			}
			gre := got.Layer(layers.LayerTypeGRE).(*layers.GRE)
			if gre.Key != 0xfedcba98 || gre.Seq != sequence || gre.Protocol != layers.EthernetTypeTransparentEthernetBridging ||
				gre.Version != 0 || gre.RoutingPresent || !bytes.Equal(gre.Payload, inner) {
				t.Errorf("GRE %+v", gre)
			}
			if sum := packet.Sum(data[tmpl.UDP:]); sum != 0xffff || !gre.ChecksumPresent {
				t.Errorf("the sum over GRE is %#x", sum)
			}
		}
		p.Kind, p.Index = KindERSPAN1, 0xabcde
		a.Reset()
		var b packet.Batch
		f := a.Add(&b, inner, packet.InnerHeader, 50)
		if reason := build(t, p).Push(f, 0x3a5, 1, 0, nil); reason != packet.DropNone {
			t.Fatal(reason)
		}
		got := gopacket.NewPacket(packettest.Bytes(&b, f), layers.LayerTypeEthernet, gopacket.Default)
		erspan := got.Layer(layers.LayerTypeERSPANII).(*layers.ERSPANII)
		if erspan.Version != 1 || erspan.SessionID != 0x3a5 || erspan.Index != 0xabcde || erspan.VLANIdentifier != 0 || !bytes.Equal(erspan.Payload, inner) {
			t.Errorf("ERSPAN %+v", erspan)
		}
	}
}

// Datagrams written by hand arrive in their tunnel, or are dropped for a reason of their own.
func TestReceivedGRE(t *testing.T) {
	const (
		inner   = "020000000001" + "020000000002" + "88b5" + "00112233"
		erspan1 = "1000 88be 00000007 1000 0123 000 00005"
		erspan2 = "1000 22eb 00000007 2000 0123 00000000 0000 8078"
	)
	for _, c := range []struct {
		name, gre string
		v6        string // extension header of IPv6, if the datagram is IPv6
		key       uint64
		port      uint32
		want      packet.DropReason
	}{
		{name: "plain", gre: "0000 6558", port: 42},
		{name: "key", gre: "2000 6558 89abcdef", key: 0x89abcdef, port: 42},
		{name: "sequence", gre: "1000 6558 00000009", port: 42},
		{name: "key and sequence", gre: "3000 6558 00000003 00000009", key: 3, port: 42},
		{name: "checksum", gre: "8000 6558 6baa 0000", port: 42},
		{name: "wrong checksum", gre: "8000 6558 6bab 0000", want: packet.DropBadGRE},
		{name: "reserved bits that receivers ignore", gre: "03f8 6558", port: 42},
		{name: "routing", gre: "4000 6558", want: packet.DropBadGRE},
		{name: "strict source route", gre: "0800 6558", want: packet.DropBadGRE},
		{name: "version 1", gre: "2001 6558 00000003", want: packet.DropBadGRE},
		{name: "IPv4", gre: "0000 0800", want: packet.DropTunnelPayload},
		{name: "IPv6", gre: "0000 86dd", want: packet.DropTunnelPayload},
		{name: "over IPv6", gre: "2000 6558 00000003", v6: "-", key: 3, port: 42},
		{name: "after Linux's limit of encapsulation", gre: "2000 6558 00000003", v6: "2f00 0401 0401 0100", key: 3, port: 42},
		{name: "after 16 bytes of options", gre: "0000 6558", v6: "2f01 0401 0401 0100 0000 0000 0000 0000", want: packet.DropNotTunnel},
		{name: "options before UDP", gre: "0000 6558", v6: "1100 0401 0401 0100", want: packet.DropNotTunnel},
		{name: "ERSPAN II", gre: erspan1, key: 0x123, port: 43},
		{name: "ERSPAN II over IPv6", gre: erspan1, v6: "-", key: 0x123, port: 43},
		{name: "ERSPAN III", gre: erspan2, key: 0x123, port: 43},
		{name: "ERSPAN III with the type of II", gre: strings.Replace(erspan2, "22eb", "88be", 1), key: 0x123, port: 43},
		{name: "ERSPAN III with a subheader", gre: "1000 22eb 00000007 2000 0123 00000000 0000 8079 0011223344556677", key: 0x123, port: 43},
		{name: "ERSPAN I", gre: "0000 88be", want: packet.DropTunnelPayload},
		{name: "ERSPAN version 3", gre: "1000 22eb 00000007 3000 0123 00000000 0000 8078", want: packet.DropBadGRE},
	} {
		table := greTerminations()
		payload := unhex(t, c.gre+inner)
		outer, rest := "020000000001 020000000002 0800 4500", "0000 0000 402f 0000 ac100002 ac100001"
		if c.v6 != "" {
			next := "2f"
			if c.v6 != "-" {
				payload, next = append(unhex(t, c.v6), payload...), "3c"
			}
			outer, rest = "020000000001 020000000002 86dd 6000 0000", next+"40 20010db8000000000000000000000002 20010db8000000000000000000000001"
		}
		frame := unhex(t, outer)
		if c.v6 != "" {
			frame = binary.BigEndian.AppendUint16(frame, uint16(len(payload)))
		} else {
			frame = binary.BigEndian.AppendUint16(frame, uint16(packet.IPv4Len+len(payload)))
		}
		frame = append(frame, unhex(t, rest)...)
		if c.v6 == "" {
			packet.IPv4(frame[14:34]).SetChecksum(packet.Checksum(frame[14:34]))
		}
		frame = append(append(frame, payload...), make([]byte, 9)...) // and padding
		for _, header := range []int{14, 40, packet.MaxHeader} {
			a := packettest.NewArena(t, 1<<12)
			var b packet.Batch
			b.Port = 3
			f := a.Add(&b, frame, header, 10)
			var words [flowtable.TunnelWords]uint64
			got := table.Decapsulate(&b, f, &words, new(flowtable.TunOptions))
			if got != c.want || got == packet.DropNone && (f.InPort != c.port || words[0] != c.key || !bytes.Equal(packettest.Bytes(&b, f), unhex(t, inner))) {
				t.Errorf("%s: %v, want %v; port %d, key %#x, %x", c.name, got, c.want, f.InPort, words[0], packettest.Bytes(&b, f))
			}
		}
		if c.want != packet.DropNone {
			continue
		}
		a := packettest.NewArena(t, 1<<16)
		end := len(frame) - 9 - len(unhex(t, inner)) // of the tunnel header
		for n := end - len(unhex(t, c.gre)); n < end; n++ {
			a.Reset()
			short := bytes.Clone(frame[:n])
			if c.v6 != "" {
				binary.BigEndian.PutUint16(short[18:], uint16(n-54))
			} else {
				packet.IPv4(short[14:34]).SetTotalLen(n - 14)
				packet.IPv4(short[14:34]).SetChecksum(0)
				packet.IPv4(short[14:34]).SetChecksum(packet.Checksum(short[14:34]))
			}
			var b packet.Batch
			if got := table.Decapsulate(&b, a.Add(&b, short, 60, 10), new([flowtable.TunnelWords]uint64), new(flowtable.TunOptions)); got != packet.DropBadGRE {
				t.Errorf("%s, %d bytes short: %v", c.name, end-n, got)
			}
		}
		var b packet.Batch
		if got := anyTermination().Decapsulate(&b, a.Add(&b, frame, 60, 10), new([flowtable.TunnelWords]uint64), new(flowtable.TunOptions)); got != packet.DropNotTunnel {
			t.Errorf("%s, without such a tunnel: %v", c.name, got)
		}
	}
}

func unhex(t *testing.T, text string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(text, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// The remote address and the key choose the tunnel. GRE and ERSPAN do not share keys.
func TestGREKeys(t *testing.T) {
	a := packettest.NewArena(t, 1<<16)
	table := NewTerminations()
	for i, e := range []Termination{
		{Port: 10, VNI: 7, Kind: KindGRE},
		{Port: 11, VNI: 7, Kind: KindGRE, Remote: address("172.16.0.1")},
		{Port: 12, VNI: 7, Kind: KindERSPAN2},
		{Port: 13, VNI: 0, Kind: KindGRE},
		{Port: 14, VNI: 7, Kind: KindVXLAN, UDPPort: 4789},
	} {
		table.Set(uint32(i), &e)
	}
	p := params4
	for _, c := range []struct {
		kind  Kind
		local string
		key   uint32
		port  uint32 // 0: none
	}{
		{KindGRE, "172.16.0.1", 7, 11},
		{KindGRE, "172.16.0.9", 7, 10},
		{KindGRE, "172.16.0.9", 0, 13},
		{KindGRE, "172.16.0.9", 1<<24 + 7, 0},
		{KindERSPAN1, "172.16.0.9", 7, 12},
		{KindERSPAN1, "172.16.0.9", 8, 0},
	} {
		p.Kind, p.Key, p.Local = c.kind, true, netip.MustParseAddr(c.local)
		var b packet.Batch
		b.Port = 3
		f := a.Add(&b, datagram(t, a, p, innerFrame(t, false, false, 0, 10), c.key, 0), 128, 10)
		reason := table.Decapsulate(&b, f, new([flowtable.TunnelWords]uint64), new(flowtable.TunOptions))
		if c.port == 0 && reason != packet.DropNoTunnelPort || c.port != 0 && f.InPort != c.port {
			t.Errorf("%+v: %v at port %d", c, reason, f.InPort)
		}
	}
}

// Each segment of a large frame gets its own sequence number and checksum.
func TestGREOfSegments(t *testing.T) {
	a := packettest.NewArena(t, 1<<17)
	p := params4
	p.Kind, p.Checksum, p.Key, p.Sequence, p.DontFragment = KindGRE, true, true, true, false
	tmpl := build(t, p)
	next := uint32(0)
	for range 2 {
		a.Reset()
		var b, segments packet.Batch
		inner := innerFrame(t, false, false, 0, 5000)
		copy(inner[34:], bytes.Repeat([]byte{7}, 5000))
		inner[23], inner[46] = packet.ProtoTCP, 5<<4
		f := a.Add(&b, inner, 54, 1000)
		f.L3, f.L4, f.Proto = 14, 34, packet.ProtoTCP
		f.Offload = packet.Offload{GSO: packet.GSOTCPv4, Size: 1000, Flags: packet.OffloadPartial, CsumStart: 34, CsumOffset: 16}
		if reason := tmpl.Push(f, 5, 0, 0, nil); reason != packet.DropNone {
			t.Fatal(reason)
		}
		if all := packet.TakesAll | packet.TakesTunnel; all.Takes(f) {
			t.Fatal("an output takes a large frame in GRE")
		}
		n := 0
		for s := b.Segments(f); !s.Done(); n++ {
			segments.Reset()
			s.Next(&segments)
			data := make([]byte, segments.Frames[0].Len())
			segments.GatherFinished(&segments.Frames[0], data)
			gre := packet.GRE(data[tmpl.UDP:])
			if got := binary.BigEndian.Uint32(gre[gre.Offset(packet.GRESequence):]); got != next || packet.Sum(gre) != 0xffff {
				t.Errorf("segment %d has the number %d, want %d; sum %#x", n, got, next, packet.Sum(gre))
			}
			ip := packet.IPv4(data[14:34])
			if ip.TotalLen() != len(data)-14 || packet.Sum(ip) != 0xffff {
				t.Errorf("segment %d has a wrong outer IP header", n)
			}
			next++
		}
		if n < 4 {
			t.Fatalf("%d segments", n)
		}
	}
	encoded := tmpl.AppendTo(nil)
	if !tmpl.Parse(encoded) || tmpl.sequence != next {
		t.Errorf("a new template continues with number %d, want %d", tmpl.sequence, next)
	}
}

func TestGREAllocatesNothing(t *testing.T) {
	a := packettest.NewArena(t, 1<<16)
	p := params6
	p.Kind = KindERSPAN2
	table, tmpl := greTerminations(), build(t, p)
	inner := innerFrame(t, false, false, 1, 80)
	var b packet.Batch
	var words [flowtable.TunnelWords]uint64
	if n := testing.AllocsPerRun(100, func() {
		b.Reset()
		a.Reset()
		f := a.Add(&b, inner, packet.InnerHeader, 0)
		if tmpl.Push(f, 5, 6, 3, nil) != packet.DropNone || table.Decapsulate(&b, f, &words, nil) != packet.DropNone {
			t.Fatal("dropped")
		}
	}); n != 0 {
		t.Fatalf("%v allocations, want 0", n)
	}
}

// Decapsulate accepts any bytes behind the IP header without a panic. The inner frame is the end of
// the received bytes.
func FuzzDecapsulateGRE(f *testing.F) {
	a, table := packettest.NewArena(f, 1<<17), greTerminations()
	for _, seed := range []string{
		"00006558", "200065580000000b", "b0006558000000000000000b00000001", "100088be000000010000000b00000005",
		"100088be000000011000000b00000005", "100022eb000000012000000b0000000000008078", "100022eb000000012000000b00000000000080790000000000000000", "00000800",
	} {
		header, _ := hex.DecodeString(seed)
		f.Add(append(header, innerFrame(f, false, false, 0, 20)...), uint8(60), false)
		f.Add(append(header, innerFrame(f, false, false, 0, 20)...), uint8(0), true)
	}
	f.Fuzz(func(t *testing.T, payload []byte, header uint8, v6 bool) {
		if len(payload) > 1<<15 {
			return
		}
		p := params4
		if v6 {
			p = params6
		}
		p.Kind = KindGRE
		tmpl := build(t, p)
		data := append(bytes.Clone(tmpl.Header[:tmpl.UDP]), payload...)
		if ip := data[tmpl.IP:tmpl.UDP]; v6 {
			packet.IPv6(ip).SetPayloadLen(len(payload))
		} else {
			packet.IPv4(ip).SetTotalLen(len(data) - int(tmpl.IP))
			packet.IPv4(ip).SetChecksum(0)
			packet.IPv4(ip).SetChecksum(packet.Checksum(ip))
		}
		a.Reset()
		var b packet.Batch
		fr := a.Add(&b, data, int(header), 33)
		var words [flowtable.TunnelWords]uint64
		if reason := table.Decapsulate(&b, fr, &words, nil); reason != packet.DropNone {
			return
		}
		got := packettest.Bytes(&b, fr)
		if n := len(payload) - len(got); n < packet.GRELen || n > greMaxLen {
			t.Fatalf("the tunnel header has %d bytes", n)
		}
		if !bytes.HasSuffix(payload, got) {
			t.Fatal("the inner frame is no part of the datagram")
		}
		var k flowtable.Key
		flowtable.Extract(&b, fr, &k)
	})
}
