// SPDX-License-Identifier: Apache-2.0

package ovsdb

import (
	"maps"
	"slices"
	"testing"

	"weft/openflow"
)

// TestCapabilities: the switch accepts a flow that needs a capability if the capability is true, and
// refuses it otherwise.
func TestCapabilities(t *testing.T) {
	flows := map[string]string{
		"check_pkt_len":        "actions=check_pkt_larger(1500)->reg0[0],output:1",
		"clone":                "actions=clone(output:1),output:2",
		"ct_clear":             "actions=ct_clear,output:1",
		"ct_eventmask":         "actions=ct(commit,eventmask=1)",
		"ct_label":             "ip,actions=ct(commit,exec(set_field:1->ct_label))",
		"ct_mark":              "ip,actions=ct(commit,exec(set_field:1->ct_mark))",
		"ct_orig_tuple":        "ct_state=+trk+est,tcp,ct_nw_src=10.0.0.1,ct_tp_dst=1,actions=drop",
		"ct_orig_tuple6":       "ct_state=+trk+est,tcp6,ct_ipv6_src=::1,ct_tp_dst=1,actions=drop",
		"ct_state":             "ct_state=+trk+est,ip,actions=drop",
		"ct_state_nat":         "ct_state=+trk+snat,ip,actions=ct(nat)",
		"ct_zero_snat":         "ip,actions=ct(commit,nat(src=0.0.0.0)),ct(commit,nat(src=::))",
		"ct_zone":              "ip,actions=ct(zone=5,table=1)",
		"explicit_drop_action": "actions=drop",
		"lb_output_action":     "actions=lb_output(1)",
		"masked_set_action":    "ip,actions=set_field:10.0.0.0/8->nw_dst,output:1",
		"nd_ext":               "icmp6,icmp_type=136,icmp_code=0,nd_reserved=0x1,nd_options_type=2,actions=drop",
		"recirc":               "ip,actions=ct(table=1)",
		"tnl_push_pop":         "actions=set_field:1.2.3.4->tun_dst,output:1",
		"trunc":                "actions=output(port=1,max_len=100)",
	}
	// No flow shows the capabilities in "inside", which are properties of the engine, or messages.
	inside := []string{"add_mpls", "ct_flush", "ct_timeout", "max_hash_alg", "max_vlan_headers", "sample_nesting", "ufid"}
	for _, name := range slices.Sorted(maps.Keys(capabilities)) {
		flow, shown := flows[name]
		if !shown {
			if !slices.Contains(inside, name) {
				t.Errorf("%s: no flow shows it", name)
			}
			continue
		}
		_, err := openflow.ParseFlowMod("table=0,"+flow, openflow.Add, nil)
		if accepted := err == nil; accepted != (capabilities[name] == "true") {
			t.Errorf("%s=%s, but %s: %v", name, capabilities[name], flow, err)
		}
	}
}
