// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"weft/packet"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/insomniacslk/dhcp/dhcpv6"
	"github.com/insomniacslk/dhcp/iana"
	"github.com/mdlayher/ndp"
)

var guest6 = netip.MustParseAddr("fe80::ff:fe00:7")

func testPort6() *Port {
	p := testPort()
	p.Network.DHCPv6, p.Network.Advertise = true, AdvertiseStateful
	p.Network.DNS = append(p.Network.DNS, netip.MustParseAddr("fd00::3"))
	return p
}

// frame6 returns the guest's frame with an ICMPv6 message, or with a message of DHCPv6.
func frame6(t testing.TB, src netip.Addr, icmp ndp.Message, dhcp *dhcpv6.Message) []byte {
	t.Helper()
	ip := &layers.IPv6{Version: 6, HopLimit: 255, NextHeader: layers.IPProtocolUDP, SrcIP: src.AsSlice(), DstIP: net.ParseIP("ff02::1:2")}
	eth := &layers.Ethernet{SrcMAC: guest[:], DstMAC: net.HardwareAddr{0x33, 0x33, 0, 1, 0, 2}, EthernetType: layers.EthernetTypeIPv6}
	list := []gopacket.SerializableLayer{eth, ip}
	if icmp != nil {
		ip.NextHeader, ip.DstIP = layers.IPProtocolICMPv6, net.ParseIP("ff02::2")
		b, err := ndp.MarshalMessageChecksum(icmp, src, netip.MustParseAddr("ff02::2"))
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, gopacket.Payload(b))
	} else {
		udp := &layers.UDP{SrcPort: clientPort6, DstPort: serverPort6}
		if err := udp.SetNetworkLayerForChecksum(ip); err != nil {
			t.Fatal(err)
		}
		list = append(list, udp, gopacket.Payload(dhcp.ToBytes()))
	}
	b := gopacket.NewSerializeBuffer()
	if err := gopacket.SerializeLayers(b, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, list...); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// answer6 checks the headers of an answer and returns its ICMPv6 message, or its message of DHCPv6.
func answer6(t testing.TB, frame []byte) (ip *layers.IPv6, icmp ndp.Message, dhcp *dhcpv6.Message) {
	t.Helper()
	decoded := gopacket.NewPacket(frame, layers.LayerTypeEthernet, gopacket.Default)
	eth, _ := decoded.Layer(layers.LayerTypeEthernet).(*layers.Ethernet)
	ip, _ = decoded.Layer(layers.LayerTypeIPv6).(*layers.IPv6)
	if eth == nil || ip == nil || eth.DstMAC.String() != "02:00:00:00:00:07" || ip.SrcIP.String() != "fe80::57:65ff:fe66:7400" {
		t.Fatalf("%x: %v %v", frame, eth, ip)
	}
	var err error
	if ip.NextHeader == layers.IPProtocolICMPv6 {
		src, _ := netip.AddrFromSlice(ip.SrcIP)
		dst, _ := netip.AddrFromSlice(ip.DstIP)
		if icmp, err = ndp.ParseMessage(ip.Payload); err != nil {
			t.Fatal(err)
		}
		if again, err := ndp.MarshalMessageChecksum(icmp, src, dst); err != nil || !slices.Equal(again, ip.Payload) || ip.HopLimit != 255 {
			t.Errorf("checksum or hop limit of %x: %v", frame, err)
		}
		return ip, icmp, nil
	}
	udp, _ := decoded.Layer(layers.LayerTypeUDP).(*layers.UDP)
	if udp == nil || udp.SrcPort != serverPort6 || udp.DstPort != clientPort6 || udp.SetNetworkLayerForChecksum(ip) != nil {
		t.Fatalf("%x is no answer of DHCPv6", frame)
	}
	again := gopacket.NewSerializeBuffer()
	err = gopacket.SerializeLayers(again, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, eth, ip, udp, gopacket.Payload(udp.Payload))
	if err != nil || !sameDatagram(again.Bytes(), frame, packet.EthernetLen+packet.IPv6Len+6) {
		t.Errorf("lengths or checksums are wrong (%v):\n%x", err, frame)
	}
	if dhcp, err = dhcpv6.MessageFromBytes(udp.Payload); err != nil {
		t.Fatal(err)
	}
	return ip, nil, dhcp
}

func TestAdvertisements(t *testing.T) {
	for mode, want := range map[AdvertiseMode]struct{ managed, settings, autonomous bool }{
		AdvertiseStateful: {true, true, false}, AdvertiseStateless: {false, true, true}, AdvertiseSLAAC: {false, false, true},
	} {
		p := testPort6()
		p.Network.Advertise = mode
		frame, result := Answer(p, frame6(t, guest6, &ndp.RouterSolicitation{}, nil))
		if result != Answered {
			t.Fatalf("mode %d: %s", mode, resultNames[result])
		}
		ip, m, _ := answer6(t, frame)
		a, ok := m.(*ndp.RouterAdvertisement)
		if !ok || a.ManagedConfiguration != want.managed || a.OtherConfiguration != want.settings || a.RouterLifetime != 0 || ip.DstIP.String() != guest6.String() || len(a.Options) != 5 {
			t.Fatalf("mode %d: to %s %+v", mode, ip.DstIP, m)
		}
		if mtu := a.Options[1].(*ndp.MTU); mtu.MTU != 1400 {
			t.Errorf("%+v", mtu)
		}
		if prefix := a.Options[2].(*ndp.PrefixInformation); prefix.AutonomousAddressConfiguration != want.autonomous || !prefix.OnLink || prefix.Prefix.String() != "fd00::" || prefix.ValidLifetime != ndp.Infinity {
			t.Errorf("mode %d: %+v", mode, prefix)
		}
		if dns := a.Options[3].(*ndp.RecursiveDNSServer); len(dns.Servers) != 1 || dns.Servers[0].String() != "fd00::3" {
			t.Errorf("%+v", dns)
		}
	}
	frame, _ := Answer(testPort6(), frame6(t, netip.IPv6Unspecified(), &ndp.RouterSolicitation{}, nil))
	if ip, _, _ := answer6(t, frame); ip.DstIP.String() != "ff02::1" {
		t.Errorf("to %s", ip.DstIP)
	}
	silent := testPort6()
	silent.Network.Advertise = AdvertiseNothing
	good := frame6(t, guest6, &ndp.RouterSolicitation{}, nil)
	far := slices.Clone(good)
	far[14+7] = 64
	for name, c := range map[string]struct {
		port  *Port
		frame []byte
	}{
		"no mode": {silent, good}, "through a router": {testPort6(), far}, "cut": {testPort6(), good[:50]}, "cut in the message": {testPort6(), good[:57]},
		"an advertisement": {testPort6(), frame6(t, guest6, &ndp.RouterAdvertisement{}, nil)},
	} {
		if answer, result := Answer(c.port, c.frame); answer != nil || result != Ignored {
			t.Errorf("%s: %s", name, resultNames[result])
		}
	}
}

// ia adds an identity association that names these addresses to a client's message.
func ia(addresses ...string) dhcpv6.Modifier {
	var list []dhcpv6.OptIAAddress
	for _, a := range addresses {
		list = append(list, dhcpv6.OptIAAddress{IPv6Addr: net.ParseIP(a)})
	}
	return dhcpv6.WithIANA(list...)
}

func TestDHCPv6(t *testing.T) {
	own := dhcpv6.WithServerID(testPort6().Network.serverID())
	other := dhcpv6.WithServerID(&dhcpv6.DUIDLL{HWType: iana.HWTypeEthernet, LinkLayerAddr: net.HardwareAddr{2, 9, 9, 9, 9, 9}})
	client := dhcpv6.WithClientID(&dhcpv6.DUIDLL{HWType: iana.HWTypeEthernet, LinkLayerAddr: guest[:]})
	type list = []dhcpv6.Modifier
	for name, c := range map[string]struct {
		kind      dhcpv6.MessageType
		modifiers list
		result    Result
		answer    dhcpv6.MessageType
		addresses string // with their valid lifetimes
	}{
		"solicit":                      {dhcpv6.MessageTypeSolicit, list{client, ia()}, Answered, dhcpv6.MessageTypeAdvertise, "fd00::7 1h0m0s"},
		"solicit, rapid":               {dhcpv6.MessageTypeSolicit, list{client, ia(), dhcpv6.WithRapidCommit}, Answered, dhcpv6.MessageTypeReply, "fd00::7 1h0m0s"},
		"solicit without a client":     {dhcpv6.MessageTypeSolicit, list{ia()}, Ignored, 0, ""},
		"solicit to a server":          {dhcpv6.MessageTypeSolicit, list{client, own, ia()}, Ignored, 0, ""},
		"solicit a foreign address":    {dhcpv6.MessageTypeSolicit, list{client, ia("fd00::99")}, Answered, dhcpv6.MessageTypeAdvertise, "fd00::7 1h0m0s"},
		"request":                      {dhcpv6.MessageTypeRequest, list{client, own, ia("fd00::7")}, Answered, dhcpv6.MessageTypeReply, "fd00::7 1h0m0s"},
		"request to another server":    {dhcpv6.MessageTypeRequest, list{client, other, ia("fd00::7")}, Ignored, 0, ""},
		"request without a server":     {dhcpv6.MessageTypeRequest, list{client, ia("fd00::7")}, Ignored, 0, ""},
		"renew":                        {dhcpv6.MessageTypeRenew, list{client, own, ia("fd00::7")}, Answered, dhcpv6.MessageTypeReply, "fd00::7 1h0m0s"},
		"renew a foreign address":      {dhcpv6.MessageTypeRenew, list{client, own, ia("fd00::99")}, Answered, dhcpv6.MessageTypeReply, "fd00::7 1h0m0s fd00::99 0s"},
		"rebind":                       {dhcpv6.MessageTypeRebind, list{client, ia("fd00::7")}, Answered, dhcpv6.MessageTypeReply, "fd00::7 1h0m0s"},
		"confirm":                      {dhcpv6.MessageTypeConfirm, list{client, ia("fd00::7")}, Answered, dhcpv6.MessageTypeReply, ""},
		"confirm a foreign address":    {dhcpv6.MessageTypeConfirm, list{client, ia("fd01::7")}, Refused, dhcpv6.MessageTypeReply, ""},
		"confirm nothing":              {dhcpv6.MessageTypeConfirm, list{client}, Ignored, 0, ""},
		"release":                      {dhcpv6.MessageTypeRelease, list{client, own, ia("fd00::7")}, Taken, dhcpv6.MessageTypeReply, ""},
		"information":                  {dhcpv6.MessageTypeInformationRequest, nil, Answered, dhcpv6.MessageTypeReply, ""},
		"information with an identity": {dhcpv6.MessageTypeInformationRequest, list{ia()}, Ignored, 0, ""},
		"an answer of a server":        {dhcpv6.MessageTypeReply, list{client, own}, Ignored, 0, ""},
	} {
		m, err := dhcpv6.NewMessage(append(list{dhcpv6.WithRequestedOptions(dhcpv6.OptionDNSRecursiveNameServer, dhcpv6.OptionDomainSearchList)}, c.modifiers...)...)
		if err != nil {
			t.Fatal(err)
		}
		m.MessageType = c.kind
		frame, result := Answer(testPort6(), frame6(t, guest6, nil, m))
		if result != c.result || (frame == nil) != (c.answer == 0) {
			t.Errorf("%s: %s with %d bytes", name, resultNames[result], len(frame))
			continue
		}
		if frame == nil {
			continue
		}
		ip, _, r := answer6(t, frame)
		got := ""
		for _, identity := range r.Options.IANA() {
			for _, a := range identity.Options.Addresses() {
				got += " " + a.IPv6Addr.String() + " " + a.ValidLifetime.String()
			}
			if identity.T1 != 30*time.Minute || identity.T2 != 48*time.Minute {
				t.Errorf("%s: T1 %s, T2 %s", name, identity.T1, identity.T2)
			}
		}
		if c.addresses != "" {
			c.addresses = " " + c.addresses
		}
		if r.MessageType != c.answer || got != c.addresses || r.TransactionID != m.TransactionID || ip.DstIP.String() != guest6.String() ||
			len(r.Options.DNS()) != 1 || r.Options.DomainSearchList().Labels[0] != "blue.example" || (r.Options.ClientID() == nil) != (m.Options.ClientID() == nil) {
			t.Errorf("%s: %s", name, r.Summary())
		}
	}
	without := testPort6()
	without.Network.DHCPv6 = false
	m, _ := dhcpv6.NewMessage(client, ia())
	if answer, result := Answer(without, frame6(t, guest6, nil, m)); answer != nil || result != Ignored {
		t.Errorf("without DHCPv6: %s", resultNames[result])
	}
	if answer, result := Answer(testPort6(), frame6(t, netip.MustParseAddr("fd00::7"), nil, m)); answer != nil || result != Ignored {
		t.Errorf("from a global address: %s", resultNames[result])
	}
}

// Whatever a guest sends over IPv6, the answer is a valid frame to the guest itself.
func FuzzAnswerIPv6(f *testing.F) {
	m, err := dhcpv6.NewMessage(dhcpv6.WithClientID(&dhcpv6.DUIDLL{HWType: iana.HWTypeEthernet, LinkLayerAddr: guest[:]}), ia("fd00::9"), dhcpv6.WithRapidCommit)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(frame6(f, guest6, nil, m))
	f.Add(frame6(f, guest6, &ndp.RouterSolicitation{Options: []ndp.Option{&ndp.LinkLayerAddress{Direction: ndp.Source, Addr: guest[:]}}}, nil))
	f.Fuzz(func(t *testing.T, frame []byte) {
		if len(frame) < 14 || frame[12] != 0x86 || frame[13] != 0xdd {
			return // FuzzAnswer
		}
		answer, _ := Answer(testPort6(), frame)
		if answer == nil {
			return
		}
		answer6(t, answer)
		if len(answer) > MaxRequest {
			t.Errorf("%d bytes", len(answer))
		}
	})
}
