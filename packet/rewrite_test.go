// SPDX-License-Identifier: Apache-2.0

package packet_test

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"math/rand"
	"net"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"weft/packet"
	"weft/packet/packettest"
)

// model is the reference for rewrites: a frame as a struct of header fields. Its method bytes returns the
// frame with newly computed checksums.
type model struct {
	eth       layers.Ethernet
	tags      []layers.Dot1Q
	ip4       *layers.IPv4
	ip6       *layers.IPv6
	tcp       *layers.TCP
	udp       *layers.UDP
	sctp      *layers.SCTP
	icmp6     *layers.ICMPv6
	noUDPSum  bool
	payload   []byte
	fragBytes int // payload of the fragment in bytes; 0: no fragment
}

func (m *model) transport(t testing.TB) []byte {
	var l gopacket.SerializableLayer
	var network gopacket.NetworkLayer = m.ip4
	if m.ip4 == nil {
		network = m.ip6
	}
	switch {
	case m.tcp != nil:
		m.tcp.SetNetworkLayerForChecksum(network)
		l = m.tcp
	case m.udp != nil:
		m.udp.SetNetworkLayerForChecksum(network)
		l = m.udp
	case m.sctp != nil:
		l = m.sctp
	case m.icmp6 != nil:
		m.icmp6.SetNetworkLayerForChecksum(network)
		l = m.icmp6
	default: // a later fragment
		return m.payload
	}
	b := serialize(t, l, gopacket.Payload(m.payload))
	if m.udp != nil && b[6]|b[7] == 0 {
		b[6], b[7] = 0xff, 0xff
	}
	if m.noUDPSum {
		b[6], b[7] = 0, 0
	}
	return b
}

func (m *model) bytes(t testing.TB) []byte {
	tp := m.transport(t)
	if m.fragBytes != 0 {
		tp = tp[:m.fragBytes]
	}
	ls := []gopacket.SerializableLayer{&m.eth}
	for i := range m.tags {
		ls = append(ls, &m.tags[i])
	}
	if m.ip4 != nil {
		ls = append(ls, m.ip4)
	} else {
		ls = append(ls, m.ip6)
	}
	data := serialize(t, append(ls, gopacket.Payload(tp))...)
	ip := data[14+4*len(m.tags):] // gopacket pads short frames to 60 bytes
	n := packet.IPv4(ip).TotalLen()
	if m.ip6 != nil {
		n = packet.IPv6Len + packet.IPv6(ip).PayloadLen()
	}
	return data[:len(data)-len(ip)+n]
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

func randomBytes(rng *rand.Rand, n int) []byte {
	b := make([]byte, n)
	rng.Read(b)
	return b
}

func randomModel(rng *rand.Rand) *model {
	m := &model{payload: randomBytes(rng, 16+rng.Intn(300))}
	m.eth = layers.Ethernet{SrcMAC: randomBytes(rng, 6), DstMAC: randomBytes(rng, 6)}
	proto := []layers.IPProtocol{
		layers.IPProtocolTCP, layers.IPProtocolUDP, layers.IPProtocolSCTP, layers.IPProtocolICMPv6,
	}[rng.Intn(4)]
	v4 := rng.Intn(2) == 0
	etherType := layers.EthernetTypeIPv6
	if v4 {
		etherType = layers.EthernetTypeIPv4
		if proto == layers.IPProtocolICMPv6 {
			proto = layers.IPProtocolTCP
		}
		m.ip4 = &layers.IPv4{
			Version: 4, TOS: uint8(rng.Int()), Id: uint16(rng.Int()), TTL: uint8(rng.Int()), Protocol: proto,
			SrcIP: randomBytes(rng, 4), DstIP: randomBytes(rng, 4),
		}
		if rng.Intn(4) == 0 {
			m.ip4.Options = []layers.IPv4Option{{OptionType: 7, OptionLength: 11, OptionData: make([]byte, 9)}}
		}
		switch rng.Intn(6) {
		case 0: // first fragment
			m.ip4.Flags, m.fragBytes = layers.IPv4MoreFragments, 24
		case 1:
			m.ip4.FragOffset = uint16(1 + rng.Intn(8000))
			proto = 0
		}
	} else {
		m.ip6 = &layers.IPv6{
			Version: 6, TrafficClass: uint8(rng.Int()), FlowLabel: rng.Uint32() & 0xfffff, NextHeader: proto,
			HopLimit: uint8(rng.Int()), SrcIP: randomBytes(rng, 16), DstIP: randomBytes(rng, 16),
		}
	}
	m.eth.EthernetType = etherType
	for range rng.Intn(3) {
		m.pushTag(layers.Dot1Q{VLANIdentifier: uint16(rng.Intn(4096)), Priority: uint8(rng.Intn(8))})
	}
	switch proto {
	case layers.IPProtocolTCP:
		m.tcp = &layers.TCP{SrcPort: layers.TCPPort(rng.Int()), DstPort: layers.TCPPort(rng.Int()), Seq: rng.Uint32(), ACK: true}
	case layers.IPProtocolUDP:
		m.udp = &layers.UDP{SrcPort: layers.UDPPort(rng.Int()), DstPort: layers.UDPPort(rng.Int())}
		m.noUDPSum = v4 && rng.Intn(3) == 0
	case layers.IPProtocolSCTP:
		m.sctp = &layers.SCTP{SrcPort: layers.SCTPPort(rng.Int()), DstPort: layers.SCTPPort(rng.Int()), VerificationTag: rng.Uint32()}
	case layers.IPProtocolICMPv6:
		m.icmp6 = &layers.ICMPv6{TypeCode: layers.CreateICMPv6TypeCode(128, 0)}
	}
	return m
}

func (m *model) pushTag(tag layers.Dot1Q) {
	tag.Type = m.eth.EthernetType
	m.eth.EthernetType = layers.EthernetTypeDot1Q
	m.tags = append([]layers.Dot1Q{tag}, m.tags...)
}

func (m *model) frame(t testing.TB, a *packettest.Arena, b *packet.Batch, header int) *packet.Frame {
	f := a.Add(b, m.bytes(t), header, 64)
	f.L3 = uint16(14 + 4*len(m.tags))
	l4 := f.L3 + 40
	if m.ip4 != nil {
		l4 = f.L3 + uint16(packet.IPv4(f.Header()[f.L3:]).HeaderLen())
		f.Proto = uint8(m.ip4.Protocol)
	} else {
		f.Proto = uint8(m.ip6.NextHeader)
	}
	if m.ip4 == nil || m.ip4.FragOffset == 0 {
		f.L4 = l4
	}
	if m.fragBytes != 0 || f.L4 == 0 {
		f.Flags |= packet.FrameFragment
	}
	return f
}

// rewrite applies the same random rewrite to the frame and to the model. It returns the name of the rewrite.
func (m *model) rewrite(rng *rand.Rand, f *packet.Frame) string {
	v := rng.Uint64()
	if rng.Intn(4) == 0 {
		v = [...]uint64{0, ^uint64(0)}[rng.Intn(2)] // values whose sums are 0 and 0xffff
	}
	be := binary.BigEndian
	addr := be.AppendUint64(nil, v)
	addr16 := be.AppendUint64(addr, ^v)
	switch rng.Intn(12) {
	case 0:
		m.eth.DstMAC = net.HardwareAddr(addr[2:8])
		f.SetEthDst(v &^ (0xffff << 48))
		return "SetEthDst"
	case 1:
		m.eth.SrcMAC = net.HardwareAddr(addr[2:8])
		f.SetEthSrc(v)
		return "SetEthSrc"
	case 2:
		if m.ip4 != nil {
			m.ip4.SrcIP = addr[4:8]
		}
		f.SetIPv4Src(uint32(v))
		return "SetIPv4Src"
	case 3:
		if m.ip4 != nil {
			m.ip4.DstIP = addr[4:8]
		}
		f.SetIPv4Dst(uint32(v))
		return "SetIPv4Dst"
	case 4:
		if m.ip6 != nil {
			m.ip6.SrcIP = addr16
		}
		f.SetIPv6Src(v, ^v)
		return "SetIPv6Src"
	case 5:
		if m.ip6 != nil {
			m.ip6.DstIP = addr16
		}
		f.SetIPv6Dst(v, ^v)
		return "SetIPv6Dst"
	case 6:
		if m.ip4 != nil {
			m.ip4.TOS = uint8(v)
		} else {
			m.ip6.TrafficClass = uint8(v)
		}
		f.SetTOS(uint8(v))
		return "SetTOS"
	case 7:
		*m.ttl() = uint8(v)
		f.SetTTL(uint8(v))
		return "SetTTL"
	case 8:
		if reason := f.DecTTL(); (reason == packet.DropTTLExpired) != (*m.ttl() <= 1) {
			return "DecTTL with a wrong verdict"
		}
		if *m.ttl() > 1 {
			*m.ttl()--
		}
		return "DecTTL"
	case 9:
		m.setPort(uint16(v), true)
		f.SetTpSrc(uint16(v))
		return "SetTpSrc"
	case 10:
		m.setPort(uint16(v), false)
		f.SetTpDst(uint16(v))
		return "SetTpDst"
	}
	return m.rewriteVLAN(rng, f, uint16(v))
}

func (m *model) rewriteVLAN(rng *rand.Rand, f *packet.Frame, tci uint16) string {
	tag := layers.Dot1Q{VLANIdentifier: tci & 0xfff, DropEligible: tci&0x1000 != 0, Priority: uint8(tci >> 13)}
	switch rng.Intn(3) {
	case 0:
		if f.PushVLAN(packet.EtherTypeVLAN, tci) == packet.DropNone {
			m.pushTag(tag)
		} else if len(m.tags) < 12 {
			return "PushVLAN without headroom"
		}
		return "PushVLAN"
	case 1:
		if f.PopVLAN() != (len(m.tags) > 0) {
			return "PopVLAN with a wrong verdict"
		}
		if len(m.tags) > 0 {
			m.eth.EthernetType = m.tags[0].Type
			m.tags = m.tags[1:]
		}
		return "PopVLAN"
	}
	if f.SetVLAN(tci) != (len(m.tags) > 0) {
		return "SetVLAN with a wrong verdict"
	}
	if len(m.tags) > 0 {
		tag.Type = m.tags[0].Type
		m.tags[0] = tag
	}
	return "SetVLAN"
}

func (m *model) ttl() *uint8 {
	if m.ip4 != nil {
		return &m.ip4.TTL
	}
	return &m.ip6.HopLimit
}

func (m *model) setPort(p uint16, src bool) {
	switch {
	case m.tcp != nil && src:
		m.tcp.SrcPort = layers.TCPPort(p)
	case m.tcp != nil:
		m.tcp.DstPort = layers.TCPPort(p)
	case m.udp != nil && src:
		m.udp.SrcPort = layers.UDPPort(p)
	case m.udp != nil:
		m.udp.DstPort = layers.UDPPort(p)
	case m.sctp != nil && src:
		m.sctp.SrcPort = layers.SCTPPort(p)
	case m.sctp != nil:
		m.sctp.DstPort = layers.SCTPPort(p)
	}
}

func checkRewrites(t *testing.T, a *packettest.Arena, seed int64) {
	rng := rand.New(rand.NewSource(seed))
	var b packet.Batch
	a.Reset()
	m := randomModel(rng)
	f := m.frame(t, a, &b, packet.InnerHeader)
	var names []string
	for range 1 + rng.Intn(40) {
		names = append(names, m.rewrite(rng, f))
		want := m.bytes(t)
		if m.sctp != nil && m.fragBytes != 0 { // the CRC of an SCTP fragment cannot be updated
			copy(want[f.L4+8:], f.Header()[f.L4+8:f.L4+12])
		}
		if got := packettest.Bytes(&b, f); !bytes.Equal(got, want) {
			t.Fatalf("seed %d, after %v:\ngot\n%swant\n%s", seed, names, hex.Dump(got), hex.Dump(want))
		}
		if wantL3 := uint16(14 + 4*len(m.tags)); f.L3 != wantL3 || f.L4 != 0 && f.Header()[f.L4] != want[f.L4] {
			t.Fatalf("seed %d, after %v: L3 %d, want %d", seed, names, f.L3, wantL3)
		}
	}
}

func TestRewrites(t *testing.T) {
	a := packettest.NewArena(t, 1<<16)
	for seed := range int64(3000) {
		checkRewrites(t, a, seed)
	}
}

func FuzzRewrites(f *testing.F) {
	f.Add(int64(1))
	a := packettest.NewArena(f, 1<<16)
	f.Fuzz(func(t *testing.T, seed int64) { checkRewrites(t, a, seed) })
}

// A UDP checksum computed as 0 is written as 0xffff.
func TestUDPChecksumNeverBecomesZero(t *testing.T) {
	a := packettest.NewArena(t, 1<<16)
	var b packet.Batch
	m := randomModel(rand.New(rand.NewSource(1)))
	for seed := int64(2); m.udp == nil || m.noUDPSum || m.fragBytes != 0; seed++ {
		m = randomModel(rand.New(rand.NewSource(seed)))
	}
	f := m.frame(t, a, &b, 128)
	seen := false
	for p := range 1 << 16 {
		f.SetTpSrc(uint16(p))
		sum := packet.UDP(f.Header()[f.L4:]).Checksum()
		if sum == 0 {
			t.Fatalf("port %d: the UDP checksum is 0, want 0xffff", p)
		}
		seen = seen || sum == 0xffff
	}
	if !seen {
		t.Fatal("no port led to 0xffff")
	}
}

// While a routing header has segments left, the transport checksum covers the source address in the IPv6
// header, but not the destination address.
func TestRoutedDestinationIsNotCovered(t *testing.T) {
	a := packettest.NewArena(t, 1<<16)
	var b packet.Batch
	m := randomModel(rand.New(rand.NewSource(1)))
	for seed := int64(2); m.tcp == nil || m.ip6 == nil; seed++ {
		m = randomModel(rand.New(rand.NewSource(seed)))
	}
	f := m.frame(t, a, &b, 128)
	f.Flags |= packet.FrameRouted
	tcp := packet.TCP(f.Header()[f.L4:])
	before := tcp.Checksum()
	f.SetIPv6Dst(1, 2)
	if tcp.Checksum() != before {
		t.Fatal("the destination changed the checksum")
	}
	f.SetIPv6Src(1, 2)
	if tcp.Checksum() == before {
		t.Fatal("the source did not change the checksum")
	}
}

func TestRewritesAllocateNothing(t *testing.T) {
	a := packettest.NewArena(t, 1<<16)
	var b packet.Batch
	m := randomModel(rand.New(rand.NewSource(3)))
	f := m.frame(t, a, &b, 128)
	if n := testing.AllocsPerRun(100, func() {
		f.SetEthDst(1)
		f.SetEthSrc(1)
		f.SetIPv4Src(1)
		f.SetIPv6Dst(1, 2)
		f.SetTOS(1)
		f.SetTTL(9)
		f.DecTTL()
		f.SetTpDst(7)
		f.PushVLAN(packet.EtherTypeVLAN, 1)
		f.SetVLAN(2)
		f.PopVLAN()
	}); n != 0 {
		t.Fatalf("the rewrites make %v allocations, want 0", n)
	}
}
