// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"encoding/binary"
	"strings"
	"testing"

	"weft/datapath"
	"weft/flowtable"
	"weft/openflow"
	"weft/packet"
)

// noNames is a switch without ports.
type noNames struct{}

func (noNames) PortByName(string) (uint32, bool) { return 0, false }
func (noNames) PortName(uint32) (string, bool)   { return "", false }

func udpKey() flowtable.Key {
	var k flowtable.Key
	k[flowtable.WPort] = 1 << 32
	k[flowtable.WEthDst] = 0x020000000002<<16 | 0x0800
	k[flowtable.WEthSrc] = 0x020000000001 << 16
	k[flowtable.WIP] = 17<<56 | 64<<40
	k[flowtable.WL4] = 1000<<48 | 9<<32
	k[flowtable.WIPv4] = 0x0a000001<<32 | 0x0a000002
	return k
}

// A frame's match has exactly the frame's fields.
func TestFrameMatch(t *testing.T) {
	udp := udpKey()
	icmp, tagged := udp, udp
	icmp[flowtable.WIP] = 1<<56 | 64<<40
	icmp[flowtable.WL4] = 8 << 48
	tagged[flowtable.WEthSrc] |= 0x1005
	for _, c := range []struct {
		key  *flowtable.Key
		want string
	}{
		{&udp, "udp,in_port=1,dl_src=02:00:00:00:00:01,dl_dst=02:00:00:00:00:02,nw_src=10.0.0.1,nw_dst=10.0.0.2,nw_tos=0,nw_ecn=0,nw_ttl=64,tp_src=1000,tp_dst=9"},
		{&icmp, "icmp,in_port=1,dl_src=02:00:00:00:00:01,dl_dst=02:00:00:00:00:02,nw_src=10.0.0.1,nw_dst=10.0.0.2,nw_tos=0,nw_ecn=0,nw_ttl=64,icmp_type=8,icmp_code=0"},
		{&tagged, "udp,in_port=1,dl_vlan=5,dl_vlan_pcp=0,dl_src=02:00:00:00:00:01,dl_dst=02:00:00:00:00:02,nw_src=10.0.0.1,nw_dst=10.0.0.2,nw_tos=0,nw_ecn=0,nw_ttl=64,tp_src=1000,tp_dst=9"},
	} {
		if got := openflow.FormatMatch(FrameMatch(c.key), noNames{}); got != c.want {
			t.Errorf("got  %s\nwant %s", got, c.want)
		}
	}
}

func udpFrame(n int) []byte {
	f := make([]byte, n)
	packet.Ethernet(f).SetDst(0x020000000002)
	packet.Ethernet(f).SetSrc(0x020000000001)
	packet.Ethernet(f).SetType(packet.EtherTypeIPv4)
	copy(f[14:], []byte{0x45, 0, 0, 0, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 0, 7, 0, 9})
	binary.BigEndian.PutUint16(f[16:], uint16(n-14))
	binary.BigEndian.PutUint16(f[38:], uint16(n-34))
	return f
}

// Summary handles malformed and truncated frames.
func TestSummary(t *testing.T) {
	whole := udpFrame(9000)
	for n := range 300 {
		got := Summary(&datapath.Capture{Len: len(whole), Data: whole[:n]}, noNames{})
		if n >= 42 && !strings.Contains(got, "tp_dst=9") {
			t.Fatalf("of %d bytes: %q", n, got)
		}
		if got := Summary(&datapath.Capture{Len: n, Data: whole[:n]}, noNames{}); n < 42 && n > 14 && got != "" {
			t.Fatalf("of a frame of %d bytes: %q", n, got)
		}
	}
}
