// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"bytes"
	"net"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"weft/flowtable"
	"weft/packet"
	"weft/port/porttest"
)

var (
	asker     = net.HardwareAddr{2, 0, 0, 0, 0, 1}
	targetMAC = net.HardwareAddr{2, 0, 0, 0, 0, 9}
	askedU    = uint64(0x020000000009)
)

func frameOf(t testing.TB, l ...gopacket.SerializableLayer) []byte {
	t.Helper()
	b := gopacket.NewSerializeBuffer()
	if err := gopacket.SerializeLayers(b, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, l...); err != nil {
		t.Fatal(err)
	}
	return bytes.Clone(b.Bytes())
}

func askedFor(dst net.HardwareAddr, tag bool, next layers.EthernetType) []gopacket.SerializableLayer {
	eth := &layers.Ethernet{DstMAC: dst, SrcMAC: asker, EthernetType: next}
	if !tag {
		return []gopacket.SerializableLayer{eth}
	}
	eth.EthernetType = layers.EthernetTypeDot1Q
	return []gopacket.SerializableLayer{eth, &layers.Dot1Q{Priority: 1, VLANIdentifier: 5, Type: next}}
}

// The switch's answer equals the answer that the host itself would send, in the VLAN of
// the question. The question is forwarded to no port, and nothing is allocated.
func TestNeighboursAreAnswered(t *testing.T) {
	broadcast := net.HardwareAddr{255, 255, 255, 255, 255, 255}
	group := net.HardwareAddr{0x33, 0x33, 0xff, 0, 0, 9}
	ip6, target := net.ParseIP("fd00::1"), net.ParseIP("fd00::9")
	for _, tag := range []bool{false, true} {
		arp := frameOf(t, append(askedFor(broadcast, tag, layers.EthernetTypeARP), &layers.ARP{
			AddrType: 1, Protocol: 0x800, HwAddressSize: 6, ProtAddressSize: 4, Operation: 1,
			SourceHwAddress: asker, SourceProtAddress: []byte{10, 0, 0, 1}, DstHwAddress: make([]byte, 6), DstProtAddress: []byte{10, 0, 0, 9}})...)
		ip := &layers.IPv6{Version: 6, HopLimit: 255, NextHeader: layers.IPProtocolICMPv6, SrcIP: ip6, DstIP: net.ParseIP("ff02::1:ff00:9")}
		icmp := &layers.ICMPv6{TypeCode: layers.CreateICMPv6TypeCode(135, 0)}
		icmp.SetNetworkLayerForChecksum(ip)
		nd := frameOf(t, append(askedFor(group, tag, layers.EthernetTypeIPv6), ip, icmp, &layers.ICMPv6NeighborSolicitation{
			TargetAddress: target, Options: layers.ICMPv6Options{{Type: layers.ICMPv6OptSourceAddress, Data: asker}}})...)

		r := newRig(t, testSizes)
		r.addPort(1, porttest.Options{}, false)
		for slot, dst := range []uint64{0xffffffffffff, 0x3333ff000009} {
			r.install(uint32(slot), 1, dst, flowtable.Action{Op: flowtable.OpAnswer, U64: askedU})
		}
		r.inject(1, arp, nd)
		r.turn()
		r.drops(nil)
		got := r.tx(1).TakeAll()
		if len(got) != 2 {
			t.Fatalf("%d answers, want one for each question", len(got))
		}
		for _, f := range got {
			p := gopacket.NewPacket(f, layers.LayerTypeEthernet, gopacket.Default)
			eth := p.Layer(layers.LayerTypeEthernet).(*layers.Ethernet)
			if !bytes.Equal(eth.SrcMAC, targetMAC) || !bytes.Equal(eth.DstMAC, asker) || (p.Layer(layers.LayerTypeDot1Q) != nil) != tag {
				t.Errorf("% x", f)
			}
		}
		reply := gopacket.NewPacket(got[0], layers.LayerTypeEthernet, gopacket.Default).Layer(layers.LayerTypeARP).(*layers.ARP)
		if reply.Operation != 2 || !bytes.Equal(reply.SourceHwAddress, targetMAC) || !bytes.Equal(reply.DstHwAddress, asker) ||
			!bytes.Equal(reply.SourceProtAddress, []byte{10, 0, 0, 9}) || !bytes.Equal(reply.DstProtAddress, []byte{10, 0, 0, 1}) ||
			reply.AddrType != 1 || reply.Protocol != 0x800 || reply.HwAddressSize != 6 || reply.ProtAddressSize != 4 {
			t.Errorf("%+v", reply)
		}
		checkAdvert(t, got[1], target, ip6)
	}
}

func checkAdvert(t *testing.T, f []byte, target, to net.IP) {
	t.Helper()
	p := gopacket.NewPacket(f, layers.LayerTypeEthernet, gopacket.Default)
	ip := p.Layer(layers.LayerTypeIPv6).(*layers.IPv6)
	icmp := p.Layer(layers.LayerTypeICMPv6).(*layers.ICMPv6)
	nd, ok := p.Layer(layers.LayerTypeICMPv6NeighborAdvertisement).(*layers.ICMPv6NeighborAdvertisement)
	if !ok {
		t.Fatalf("no advertisement: % x", f)
	}
	if !ip.SrcIP.Equal(target) || !ip.DstIP.Equal(to) || ip.HopLimit != 255 || !nd.TargetAddress.Equal(target) ||
		!nd.Solicited() || !nd.Override() || nd.Router() || len(nd.Options) != 1 ||
		nd.Options[0].Type != layers.ICMPv6OptTargetAddress || !bytes.Equal(nd.Options[0].Data, targetMAC) {
		t.Errorf("%+v %+v", ip, nd)
	}
	icmp.SetNetworkLayerForChecksum(ip)
	have := icmp.Checksum
	again := frameOf(t, icmp, gopacket.Payload(icmp.Payload))
	if want := uint16(again[2])<<8 | uint16(again[3]); have != want {
		t.Errorf("checksum %#04x, want %#04x", have, want)
	}
}

func TestAnsweringAllocatesNothing(t *testing.T) {
	k := flowtable.Key{flowtable.WEthDst: packet.EtherTypeARP}
	h := new([packet.MaxHeader]byte)
	if n := testing.AllocsPerRun(100, func() {
		writeARPReply(h, &k, askedU)
		writeAdvert(h, &k, askedU)
	}); n != 0 {
		t.Errorf("%v allocations an answer, want 0", n)
	}
}
