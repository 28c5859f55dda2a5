// SPDX-License-Identifier: Apache-2.0

package openflow

import (
	"fmt"
	"regexp"
	"testing"
)

// contexts are texts of matches. For each prerequisite, one of them meets it.
var contexts = []string{
	"", "dl_vlan=3", "vlan_tci=0x1000/0x1000", "arp", "rarp", "ip", "ipv6", "tcp", "udp", "sctp", "icmp", "tcp6", "icmp6",
	"icmp6,icmp_type=135", "icmp6,icmp_type=136", "icmp6,icmp_type=135,icmp_code=0", "icmp6,icmp_type=136,icmp_code=0",
	"ip,ct_state=+trk+est", "ipv6,ct_state=+trk+est", "tcp,nw_frag=no", "tcp,nw_frag=later",
	"mpls", "mplsm", "dl_type=0x88e7", "dl_type=0x894f,nsh_mdtype=1",
}

// sample returns a valid value and a valid mask of the field as flow text.
func sample(f *field) (value, mask string) {
	switch f.format {
	case asEthernet:
		return "00:00:00:00:00:01", "00:00:00:00:00:0f"
	case asIPv4:
		return "10.0.0.1", "255.0.0.1"
	case asIPv6:
		return "fe80::1", "ffff::1"
	case asFrag:
		return "1", "1"
	case asCTState:
		return "+trk", "0x20"
	}
	return "1", "1"
}

// fieldTexts returns flows that use each field by each of its names, with and without masks, in the match and
// in each kind of action. Each text begins with the match "context".
func fieldTexts(context string) (texts []string) {
	add := func(format string, args ...any) {
		text := fmt.Sprintf(format, args...)
		if context != "" {
			text = context + "," + text
		}
		texts = append(texts, text)
	}
	for id := FTunID; id < FTunMetadata; id++ {
		f := &fields[id]
		value, mask := sample(f)
		names := []string{f.name}
		for _, h := range f.oxm {
			names = append(names, h.name)
		}
		if f.alias != "" {
			names = append(names, f.alias)
		}
		for i, name := range names {
			if i > 0 && context != "" {
				break
			}
			add("%s=%s,actions=drop", name, value)
			add("%s=%s/%s,actions=drop", name, value, mask)
			add("actions=load:1->%s", name)
			add("actions=load:1->%s[]", name)
			add("actions=load:1->%s[0]", name)
			add("actions=load:0->%s[%d]", name, f.bits)
			add("actions=move:%s[0]->reg0[0]", name)
			add("actions=move:reg0[0]->%s[0]", name)
			add("actions=set_field:%s->%s", value, name)
			add("actions=set_field:%s/%s->%s", value, mask, name)
			add("actions=output:%s[0]", name)
			add("actions=learn(%s)", name)
			add("actions=learn(%s=%s)", name, value)
			add("actions=learn(load:1->%s[0])", name)
			add("actions=write_actions(set_field:%s->%s)", value, name)
		}
	}
	return texts
}

// otherFields matches texts that Weft and ovs-ofctl do not treat alike: ipv6_label without IPv6, and writes
// of tracking fields outside of ct.
var otherFields = regexp.MustCompile(`ipv6_label=|learn\(load:1->.*(?i:ct_mark|ct_label)|ct_tp_|(move|output):ct_`)

// fieldSample is the distance between two texts that are compared. Not all are, because each comparison runs
// a process.
const fieldSample = 19

// TestFieldListIsOVSs compares fields, prerequisites and actions with ovs-ofctl's.
func TestFieldListIsOVSs(t *testing.T) {
	needOracle(t)
	var some []string
	n := 0
	for _, context := range contexts {
		for _, text := range fieldTexts(context) {
			if n++; n%fieldSample == 0 && !otherFields.MatchString(text) && !namesUncompared(text) {
				some = append(some, text)
			}
		}
	}
	compareWithOracle(t, some)
}
