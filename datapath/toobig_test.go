// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"weft/flowtable"
	"weft/packet"
	"weft/tunnel"
)

// fits is the length in bytes of the longest IP packet that fits into the tunnel without a VLAN tag.
const fits = 1514 - 50 - 14

// tooLong returns a frame to MAC address 0xa with n bytes of payload.
func tooLong(t *testing.T, n int, l ...gopacket.SerializableLayer) []byte {
	t.Helper()
	b := gopacket.NewSerializeBuffer()
	all := append(l, gopacket.Payload(make([]byte, n)))
	if err := gopacket.SerializeLayers(b, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, all...); err != nil {
		t.Fatal(err)
	}
	return bytes.Clone(b.Bytes())
}

func ethernetTo(next layers.EthernetType) *layers.Ethernet {
	return &layers.Ethernet{DstMAC: []byte{0, 0, 0, 0, 0, 0xa}, SrcMAC: []byte{2, 0, 0, 0, 0, 1}, EthernetType: next}
}

// The sender of a frame that is too long gets an ICMP error with the frame's received
// headers.
func TestTooBigIsAnswered(t *testing.T) {
	rewrites := []flowtable.Action{
		{Op: flowtable.OpPopVLAN}, {Op: flowtable.OpSetEthSrc, U64: 0x020000000077}, {Op: flowtable.OpSetIPv4Src, U32: 0x01010101},
		{Op: flowtable.OpSetIPv6Dst, U64: 7}, {Op: flowtable.OpData, U64: 8}, {Op: flowtable.OpSetTOS, U32: 4}, {Op: flowtable.OpDecTTL},
		{Op: flowtable.OpSetTpDst, U32: 99}, toTunnel(77),
	}
	ip4 := &layers.IPv4{Version: 4, TTL: 9, TOS: 0x20, Protocol: layers.IPProtocolTCP, Flags: layers.IPv4DontFragment,
		SrcIP: []byte{10, 0, 0, 1}, DstIP: []byte{10, 0, 0, 2}}
	ip6 := &layers.IPv6{Version: 6, HopLimit: 9, TrafficClass: 0x20, NextHeader: layers.IPProtocolUDP,
		SrcIP: []byte{0xfd, 15: 1}, DstIP: []byte{0xfd, 15: 2}}
	tcp := &layers.TCP{SrcPort: 1000, DstPort: 2000, Seq: 5, SYN: true}
	udp := &layers.UDP{SrcPort: 1000, DstPort: 2000}
	tcp.SetNetworkLayerForChecksum(ip4)
	udp.SetNetworkLayerForChecksum(ip6)
	tag := func(next layers.EthernetType) *layers.Dot1Q {
		return &layers.Dot1Q{Priority: 3, VLANIdentifier: 5, Type: next}
	}
	for name, f := range map[string][]byte{
		"v4":     tooLong(t, 1460, ethernetTo(layers.EthernetTypeIPv4), ip4, tcp),
		"v6":     tooLong(t, 1460, ethernetTo(layers.EthernetTypeIPv6), ip6, udp),
		"v4 tag": tooLong(t, 1460, ethernetTo(layers.EthernetTypeDot1Q), tag(layers.EthernetTypeIPv4), ip4, tcp),
		"v6 tag": tooLong(t, 1460, ethernetTo(layers.EthernetTypeDot1Q), tag(layers.EthernetTypeIPv6), ip6, udp),
	} {
		t.Run(name, func(t *testing.T) {
			r := withTunnel(t, tunnel.TemplateReady)
			r.install(0, 1, 0xa, rewrites...)
			r.inject(1, f)
			r.turn()
			r.drops(map[packet.DropReason]uint64{packet.DropTooBigForTunnel: 1})
			got := r.tx(1).TakeAll()
			if len(got) != 1 {
				t.Fatalf("%d answers", len(got))
			}
			l3 := bytes.Index(f, []byte{0x45, 0x20})
			if l3 < 0 {
				l3 = bytes.Index(f, []byte{0x62, 0})
			}
			checkAnswer(t, got[0], f, l3)
		})
	}
}

func checkAnswer(t *testing.T, answer, f []byte, l3 int) {
	t.Helper()
	if !bytes.Equal(answer[:6], f[6:12]) || !bytes.Equal(answer[6:12], f[:6]) || !bytes.Equal(answer[12:l3], f[12:l3]) {
		t.Fatalf("header % x of the answer to % x", answer[:l3], f[:l3])
	}
	quote := answer[l3+28:]
	if f[l3]>>4 == 4 {
		ip, icmp := answer[l3:l3+20], answer[l3+20:]
		if !bytes.Equal(ip[12:16], f[l3+16:l3+20]) || !bytes.Equal(ip[16:20], f[l3+12:l3+16]) || ip[9] != 1 ||
			int(binary.BigEndian.Uint16(ip[2:])) != len(answer)-l3 || packet.Sum(ip) != 0xffff {
			t.Fatalf("IP header % x", ip)
		}
		if icmp[0] != 3 || icmp[1] != 4 || int(binary.BigEndian.Uint16(icmp[6:])) != fits || packet.Sum(icmp) != 0xffff {
			t.Fatalf("ICMP header % x", icmp[:8])
		}
	} else {
		ip, icmp := answer[l3:l3+40], answer[l3+40:]
		if !bytes.Equal(ip[8:24], f[l3+24:l3+40]) || !bytes.Equal(ip[24:40], f[l3+8:l3+24]) || ip[6] != 58 ||
			int(binary.BigEndian.Uint16(ip[4:])) != len(icmp) {
			t.Fatalf("IPv6 header % x", ip)
		}
		sum := packet.AddSums(packet.SumIPv6(ip[8:], ip[24:], 58, len(icmp)), packet.Sum(icmp))
		if icmp[0] != 2 || int(binary.BigEndian.Uint32(icmp[4:])) != fits || sum != 0xffff {
			t.Fatalf("ICMPv6 header % x", icmp[:8])
		}
		quote = icmp[8:]
	}
	want := bytes.Clone(f[l3:][:len(quote)])
	l4 := 20
	if f[l3]>>4 == 6 {
		l4 = 40
	}
	clear(want[l4+6 : l4+8]) // the rewrites have updated the checksums
	clear(want[l4+16 : l4+18])
	quote = bytes.Clone(quote)
	clear(quote[l4+6 : l4+8])
	clear(quote[l4+16 : l4+18])
	if len(quote) < l4+8 || !bytes.Equal(quote, want) {
		t.Fatalf("quoted\n% x\nof\n% x", quote, want)
	}
}

// No ICMP error answers a frame without DF, an ICMP error, a frame beyond the rate limit, or a frame with
// an address that cannot be a host's.
func TestTooBigIsNotAnswered(t *testing.T) {
	ip := layers.IPv4{Version: 4, TTL: 9, Protocol: layers.IPProtocolTCP, Flags: layers.IPv4DontFragment,
		SrcIP: []byte{10, 0, 0, 1}, DstIP: []byte{10, 0, 0, 2}}
	make4 := func(change func(*layers.IPv4, *layers.Ethernet)) []byte {
		ip, eth := ip, ethernetTo(layers.EthernetTypeIPv4)
		change(&ip, eth)
		if ip.Protocol == layers.IPProtocolICMPv4 {
			return tooLong(t, 1460, eth, &ip, &layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(3, 1)})
		}
		tcp := &layers.TCP{}
		tcp.SetNetworkLayerForChecksum(&ip)
		return tooLong(t, 1460, eth, &ip, tcp)
	}
	for name, change := range map[string]func(*layers.IPv4, *layers.Ethernet){
		"no DF":       func(ip *layers.IPv4, _ *layers.Ethernet) { ip.Flags = 0 },
		"ICMP error":  func(ip *layers.IPv4, _ *layers.Ethernet) { ip.Protocol = layers.IPProtocolICMPv4 },
		"multicast":   func(ip *layers.IPv4, _ *layers.Ethernet) { ip.DstIP = []byte{224, 0, 0, 1} },
		"no address":  func(ip *layers.IPv4, _ *layers.Ethernet) { ip.SrcIP = []byte{0, 0, 0, 0} },
		"Ethernet":    func(_ *layers.IPv4, e *layers.Ethernet) { e.SrcMAC = []byte{3, 0, 0, 0, 0, 1} },
		"from nobody": func(_ *layers.IPv4, e *layers.Ethernet) { e.SrcMAC = []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff} },
	} {
		r := withTunnel(t, tunnel.TemplateReady)
		r.install(0, 1, 0xa, toTunnel(77))
		r.inject(1, make4(change))
		r.turn()
		if got := r.tx(1).TakeAll(); len(got) != 0 {
			t.Errorf("%s: answered", name)
		}
		r.drops(map[packet.DropReason]uint64{packet.DropTooBigForTunnel: 1})
	}
	r := withTunnel(t, tunnel.TemplateReady)
	r.install(0, 1, 0xa, toTunnel(77))
	r.w.fixed = r.w.clock()
	for range 4 {
		for range packet.BatchSize {
			r.inject(1, make4(func(*layers.IPv4, *layers.Ethernet) {}))
		}
		r.turn()
	}
	if n := len(r.tx(1).TakeAll()); n != answerBurst {
		t.Errorf("%d answers to %d frames at once", n, 4*packet.BatchSize)
	}
	// A port that has reached its limit does not keep other ports from getting answers.
	r.install(1, 2, 0xa, toTunnel(77))
	r.inject(2, make4(func(*layers.IPv4, *layers.Ethernet) {}))
	r.turn()
	if n := len(r.tx(2).TakeAll()); n != 1 {
		t.Errorf("%d answers to the first frame of another port", n)
	}
	// A large UDP frame cannot be cut into shorter segments.
	r = withOffloads(t)
	r.install(0, 1, 0xa, toTunnel(77))
	ip.Protocol = layers.IPProtocolUDP
	udp := &layers.UDP{}
	udp.SetNetworkLayerForChecksum(&ip)
	f := tooLong(t, 3000, ethernetTo(layers.EthernetTypeIPv4), &ip, udp)
	r.rx(1).InjectUndone(f, packet.Offload{GSO: packet.GSOUDP, Flags: packet.OffloadPartial, Size: 1480, CsumStart: 34, CsumOffset: 6})
	r.turn()
	if n := len(r.tx(1).TakeAll()); n != 1 {
		t.Errorf("%d answers to large datagrams", n)
	}
	r.drops(map[packet.DropReason]uint64{packet.DropTooBigForTunnel: 1})
}
