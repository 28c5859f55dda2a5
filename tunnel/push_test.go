// SPDX-License-Identifier: Apache-2.0

package tunnel

import (
	"bytes"
	"math/rand"
	"net/netip"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"weft/flowtable"
	"weft/packet"
	"weft/packet/packettest"
)

var (
	params4 = Params{
		Port: 3, MTU: 1514, SrcMAC: [6]byte{2, 0, 0, 0, 0, 1}, DstMAC: [6]byte{2, 0, 0, 0, 0, 2},
		Local: netip.MustParseAddr("172.16.0.1"), Remote: netip.MustParseAddr("172.16.0.2"),
		TTL: 61, TOS: 0xb8, DontFragment: true, UDPPort: 4789,
	}
	params6 = func() Params {
		p := params4
		p.Local, p.Remote = netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("2001:db8::2")
		return p
	}()
)

func build(t testing.TB, p Params) *Template {
	t.Helper()
	tmpl, err := Build(p)
	if err != nil {
		t.Fatal(err)
	}
	return &tmpl
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

func innerFrame(t testing.TB, v6, vlan bool, tos uint8, payload int) []byte {
	eth := &layers.Ethernet{SrcMAC: make([]byte, 6), DstMAC: make([]byte, 6)}
	udp := &layers.UDP{SrcPort: 1, DstPort: 2}
	var ip gopacket.SerializableLayer
	if v6 {
		l := &layers.IPv6{Version: 6, TrafficClass: tos, HopLimit: 9, NextHeader: 17, SrcIP: make([]byte, 16), DstIP: make([]byte, 16)}
		udp.SetNetworkLayerForChecksum(l)
		ip, eth.EthernetType = l, layers.EthernetTypeIPv6
	} else {
		l := &layers.IPv4{Version: 4, TOS: tos, TTL: 9, Protocol: 17, SrcIP: make([]byte, 4), DstIP: make([]byte, 4)}
		udp.SetNetworkLayerForChecksum(l)
		ip, eth.EthernetType = l, layers.EthernetTypeIPv4
	}
	ls := []gopacket.SerializableLayer{eth}
	if vlan {
		ls = append(ls, &layers.Dot1Q{VLANIdentifier: 5, Type: eth.EthernetType})
		eth.EthernetType = layers.EthernetTypeDot1Q
	}
	return serialize(t, append(ls, ip, udp, gopacket.Payload(make([]byte, payload)))...)
}

// Push writes headers that gopacket decodes with the expected fields.
func TestPush(t *testing.T) {
	a := packettest.NewArena(t, 1<<16)
	inner := innerFrame(t, false, false, 0x41, 200)
	for _, p := range []Params{params4, params6} {
		for _, vlan := range []uint16{0, 7} {
			p.VLAN = vlan
			var b packet.Batch
			f := a.Add(&b, inner, packet.InnerHeader, 50)
			f.L3, f.L4 = 14, 34
			if reason := build(t, p).Push(f, 0xabcdef, 0xffffffff, InnerTOS(f), nil); reason != packet.DropNone {
				t.Fatal(reason)
			}
			checkOuter(t, packettest.Bytes(&b, f), inner, &p)
			if n := len(packettest.Bytes(&b, f)) - len(inner); int(f.L3) != n+14 || int(f.L4) != n+34 {
				t.Errorf("L3 %d, L4 %d behind %d outer bytes", f.L3, f.L4, n)
			}
		}
	}
}

func checkOuter(t *testing.T, data, inner []byte, p *Params) {
	t.Helper()
	got := gopacket.NewPacket(data, layers.LayerTypeEthernet, gopacket.Default)
	if err := got.ErrorLayer(); err != nil {
		t.Fatal(err.Error())
	}
	eth := got.Layer(layers.LayerTypeEthernet).(*layers.Ethernet)
	if !bytes.Equal(eth.SrcMAC, p.SrcMAC[:]) || !bytes.Equal(eth.DstMAC, p.DstMAC[:]) {
		t.Errorf("wrong outer MAC addresses: source %v, destination %v", eth.SrcMAC, eth.DstMAC)
	}
	if tag, ok := got.Layer(layers.LayerTypeDot1Q).(*layers.Dot1Q); ok != (p.VLAN != 0) || ok && tag.VLANIdentifier != p.VLAN {
		t.Errorf("wrong outer VLAN tag %v", tag)
	}
	switch ip := got.NetworkLayer().(type) {
	case *layers.IPv4:
		if ip.TOS != 0xb9 || ip.TTL != 61 || ip.Flags != layers.IPv4DontFragment || ip.Id != 0 ||
			ip.SrcIP.String() != p.Local.String() || ip.DstIP.String() != p.Remote.String() ||
			int(ip.Length) != 36+len(inner) || packet.Sum(ip.Contents) != 0xffff {
			t.Errorf("outer IPv4 %+v", ip)
		}
	case *layers.IPv6:
		if ip.TrafficClass != 0xb9 || ip.HopLimit != 61 || ip.FlowLabel != 0 || int(ip.Length) != 16+len(inner) ||
			ip.SrcIP.String() != p.Local.String() || ip.DstIP.String() != p.Remote.String() {
			t.Errorf("outer IPv6 %+v", ip)
		}
	}
	udp := got.TransportLayer().(*layers.UDP)
	if udp.SrcPort != 65535 || udp.DstPort != 4789 || int(udp.Length) != 16+len(inner) || udp.Checksum != 0 {
		t.Errorf("outer UDP %+v", udp)
	}
	vxlan := got.Layer(layers.LayerTypeVXLAN).(*layers.VXLAN)
	if !vxlan.ValidIDFlag || vxlan.VNI != 0xabcdef || vxlan.GBPExtension || !bytes.Equal(vxlan.Payload, inner) {
		t.Errorf("VXLAN %+v", vxlan)
	}
}

func TestPushRefuses(t *testing.T) {
	a := packettest.NewArena(t, 1<<16)
	for _, c := range []struct {
		name   string
		change func(*Template, *packet.Frame)
		want   packet.DropReason
	}{
		{"free", func(t *Template, _ *packet.Frame) { *t = Template{} }, packet.DropNoRoute},
		{"pending", func(t *Template, _ *packet.Frame) { t.State = TemplatePending }, packet.DropNoNeighbour},
		{"no route", func(t *Template, _ *packet.Frame) { t.State = TemplateNoRoute }, packet.DropNoRoute},
		{"no neighbour", func(t *Template, _ *packet.Frame) { t.State = TemplateNoNeighbour }, packet.DropNoNeighbour},
		{"too big", func(t *Template, f *packet.Frame) { t.MTU = uint16(f.Len() + 49) }, packet.DropTooBigForTunnel},
		{"just fits", func(t *Template, f *packet.Frame) { t.MTU = uint16(f.Len() + 50) }, packet.DropNone},
		{"no headroom", func(_ *Template, f *packet.Frame) { f.Push(packet.Headroom - 49) }, packet.DropNoHeadroom},
	} {
		var b packet.Batch
		f := a.Add(&b, innerFrame(t, false, false, 0, 100), packet.InnerHeader, 0)
		tmpl := build(t, params4)
		c.change(tmpl, f)
		before := packettest.Bytes(&b, f)
		got := tmpl.Push(f, 1, 2, 0, nil)
		if got == packet.DropNone {
			tmpl.Pop(f)
		}
		if got != c.want || !bytes.Equal(before, packettest.Bytes(&b, f)) {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

// Without DF, each datagram gets another IPv4 identification.
func TestPushCountsID(t *testing.T) {
	a := packettest.NewArena(t, 1<<16)
	p := params4
	p.DontFragment = false
	tmpl := build(t, p)
	for i := range uint16(3) {
		var b packet.Batch
		f := a.Add(&b, innerFrame(t, false, false, 0, 100), packet.InnerHeader, 0)
		tmpl.Push(f, 1, 2, 0, nil)
		if ip := packet.IPv4(f.Header()[14:34]); ip.ID() != i || packet.Sum(ip) != 0xffff {
			t.Fatalf("datagram %d has IPv4 identification %d", i, ip.ID())
		}
	}
}

func TestSourcePortRange(t *testing.T) {
	a := packettest.NewArena(t, 1<<20)
	p := params4
	p.PortBase, p.PortRange = 60000, 10
	tmpl := build(t, p)
	seen := map[uint16]bool{}
	for i := range uint64(1000) {
		var b packet.Batch
		f := a.Add(&b, innerFrame(t, false, false, 0, 100), packet.InnerHeader, 0)
		tmpl.Push(f, 1, FlowHash(&flowtable.Key{flowtable.WL4: i << 32}), 0, nil)
		seen[packet.UDP(f.Header()[34:]).SrcPort()] = true
	}
	for port := range seen {
		if port < 60000 || port > 60009 {
			t.Errorf("source port %d", port)
		}
	}
	if len(seen) != 10 {
		t.Errorf("%d source ports for 1000 connections, want 10", len(seen))
	}
}

func TestBuildRefuses(t *testing.T) {
	for name, change := range map[string]func(*Params){
		"no remote":   func(p *Params) { p.Remote = netip.Addr{} },
		"no local":    func(p *Params) { p.Local = netip.Addr{} },
		"families":    func(p *Params) { p.Remote = params6.Remote },
		"UDP port 0":  func(p *Params) { p.UDPPort = 0 },
		"ports reach": func(p *Params) { p.PortBase, p.PortRange = 60000, 6000 },
	} {
		p := params4
		change(&p)
		if _, err := Build(p); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestFlowHash(t *testing.T) {
	first := flowtable.Key{flowtable.WIP: 17<<56 | flowtable.FragAny<<32, flowtable.WL4: 1 << 48, flowtable.WIPv6Src: 1, flowtable.WEthDst: 0x86dd}
	later := first
	later[flowtable.WIP], later[flowtable.WL4] = 44<<56|(flowtable.FragAny|flowtable.FragLater)<<32, 0
	if FlowHash(&first) != FlowHash(&later) {
		t.Error("fragments of one datagram take two paths")
	}
	for _, w := range []int{flowtable.WIPv4, flowtable.WL4, flowtable.WIP, flowtable.WIPv6Src, flowtable.WIPv6Dst + 1} {
		a := flowtable.Key{flowtable.WEthDst: 0x86dd}
		b := a
		b[w] = 1 << 60
		if FlowHash(&a) == FlowHash(&b) {
			t.Errorf("word %d is not hashed", w)
		}
	}
}

func TestEncoding(t *testing.T) {
	rng := rand.New(rand.NewSource(1))
	p := params6
	p.VLAN = 9
	want := build(t, p)
	want.ID = 77
	buf := want.AppendTo([]byte("before"))
	var got Template
	if !got.Parse(buf[6:]) || got != *want || len(buf) != 6+TemplateBytes {
		t.Errorf("template: got %+v, want %+v", got, want)
	}
	for range 10000 { // Push must not panic with any template that Parse accepts
		bad := append([]byte(nil), buf[6:]...)
		bad[rng.Intn(len(bad))] = byte(rng.Int())
		bad[8+rng.Intn(12)] = byte(rng.Intn(100))
		if got.Parse(bad) {
			var b packet.Batch
			f, _ := b.Next()
			b.Commit(f, 60)
			got.Push(f, 1, 2, 3, nil)
		}
	}
	if got.Parse(buf[5:]) || got.Parse(buf[7:]) {
		t.Error("a template of another length was taken")
	}
	e := Termination{Port: 9, VNI: AnyVNI, UDPPort: 4789, Local: [16]byte{1, 15: 2}, Remote: [16]byte{3, 15: 4}}
	var back Termination
	if buf := e.AppendTo(nil); !back.Parse(buf) || back != e || len(buf) != terminationBytes {
		t.Errorf("termination: got %+v, want %+v", back, e)
	}
	e.VNI = 1 << 24
	if back.Parse(e.AppendTo(nil)) || back.Parse(make([]byte, terminationBytes-1)) {
		t.Error("a bad termination was taken")
	}
}
