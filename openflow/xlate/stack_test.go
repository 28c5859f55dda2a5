// SPDX-License-Identifier: Apache-2.0

package xlate

import (
	"strings"
	"testing"

	"weft/flowtable"
	"weft/openflow"
	"weft/openflow/ofproto"
)

// push, pop and exit have the same effect as in Open vSwitch 3.1, according to its
// ofproto/trace.
func TestStackAndExit(t *testing.T) {
	for _, tt := range []struct{ name, flows, want string }{
		{"value", "in_port=3 actions=push:in_port,pop:reg1[0..15],load:0->reg1[0],output:reg1[0..15]", "2"},
		{"last in, first out", "actions=load:1->reg0,load:4->reg1,push:reg0,push:reg1,pop:reg2,pop:reg3,output:reg2[0..15],output:reg3[0..15]", "4,1"},
		{"narrower value", "actions=load:0xffff->reg1,load:2->reg0,push:reg0[0..3],pop:reg1,output:reg1[0..15]", "2"},
		{"wider value", "actions=load:0x10004->reg0,push:reg0,pop:reg1[0..15],output:reg1[0..15]", "4"},
		{"empty stack", "actions=load:2->reg1,pop:reg1,output:reg1[0..15]", "2"},
		{"clone has a copy", "actions=load:2->reg0,push:reg0,clone(pop:reg1,output:reg1[0..15],push:reg1,push:reg1),pop:reg1,pop:reg1,output:reg1[0..15],load:4->reg1,pop:reg1,output:reg1[0..15]", "2,2,4"},
		{"exit", "actions=1,exit,2", "1"},
		{"exit ends resubmits", "actions=resubmit(,1),1\ntable=1 actions=resubmit(,2),2\ntable=2 actions=4,exit", "4"},
		{"exit after goto_table", "actions=resubmit(,1),1\ntable=1 actions=2,goto_table:2\ntable=2 actions=exit", "2"},
		{"exit in clone", "actions=clone(2,exit,4),1", "2"},
		{"exit and action set", "actions=1,write_actions(output:2),goto_table:1\ntable=1 actions=exit", "1"},
		{"exit in a bucket", "actions=group:1,4\ntable=1 actions=1,exit,4\ntable=2 actions=2", "1,2,4"},
	} {
		p := ofproto.NewTables(ofproto.Limits{})
		groups(t, p, openflow.GroupAdd, "group_id=1,type=all,bucket=resubmit(,1),bucket=resubmit(,2)")
		for _, flow := range strings.Split(tt.flows, "\n") {
			if _, err := p.Apply([]openflow.FlowMod{mustMod(t, openflow.Add, flow)}, 1); err != nil {
				t.Fatal(err)
			}
		}
		if got := actionsOf(p, newEnv(), t, "in_port=3"); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
	}
}

// The stack continues behind ct, up to maxFrozenStack.
func TestStackBehindCT(t *testing.T) {
	const push = "push:ipv6_src,"
	for n, want := range map[int]string{1: "recirc", maxFrozenStack / 17: "recirc", maxFrozenStack/17 + 1: "drop(loop)"} {
		p := pipelineOf(t, "table=0,ipv6,actions="+strings.Repeat(push, n-1)+"load:4->reg0,push:reg0,ct(table=1)",
			"table=1,ipv6,actions=pop:reg1,output:reg1[0..15]")
		env := struct {
			*fakeEnv
			*RecircTable
		}{newEnv(), NewRecircTable()}
		k := keyOfText(t, "in_port=1,ipv6")
		tr := Translate(p, &k, env)
		if text := openflow.FormatDatapathActions(tr.Actions, nil); !strings.Contains(text, want) {
			t.Fatalf("%d values: %s, want %s", n, text, want)
		}
		if want != "recirc" {
			continue
		}
		k[flowtable.WPort] |= uint64(tr.Actions[len(tr.Actions)-1].U32)
		k[flowtable.WCT] |= 1 << 32
		tr = Translate(p, &k, env)
		if text := openflow.FormatDatapathActions(tr.Actions, nil); text != "4" {
			t.Errorf("%d values: behind ct: %s, want 4", n, text)
		}
	}
}

// A stack beyond maxStackBytes ends the translation.
func TestStackLimit(t *testing.T) {
	flow := "table=0,actions=" + strings.Repeat("push:xxreg0,", 100) + "resubmit(,0)"
	p := pipelineOf(t, flow)
	k := keyOfText(t, "in_port=1")
	var most int
	tr := Trace(p, &k, newEnv(), func(s TraceStep) {
		if s.Action != nil && s.Action.Kind == openflow.ActPush {
			most++
		}
	})

	if text := openflow.FormatDatapathActions(tr.Actions, nil); text != "drop(loop)" || most != maxStackBytes/17+1 {
		t.Errorf("%s after %d pushes, want drop(loop) after %d", text, most, maxStackBytes/17+1)
	}
}
