// SPDX-License-Identifier: Apache-2.0

package openflow

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	"weft/openflow/openflowtest"
)

// The parser's error names the wrong word and the expected text.
func TestErrorsNameTheWord(t *testing.T) {
	tests := []struct{ text, word, expected string }{
		{"nosuch=1,actions=drop", "nosuch", "match field such as"},
		{"nosuch,actions=drop", "nosuch", "match field such as"},
		{"in_port=1", "", "actions="},
		{"in_port=1,actions", "actions", "actions="},
		{"in_port=eth9,actions=drop", "eth9", "name of a port"},
		{`in_port="eth9,actions=drop`, `"eth9,actions=drop`, "double quotes"},
		{"in_port=70000,actions=drop", "70000", "from 0 to 65535"},
		{"dl_dst=01:02,actions=drop", "01:02", "xx:xx:xx:xx:xx:xx"},
		{"dl_type=0x800/0xff,actions=drop", "0x800/0xff", "without a mask"},
		{"dl_vlan=70000,actions=drop", "70000", "16 bits"},
		{"dl_vlan=5000,actions=drop", "5000", "VLAN number from 0 to 4095"},
		{"vlan_vid=9000,actions=drop", "9000", "VLAN number from 0 to 4095"},
		{"ip,nw_src=10.0.0,actions=drop", "10.0.0", "IPv4 address"},
		{"ip,nw_src=10.0.0.0/40,actions=drop", "10.0.0.0/40", "from 0 to 32"},
		{"ipv6,ipv6_dst=10.0.0.1,actions=drop", "10.0.0.1", "IPv6 address"},
		{"ip,nw_frag=maybe,actions=drop", "maybe", "not_later"},
		{"tcp,tcp_flags=+syn+bad,actions=drop", "+syn+bad", "TCP flags"},
		{"tcp,nw_frag=later,tp_src=1,actions=drop", "tp_src", "nw_frag=later"},
		{"reg16=1,actions=drop", "reg16", "match field"},
		{"reg0=0x100000000,actions=drop", "0x100000000", "32 bits"},
		{"ct_state=+trk-trk,actions=drop", "+trk-trk", "+trk-new"},
		{"priority=65536,actions=drop", "65536", "65535 for priority"},
		{"priority,actions=drop", "priority", "priority=VALUE"},
		{"table=256,actions=drop", "256", "table number"},
		{"idle_timeout=x,actions=drop", "x", "idle_timeout"},
		{"cookie=y,actions=drop", "y", "64-bit"},
		{"cookie=1/1,actions=drop", "cookie", "without a mask"},
		{"out_port=1,actions=drop", "out_port", "match field"},
		{"actions=fly", "fly", "a port or an action"},
		{"actions=fly:1", "fly:1", "an action such as"},
		{"actions=resubmit( ,4)", "resubmit( ,4)", "before the comma"},
		{"actions=output:eth9", "eth9", "name of a port"},
		{"actions=output:none", "output:none", "can be sent to"},
		{"actions=drop,1", "drop", "no other action"},
		{"actions=1,drop", "drop", "no other action"},
		{"actions=group:x", "group:x", "group:NUMBER"},
		{"actions=meter:0", "meter:0", "from 1"},
		{"actions=1,meter:1", "meter:1", "before all else"},
		{"actions=learn(table=255)", "table=255", "0 to 254"},
		{"actions=learn(nosuch=1)", "nosuch=1", "a field to match"},
		{"actions=learn(result_dst=reg0)", "result_dst=reg0", "one bit"},
		{"actions=learn(eth_dst=reg0)", "eth_dst=reg0", "48"},
		{"actions=learn(udp_dst=5)", "udp_dst=5", "udp"},
		{"tcp,actions=fin_timeout(soon=1)", "soon=1", "hard_timeout"},
		{"tcp,actions=fin_timeout(idle_timeout=70000)", "70000", "65535 for idle_timeout"},
		{"ip,actions=push_vlan:0x8100,fin_timeout(idle_timeout=4)", "fin_timeout(idle_timeout=4)", "tcp"},
		{"tcp,actions=write_actions(fin_timeout(idle_timeout=4))", "fin_timeout(idle_timeout=4)", "action set"},
		{"actions=controller:70000", "controller:70000", "at most 65535"},
		{"actions=controller(reason=foo)", "reason=foo", "no_match"},
		{"actions=set_field:1->nowhere", "nowhere", "name of a field"},
		{"actions=set_field:1", "set_field:1", "VALUE->FIELD"},
		{"actions=set_field:x->reg0", "x", "32 bits"},
		{"ip,actions=set_field:5->nw_tos", "5", "multiple of 4"},
		{"ip,actions=set_field:6->nw_proto", "set_field:6->nw_proto", "read-only"},
		{"actions=set_field:1->arp_op", "set_field:1->arp_op", "arp"},
		{"icmp6,actions=set_field:fe80::1->nd_target", "set_field:fe80::1->nd_target", "135"},
		{"actions=set_field:1.2.3.4->nw_src", "set_field:1.2.3.4->nw_src", "matches ip"},
		{"actions=load:1->reg0[3..1]", "reg0[3..1]", "bits within"},
		{"actions=load:1->reg0[0..32]", "reg0[0..32]", "bits within"},
		{"actions=load:4->reg0[0..1]", "4", "2 bits"},
		{"actions=move:reg0[0..3]->reg1[0..4]", "reg1[0..4]", "reg0[0..3]"},
		{"actions=push_vlan:0x1234", "push_vlan:0x1234", "0x8100"},
		{"actions=mod_vlan_vid:4096", "mod_vlan_vid:4096", "0 to 4095"},
		{"actions=mod_dl_src:zz", "mod_dl_src:zz", "Ethernet"},
		{"table=3,actions=goto_table:3", "goto_table:3", "behind the flow's own, 3"},
		{"actions=goto_table:300", "goto_table:300", "0 to 254"},
		{"actions=goto_table:3,1", "1", "goto_table at the end"},
		{"actions=write_actions(1),2", "2", "write_actions at the end"},
		{"actions=write_actions(1),clear_actions", "clear_actions", "clear_actions before write_actions"},
		{"actions=write_actions(1),write_actions(2)", "write_actions(2)", "write_actions once"},
		{"actions=write_actions(note:00)", "note:00", "action set"},
		{"actions=clone(clear_actions)", "clear_actions", "within another"},
		{"actions=clone(goto_table:3)", "goto_table:3", "within another"},
		{"actions=resubmit", "resubmit", "a port or a table"},
		{"actions=resubmit(,1,cx)", "resubmit(,1,cx)", "resubmit(PORT,TABLE)"},
		{"actions=" + strings.Repeat("clone(", 17) + "1" + strings.Repeat(")", 17), "clone", "at most 16"},
	}
	for _, tt := range tests {
		_, err := ParseFlowMod(tt.text, Add, nil)
		var pe *ParseError
		if !errors.As(err, &pe) {
			t.Errorf("%s: error %v, want a ParseError", tt.text, err)
			continue
		}
		if pe.Word != tt.word || !strings.Contains(pe.Expected, tt.expected) {
			t.Errorf("%s: names %q, expected %q; want %q, ...%s...", tt.text, pe.Word, pe.Expected, tt.word, tt.expected)
		}
		if strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: more than one line: %q", tt.text, err)
		}
	}
}

func TestFilterText(t *testing.T) {
	wrong := map[string]string{
		"cookie=5": "cookie=5/-1", "priority=3": "match field", "actions=drop": "only a match", "idle_timeout=3": "match field",
	}
	for text, part := range wrong {
		if _, err := ParseFilter(text, nil); err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("%s: %v, want ...%s...", text, err, part)
		}
	}
	mod, err := ParseFilter("table=3,cookie=0xff/-1,out_port=LOCAL,tcp", nil)
	if err != nil {
		t.Fatal(err)
	}
	if mod.Command != Delete || mod.Table != 3 || mod.Cookie != 0xff || mod.CookieMask != ^uint64(0) || !mod.ByOutPort || mod.OutPort != PortLocal {
		t.Errorf("unexpected filter %+v", mod)
	}
	if strict, err := ParseFlowMod("priority=3,ip", DeleteStrict, nil); err != nil || strict.Priority != 3 {
		t.Errorf("strict delete: unexpected result %+v, %v", strict, err)
	}
	if all, err := ParseFilter("", nil); err != nil || all.Table != TableAll || all.Match != (PackedMatch{}) {
		t.Errorf("empty filter: unexpected result %+v, %v", all, err)
	}
}

func TestFileOfFlows(t *testing.T) {
	text := "# a comment\n\nin_port=1,actions=2 # behind\n delete table=3\nmodify in_port=2,actions=drop\n"
	mods, err := ParseFlowMods(text, Add, nil)
	if err != nil {
		t.Fatal(err)
	}
	var commands []Command
	for _, m := range mods {
		commands = append(commands, m.Command)
	}
	if want := []Command{Add, Delete, Modify}; !reflect.DeepEqual(commands, want) {
		t.Errorf("commands %v, want %v", commands, want)
	}
	long := strings.Repeat("in_port=1,actions=2\n", 69_999) + "in_port=1,actions=flyy\n"
	_, err = ParseFlowMods(long, Add, nil)
	if want := `line 70000: "flyy": expected a port or an action`; err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("error %v, want %s...", err, want)
	}
	if _, err := ParseFlowMods("in_port=1\n"+strings.Repeat("x", maxLine+1), Add, nil); err == nil {
		t.Error("a line longer than maxLine was accepted")
	}
}

func TestNotesOnFieldsLeftOut(t *testing.T) {
	mod, err := ParseFlowMod("nw_src=1.2.3.4,actions=drop", Add, nil)
	if err != nil || mod.Match != (PackedMatch{}) {
		t.Fatalf("match %+v, error %v; want a match of everything", mod.Match, err)
	}
	if len(mod.Notes) != 1 || !strings.Contains(mod.Notes[0], "ip_src is ignored") {
		t.Errorf("unexpected notes %q", mod.Notes)
	}
}

// A match of packet_type=(0,0) matches every frame.
func TestPacketType(t *testing.T) {
	for _, text := range []string{"packet_type=(0,0)", "packet_type=(0x0,0x0)", "packet_type=*"} {
		mod, err := ParseFlowMod(text+",in_port=1,actions=drop", Add, nil)
		if m := mod.Match.Unpack(); err != nil || FormatMatch(&m, nil) != "in_port=1" {
			t.Errorf("%s: match %s, error %v", text, FormatMatch(&m, nil), err)
		}
	}
	for _, text := range []string{"packet_type=(1,0x800)", "packet_type=(0,5)", "packet_type=0", "packet_type=", "packet_type=(0,0", "packet_type=(,)", "packet_type"} {
		if _, err := ParseFlowMod(text+" actions=drop", Add, nil); err == nil || !strings.Contains(err.Error(), "packet_type=(0,0)") {
			t.Errorf("%s: error %v", text, err)
		}
	}
	ethernet := packetTypeHeader.append(nil, false)
	m, err := DecodeMatch(append(ethernet, 0, 0, 0, 0), nil)
	if err != nil || m != (Match{}) {
		t.Errorf("on the wire: match %s, error %v", FormatMatch(&m, nil), err)
	}
	if _, err := DecodeMatch(append(ethernet, 0, 1, 8, 0), nil); err == nil {
		t.Error("IPv4 without Ethernet is accepted on the wire")
	}
}

// A text that lacks the prerequisite of a field leaves the field out with a note. With the
// prerequisite, the field stays.
func TestFieldsNeedTheirPrerequisites(t *testing.T) {
	for id := FTunID; id < FTunMetadata; id++ {
		f := &fields[id]
		if f.prerequisite == NeedNothing || f.prerequisite == NeedVLAN || f.prerequisite >= NeedCT {
			continue // a match on a VLAN field implies the tag, and checkCT refuses a ct field in place of ignoring it
		}
		value, _ := sample(f)
		if f.format == asFrag {
			value = "yes"
		}
		_, hi, _ := WholeField(id).Mask()
		kept := 0
		for _, context := range contexts {
			mod, err := ParseFlowMod(strings.TrimPrefix(context+",", ",")+f.name+"="+value+",actions=drop", Add, nil)
			if err != nil {
				continue // later fragments have no transport fields
			}
			m := mod.Match.Unpack()
			stays := m.Mask[f.word]&hi != 0
			if stays {
				kept++
			}
			if f.prerequisite.Met(&m) && !stays {
				t.Errorf("%s after %q is left out", f.name, context)
			}
			if allowed := meetsAny(&m, int(f.word), hi); stays && !allowed || !stays && len(mod.Notes) == 0 {
				t.Errorf("%s after %q: it stays: %v, notes %q", f.name, context, stays, mod.Notes)
			}
		}
		if kept == 0 {
			t.Errorf("every text leaves %s out", f.name)
		}
	}
}

// meetsAny reports whether the match meets the prerequisite of at least one field that has bits of "mask" in
// Flow[word].
func meetsAny(m *Match, word int, mask uint64) bool {
	for id := FTunID; id < FTunMetadata; id++ {
		f := &fields[id]
		if _, hi, _ := WholeField(id).Mask(); int(f.word) == word && hi&mask != 0 && f.prerequisite.Met(m) {
			return true
		}
	}
	return false
}

func roundTrip(t *testing.T, mod FlowMod, names Names) {
	t.Helper()
	mod.Notes = nil
	text := FormatFlowMod(&mod, names)
	again, err := ParseFlowMod(text, mod.Command, names)
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	if len(again.Notes) > 0 {
		t.Fatalf("%s: unexpected notes %q", text, again.Notes)
	}
	if !reflect.DeepEqual(mod, again) {
		t.Fatalf("%s\n was %+v\n now %+v", text, mod, again)
	}
}

func TestFlowTextRoundTrip(t *testing.T) {
	names := portNames()
	n := 0
	for _, text := range corpus(t) {
		for _, names := range []Names{nil, names} {
			if mod, err := ParseFlowMod(text, Add, names); err == nil {
				roundTrip(t, mod, names)
				n++
			}
		}
	}
	r := rand.New(rand.NewPCG(1, 1))
	for range 5000 {
		if mod, err := ParseFlowMod(openflowtest.FlowText(r), Add, names); err == nil {
			roundTrip(t, mod, names)
			n++
		}
	}
	if n < 3000 {
		t.Errorf("only %d flows compared", n)
	}
}

// portNames returns the port names and the TLV map of the tests.
func portNames() Names { return WithTLVs(openflowtest.PortNames(), testTLVs) }

func TestQuotedPortNames(t *testing.T) {
	names := openflowtest.PortNames()
	names[20], names[21], names[22], names[23] = "normal", "a,b", "1", `q"uote`
	for number := range names {
		mod := FlowMod{Priority: DefaultPriority, ModifyCookie: true, Actions: []Action{{Kind: ActOutput, Port: number}}}
		var match Match
		setField(&match, FInPort, Value64(uint64(number)), Ones(32))
		mod.Match = match.Pack()
		roundTrip(t, mod, WithTLVs(names, testTLVs))
	}
}

func FuzzFlowText(f *testing.F) {
	for _, text := range []string{
		"tcp,nw_src=10.0.0.0/8,tp_dst=80,actions=mod_nw_tos:4,output:\"vm-1\"", "dl_vlan=5,actions=clone(strip_vlan,1),normal",
		"table=3,cookie=5,vlan_tci=0x1000/0x1000,reg0=1/3,actions=load:1->NXM_NX_REG1[0..3],resubmit(,9)",
		"ipv6,ipv6_src=fe80::/10,actions=set_field:::1->ipv6_src,goto_table:9", "actions=note:00.11,write_metadata:1/3",
	} {
		f.Add(text)
	}
	names := portNames()
	f.Fuzz(func(t *testing.T, text string) {
		for _, command := range []Command{Add, Modify, Delete, DeleteStrict} {
			mod, err := ParseFlowMod(text, command, names)
			if err == nil {
				roundTrip(t, mod, names)
			} else if strings.ContainsAny(err.Error(), "\r\n") {
				t.Errorf("more than one line: %q", err)
			}
		}
	})
}

// Flows that are parsed one after the other share no memory. A flow after an invalid one is parsed as if it
// were the first.
func TestParsedFlowsAreIndependent(t *testing.T) {
	texts := []string{"table=3,tcp,nw_src=10.0.0.1,tp_dst=80,idle_timeout=5,actions=set_field:7->reg1,output:2", "cookie=5,udp,send_flow_rem,actions=drop"}
	parse := func(text string) FlowMod {
		mod, err := ParseFlowMod(text, Add, nil)
		if err != nil {
			t.Fatal(err)
		}
		return mod
	}
	first := parse(texts[0])
	want := fmt.Sprintf("%+v", first)
	for _, bad := range []string{"table=9,icmp,tp_dst=x,actions=drop", "priority=7,tcp,tp_src=9,actions=output:", "ip,nw_src=10.0.0.9"} {
		if _, err := ParseFlowMod(bad, Add, nil); err == nil {
			t.Errorf("%s: no error", bad)
		}
	}
	second := parse(texts[1])
	if got := fmt.Sprintf("%+v", first); got != want {
		t.Errorf("%s became %s", want, got)
	}
	if again := parse(texts[1]); !reflect.DeepEqual(again, second) || second.Table != 0 || second.Priority != DefaultPriority || second.IdleTimeout != 0 {
		t.Errorf("%s: %+v, then %+v", texts[1], second, again)
	}
}
