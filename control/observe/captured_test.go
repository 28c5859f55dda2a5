// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"strings"
	"testing"

	"weft/control/workers/workertest"
	"weft/datapath"
	"weft/flowtable"
	"weft/openflow"
)

// noNames is a switch without ports.
type noNames struct{}

func (noNames) PortByName(string) (uint32, bool) { return 0, false }
func (noNames) PortName(uint32) (string, bool)   { return "", false }

// The match of a frame has exactly the fields that the frame has.
func TestFrameMatch(t *testing.T) {
	udp := workertest.UDPKey(1, 1, 2, 9)
	icmp, tagged := udp, udp
	icmp[flowtable.WIP] = 1<<56 | 64<<40
	icmp[flowtable.WL4] = 8 << 48
	tagged[flowtable.WEthSrc] |= 0x1005
	tracked := udp
	tracked[flowtable.WCT] = 0x22<<24 | 17<<16 | 5 // ct_state, ct_nw_proto, ct_zone
	tracked[flowtable.WCTSrc+1], tracked[flowtable.WCTDst+1] = 0x0a000001, 0x0a000002
	for _, c := range []struct {
		key  *flowtable.Key
		want string
	}{
		{&udp, "udp,in_port=1,dl_src=02:00:00:00:00:01,dl_dst=02:00:00:00:00:02,nw_src=10.0.0.1,nw_dst=10.0.0.2,nw_tos=0,nw_ecn=0,nw_ttl=64,tp_src=1000,tp_dst=9"},
		{&icmp, "icmp,in_port=1,dl_src=02:00:00:00:00:01,dl_dst=02:00:00:00:00:02,nw_src=10.0.0.1,nw_dst=10.0.0.2,nw_tos=0,nw_ecn=0,nw_ttl=64,icmp_type=8,icmp_code=0"},
		{&tagged, "udp,in_port=1,dl_vlan=5,dl_vlan_pcp=0,dl_src=02:00:00:00:00:01,dl_dst=02:00:00:00:00:02,nw_src=10.0.0.1,nw_dst=10.0.0.2,nw_tos=0,nw_ecn=0,nw_ttl=64,tp_src=1000,tp_dst=9"},
		{&tracked, "ct_state=est|trk,ct_zone=5,ct_mark=0,ct_nw_src=10.0.0.1,ct_nw_dst=10.0.0.2,ct_nw_proto=17,udp,in_port=1,dl_src=02:00:00:00:00:01,dl_dst=02:00:00:00:00:02,nw_src=10.0.0.1,nw_dst=10.0.0.2,nw_tos=0,nw_ecn=0,nw_ttl=64,tp_src=1000,tp_dst=9"},
	} {
		if got := openflow.FormatMatch(FrameMatch(c.key), noNames{}); got != c.want {
			t.Errorf("got  %s\nwant %s", got, c.want)
		}
	}
}

// Summary handles malformed and truncated frames.
func TestSummary(t *testing.T) {
	whole := workertest.UDPFrame(9000)
	for n := range 300 {
		got := Summary(&datapath.Captured{Len: len(whole), Data: whole[:n]}, noNames{})
		if n >= 42 && !strings.Contains(got, "tp_dst=9") {
			t.Fatalf("of %d bytes: %q", n, got)
		}
		if got := Summary(&datapath.Captured{Len: n, Data: whole[:n]}, noNames{}); n < 42 && n > 14 && got != "" {
			t.Fatalf("of a frame of %d bytes: %q", n, got)
		}
	}
}
