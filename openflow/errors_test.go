// SPDX-License-Identifier: Apache-2.0

package openflow

import (
	"errors"
	"strings"
	"testing"
)

// wrongText is an invalid text of a flow. The parser's error must contain the invalid word (the field "word")
// and a description of valid words (the field "expected").
type wrongText struct{ text, word, expected string }

func checkErrors(t *testing.T, tests []wrongText, parse func(text string) error) {
	t.Helper()
	for _, tt := range tests {
		err := parse(tt.text)
		var pe *ParseError
		if !errors.As(err, &pe) {
			t.Errorf("%.80s: error %v, want a ParseError", tt.text, err)
			continue
		}
		if pe.Word != tt.word || !strings.Contains(pe.Expected, tt.expected) {
			t.Errorf("%.80s: names %q, expected %q; want %q, ...%s...", tt.text, pe.Word, pe.Expected, tt.word, tt.expected)
		}
		if strings.Contains(err.Error(), "\n") {
			t.Errorf("%.80s: more than one line: %q", tt.text, err)
		}
	}
}

// The parser's error names the wrong word and the expected text, as in TestErrorsNameTheWord.
func TestMoreErrorsNameTheWord(t *testing.T) {
	checkErrors(t, []wrongText{
		{"tun_gtpu_flags=1,actions=drop", "tun_gtpu_flags", "weft supports"},
		{"nsh_ttl=1,actions=drop", "nsh_ttl=1", "dl_type=0x894f"},
		{"cookie=1/x,actions=drop", "1/x", "cookie=VALUE/MASK"},
		{"ipv6,ipv6_src=::1/129,actions=drop", "::1/129", "from 0 to 128"},
		{"in_port=-1,actions=drop", "-1", "port"},
		{"ip,ct_state=+trk,ct_nw_proto=6,actions=drop", "ct_nw_proto", "valid ct_state"},
		{"actions=enqueue:1", "enqueue:1", "enqueue:PORT:QUEUE"},
		{"actions=enqueue:normal:2", "enqueue:normal:2", "in_port or local"},
		{"actions=set_queue:x", "set_queue:x", "set_queue:NUMBER"},
		{"actions=table", "table", "weft supports"},
		{"actions=encap(nsh(tlv(0x1000,10,0x1234)))", "encap(nsh(tlv(0x1000,10,0x1234)))", "weft supports"},
		{"ip,actions=dec_nsh_ttl", "dec_nsh_ttl", "dl_type=0x894f"},
		{"dl_type=0x894f,nsh_ttl=64,actions=drop", "64", "that an NSH can have"},
		{"actions=decap(1)", "decap(1)", "decap(packet_type(ns=NUMBER,type=NUMBER))"},
		{"actions=check_pkt_larger(1500)", "check_pkt_larger(1500)", "check_pkt_larger(BYTES)->FIELD[BIT]"},
		{"actions=check_pkt_larger(65536)->reg0[0]", "check_pkt_larger(65536)->reg0[0]", "0 to 65535"},
		{"actions=check_pkt_larger(9)->reg0[0..1],1", "check_pkt_larger(9)->reg0[0..1]", "one bit"},
		{"ip,actions=check_pkt_larger(9)->nw_proto[0]", "check_pkt_larger(9)->nw_proto[0]", "can be written"},
		{"actions=output(port=1,max_len=9)", "max_len=9", "from 14"},
		{"actions=output(port=normal,max_len=99)", "port=normal", "in_port or local"},
		{"actions=output(port=1,max_len=99,id=3)", "id=3", "output(port=PORT,max_len=BYTES)"},
		{"actions=write_actions(output(port=1,max_len=99))", "output(port=1,max_len=99)", "action set"},
		{"actions=" + strings.Repeat("1,", 4097), "1", "at most 4096"},
		{"ip,actions=push_vlan:0x8100,mod_tp_src:4", "mod_tp_src:4", "matches tcp"},
		{"actions=write_actions(clone(1))", "clone(1)", "action set"},
		{"actions=clone(meter:1)", "meter:1", "within another"},
		{"actions=meter:1,meter:2", "meter:2", "before all else"},
		{"actions=goto_table:3,goto_table:4", "goto_table:4", "goto_table once"},
		{"dl_vlan=3,actions=move:dl_vlan->reg0[0..11]", "move:dl_vlan->reg0[0..11]", "vlan_vid or vlan_tci[0..11] in place of its alias dl_vlan"},
		{"actions=load:1->ct_mark", "load:1->ct_mark", "ct(commit,exec())"},
		{"actions=set_field:5->vlan_vid", "set_field:5->vlan_vid", "VLAN tag"},
		{"ip,actions=set_field:1/1->nw_ttl", "1/1", "without a mask"},
		{"actions=set_field:0x10000->vlan_tci", "0x10000", "16 bits"},
		{"ipv6,actions=set_field:0x100000->ipv6_label", "0x100000", "20 bits"},
		{"actions=load:1->nowhere", "nowhere", "bits within"},
		{"actions=load:x->reg0", "x", "32 bits"},
		{"actions=load:1", "load:1", "VALUE->FIELD"},
		{"actions=move:nowhere->reg0", "nowhere", "bits within"},
		{"actions=move:reg0->nowhere", "nowhere", "bits within"},
		{"actions=move:reg0", "move:reg0", "VALUE->FIELD"},
		{"actions=push:nowhere", "push:nowhere", "push:FIELD"},
		{"actions=pop:reg0[32]", "pop:reg0[32]", "pop:FIELD"},
		{"actions=sample(probability=0)", "sample(probability=0)", "from 1 to 65535"},
		{"actions=sample(probability=1,obs_point_id=x)", "obs_point_id=x", "32 bits"},
		{"actions=sample(probability=1,obs_point_id=metadata[])", "obs_point_id=metadata[]", "32 bits"},
		{"actions=sample(probability=1,rate=2)", "rate=2", "collector_set_id"},
		{"actions=pop:eth_type", "pop:eth_type", "read-only"},
		{"actions=push:nw_src", "push:nw_src", "matches ip"},
		{"actions=write_actions(exit)", "exit", "action set"},
		{"actions=multipath(eth_src,50)", "multipath(eth_src,50)", "multipath(FIELDS,BASIS,"},
		{"actions=multipath(vlan,0,hrw,1,0,reg0[])", "vlan", "symmetric_l4"},
		{"actions=multipath(eth_src,0x5,hrw,1,0,reg0[])", "0x5", "decimal number"},
		{"actions=multipath(eth_src,0,fair,1,0,reg0[])", "fair", "modulo_n"},
		{"actions=multipath(eth_src,0,hrw,0,0,reg0[])", "0", "1 to 65536"},
		{"actions=multipath(eth_src,0,hrw,1,x,reg0[])", "x", "argument of the algorithm"},
		{"actions=multipath(eth_src,0,hrw,9,0,reg0[0..2])", "reg0[0..2]", "bits for 9 links"},
		{"actions=multipath(eth_src,0,hrw,9,0,nowhere)", "nowhere", "bits within"},
		{"actions=bundle(eth_src,0,hrw,ofport,1,2)", "bundle(eth_src,0,hrw,ofport,1,2)", "members:PORT"},
		{"actions=bundle(eth_src,0,iter_hash,ofport,members:1)", "iter_hash", "active_backup"},
		{"actions=bundle(eth_src,0,hrw,mac,members:1)", "mac", "ofport"},
		{"actions=bundle(eth_src,0,hrw,ofport,members:eth9)", "eth9", "name of a port"},
		{"actions=bundle(eth_src,0,hrw,ofport,members:controller)", "bundle(eth_src,0,hrw,ofport,members:controller)", "not port 65533"},
		{"actions=bundle_load(eth_src,0,hrw,ofport,reg0[0..3],members:1)", "reg0[0..3]", "at least 16 bits"},
		{"actions=mod_vlan_pcp:8", "mod_vlan_pcp:8", "0 to 7"},
		{"ip,actions=mod_nw_src:1.2.3", "mod_nw_src:1.2.3", "IPv4"},
		{"ip,actions=mod_nw_tos:3", "mod_nw_tos:3", "no bits beyond"},
		{"actions=goto_table:x", "goto_table:x", "0 to 254"},
		{"actions=resubmit(1,x)", "resubmit(1,x)", "0 to 254"},
		{"actions=resubmit(eth9,1)", "eth9", "name of a port"},
		{"actions=write_metadata:x", "write_metadata:x", "64 bits"},
		{"actions=set_tunnel:x", "set_tunnel:x", "tunnel number"},
		{"actions=note:0g", "note:0g", "hexadecimal"},
		{"actions=group:", "group:", "group:NUMBER"},
		{"actions=controller(max_len=x)", "x", "max_len"},
		{"actions=controller(userdata=0g)", "userdata=0g", "hexadecimal"},
		{"actions=controller(nosuch=1)", "nosuch=1", "max_len, id, reason, userdata, pause or meter_id"},
		{"actions=controller(meter_id=x)", "meter_id=x", "meter number"},
		{"actions=write_actions(controller(id=3))", "controller(id=3)", "max_len alone"},
		{"actions=learn(table=x)", "table=x", "0 to 254"},
		{"actions=learn(result_dst=nowhere)", "result_dst=nowhere", "one bit"},
		{"actions=learn(output:nowhere)", "output:nowhere", "output:FIELD"},
		{"actions=learn(load:1->nowhere)", "nowhere", "bits within"},
		{"actions=learn(load:reg0->reg1[0..3])", "reg1[0..3]", "as many bits"},
		{"actions=learn(load:x->reg1[0..3])", "x", "at most 4 bits"},
		{"actions=learn(reg0[0..3]=99)", "reg0[0..3]=99", "at most 4 bits"},
		{"actions=learn(reg0=1/1)", "reg0=1/1", "without a mask"},
		{"actions=learn(dl_vlan=3)", "dl_vlan=3", "vlan_vid or vlan_tci[0..11] in place of its alias dl_vlan"},
		{"ip,actions=ct(force)", "ct(force)", "together with commit"},
		{"ip,actions=ct(exec(load:1->ct_mark))", "ct(exec(load:1->ct_mark))", "together with commit"},
		{"actions=ct(commit)", "ct(commit)", "ct needs"},
		{"ip,actions=ct(commit,alg=ftp)", "ct(commit,alg=ftp)", "protocol which ftp uses"},
		{"ip,actions=ct(table=300)", "table=300", "0 to 254"},
		{"tcp,actions=ct(commit,alg=irc)", "alg=irc", "alg=ftp"},
		{"ip,actions=ct(nosuch)", "nosuch", "within ct"},
		{"ip,actions=ct(zone=70000)", "zone=70000", "0 to 65535"},
		{"ip,actions=ct(commit,exec(1))", "exec(1)", "ct_mark or ct_label"},
		{"ip,actions=ct(commit,nat(src=10.0.0.1,dst=10.0.0.2))", "nat(src=10.0.0.1,dst=10.0.0.2)", "once"},
		{"ip,actions=ct(commit,nat(nosuch))", "nosuch", "within nat"},
		{"ip,actions=ct(commit,nat(src=10.0.0.1,hash,random))", "nat(src=10.0.0.1,hash,random)", "not both"},
		{"ip,actions=ct(commit,nat(random))", "nat(random)", "src or dst beside"},
		{"ip,actions=ct(commit,nat(src=10.0.0.9-10.0.0.1))", "src=10.0.0.9-10.0.0.1", "ADDR-ADDR"},
	}, func(text string) error { _, err := ParseFlowMod(text, Add, nil); return err })
	checkErrors(t, []wrongText{
		{"table=3,ip", "table=3,ip", "only match fields"},
		{"cookie=1/-1,ip", "cookie=1/-1,ip", "only match fields"},
	}, func(text string) error { _, _, err := ParseFrame(text, nil); return err })
}

func TestGroupErrorsNameTheWord(t *testing.T) {
	many := "group_id=1,type=all" + strings.Repeat(",bucket=1", MaxBuckets+1)
	checkErrors(t, []wrongText{
		{"type=all,bucket=1", "type=all,bucket=1", "group_id=NUMBER"},
		{"group_id=1,bucket=1", "group_id=1,bucket=1", "type=all"},
		{"group_id=1,type=some,bucket=1", "some", "indirect or ff"},
		{"group_id=x,type=all,bucket=1", "x", "group number"},
		{"group_id=1,type=select,selection_method=dice,bucket=1", "dice", "hash or dp_hash"},
		{"group_id=1,type=select,selection_method_param=x,bucket=1", "x", "selection_method_param"},
		{"group_id=1,type=select,selection_method=hash,fields(nosuch),bucket=1", "nosuch", "name of a field"},
		{"group_id=1,type=all,nosuch=1,bucket=1", "nosuch=1", "group_id, type"},
		{"group_id=1,type=select,bucket=weight:3", "bucket", "actions in each"},
		{"group_id=1,type=all,bucket=weight:3,1", "weight:3", "select groups only"},
		{"group_id=1,type=all,bucket=bucket_id:x,1", "x", "number of a bucket"},
		{"group_id=1,type=all,bucket=bucket_id:1,1,bucket=bucket_id:1,2", "bucket_id:1", "of its own"},
		{"group_id=1,type=ff,bucket=1", "bucket", "watch_port or watch_group"},
		{"group_id=1,type=ff,bucket=watch_port:eth9,1", "eth9", "name of a port"},
		{"group_id=1,type=indirect,bucket=1,bucket=2", "bucket", "one bucket"},
		{"group_id=1,type=all,bucket=flyy", "flyy", "an action"},
		{many, "bucket", "at most"},
	}, func(text string) error { _, err := ParseGroupMod(text, GroupAdd, nil); return err })
	checkErrors(t, []wrongText{{"group_id=1,bucket=1", "bucket", "only a group's number"}},
		func(text string) error { _, err := ParseGroupMod(text, GroupDelete, nil); return err })
}

func TestMeterErrorsNameTheWord(t *testing.T) {
	checkErrors(t, []wrongText{
		{"meter=0,kbps,bands=type=drop,rate=1", "meter=0", "from 1 to"},
		{"meter=x,kbps,bands=type=drop,rate=1", "meter=x", "from 1 to"},
		{"meter=1,mbps,bands=type=drop,rate=1", "mbps", "kbps, pktps"},
		{"kbps,bands=type=drop,rate=1", "meter", "meter=NUMBER"},
		{"meter=all,kbps,bands=type=drop,rate=1", "meter", "meter=NUMBER"},
		{"meter=1,kbps,pktps,bands=type=drop,rate=1", "meter", "either kbps or pktps"},
		{"meter=1,kbps", "meter", "bands="},
		{"meter=1,kbps,bands=type=shape,rate=1", "type=shape", "type=drop"},
		{"meter=1,kbps,bands=type=drop,rate=1,prec_level=1", "prec_level=1", "dscp_remark"},
		{"meter=1,kbps,bands=type=dscp_remark,rate=1,prec_level=0", "prec_level=0", "from 1"},
		{"meter=1,kbps,bands=rate=1", "rate=1", "begins with type=drop"},
		{"meter=1,kbps,bands=type=drop,speed=1", "speed=1", "burst_size"},
		{"meter=1,kbps,bands=type=drop,rate=x", "rate=x", "32 bits"},
		{"meter=1,kbps,bands=type=drop,rate=1,burst_size=3", "burst_size=3", "flag burst"},
		{"meter=1,kbps,bands=type=drop", "rate", "not 0"},
		{"meter=1,kbps,burst,bands=type=drop,rate=1", "burst_size", "not 0"},
		{"meter=1,kbps,bands=", "bands", "type=drop,rate=NUMBER"},
	}, func(text string) error { _, err := ParseMeterMod(text, MeterAdd); return err })
	checkErrors(t, []wrongText{{"meter=1,kbps", "bands", "only a meter's number"}},
		func(text string) error { _, err := ParseMeterMod(text, MeterDelete); return err })
}

// A nested action is refused before its inner text is parsed.
func TestNestingIsRefusedFirst(t *testing.T) {
	for text, expected := range map[string]string{
		"write_actions(write_actions(nonsense))":                                        "no write_actions within another action",
		"clone(write_actions(nonsense))":                                                "no write_actions within another action",
		"ct(commit,exec(ct(commit,exec(nonsense))))":                                    "actions that set ct_mark or ct_label within exec",
		"ct(commit,exec(clone(ct(commit,exec(nonsense)))))":                             "actions that set ct_mark or ct_label within exec",
		strings.Repeat("write_actions(", 1000) + "nonsense" + strings.Repeat(")", 1000): "no write_actions within another action",
	} {
		_, err := ParseActions(text, nil)
		var pe *ParseError
		if !errors.As(err, &pe) || pe.Expected != expected {
			t.Errorf("%.60s: %.200v, want one that expects %s", text, err, expected)
		}
	}
}
