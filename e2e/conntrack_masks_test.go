// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
)

// craftIP returns an IP datagram from the guest inside to the guest outside, or the
// reverse if back is set.
func craftIP(t *testing.T, back bool, proto layers.IPProtocol, rest ...gopacket.SerializableLayer) []byte {
	t.Helper()
	src, dst := insideMAC, outsideMAC
	ip := &layers.IPv4{Version: 4, TTL: 64, Protocol: proto, SrcIP: net.ParseIP("10.0.0.1"), DstIP: net.ParseIP("192.0.2.2")}
	if back {
		src, dst, ip.SrcIP, ip.DstIP = dst, src, ip.DstIP, ip.SrcIP
	}
	for _, l := range rest {
		if tcp, ok := l.(*layers.TCP); ok {
			tcp.SetNetworkLayerForChecksum(ip)
		}
	}
	frame := crafted(layers.EthernetTypeIPv4)
	frame.SrcMAC, _ = net.ParseMAC(src)
	frame.DstMAC, _ = net.ParseMAC(dst)
	return serialize(t, append([]gopacket.SerializableLayer{frame, ip}, rest...)...)
}

func (s *tracked) sends(frames ...[]byte) {
	s.t.Helper()
	for _, f := range frames {
		host := s.inside
		if net.HardwareAddr(f[6:12]).String() == outsideMAC {
			host = s.outside
		}
		if err := host.Raw("eth0").Send(f); err != nil {
			s.t.Fatal(err)
		}
	}
}

func (s *tracked) counts(text string, want uint64) {
	s.t.Helper()
	eventually(s.t, func() error {
		if n, _ := packets(s.t, s.weft, text); n != want {
			return fmt.Errorf("%s has counted %d, expected %d:\n%s\n%s", text, n, want, s.weft.Weft("dump-flows"), s.weft.Weft("dump-conntrack"))
		}
		return nil
	})
}

// Actions and matches can use single bits of ct_mark and ct_label.
func TestConntrackMasks(t *testing.T) {
	t.Parallel()
	const upper, lower = "0x50000000000000000000000000000000/0xf0000000000000000000000000000000", "0x6/0xf"
	s := newTracked(t, `
table=0,priority=10,arp,actions=normal
table=0,in_port=1,udp,actions=ct(commit,zone=1,exec(set_field:0xabcd0000/0xffff0000->ct_mark,set_field:`+upper+`->ct_label))
table=0,in_port=2,udp,actions=ct(zone=1,table=1)
table=1,priority=3,cookie=0x31,udp,ct_state=+est,ct_mark=0x5/0xf,ct_label=`+lower+`,actions=drop
table=1,priority=2,cookie=0x32,udp,ct_state=+est,ct_mark=0xabcd0000/0xffff0000,ct_label=`+upper+`,actions=drop
table=1,priority=1,cookie=0x33,udp,ct_state=+est,actions=drop
`)
	out := craftUDP(t, insideMAC, outsideMAC, "10.0.0.1", "192.0.2.2", 3000, 53)
	back := craftUDP(t, outsideMAC, insideMAC, "192.0.2.2", "10.0.0.1", 53, 3000)
	s.sends(out)
	s.dumped(`udp,orig=.*,zone=1,mark=2882338816,labels=0x50000000000000000000000000000000`)
	s.sends(back)
	s.counts("cookie=0x32", 1)

	s.weft.Weft("mod-flows", "table=0,in_port=1,udp,actions=ct(commit,zone=1,exec(set_field:0x5/0xf->ct_mark,set_field:"+lower+"->ct_label))")
	s.sends(out)
	s.dumped(`udp,orig=.*,zone=1,mark=2882338821,labels=0x50000000000000000000000000000006`)
	s.sends(back)
	s.counts("cookie=0x31", 1)

	s.weft.Weft("mod-flows", "table=0,in_port=1,udp,actions=ct(commit,zone=1,exec(set_field:0/0xff00000f->ct_mark))")
	s.sends(out)
	s.dumped(`udp,orig=.*,zone=1,mark=13434880,labels=0x50000000000000000000000000000006`)
	s.sends(back)
	s.counts("cookie=0x33", 1)
	s.counts("cookie=0x32", 1)
}

// Flows can match the state of translation and the original addresses. The switch
// tracks SCTP and protocols without ports. TCP segments outside of the window are
// invalid.
func TestConntrackStates(t *testing.T) {
	t.Parallel()
	s := newTracked(t, `
table=0,priority=10,arp,actions=normal
table=0,in_port=1,udp,actions=ct(commit,zone=1,nat(src=192.0.2.1),table=1)
table=0,in_port=2,udp,actions=ct(zone=1,nat,table=1)
table=1,cookie=0x11,udp,ct_state=+trk+new+snat-dnat-rpl,ct_nw_src=10.0.0.1,ct_nw_dst=192.0.2.0/24,ct_nw_proto=17,ct_tp_src=3000,ct_tp_dst=0x35/0xff,actions=drop
table=1,cookie=0x12,udp,ct_state=+trk+est+rpl+dnat-snat,ct_nw_src=10.0.0.1,ct_nw_dst=192.0.2.0/24,ct_nw_proto=17,ct_tp_src=3000,ct_tp_dst=0x35/0xff,actions=drop
table=0,in_port=1,udp6,actions=ct(commit,zone=2,table=2)
table=2,cookie=0x21,udp6,ct_state=+new,ct_ipv6_src=fd00::1,ct_ipv6_dst=2001:db8::/32,actions=drop
table=0,in_port=1,ip,nw_proto=253,actions=ct(commit,zone=3)
table=0,in_port=2,ip,nw_proto=253,actions=ct(zone=3,table=3)
table=3,cookie=0x31,ip,ct_state=+est+rpl,ct_nw_proto=253,actions=drop
table=0,in_port=1,sctp,actions=ct(commit,zone=4)
table=0,in_port=2,sctp,actions=ct(zone=4,table=4)
table=4,cookie=0x41,sctp,ct_state=+est+rpl,actions=drop
table=4,cookie=0x42,sctp,ct_state=+inv,actions=drop
table=0,in_port=1,tcp,actions=ct(commit,zone=5,table=5)
table=0,in_port=2,tcp,actions=ct(zone=5,table=5)
table=5,cookie=0x51,tcp,ct_state=+inv,actions=drop
table=5,cookie=0x52,tcp,ct_state=-inv,actions=drop
`)
	s.sends(craftUDP(t, insideMAC, outsideMAC, "10.0.0.1", "192.0.2.2", 3000, 53))
	s.counts("cookie=0x11", 1)
	s.sends(craftUDP(t, outsideMAC, insideMAC, "192.0.2.2", "192.0.2.1", 53, 3000))
	s.counts("cookie=0x12", 1)

	six := crafted(layers.EthernetTypeIPv6)
	six.SrcMAC, _ = net.ParseMAC(insideMAC)
	six.DstMAC, _ = net.ParseMAC(outsideMAC)
	ip := &layers.IPv6{Version: 6, HopLimit: 64, NextHeader: layers.IPProtocolUDP, SrcIP: net.ParseIP("fd00::1"), DstIP: net.ParseIP("2001:db8::2")}
	udp := &layers.UDP{SrcPort: 3000, DstPort: 53}
	udp.SetNetworkLayerForChecksum(ip)
	s.sends(serialize(t, six, ip, udp))
	s.counts("cookie=0x21", 1)

	experiment := gopacket.Payload(strings.Repeat("x", 30)) // IP protocol 253 is reserved for experiments (RFC 3692)
	s.sends(craftIP(t, false, 253, experiment))
	s.dumped(`253,orig=\(src=10\.0\.0\.1,dst=192\.0\.2\.2,sport=0,dport=0\),reply=\(src=192\.0\.2\.2,dst=10\.0\.0\.1,sport=0,dport=0\),zone=3`)
	s.sends(craftIP(t, true, 253, experiment))
	s.counts("cookie=0x31", 1)

	// the INIT ACK chunk has the verification tag of the INIT chunk (RFC 9260 section
	// 3.3.2)
	opening := func(kind layers.SCTPChunkType, tag uint32) *layers.SCTPInit {
		return &layers.SCTPInit{SCTPChunk: layers.SCTPChunk{Type: kind}, InitiateTag: tag, AdvertisedReceiverWindowCredit: 65536, OutboundStreams: 1, InboundStreams: 1, InitialTSN: 1}
	}
	s.sends(craftIP(t, false, layers.IPProtocolSCTP, &layers.SCTP{SrcPort: 3000, DstPort: 80}, opening(layers.SCTPChunkTypeInit, 77)))
	s.dumped(`sctp,orig=\(src=10\.0\.0\.1,dst=192\.0\.2\.2,sport=3000,dport=80\),reply=\(src=192\.0\.2\.2,dst=10\.0\.0\.1,sport=80,dport=3000\),zone=4.*`)
	for _, tag := range []uint32{77, 78} {
		s.sends(craftIP(t, true, layers.IPProtocolSCTP, &layers.SCTP{SrcPort: 80, DstPort: 3000, VerificationTag: tag}, opening(layers.SCTPChunkTypeInitAck, 99)))
	}
	s.counts("cookie=0x41", 1)
	s.counts("cookie=0x42", 1)

	segment := func(back bool, tcp layers.TCP) []byte {
		tcp.SrcPort, tcp.DstPort, tcp.Window = 3000, 80, 1000
		if back {
			tcp.SrcPort, tcp.DstPort = 80, 3000
		}
		return craftIP(t, back, layers.IPProtocolTCP, &tcp)
	}
	s.sends(segment(false, layers.TCP{Seq: 100, SYN: true}))
	s.counts("cookie=0x52", 1)
	s.sends(segment(true, layers.TCP{Seq: 500, Ack: 101, SYN: true, ACK: true}))
	s.counts("cookie=0x52", 2)
	s.sends(segment(false, layers.TCP{Seq: 101, Ack: 501, ACK: true}))
	s.counts("cookie=0x52", 3)
	far := func(offset uint32) []byte { return segment(true, layers.TCP{Seq: 500 + offset, Ack: 101, ACK: true}) }
	s.sends(far(1 << 30))
	s.counts("cookie=0x51", 1)
	s.weft.Weft("ct-disable-tcp-seq-chk")
	s.sends(far(1 << 30)) // this segment passes without a check of the window, and moves the window
	s.counts("cookie=0x52", 4)
	s.weft.Weft("ct-enable-tcp-seq-chk")
	s.sends(far(1 << 31))
	s.counts("cookie=0x51", 2)
}
