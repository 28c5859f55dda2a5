// SPDX-License-Identifier: Apache-2.0

package appctl

import (
	"strings"
	"testing"
)

// The data path's name does not count as a word of a command. Any other name is refused.
func TestWithoutDatapath(t *testing.T) {
	for _, c := range []struct {
		words string
		limit int
		want  string
	}{
		{"", 0, ""}, {datapathName, 0, ""}, {"-m " + datapathName + " zone=1", 1, "zone=1"}, {"zone=1 mark=2", 2, "zone=1 mark=2"},
		{"other", 0, "ovs-vswitchd: datapath not found (Invalid argument)"}, {"other 10", 1, "ovs-vswitchd: datapath not found (Invalid argument)"},
	} {
		rest, err := withoutDatapath(strings.Fields(c.words), c.limit)
		got := strings.Join(rest, " ")
		if err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%q: %q, expected %q", c.words, got, c.want)
		}
	}
}

// An invalid filter is refused with the error text of Open vSwitch.
func TestWrongFilter(t *testing.T) {
	for args, want := range map[string]string{
		"zone=70000":                       "failed to parse zone",
		"zone=1 mark=x":                    "failed to parse mark",
		"labels=1/x":                       "failed to parse labels",
		"zone=1 ct_nw_src=1.1.1.1,dst=1":   "invalid conntrack tuple field: dst",
		"ct_nw_src=1.1.1.1,ct_nw_dst=here": "failed to parse field ct_nw_dst",
		"ct_nw_proto":                      "invalid arguments",
		"zone=1 ct_nw_proto=6 ct_nw_proto=6 ct_nw_proto=6": "invalid arguments",
	} {
		if got := wrongFilter(strings.Fields(args)); got != want {
			t.Errorf("%s: %q, expected %q", args, got, want)
		}
	}
}

// Matches of megaflows have the groups of ovs-dpctl(8) in its order.
func TestDatapathMatch(t *testing.T) {
	for match, want := range map[string]string{
		`in_port="p0"`: "recirc_id(0),in_port(7)",
		`tcp,in_port=p0,nw_dst=10.0.0.0/8,tp_dst=80`:  "recirc_id(0),in_port(7),eth_type(0x0800),ipv4(proto=6,dst=10.0.0.0/8),tcp(dst=80)",
		"udp6,ipv6_src=fc00::1,udp_src=53,nw_frag=no": "recirc_id(0),eth_type(0x86dd),ipv6(proto=17,src=fc00::1,frag=no),udp(src=53)",
		"recirc_id=0x3,ct_state=+est+trk,ct_zone=5,ip,in_port=p1,ct_label=0x5/0xffff": "recirc_id(0x3),in_port(p1),ct_state(+est+trk),ct_zone(0x5)," +
			"ct_label(0x5/0xffff),eth_type(0x0800)",
		"icmp6,icmp_type=136,nd_target=fc00::2": "recirc_id(0),eth_type(0x86dd),ipv6(proto=58),icmpv6(type=136),nd(target=fc00::2)",
		"arp,arp_op=1,dl_src=00:00:00:00:00:01": "recirc_id(0),eth(src=00:00:00:00:00:01),eth_type(0x0806),arp(op=1)",
		"dl_type=0x88cc,dl_vlan=5,tun_id=0x7":   "recirc_id(0),tunnel(tun_id=0x7),eth_type(0x88cc),vlan(vid=5)",
		"ip,ct_nw_src=10.0.0.1,vlan_tci1=0x0":   "recirc_id(0),eth_type(0x0800),ct_nw_src(10.0.0.1),vlan_tci1(0x0)",
	} {
		got := datapathMatch(match, func(name string) string {
			if name == "p0" {
				return "7"
			}
			return name
		})
		if got != want {
			t.Errorf("%s:\n%s, expected\n%s", match, got, want)
		}
	}
}
