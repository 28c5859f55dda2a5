// SPDX-License-Identifier: Apache-2.0

package openflow

import (
	"slices"
	"strings"
	"testing"
)

// Complete suggests the words that may follow at the end of an incomplete flow.
func TestComplete(t *testing.T) {
	ports := []string{"vm1", "vm2"}
	for _, c := range []struct {
		begin   string
		actions bool
		want    string
	}{
		{"tab", true, "table="},
		{"table=1,tcp_ds", true, "table=1,tcp_dst="},
		{"ip,nw_d", false, "ip,nw_dst="},
		{"send", true, "send_flow_rem"},
		{"send", false, ""},
		{"ip,act", true, "ip,actions="},
		{"ip,act", false, ""},
		{"in_port=vm", true, "in_port=vm1 in_port=vm2"},
		{"ip,actions=nor", true, "ip,actions=normal"},
		{"actions=dec_ttl,v", true, "actions=dec_ttl,vm1 actions=dec_ttl,vm2"},
		{"actions=output:vm1,push_v", true, "actions=output:vm1,push_vlan"},
		{"actions=output:vm", true, "actions=output:vm1 actions=output:vm2"},
		{"actions=set_field:1->eth_sr", true, "actions=set_field:1->eth_src"},
		{"actions=ct(commit,zo", true, ""},
		{"nosuchword", true, ""},
	} {
		if got := strings.Join(Complete(c.begin, c.actions, ports), " "); got != c.want {
			t.Errorf("%q: %q, want %q", c.begin, got, c.want)
		}
	}
	all := Complete("", true, nil)
	for id := FTunID; id < fieldCount; id++ {
		if f := &fields[id]; f.name != "" && !slices.Contains(all, f.name+"=") {
			t.Errorf("%s is not suggested", f.name)
		}
	}
}
