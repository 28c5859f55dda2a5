// SPDX-License-Identifier: Apache-2.0

package ofproto

import (
	"testing"

	"weft/openflow"
)

// FormatRule returns the same lines as ovs-ofctl dump-flows of Open vSwitch 3.1
// (OpenFlow 1.5).
func TestDumpFlowsLines(t *testing.T) {
	const second = 1_000_000_000
	tests := []struct{ flow, line string }{
		{"priority=10,in_port=a,actions=output:b",
			` cookie=0x0, duration=3.211s, table=0, n_packets=0, n_bytes=0, idle_age=3, priority=10,in_port=a actions=output:b`},
		{`priority=11,in_port="vm-1",actions=a,"vm-1",in_port`,
			` cookie=0x0, duration=3.211s, table=0, n_packets=0, n_bytes=0, idle_age=3, priority=11,in_port="vm-1" actions=output:a,output:"vm-1",IN_PORT`},
		{"table=1,actions=push_vlan:0x8100,set_field:4100->vlan_vid,normal",
			` cookie=0x0, duration=3.211s, table=1, n_packets=0, n_bytes=0, idle_age=3, actions=push_vlan:0x8100,set_field:4100->vlan_vid,NORMAL`},
		{"table=2,idle_timeout=10,hard_timeout=20,importance=5,send_flow_rem,cookie=0x1234,arp,arp_spa=1.1.1.1,actions=drop",
			` cookie=0x1234, duration=3.211s, table=2, n_packets=0, n_bytes=0, idle_timeout=10, hard_timeout=20, send_flow_rem importance=5, idle_age=3, arp,arp_spa=1.1.1.1 actions=drop`},
		{"table=2,tcp,dl_vlan=5,dl_vlan_pcp=4,in_port=99,dl_src=00:00:00:00:00:01,dl_dst=00:00:00:00:00:02,tun_id=5,tun_src=1.1.1.1,tun_dst=2.2.2.2,reg0=5,reg1=7/7,xreg2=9,metadata=5,nw_src=10.0.0.0/8,nw_dst=10.0.0.1,nw_ecn=1,nw_tos=4,nw_ttl=3,nw_frag=no,tcp_src=5,tcp_dst=6/7,tcp_flags=+syn,actions=set_field:5->tun_id,set_field:1.2.3.4->tun_dst,set_field:5/0xf->reg0,move:reg0[0..3]->reg1[4..7],write_metadata:5,goto_table:9",
			` cookie=0x0, duration=3.211s, table=2, n_packets=0, n_bytes=0, idle_age=3, tcp,reg0=0x5,reg1=0x7/0x7,reg4=0,reg5=0x9,tun_id=0x5,tun_src=1.1.1.1,tun_dst=2.2.2.2,metadata=0x5,in_port=99,dl_vlan=5,dl_vlan_pcp=4,dl_src=00:00:00:00:00:01,dl_dst=00:00:00:00:00:02,nw_src=10.0.0.0/8,nw_dst=10.0.0.1,nw_tos=4,nw_ecn=1,nw_ttl=3,nw_frag=no,tp_src=5,tp_dst=0x6/0x7,tcp_flags=+syn actions=set_field:0x5->tun_id,set_field:1.2.3.4->tun_dst,set_field:0x5/0xf->reg0,move:NXM_NX_REG0[0..3]->NXM_NX_REG1[4..7],write_metadata:0x5,goto_table:9`},
		{"ipv6,ipv6_label=5,ipv6_src=fe80::/10,tun_ipv6_dst=::5,actions=set_field:::1->ipv6_src,mod_nw_ttl:5",
			` cookie=0x0, duration=3.211s, table=0, n_packets=0, n_bytes=0, idle_age=3, ipv6,tun_ipv6_dst=::5,ipv6_src=fe80::/10,ipv6_label=0x00005 actions=set_field:::1->ipv6_src,mod_nw_ttl:5`},
		{"ip,nw_tos=32,nw_ecn=1,nw_ttl=5,nw_proto=89,actions=dec_ttl,resubmit(,5),resubmit(a,6),resubmit:b",
			` cookie=0x0, duration=3.211s, table=0, n_packets=0, n_bytes=0, idle_age=3, ip,nw_proto=89,nw_tos=32,nw_ecn=1,nw_ttl=5 actions=dec_ttl,resubmit(,5),resubmit(a,6),resubmit:b`},
	}
	for _, tt := range tests {
		p := NewTables(Limits{})
		apply(t, p, second, openflow.Add, tt.flow)
		if got := FormatRule(p.Rule(0), second+3_211_900_000, portNames()); got != tt.line {
			t.Errorf("%s\n got %s\nwant %s", tt.flow, got, tt.line)
		}
	}
	p := NewTables(Limits{})
	apply(t, p, second, openflow.Add, "actions=drop")
	apply(t, p, 4*second, openflow.Modify, "actions=output:2")
	p.Rule(0).Credit(3, 180, 5*second)
	want := ` cookie=0x0, duration=6s, table=0, n_packets=3, n_bytes=180, idle_age=2, hard_age=3, actions=output:2`
	if got := FormatRule(p.Rule(0), 7*second, nil); got != want {
		t.Errorf("modified:\n got %s\nwant %s", got, want)
	}
	again, err := openflow.ParseFlowMod(want, openflow.Add, nil)
	if err != nil || len(again.Actions) != 1 {
		t.Errorf("ParseFlowMod refuses a line of dump-flows: %v", err)
	}
}
