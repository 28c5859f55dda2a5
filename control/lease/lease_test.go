// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"encoding/binary"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/rfc1035label"

	"weft/control/limits"
	"weft/packet"
)

var (
	guest  = [6]byte{2, 0, 0, 0, 0, 7}
	server = netip.MustParseAddr("10.0.0.2")
)

func testPort() *Port {
	return &Port{MAC: guest, Host: "web1", Addresses: addrs("10.9.9.9", "10.0.0.7", "10.0.0.8", "fd00::7"), Network: &Network{
		Subnets: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24"), netip.MustParsePrefix("fd00::/64")},
		Routers: addrs("10.0.0.1", "fd00::1"), DNS: addrs("10.0.0.3", "10.0.0.4"), Domain: "blue.example", MTU: 1400, Service: server,
		ServiceMAC: [6]byte{2, 0x57, 0x65, 0x66, 0x74, 0}, Lease: time.Hour,
		Routes: []Route{{netip.MustParsePrefix("10.1.0.0/16"), netip.MustParseAddr("10.0.0.9")}},
	}}
}

func addrs(texts ...string) (list []netip.Addr) {
	for _, t := range texts {
		list = append(list, netip.MustParseAddr(t))
	}
	return list
}

// request returns a DHCP message of the guest.
func request(t testing.TB, kind dhcpv4.MessageType, modifiers ...dhcpv4.Modifier) *dhcpv4.DHCPv4 {
	t.Helper()
	m, err := dhcpv4.New(append([]dhcpv4.Modifier{dhcpv4.WithHwAddr(guest[:]), dhcpv4.WithMessageType(kind)}, modifiers...)...)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func wanted(text string) dhcpv4.Modifier {
	return dhcpv4.WithOption(dhcpv4.OptRequestedIPAddress(net.ParseIP(text)))
}

func from(text string) dhcpv4.Modifier {
	return dhcpv4.WithOption(dhcpv4.OptServerIdentifier(net.ParseIP(text)))
}

func client(text string) dhcpv4.Modifier { return dhcpv4.WithClientIP(net.ParseIP(text)) }

// frameOf returns a frame of the guest with this UDP payload, from a DHCP client to the server.
func frameOf(t testing.TB, payload []byte) []byte {
	t.Helper()
	ip := &layers.IPv4{Version: 4, TTL: 64, Protocol: layers.IPProtocolUDP, SrcIP: net.IPv4zero, DstIP: net.IPv4bcast}
	udp := &layers.UDP{SrcPort: clientPort, DstPort: serverPort}
	if err := udp.SetNetworkLayerForChecksum(ip); err != nil {
		t.Fatal(err)
	}
	b := gopacket.NewSerializeBuffer()
	err := gopacket.SerializeLayers(b, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true},
		&layers.Ethernet{SrcMAC: guest[:], DstMAC: broadcastMAC[:], EthernetType: layers.EthernetTypeIPv4}, ip, udp, gopacket.Payload(payload))
	if err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// sameDatagram compares two frames. offset is that of the UDP checksum. A computed sum of 0 is sent
// as ffff, because 0 means no checksum (RFC 768) or is forbidden (RFC 8200 section 8.1), but gopacket
// leaves the 0.
func sameDatagram(expected, frame []byte, offset int) bool {
	if len(expected) == len(frame) && expected[offset] == 0 && expected[offset+1] == 0 {
		expected = slices.Clone(expected)
		expected[offset], expected[offset+1] = 0xff, 0xff
	}
	return slices.Equal(expected, frame)
}

// answerOf decodes an answer and checks its headers.
func answerOf(t testing.TB, frame []byte) (eth *layers.Ethernet, ip *layers.IPv4, m *dhcpv4.DHCPv4) {
	t.Helper()
	decoded := gopacket.NewPacket(frame, layers.LayerTypeEthernet, gopacket.Default)
	eth, _ = decoded.Layer(layers.LayerTypeEthernet).(*layers.Ethernet)
	ip, _ = decoded.Layer(layers.LayerTypeIPv4).(*layers.IPv4)
	udp, _ := decoded.Layer(layers.LayerTypeUDP).(*layers.UDP)
	if eth == nil || ip == nil || udp == nil {
		t.Fatalf("%x is no datagram: %v", frame, decoded.ErrorLayer())
	}
	if err := udp.SetNetworkLayerForChecksum(ip); err != nil {
		t.Fatal(err)
	}
	again := gopacket.NewSerializeBuffer()
	err := gopacket.SerializeLayers(again, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, eth, ip, udp, gopacket.Payload(udp.Payload))
	if err != nil || !sameDatagram(again.Bytes(), frame, packet.EthernetLen+packet.IPv4Len+6) {
		t.Errorf("lengths or checksums are wrong (%v):\n%x, expected\n%x", err, frame, again.Bytes())
	}
	m, err = dhcpv4.FromBytes(udp.Payload)
	if err != nil {
		t.Fatal(err)
	}
	if udp.SrcPort != serverPort || udp.DstPort != clientPort || ip.SrcIP.String() != server.String() || m.OpCode != dhcpv4.OpcodeBootReply {
		t.Errorf("%v %v %v", udp, ip, m)
	}
	return eth, ip, m
}

// Each message gets the answer of RFC 2131 section 4.3.
func TestMessages(t *testing.T) {
	broadcasting := dhcpv4.WithBroadcast(true)
	for name, c := range map[string]struct {
		request *dhcpv4.DHCPv4
		result  Result
		kind    dhcpv4.MessageType
		address string
		dst     string
	}{
		"discover":                      {request(t, dhcpv4.MessageTypeDiscover), Answered, dhcpv4.MessageTypeOffer, "10.0.0.7", "10.0.0.7"},
		"discover, broadcast":           {request(t, dhcpv4.MessageTypeDiscover, broadcasting), Answered, dhcpv4.MessageTypeOffer, "10.0.0.7", "255.255.255.255"},
		"discover with the second":      {request(t, dhcpv4.MessageTypeDiscover, wanted("10.0.0.8")), Answered, dhcpv4.MessageTypeOffer, "10.0.0.8", "10.0.0.8"},
		"discover with a foreign one":   {request(t, dhcpv4.MessageTypeDiscover, wanted("10.0.0.99")), Answered, dhcpv4.MessageTypeOffer, "10.0.0.7", "10.0.0.7"},
		"discover outside all subnets":  {request(t, dhcpv4.MessageTypeDiscover, wanted("10.9.9.9")), Answered, dhcpv4.MessageTypeOffer, "10.0.0.7", "10.0.0.7"},
		"selecting":                     {request(t, dhcpv4.MessageTypeRequest, from("10.0.0.2"), wanted("10.0.0.7")), Answered, dhcpv4.MessageTypeAck, "10.0.0.7", "10.0.0.7"},
		"selecting another server":      {request(t, dhcpv4.MessageTypeRequest, from("10.0.0.66"), wanted("10.0.0.7")), Ignored, 0, "", ""},
		"selecting a foreign address":   {request(t, dhcpv4.MessageTypeRequest, from("10.0.0.2"), wanted("10.0.0.99")), Refused, dhcpv4.MessageTypeNak, "0.0.0.0", "255.255.255.255"},
		"restarted":                     {request(t, dhcpv4.MessageTypeRequest, wanted("10.0.0.8")), Answered, dhcpv4.MessageTypeAck, "10.0.0.8", "10.0.0.8"},
		"restarted, foreign address":    {request(t, dhcpv4.MessageTypeRequest, wanted("192.168.1.5")), Refused, dhcpv4.MessageTypeNak, "0.0.0.0", "255.255.255.255"},
		"renewing":                      {request(t, dhcpv4.MessageTypeRequest, client("10.0.0.7")), Answered, dhcpv4.MessageTypeAck, "10.0.0.7", "10.0.0.7"},
		"renewing, broadcast flag":      {request(t, dhcpv4.MessageTypeRequest, client("10.0.0.7"), broadcasting), Answered, dhcpv4.MessageTypeAck, "10.0.0.7", "10.0.0.7"},
		"renewing a foreign address":    {request(t, dhcpv4.MessageTypeRequest, client("10.0.0.99")), Refused, dhcpv4.MessageTypeNak, "0.0.0.0", "255.255.255.255"},
		"renewing one outside":          {request(t, dhcpv4.MessageTypeRequest, client("10.9.9.9")), Refused, dhcpv4.MessageTypeNak, "0.0.0.0", "255.255.255.255"},
		"request without an address":    {request(t, dhcpv4.MessageTypeRequest), Refused, dhcpv4.MessageTypeNak, "0.0.0.0", "255.255.255.255"},
		"inform":                        {request(t, dhcpv4.MessageTypeInform, client("10.0.0.7")), Answered, dhcpv4.MessageTypeAck, "0.0.0.0", "10.0.0.7"},
		"inform without an address":     {request(t, dhcpv4.MessageTypeInform), Ignored, 0, "", ""},
		"release":                       {request(t, dhcpv4.MessageTypeRelease, client("10.0.0.7")), Taken, 0, "", ""},
		"decline":                       {request(t, dhcpv4.MessageTypeDecline, wanted("10.0.0.7")), Taken, 0, "", ""},
		"an answer of a server":         {request(t, dhcpv4.MessageTypeOffer), Ignored, 0, "", ""},
		"no type (BOOTP)":               {request(t, dhcpv4.MessageTypeNone), Ignored, 0, "", ""},
		"another guest behind the port": {request(t, dhcpv4.MessageTypeDiscover, dhcpv4.WithHwAddr(net.HardwareAddr{2, 0, 0, 0, 0, 9})), Ignored, 0, "", ""},
		"another hardware":              {request(t, dhcpv4.MessageTypeDiscover, dhcpv4.WithHWType(6)), Ignored, 0, "", ""},
		"through a relay":               {request(t, dhcpv4.MessageTypeDiscover, dhcpv4.WithGatewayIP(net.IP{10, 0, 0, 5})), Ignored, 0, "", ""},
		"a wanted address of two bytes": {request(t, dhcpv4.MessageTypeRequest, dhcpv4.WithGeneric(dhcpv4.OptionRequestedIPAddress, []byte{10, 0})), Refused, dhcpv4.MessageTypeNak, "0.0.0.0", "255.255.255.255"},
		"a server of two bytes":         {request(t, dhcpv4.MessageTypeDiscover, dhcpv4.WithGeneric(dhcpv4.OptionServerIdentifier, []byte{10, 0})), Ignored, 0, "", ""},
	} {
		frame, result := Answer(testPort(), frameOf(t, c.request.ToBytes()))
		if result != c.result || (frame == nil) != (c.kind == 0) {
			t.Errorf("%s: %s with %d bytes, expected %s", name, resultNames[result], len(frame), resultNames[c.result])
			continue
		}
		if frame == nil {
			continue
		}
		eth, ip, m := answerOf(t, frame)
		toAll := ip.DstIP.String() == "255.255.255.255"
		if m.MessageType() != c.kind || m.YourIPAddr.String() != c.address || ip.DstIP.String() != c.dst || m.TransactionID != c.request.TransactionID ||
			toAll != (eth.DstMAC.String() == "ff:ff:ff:ff:ff:ff") || !slices.Equal(m.ClientHWAddr, guest[:]) || m.ServerIdentifier().String() != server.String() {
			t.Errorf("%s: to %s, %s:\n%s", name, eth.DstMAC, ip.DstIP, m.Summary())
		}
	}
}

// The client gets the settings for which it asks.
func TestSettings(t *testing.T) {
	all := request(t, dhcpv4.MessageTypeDiscover)
	all.DeleteOption(dhcpv4.OptionParameterRequestList)
	_, _, m := answerOf(t, first(Answer(testPort(), frameOf(t, all.ToBytes()))))
	routes := m.ClasslessStaticRoute()
	switch {
	case net.IP(m.SubnetMask()).String() != "255.255.255.0", len(m.Router()) != 1, m.Router()[0].String() != "10.0.0.1", len(m.DNS()) != 2,
		m.DomainName() != "blue.example", m.HostName() != "web1", m.IPAddressLeaseTime(0) != time.Hour, m.IPAddressRenewalTime(0) != 30*time.Minute,
		m.IPAddressRebindingTime(0) != 3150*time.Second, !slices.Equal(m.Options.Get(dhcpv4.OptionInterfaceMTU), binary.BigEndian.AppendUint16(nil, 1400)):
		t.Error(m.Summary())
	case len(routes) != 2 || routes[0].String() != "route to 10.1.0.0/16 via 10.0.0.9" || routes[1].String() != "route to 0.0.0.0/0 via 10.0.0.1":
		t.Error(routes)
	}
	few := request(t, dhcpv4.MessageTypeDiscover, dhcpv4.WithGeneric(dhcpv4.OptionParameterRequestList, []byte{dhcpv4.OptionRouter.Code()}),
		dhcpv4.WithGeneric(dhcpv4.OptionClientIdentifier, []byte("me")))
	_, _, m = answerOf(t, first(Answer(testPort(), frameOf(t, few.ToBytes()))))
	if m.DNS() != nil || m.SubnetMask() != nil || len(m.Router()) != 1 || string(m.Options.Get(dhcpv4.OptionClientIdentifier)) != "me" {
		t.Error(m.Summary())
	}
	bare := &Port{MAC: guest, Addresses: addrs("10.0.0.7"), Network: &Network{Subnets: testPort().Network.Subnets, Service: server, Lease: infinite}}
	_, _, m = answerOf(t, first(Answer(bare, frameOf(t, all.ToBytes()))))
	if len(m.Options) != 4 || m.IPAddressLeaseTime(0) != infinite { // only message type, server, lease time and mask
		t.Error(m.Summary())
	}
}

func first(frame []byte, _ Result) []byte { return frame }

// An answer has no more bytes than its client accepts. Settings without room are left out, the least
// important first.
func TestLongAnswers(t *testing.T) {
	p := testPort()
	p.Network.Domain = strings.Repeat("a23456789.", 25) + "example"
	for i := range byte(15) {
		p.Network.Routes = append(p.Network.Routes, Route{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 2, i}), 24), netip.MustParseAddr("10.0.0.9")})
	}
	for size, want := range map[uint16]string{0: "routes", 300: "routes", 576: "routes", 1024: "routes domain name microsoft"} {
		modifiers := []dhcpv4.Modifier{dhcpv4.WithGeneric(dhcpv4.OptionClientIdentifier, []byte(strings.Repeat("x", 40))), dhcpv4.WithoutOption(dhcpv4.OptionParameterRequestList)}
		if size > 0 {
			modifiers = append(modifiers, dhcpv4.WithOption(dhcpv4.OptMaxMessageSize(size)))
		}
		frame, _ := Answer(p, frameOf(t, request(t, dhcpv4.MessageTypeDiscover, modifiers...).ToBytes()))
		_, _, m := answerOf(t, frame)
		got := ""
		for _, o := range []struct {
			name string
			code dhcpv4.OptionCode
		}{{"routes", dhcpv4.OptionClasslessStaticRoute}, {"domain", dhcpv4.OptionDomainName}, {"name", dhcpv4.OptionHostName}, {"microsoft", dhcpv4.GenericOptionCode(249)}} {
			if m.Options.Has(o.code) {
				got += " " + o.name
			}
		}
		if got != " "+want || len(frame)-packet.EthernetLen > max(int(size), leastMessage) {
			t.Errorf("client that takes %d bytes: %d bytes with%s", size, len(frame)-packet.EthernetLen, got)
		}
	}
}

// Frames that are no requests get no answer.
func TestOddFrames(t *testing.T) {
	good := frameOf(t, request(t, dhcpv4.MessageTypeDiscover).ToBytes())
	edit := func(offset int, b ...byte) []byte {
		f := slices.Clone(good)
		copy(f[offset:], b)
		return f
	}
	for name, frame := range map[string][]byte{
		"empty": nil, "only Ethernet": good[:14], "cut in IP": good[:30], "cut in UDP": good[:40], "cut in DHCP": good[:150], "one byte too few": good[:len(good)-1],
		"no IPv4": edit(12, 0x86, 0xdd), "version 6": edit(14, 0x65), "header of 4 bytes": edit(14, 0x41), "header beyond the frame": edit(14, 0x4f, 0, 0, 20),
		"no UDP": edit(23, 6), "first fragment": edit(20, 0x20), "later fragment": edit(20, 0, 1), "another port": edit(37, 69), "UDP too long": edit(38, 0xff),
		"UDP of 7 bytes": edit(38, 0, 7), "no cookie": edit(14+20+8+236, 0), "an option beyond the end": edit(14+20+8+241, 0xff),
		"too long": append(slices.Clone(good), make([]byte, MaxRequest)...),
	} {
		if answer, result := Answer(testPort(), frame); answer != nil || result != Ignored {
			t.Errorf("%s: %s with %d bytes", name, resultNames[result], len(answer))
		}
	}
	padded := append(slices.Clone(good), 0, 0, 0)
	if answer, result := Answer(testPort(), padded); answer == nil || result != Answered {
		t.Errorf("padded: %s", resultNames[result])
	}
	for name, p := range map[string]*Port{"nothing declared": nil, "no network": {MAC: guest}, "no address": {MAC: guest, Network: testPort().Network},
		"no service": {MAC: guest, Addresses: testPort().Addresses, Network: &Network{Subnets: testPort().Network.Subnets}}} {
		if answer, result := Answer(p, good); answer != nil || result != Ignored {
			t.Errorf("%s: %s", name, resultNames[result])
		}
	}
}

// The requests of each port have a limit of their own.
func TestLimits(t *testing.T) {
	table := NewTable()
	other := testPort()
	other.MAC = [6]byte{2, 0, 0, 0, 0, 8}
	table.Set(map[string]*Port{"a": testPort(), "b": other, "c": nil})
	good := frameOf(t, request(t, dhcpv4.MessageTypeDiscover).ToBytes())
	const now = 1e12
	answers := 0
	for range requestBurst + 5 {
		if table.Answer("a", 3, good, len(good), now) != nil {
			answers++
		}
	}
	if answers != requestBurst {
		t.Errorf("%d answers at once", answers)
	}
	if table.Answer("a", 3, good, len(good), now+requestIntervalNS) == nil {
		t.Error("no answer after the interval")
	}
	if table.Answer("b", 4, good, len(good), now) != nil || table.Answer("nobody", 5, good, len(good), now) != nil {
		t.Error("answers for other ports")
	}
	if table.Answer("b", 4, good, MaxRequest+1, now) != nil {
		t.Error("an answer to the beginning of a frame")
	}
	want := Counts{Answered: requestBurst + 1, Ignored: 2, Limited: 6}
	if got := table.Counts(); got != want || got.ByResult()["limited"] != 6 {
		t.Errorf("%v, expected %v", got, want)
	}
	var rows []limits.Row
	table.LimitRows(func(r limits.Row) { rows = append(rows, r) })
	slices.SortFunc(rows, func(a, b limits.Row) int { return int(a.Refused) - int(b.Refused) })
	if len(rows) != 3 || rows[0].Holder != limits.Port(4) || rows[0].Refused != 1 || rows[1].Refused != 5 || rows[2].Holder != limits.All() || rows[2].Refused != 6 {
		t.Errorf("%+v", rows)
	}
	table.Set(map[string]*Port{"a": nil})
	if table.Answer("a", 3, good, len(good), now+1e12) != nil {
		t.Error("an answer for a port that is not declared any more")
	}
}

// Whatever a guest sends, the answer is a valid message to the guest itself, with an address of
// its port.
func FuzzAnswer(f *testing.F) {
	for _, m := range []*dhcpv4.DHCPv4{
		request(f, dhcpv4.MessageTypeDiscover), request(f, dhcpv4.MessageTypeRequest, wanted("10.0.0.99")), request(f, dhcpv4.MessageTypeInform, client("10.0.0.7")),
		request(f, dhcpv4.MessageTypeRequest, dhcpv4.WithOption(dhcpv4.OptDomainSearch(&rfc1035label.Labels{Labels: []string{"a.example"}}))),
	} {
		f.Add(frameOf(f, m.ToBytes()))
	}
	f.Fuzz(func(t *testing.T, frame []byte) {
		p := testPort()
		if len(frame) >= 14 && frame[12] == 0x86 && frame[13] == 0xdd {
			return // FuzzAnswerIPv6
		}
		answer, result := Answer(p, frame)
		if (answer != nil) != (result == Answered || result == Refused) {
			t.Fatalf("%s with %d bytes", resultNames[result], len(answer))
		}
		if answer == nil {
			return
		}
		eth, ip, m := answerOf(t, answer)
		if len(answer) > MaxRequest || eth.SrcMAC.String() != "02:57:65:66:74:00" || ip.SrcIP.String() != server.String() {
			t.Errorf("%d bytes from %s", len(answer), eth.SrcMAC)
		}
		if got, _ := netip.AddrFromSlice(m.YourIPAddr.To4()); !got.IsUnspecified() && !p.owns(got) {
			t.Errorf("gives %s", got)
		}
	})
}
