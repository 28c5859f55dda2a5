// SPDX-License-Identifier: Apache-2.0

package ofproto

import (
	"testing"

	"weft/openflow"
)

// A Selector selects the same rules as a word by word comparison with its filter.
func TestSelectorAgainstFilter(t *testing.T) {
	texts := []string{"", "table=1", "ip", "table=1,ip,nw_dst=10.0.0.0/8", "ip,nw_dst=10.1.0.0/16", "in_port=3", "in_port=3,ipv6", "cookie=5/7", "out_port=2",
		"table=1,out_group=4", "reg3=7/0xf", "tun_id=9", "dl_vlan=5", "icmp6,icmp_type=135,nd_target=2001:db8::1"}
	rules := []string{"actions=output:2", "table=1,ip,nw_dst=10.1.2.3,actions=output:2", "table=1,ip,nw_dst=11.1.2.3,actions=output:3", "in_port=3,ipv6,actions=2",
		"cookie=13,in_port=3,actions=3", "table=1,reg3=0x17,actions=group:4", "tun_id=9,dl_vlan=5,actions=2", "icmp6,icmp_type=135,nd_target=2001:db8::1,actions=2"}
	selected := 0
	for _, text := range texts {
		filter, err := openflow.ParseFlowMod(text, openflow.Delete, nil)
		if err != nil {
			t.Fatal(err)
		}
		s, within := NewSelector(&filter), filter.Match.Unpack()
		for _, ruleText := range rules {
			mod, err := openflow.ParseFlowMod(ruleText, openflow.Add, nil)
			if err != nil {
				t.Fatal(err)
			}
			r := &Rule{Table: mod.Table, Match: mod.Match, Cookie: mod.NewCookie, Actions: mod.Actions}
			match := r.Match.Unpack()
			want := selects(&filter, r) && r.Match.Within(&within)
			if got := s.Selects(r, &match); got != want {
				t.Errorf("filter %q, rule %q: %v, want %v", text, ruleText, got, want)
			}
			if want {
				selected++
			}
		}
	}
	if selected < 20 {
		t.Errorf("only %d pairs are selected", selected)
	}
}
