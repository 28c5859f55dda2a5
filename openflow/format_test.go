// SPDX-License-Identifier: Apache-2.0

package openflow

import (
	"testing"

	"weft/flowtable"
	"weft/packet"
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
		p := NewPipeline(Limits{})
		apply(t, p, second, Add, tt.flow)
		if got := FormatRule(p.Rule(0), second+3_211_900_000, newNames()); got != tt.line {
			t.Errorf("%s\n got %s\nwant %s", tt.flow, got, tt.line)
		}
	}
	p := NewPipeline(Limits{})
	apply(t, p, second, Add, "actions=drop")
	apply(t, p, 4*second, Modify, "actions=output:2")
	p.Rule(0).Credit(3, 180, 5*second)
	want := ` cookie=0x0, duration=6s, table=0, n_packets=3, n_bytes=180, idle_age=2, hard_age=3, actions=output:2`
	if got := FormatRule(p.Rule(0), 7*second, nil); got != want {
		t.Errorf("modified:\n got %s\nwant %s", got, want)
	}
	again, err := ParseFlowMod(want, Add, nil)
	if err != nil || len(again.Actions) != 1 {
		t.Errorf("ParseFlowMod refuses a line of dump-flows: %v", err)
	}
}

func TestFieldTable(t *testing.T) {
	for id := FTunID; id < FTunMetadata; id++ {
		f := &fields[id]
		switch {
		case f.name == "" || fieldNames[f.name] != id:
			t.Errorf("the name %[2]q of field %[1]d finds field %[3]d", id, f.name, fieldNames[f.name])
		case f.bits == 0 || f.bytes == 0 || f.bits > 8*f.bytes:
			t.Errorf("%s has %d bits, which do not fit into its %d bytes", f.name, f.bits, f.bytes)
		case f.bits <= 64 && int(f.shift)+int(f.storedBits()) > 64, f.bits > 64 && (f.shift != 0 || f.bits != 128):
			t.Errorf("%s: %d bits from bit %d cross the end of the word", f.name, f.bits, f.shift)
		}
		for _, n := range f.oxm {
			if got, ok := parseSubfield(n + "[]"); !ok || got != WholeField(id) {
				t.Errorf("the OXM name %s finds field %v, %v", n, got, ok)
			}
		}
	}
}

// FormatMatch writes every field.
func TestEveryFieldIsShown(t *testing.T) {
	for id := FTunID; id < FTunMetadata; id++ {
		var m Match
		word, hi, lo := WholeField(id).Mask()
		m.Mask[word] = hi
		if lo != 0 {
			m.Mask[word+1] = lo
		}
		if FormatMatch(&m, nil) == "" {
			t.Errorf("FormatMatch leaves out %s", id)
		}
	}
}

func TestDatapathActionsText(t *testing.T) {
	actions := []flowtable.Action{
		{Op: flowtable.OpSetIPv6Src, U64: 0xfe80 << 48}, {Op: flowtable.OpData, U64: 1},
		{Op: flowtable.OpSetIPv4Dst, U32: 0x0a000001}, {Op: flowtable.OpSetTOS, U32: 8}, {Op: flowtable.OpSetTTL, U32: 9},
		{Op: flowtable.OpTunMeta, U64: 7<<flowtable.TunGBPIDShift | 8<<flowtable.TunGBPFlagsShift | 1<<flowtable.TunFlagsShift},
		{Op: flowtable.OpTunOptions, U16: 12}, {Op: flowtable.OpData, U64: 0x0102030405060708}, {Op: flowtable.OpData, U64: 0x090a0b0c << 32},
		{Op: flowtable.OpTunnel, U32: 3, U64: 100}, {Op: flowtable.OpOutput, U32: 3},
		{Op: flowtable.OpDrop, U32: uint32(packet.DropLoop)},
	}
	want := `set(ipv6(src=fe80::1)),set(ipv4(dst=10.0.0.1)),set(ip(tos=0x8)),set(ip(ttl=9)),set(tunnel(gbp_id=7,gbp_flags=0x8,flags=0x1)),set(tunnel(options=0102030405060708090a0b0c)),tunnel(template=3,vni=100),"vm-1",drop(loop)`
	if got := FormatDatapathActions(actions, newNames()); got != want {
		t.Errorf("got %s\nwant %s", got, want)
	}
}

// A saved flow of a connection costs a few allocations: the text and its actions.
func TestFormatFlowModAllocations(t *testing.T) {
	mod, err := ParseFlowMod("priority=100,in_port=1,udp,nw_src=10.0.0.1,nw_dst=10.0.0.2,tp_src=1024,tp_dst=2000,actions=output:2", Add, nil)
	if err != nil {
		t.Fatal(err)
	}
	if n := testing.AllocsPerRun(100, func() { FormatFlowMod(&mod, nil) }); n > 3 {
		t.Errorf("%v allocations", n)
	}
}
