// SPDX-License-Identifier: Apache-2.0

package xlate

import (
	"math/rand/v2"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"weft/flowtable"
	"weft/openflow"
	"weft/openflow/fdb"
	"weft/openflow/ofproto"
	"weft/openflow/openflowtest"
	"weft/packet"
)

// agreeing returns a key that agrees with k in the bits of mask. The other bits are
// random, differ from k in one bit, or come from another frame.
func agreeing(r *rand.Rand, k, mask *flowtable.Key) flowtable.Key {
	var o flowtable.Key
	switch r.IntN(3) {
	case 0:
		for i := range o {
			o[i] = r.Uint64()
		}
	case 1:
		o = *k
		o[r.IntN(len(o))] ^= 1 << r.IntN(64)
	case 2:
		o = openflowtest.Key(r)
	}
	for i := range o {
		o[i] = k[i]&mask[i] | o[i]&^mask[i]
	}
	return o
}

// All keys that agree on a translation's mask have the same translation.
func TestMegaflowsAreSound(t *testing.T) {
	rounds := 300
	if testing.Short() {
		rounds = 50
	}
	for seed := range rounds {
		checkSound(t, uint64(seed), 40)
		if t.Failed() {
			return
		}
	}
}

func checkSound(t *testing.T, seed uint64, keys int) {
	r := rand.New(rand.NewPCG(seed, 1))
	p := ofproto.NewTables(ofproto.Limits{})
	texts := addRandom(p, r, 1+r.IntN(30))
	env := newEnv()
	env.macs.Learn(fdb.Learn{Valid: true, VLAN: 0, Port: 2, MAC: 2}, 0)
	env.macs.Learn(fdb.Learn{Valid: true, VLAN: 1, Port: 4, MAC: 3}, 0)
	if seed%3 == 0 {
		for i := range env.ports {
			env.ports[i].VLANs = randomVLANs(r)
		}
		randomMirrors(r, env)
	}
	for range keys {
		k := openflowtest.Key(r)
		got := Translate(p, &k, env)
		for range 20 {
			o := agreeing(r, &k, &got.Mask)
			other := Translate(p, &o, env)
			mask := other.Mask
			other.Mask = got.Mask
			if !reflect.DeepEqual(got, other) {
				t.Fatalf("seed %d: keys agree on the mask %x\n%x: %s %v\n%x: %s %v %x\nflows:\n%s", seed, got.Mask,
					k, openflow.FormatDatapathActions(got.Actions, nil), learnOf(&got), o, openflow.FormatDatapathActions(other.Actions, nil),
					learnOf(&other), mask, strings.Join(texts, "\n"))
			}
		}
	}
}

func FuzzMegaflowsAreSound(f *testing.F) {
	for seed := range uint64(5) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) { checkSound(t, seed, 5) })
}

func pipelineOf(t *testing.T, flows ...string) *ofproto.Tables {
	t.Helper()
	p := ofproto.NewTables(ofproto.Limits{})
	mods, err := openflow.ParseFlowMods(strings.Join(flows, "\n"), openflow.Add, newEnv())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Apply(mods, 0); err != nil {
		t.Fatal(err)
	}
	return p
}

func keyOfText(t *testing.T, text string) flowtable.Key {
	t.Helper()
	k, _, err := openflow.ParseFrame(text, newEnv())
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// TestTranslation compares the megaflows of a list of flows with the expected
// megaflows.
func TestTranslation(t *testing.T) {
	tests := []struct {
		name, flows, frame, mask, actions string
	}{
		{"empty", "", "in_port=1", "", "drop(table-miss)"},
		{"drop", "actions=drop", "in_port=1", "", "drop(flow-drop)"},
		{"output", "actions=2", "in_port=1", "in_port=1", "2"},
		{"not back", "actions=1,2", "in_port=1", "in_port=1", "2"},
		{"only back", "actions=1", "in_port=1", "in_port=1", "drop(flow-drop)"},
		{"hairpin", "actions=in_port", "in_port=1", "in_port=1", "1"},
		{"no port", "actions=99", "in_port=1", "in_port=1", "drop(no-port)"},
		{"uplink", "actions=7", "in_port=1", "in_port=1", "drop(no-port)"},
		{"flood", "actions=flood", "in_port=1",
			"tun_id=0/0xffffff,tun_dst=0.0.0.0,tun_ipv6_dst=::,in_port=1", "2,4,tunnel(template=%v,vni=55)"},
		{"early stop", "priority=9,in_port=1,actions=2\npriority=5,ip,nw_src=1.2.3.4,actions=4", "in_port=1,tcp,nw_src=5.5.5.5",
			"in_port=1", "2"},
		{"staged", "priority=40000,tcp,nw_dst=10.0.0.5,tp_dst=80,actions=drop\nactions=2", "in_port=1,tcp,nw_dst=10.0.0.6,tp_dst=443",
			"ip,in_port=1,nw_dst=10.0.0.6", "2"},
		{"staged, other type", "priority=40000,tcp,nw_dst=10.0.0.5,tp_dst=80,actions=drop\nactions=2", "in_port=1,arp", "arp,in_port=1", "2"},
		{"resubmit keeps changes", "in_port=1,actions=mod_dl_src:00:00:00:00:00:09,resubmit(,1),4\ntable=1,actions=2", "in_port=1",
			"in_port=1", "set(eth(src=00:00:00:00:00:09)),2,4"},
		{"order", "actions=2,mod_dl_dst:00:00:00:00:00:09,4", "in_port=1", "in_port=1", "2,set(eth(dst=00:00:00:00:00:09)),4"},
		{"set twice", "actions=mod_dl_dst:00:00:00:00:00:08,2,mod_dl_dst:00:00:00:00:00:08,4", "in_port=1", "in_port=1",
			"set(eth(dst=00:00:00:00:00:08)),2,4"},
		{"set for another", "actions=mod_nw_src:1.1.1.1,2", "in_port=1,arp", "arp,in_port=1", "2"},
		{"answer to a solicitation", "icmp6,icmp_type=135,actions=set_field:136->icmpv6_type,resubmit(,1)\n" +
			"table=1,icmp6,icmp_type=136,actions=set_field:00:00:00:00:00:09->nd_tll,set_field:2->nd_options_type,set_field:0x60000000->nd_reserved,in_port",
			"in_port=1,icmp6,icmp_type=135,nd_target=fe80::1,nd_options_type=1", "icmp6,in_port=1,nw_frag=no,icmp_type=135,icmp_code=0",
			"set(nd_ext(nd_reserved=1610612736)),set(nd_ext(nd_options_type=2)),set(nd(tll=00:00:00:00:00:09)),set(icmp(type=136)),1"},
		{"push", "actions=push_vlan:0x8100,set_field:4101->vlan_vid,2", "in_port=1", "in_port=1",
			"push_vlan(tpid=0x8100,vid=5,pcp=0),2"},
		{"pop", "actions=strip_vlan,2", "in_port=1,dl_vlan=7", "in_port=1,vlan_tci=0x1000/0x1000", "pop_vlan,2"},
		{"pop none", "actions=strip_vlan,2", "in_port=1", "in_port=1,vlan_tci=0x0000/0x1000", "2"},
		{"vid", "actions=mod_vlan_vid:9,2", "in_port=1,dl_vlan=7,dl_vlan_pcp=3", "in_port=1,dl_vlan_pcp=3",
			"set(vlan(vid=9,pcp=3)),2"},
		{"pop and push", "dl_vlan=7,actions=strip_vlan,push_vlan:0x88a8,2", "in_port=1,dl_vlan=7", "in_port=1,dl_vlan=7",
			"pop_vlan,push_vlan(tpid=0x88a8,vid=0,pcp=0),2"},
		{"pop and push the same", "dl_vlan=7,actions=strip_vlan,push_vlan:0x8100,set_field:7->vlan_vid,2", "in_port=1,dl_vlan=7",
			"in_port=1,dl_vlan=7", "pop_vlan,push_vlan(tpid=0x8100,vid=7,pcp=0),2"},
		{"tag for one", "actions=push_vlan:0x8100,2,strip_vlan,4", "in_port=1", "in_port=1",
			"push_vlan(tpid=0x8100,vid=0,pcp=0),2,pop_vlan,4"},
		{"ttl", "actions=dec_ttl,2", "in_port=1,ip,nw_ttl=64", "ip,in_port=1,nw_ttl=0x40/0x40", "dec_ttl,2"},
		{"ttl out", "actions=dec_ttl,2", "in_port=1,ip,nw_ttl=1", "ip,nw_ttl=0x0/0xfe", "drop(ttl-expired)"},
		{"ttl out within", "actions=resubmit(,1),4\ntable=1,actions=dec_ttl,2", "in_port=1,ip,nw_ttl=1",
			"ip,in_port=1,nw_ttl=0x0/0xfe", "4"},
		{"ttl twice", "actions=dec_ttl,2,dec_ttl,4", "in_port=1,ip,nw_ttl=3", "ip,in_port=1,nw_ttl=3", "dec_ttl,2,dec_ttl,4"},
		{"clone", "actions=clone(mod_dl_src:00:00:00:00:00:09,2),4", "in_port=1,dl_src=00:00:00:00:00:05",
			"in_port=1,dl_src=00:00:00:00:00:05", "set(eth(src=00:00:00:00:00:09)),2,set(eth(src=00:00:00:00:00:05)),4"},
		{"clone without more", "actions=2,clone(mod_dl_src:00:00:00:00:00:09,4)", "in_port=1", "in_port=1",
			"2,set(eth(src=00:00:00:00:00:09)),4"},
		{"tunnel of the flow", "actions=set_field:100->tun_id,set_field:192.0.2.9->tun_dst,6", "in_port=1",
			"tun_src=0.0.0.0,in_port=1", "tunnel(template=%v,vni=100)"},
		{"tunnel to nowhere", "actions=6", "in_port=1", "tun_id=0/0xffffff,tun_dst=0.0.0.0,tun_ipv6_dst=::,in_port=1", "drop(no-route)"},
		{"ports", "udp,actions=mod_tp_dst:5,2", "in_port=1,udp,tp_dst=4", "udp,in_port=1,nw_frag=not_later", "set(tp(dst=5)),2"},
		{"register", "actions=move:in_port->reg0[0..15],resubmit(,1)\ntable=1,reg0=1,actions=2", "in_port=1", "in_port=1", "2"},
		{"metadata", "actions=write_metadata:5,goto_table:2\ntable=2,metadata=5,actions=2", "in_port=1", "in_port=1", "2"},
		{"goto miss", "actions=goto_table:2", "in_port=1", "", "drop(table-miss)"},
		{"resubmit miss", "actions=resubmit(,2),2", "in_port=1", "in_port=1", "2"},
		{"resubmit from", "in_port=1,actions=resubmit(9,1)\ntable=1,in_port=9,actions=in_port,2", "in_port=1", "in_port=1", "1,2"},
		{"resubmit from, wide", "actions=resubmit(9,1)\ntable=1,in_port=9,actions=drop", "in_port=1", "", "drop(flow-drop)"},
		{"ttl set once", "actions=mod_dl_src:00:00:00:00:00:08,resubmit(,1)\ntable=1,ip,actions=mod_nw_ttl:9,2,mod_dl_src:00:00:00:00:00:09,4",
			"in_port=1,ip", "ip,in_port=1",
			"set(eth(src=00:00:00:00:00:08)),set(ip(ttl=9)),2,set(eth(src=00:00:00:00:00:09)),4"},
		{"ttl bits after dec", "ip,actions=dec_ttl,move:nw_ttl[0..1]->reg0[0..1],resubmit(,1)\ntable=1,reg0=3,actions=2",
			"in_port=1,ip,nw_ttl=64", "ip,in_port=1,nw_ttl=64", "dec_ttl,2"},
		{"clone, and the same as before", "actions=clone(mod_dl_src:00:00:00:00:00:09,2),4", "in_port=1,dl_src=00:00:00:00:00:09",
			"in_port=1,dl_src=00:00:00:00:00:09", "set(eth(src=00:00:00:00:00:09)),2,4"},
		{"reserved address of CDP", "actions=normal", "in_port=1,dl_dst=01:00:0c:cc:cc:cc", "in_port=1,dl_dst=01:00:0c:cc:cc:cc", "drop(reserved-address)"},
		{"reserved group", "actions=normal", "in_port=1,dl_dst=01:80:c2:00:00:0e", "in_port=1,dl_dst=01:80:c2:00:00:0e", "drop(reserved-address)"},
		{"set", "actions=write_actions(2,set_field:00:00:00:00:00:09->eth_dst),goto_table:1\ntable=1,actions=4", "in_port=1", "in_port=1",
			"4,set(eth(dst=00:00:00:00:00:09)),2"},
		{"set replaced", "actions=write_actions(2),goto_table:1\ntable=1,actions=write_actions(4)", "in_port=1", "in_port=1", "4"},
		{"set cleared", "actions=write_actions(2),goto_table:1\ntable=1,actions=4,clear_actions", "in_port=1", "in_port=1", "4"},
		{"set without output", "actions=write_actions(set_field:00:00:00:00:00:09->eth_dst)", "in_port=1", "", "drop(flow-drop)"},
		{"set in clone", "actions=write_actions(set_field:00:00:00:00:00:09->eth_dst,2),goto_table:1\ntable=1,actions=clone(3),4", "in_port=1,dl_dst=00:00:00:00:00:00",
			"in_port=1,dl_dst=00:00:00:00:00:00", "3,set(eth(dst=00:00:00:00:00:09)),2,set(eth(dst=00:00:00:00:00:00)),4,set(eth(dst=00:00:00:00:00:09)),2"},
		{"set and a miss", "actions=write_actions(2),goto_table:1", "in_port=1", "in_port=1", "2"},
		{"set with ttl out", "ip,actions=write_actions(dec_ttl,2)", "in_port=1,ip,nw_ttl=1", "ip,nw_ttl=0x0/0xfe", "drop(ttl-expired)"},
		{"loop", "actions=resubmit(,0),2", "in_port=1", "", "drop(loop)"},
		{"loop that sends", "actions=2,resubmit(,0)", "in_port=1", "in_port=1", strings.Repeat("2,", maxDepth+1) + "drop(loop)"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := pipelineOf(t, strings.Split(tt.flows, "\n")...)
			k := keyOfText(t, tt.frame)
			tr := Translate(p, &k, newEnv())
			m := openflow.MatchOf(&k, &tr.Mask)
			if got := openflow.FormatMatch(&m, nil); got != tt.mask {
				t.Errorf("mask %s, want %s", got, tt.mask)
			}
			got := openflow.FormatDatapathActions(tr.Actions, nil)
			if !likePattern(got, tt.actions) {
				t.Errorf("actions %s, want %s", got, tt.actions)
			}
		})
	}
}

// A frame whose TTL dec_ttl finds expired goes to the controller if this is enabled.
// Otherwise it is dropped. The actions after dec_ttl are not executed.
func TestExpiredFramesToController(t *testing.T) {
	for _, c := range []struct {
		frame, actions string
		enabled        bool
	}{
		{"in_port=1,ip,nw_ttl=1", "set(eth(src=00:00:00:00:00:09)),controller(max_len=65535)", true},
		{"in_port=1,ip,nw_ttl=1", "drop(ttl-expired)", false},
		{"in_port=1,ip,nw_ttl=2", "set(eth(src=00:00:00:00:00:09)),dec_ttl,2", true},
		{"in_port=1,mpls,mpls_ttl=1", "set(eth(src=00:00:00:00:00:09)),controller(max_len=65535)", true},
		{"in_port=2,ip,nw_ttl=1", "controller(max_len=65535),controller(max_len=65535)", true},
		{"in_port=2,ip,nw_ttl=1", "drop(ttl-expired)", false},
	} {
		p := pipelineOf(t, "priority=40000,in_port=2,ip,actions=dec_ttl(7,8),2", "ip,actions=mod_dl_src:00:00:00:00:00:09,dec_ttl,2", "mpls,actions=mod_dl_src:00:00:00:00:00:09,dec_mpls_ttl,2")
		p.SendExceptions(false, c.enabled)
		k := keyOfText(t, c.frame)
		if got := openflow.FormatDatapathActions(Translate(p, &k, newEnv()).Actions, nil); got != c.actions {
			t.Errorf("%s, to the controller %t: actions %s, want %s", c.frame, c.enabled, got, c.actions)
		}
	}
}

// likePattern reports whether got equals want, where %v stands for any digits.
func likePattern(got, want string) bool {
	parts := strings.Split(want, "%v")
	for i, part := range parts {
		if !strings.HasPrefix(got, part) {
			return false
		}
		got = got[len(part):]
		if i < len(parts)-1 {
			got = strings.TrimLeft(got, "0123456789")
		}
	}
	return got == ""
}

func TestNormalLearnsAndForwards(t *testing.T) {
	p := pipelineOf(t, "actions=normal")
	env := newEnv()
	run := func(frame string) Translation {
		k := keyOfText(t, frame)
		tr := Translate(p, &k, env)
		env.macs.Learn(learnOf(&tr), 1)
		return tr
	}
	first := run("in_port=1,dl_src=00:00:00:00:00:01,dl_dst=00:00:00:00:00:02")
	if want := (fdb.Learn{Valid: true, VLAN: 0, Port: 1, MAC: 1}); learnOf(&first) != want || !slices.Equal(first.Addresses, []fdb.Ref{1, 2}) || !first.UsedPorts {
		t.Errorf("first frame: %+v, want learn %+v and both Used", first, want)
	}
	if got := openflow.FormatDatapathActions(first.Actions[:2], nil); got != "2,4" {
		t.Errorf("an unknown address goes to %s, want 2,4 first", got)
	}
	back := run("in_port=2,dl_src=00:00:00:00:00:02,dl_dst=00:00:00:00:00:01")
	if got := openflow.FormatDatapathActions(back.Actions, nil); got != "1" {
		t.Errorf("a known address goes to %s, want 1", got)
	}
	if other := run("in_port=2,dl_vlan=5,dl_src=00:00:00:00:00:02,dl_dst=00:00:00:00:00:01"); len(other.Actions) < 2 {
		t.Errorf("an address of another VLAN goes to %v, want a flood", other.Actions)
	}
	hairpin := run("in_port=1,dl_src=00:00:00:00:00:03,dl_dst=00:00:00:00:00:01")
	if hairpin.Drop != packet.DropFlow {
		t.Errorf("a frame to an address behind its own port: drop %v, want %v", hairpin.Drop, packet.DropFlow)
	}
	if group := run("in_port=1,dl_src=01:00:00:00:00:03,dl_dst=00:00:00:00:00:01"); learnOf(&group).Valid {
		t.Errorf("a group address was learned: %+v", learnOf(&group))
	}
	split := run("in_port=5,dl_src=00:00:00:00:00:09,dl_dst=ff:ff:ff:ff:ff:ff")
	if got := openflow.FormatDatapathActions(split.Actions, nil); got != "1,2,4" {
		t.Errorf("a frame from a tunnel is flooded to %s, want 1,2,4", got)
	}
}

// A translation has a budget of steps (maxSteps). A frame that needs more is counted as DropBudget. A
// pipeline with maxResubmits resubmits and 30 actions for each stays within the budget.
func TestTranslationBudget(t *testing.T) {
	resubmits, k := strings.Repeat("resubmit(,1),", maxResubmits-1), keyOfText(t, "in_port=1")
	for _, c := range []struct {
		loads, rules int
		want         packet.DropReason
	}{{500, maxSteps/500 + 1, packet.DropBudget}, {30 - 2, maxResubmits, packet.DropNone}} {
		loads := strings.TrimSuffix(strings.Repeat("load:1->NXM_NX_REG0[],", c.loads), ",")
		p := pipelineOf(t, "table=0,actions="+resubmits+"2", "table=1,actions="+loads)
		if tr := Translate(p, &k, newEnv()); tr.Drop != c.want || len(tr.Rules) > c.rules {
			t.Errorf("%d loads: drop %v after %d rules, want %v after at most %d", c.loads, tr.Drop, len(tr.Rules), c.want, c.rules)
		}
	}
}

func TestTranslationLimits(t *testing.T) {
	fan := make([]string, 0, 16)
	for i := range 14 {
		fan = append(fan, "table="+strconv.Itoa(i)+",actions="+strings.Repeat("resubmit(,"+strconv.Itoa(i+1)+"),", 3)+"2")
	}
	p := pipelineOf(t, fan...)
	k := keyOfText(t, "in_port=1")
	tr := Translate(p, &k, newEnv())
	if tr.Drop != packet.DropLoop || len(tr.Actions) > flowtable.MaxActions {
		t.Errorf("endless resubmits: drop %v, %d actions", tr.Drop, len(tr.Actions))
	}
	if last := tr.Actions[len(tr.Actions)-1]; last.Op != flowtable.OpDrop || len(tr.Rules) > maxResubmits+1 {
		t.Errorf("the translation ends in %v after %d rules", last, len(tr.Rules))
	}
	tags := pipelineOf(t, "actions=2,"+strings.Repeat("push_vlan:0x8100,", maxTags)+"2")
	if tr := Translate(tags, &k, newEnv()); tr.Drop != packet.DropNoHeadroom {
		t.Errorf("too many tags: %v, want %v", tr.Drop, packet.DropNoHeadroom)
	}
	many := pipelineOf(t, "actions="+strings.Repeat("set_field:::1->tun_ipv6_src,2,4,", 1200)+"2")
	if tr := Translate(many, &k, newEnv()); tr.Drop != packet.DropLoop || len(tr.Actions) > flowtable.MaxActions {
		t.Errorf("too many actions: %v, %d", tr.Drop, len(tr.Actions))
	}
}

func TestTraceTellsEachStep(t *testing.T) {
	p := pipelineOf(t, "in_port=1,actions=resubmit(,1)", "table=1,actions=dec_ttl,2")
	k := keyOfText(t, "in_port=1,ip,nw_ttl=9")
	var steps []string
	traced := Trace(p, &k, newEnv(), func(s TraceStep) {
		switch {
		case s.Action != nil:
			steps = append(steps, openflow.FormatActions([]openflow.Action{*s.Action}, nil))
		case s.Lookup && s.Rule != nil:
			steps = append(steps, "rule "+s.Rule.Match.Format(nil))
		}
	})

	want := []string{"rule in_port=1", "resubmit(,1)", "rule ", "dec_ttl", "output:2"}
	if !slices.Equal(steps, want) {
		t.Errorf("steps %q, want %q", steps, want)
	}
	if plain := Translate(p, &k, newEnv()); !reflect.DeepEqual(plain, traced) {
		t.Errorf("Trace returns %+v, Translate %+v", traced, plain)
	}
}

func BenchmarkTranslate(b *testing.B) {
	p := ofproto.NewTables(ofproto.Limits{})
	mods, _ := openflow.ParseFlowMods(
		"priority=10,in_port=1,actions=resubmit(,1)\ntable=1,ip,nw_dst=10.0.0.0/8,actions=dec_ttl,mod_dl_dst:00:00:00:00:00:02,2", openflow.Add, nil)
	p.Apply(mods, 0)
	env := newEnv()
	k, _, _ := openflow.ParseFrame("in_port=1,tcp,nw_dst=10.1.1.1,nw_ttl=64", env)
	b.ReportAllocs()
	for b.Loop() {
		Translate(p, &k, env)
	}
}

// TestTranslateIsForReaders runs independent translations concurrently, under the
// race detector.
func TestTranslateIsForReaders(t *testing.T) {
	p := pipelineOf(t, "actions=mod_vlan_vid:3,flood,resubmit(,1)", "table=1,ip,actions=dec_ttl,2")
	env := newEnv()
	keys := []flowtable.Key{keyOfText(t, "in_port=1"), keyOfText(t, "in_port=2,ip,nw_ttl=9"), keyOfText(t, "in_port=4,arp")}
	var want []Translation
	for i := range keys {
		want = append(want, Translate(p, &keys[i], env))
	}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for n := range 300 {
				i := n % len(keys)
				if got := Translate(p, &keys[i], env); !reflect.DeepEqual(got, want[i]) {
					t.Errorf("key %d: %+v, want %+v", i, got, want[i])
					return
				}
			}
		})
	}
	wg.Wait()
}
