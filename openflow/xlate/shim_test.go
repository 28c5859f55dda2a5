// SPDX-License-Identifier: Apache-2.0

package xlate

import (
	"regexp"
	"strings"
	"testing"

	"weft/flowtable"
	"weft/openflow"
)

var recircID = regexp.MustCompile(`recirc\(0x[0-9a-f]+\)`)

// Pushes copy the fields that Open vSwitch and OpenFlow 1.3 specify. Actions that need the headers
// that a pop reveals are executed after a second look-up. So are pushes and pops within a clone or a
// bucket.
func TestPushAndPop(t *testing.T) {
	const v4 = "in_port=1,tcp,nw_src=10.0.0.1,nw_tos=32,nw_ttl=7,tp_dst=80"
	for _, c := range []struct{ frame, actions, want string }{
		{v4, "push_mpls:0x8847,2", "push_mpls(eth_type=0x8847,lse=0x00000107),2"},
		{"in_port=1,ipv6,nw_ttl=9", "push_mpls:0x8847,2", "push_mpls(eth_type=0x8847,lse=0x00002109),2"},
		{"in_port=1,arp", "push_mpls:0x8848,2", "push_mpls(eth_type=0x8848,lse=0x00000140),2"},
		{"in_port=1,mpls,mpls_label=5,mpls_tc=3,mpls_bos=1,mpls_ttl=8", "push_mpls:0x8847,set_mpls_label(7),2",
			"push_mpls(eth_type=0x8847,lse=0x00005608),set(shim=0x00007608),2"},
		{"in_port=1,mpls,mpls_label=5,mpls_bos=1,mpls_ttl=8", "2,dec_mpls_ttl,3", "2,set(shim=0x00005107),3"},
		{"in_port=1,mpls,mpls_ttl=1", "dec_mpls_ttl,2", "drop(ttl-expired)"},
		{v4, "pop_mpls:0x0800,2", "2"},
		{v4, "mod_dl_src:00:00:00:00:00:05,push_mpls:0x8847,pop_mpls:0x0800,2",
			"set(eth(src=00:00:00:00:00:05)),push_mpls(eth_type=0x8847,lse=0x00000107),pop_mpls(eth_type=0x0800),2"},
		{"in_port=1,mpls", "pop_mpls:0x0800,2,dec_ttl,3", "pop_mpls(eth_type=0x0800),2,recirc"},
		{"in_port=1,mpls", "pop_mpls:0x0800,goto_table:1", "pop_mpls(eth_type=0x0800),recirc"},
		{"in_port=1,mpls", "clone(pop_mpls:0x0800,2),3", "recirc,3"},
		{v4, "group:1,4", "recirc,recirc,4"},
		{"in_port=1,dl_vlan=5,dl_vlan_pcp=2,ip", "push_pbb:0x88e7,set_field:9->pbb_isid,2", "push_pbb(itag=0x40000000),set(shim=0x40000009),2"},
		{"in_port=1,dl_type=0x88e7,pbb_isid=6", "push_pbb:0x88e7,2", "push_pbb(itag=0x00000006),2"},
		{"in_port=1,dl_type=0x88e7", "pop_pbb,2", "pop_pbb,2"},
		{"in_port=1,dl_type=0x88e7", "pop_pbb,normal", "pop_pbb,recirc"},
		{v4, "pop_pbb,2", "2"},
		{v4, "write_actions(2,push_mpls:0x8847,mod_nw_tos:8,pop_mpls:0x0800)", "push_mpls(eth_type=0x8847,lse=0x00000107),2"},
		{"in_port=1,mpls", "write_actions(2,mod_nw_tos:8,pop_mpls:0x0800)", "pop_mpls(eth_type=0x0800),recirc"},
	} {
		p, env := pipelineOf(t, "table=1,actions=3"), newRecircEnv()
		groups, err := openflow.ParseGroupMods(strings.NewReader("group_id=1,type=all,bucket=push_mpls:0x8847,2,bucket=push_pbb:0x88e7,3"), openflow.GroupAdd, nil)
		if err == nil {
			_, err = p.ApplyGroups(groups, 0)
		}
		if err != nil {
			t.Fatal(err)
		}
		actions, err := openflow.ParseActions(c.actions, nil)
		if err != nil {
			t.Fatalf("%s: %v", c.actions, err)
		}
		if _, err := p.Apply([]openflow.FlowMod{{Command: openflow.Add, Actions: actions}}, 0); err != nil {
			t.Fatal(err)
		}
		k := frameKey(t, c.frame)
		got := openflow.FormatDatapathActions(Translate(p, &k, env).Actions, nil)
		if recircID.ReplaceAllString(got, "recirc") != c.want {
			t.Errorf("%s on %s: %s, want %s", c.actions, c.frame, got, c.want)
		}
	}
}

// The translation of the second look-up executes the actions after a pop, the action set, and the
// tables of goto_table.
func TestTranslationGoesOnBehindPop(t *testing.T) {
	p, env := pipelineOf(t,
		"mpls,mpls_label=1,actions=set_field:7->reg3,pop_mpls:0x0800,mod_nw_tos:8,resubmit(,2),write_actions(4),goto_table:1",
		"mpls,mpls_label=2,actions=clone(pop_mpls:0x0800,mod_nw_tos:8,3),2,write_actions(4)",
		"table=1,tcp,reg3=7,actions=2", "table=2,nw_tos=8,ip,actions=3"), newRecircEnv()
	for _, c := range []struct{ label, first, second string }{
		{"1", "pop_mpls(eth_type=0x0800),recirc", "set(ip(tos=0x8)),3,2,4"},
		{"2", "recirc,2,4", "pop_mpls(eth_type=0x0800),recirc"},
	} {
		k := frameKey(t, "in_port=1,mpls,mpls_label="+c.label)
		first := Translate(p, &k, env)
		if got := recircID.ReplaceAllString(openflow.FormatDatapathActions(first.Actions, nil), "recirc"); got != c.first {
			t.Fatalf("label %s: %s, want %s", c.label, got, c.first)
		}
		again := k
		if c.label == "1" {
			again = frameKey(t, "in_port=1,tcp,nw_tos=0,nw_src=10.0.0.1")
		}
		for _, a := range first.Actions {
			if a.Op == flowtable.OpRecirc {
				again.SetRecirc(a.U32)
			}
		}
		if got := recircID.ReplaceAllString(openflow.FormatDatapathActions(Translate(p, &again, env).Actions, nil), "recirc"); got != c.second {
			t.Errorf("behind label %s: %s, want %s", c.label, got, c.second)
		}
	}
}
