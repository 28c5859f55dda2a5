// SPDX-License-Identifier: Apache-2.0

package xlate

import (
	"slices"
	"strings"
	"testing"

	"weft/openflow"
	"weft/openflow/ofproto"
)

func learnAll(t *testing.T, p *ofproto.Tables, frame string, nowNS uint64) Translation {
	t.Helper()
	k := keyOfText(t, frame)
	tr := Translate(p, &k, newEnv())
	if _, err := p.Apply(tr.Learned, nowNS); err != nil {
		t.Fatal(err)
	}
	return tr
}

// The learning switch of ovs-actions(7) learns addresses in table 10. Frames that use
// an address restart its timeouts.
func TestLearningSwitch(t *testing.T) {
	p := pipelineOf(t, "actions=learn(table=10,hard_timeout=9,NXM_OF_VLAN_TCI[0..11],NXM_OF_ETH_DST[]=NXM_OF_ETH_SRC[],load:NXM_OF_IN_PORT[]->NXM_NX_REG0[0..15]),resubmit(,1)",
		"table=1,actions=resubmit(,10),resubmit(,2)", "table=2,reg0=0,actions=flood", "table=2,priority=9,reg0=1,actions=1", "table=2,priority=9,reg0=2,actions=2")
	tr := learnAll(t, p, "in_port=1,dl_src=00:00:00:00:00:01,dl_dst=00:00:00:00:00:02", 1)
	if len(tr.Learned) != 1 || !p.Learned(&tr.Learned[0]) {
		t.Fatalf("unexpected learned flows %+v", tr.Learned)
	}
	back := learnAll(t, p, "in_port=2,dl_src=00:00:00:00:00:02,dl_dst=00:00:00:00:00:01", 1)
	if got := openflow.FormatDatapathActions(back.Actions, nil); got != "1" {
		t.Errorf("a learned address goes to %s, want 1", got)
	}
	const second = 1_000_000_000
	if !p.RefreshLearned(&tr.Learned[0], 5*second) {
		t.Error("RefreshLearned does not find the learned flow")
	}
	if gone := p.Expire(10 * second); len(gone) != 1 {
		t.Errorf("%d flows expired, want the one that was not refreshed", len(gone))
	}
	moved := learnAll(t, p, "in_port=2,dl_src=00:00:00:00:00:01,dl_dst=00:00:00:00:00:02", 11*second)
	if p.Learned(&tr.Learned[0]) || !p.Learned(&moved.Learned[0]) {
		t.Error("a moved address still has its old place")
	}
}

// output:FIELD learns only valid outputs: to ordinary ports, and to the reserved
// ports that Open vSwitch accepts.
func TestLearnOutput(t *testing.T) {
	p := pipelineOf(t, "actions=learn(table=5,output:reg0)")
	for value, want := range map[string]string{
		"1": "output:1", "0xfeff": "output:65279", "0xfff8": "IN_PORT", "0xfffb": "FLOOD", "0xfffc": "ALL", "0xfffe": "LOCAL",
		"0xff00": "drop", "0xfff7": "drop", "0xfff9": "drop", "0xfffa": "drop", "0xfffd": "drop", "0xffff": "drop", "0xfffffff9": "drop", "0x10001": "drop",
	} {
		po, err := openflow.ParsePacketOut("in_port=1,reg0="+value+",packet="+outFrame+",actions=TABLE", nil)
		if err != nil {
			t.Fatal(err)
		}
		tr, err := Execute(p, po.Actions, &po.Flow, newEnv())
		if err != nil || len(tr.Learned) != 1 {
			t.Fatalf("reg0=%s: error %v, %d flows learned, want 1", value, err, len(tr.Learned))
		}
		got := openflow.FormatActions(tr.Learned[0].Actions, nil)
		if got != want {
			t.Errorf("%s: learned %s, want %s", value, got, want)
		}
		if _, err := openflow.ParseFlowMod("table=5,actions="+got, openflow.Add, nil); err != nil {
			t.Errorf("the learned flow cannot be added: %v", err)
		}
	}
}

func TestLearnLimit(t *testing.T) {
	p := pipelineOf(t, "actions=learn(table=5,cookie=7,limit=2,result_dst=reg0[0],eth_dst=eth_src),resubmit(,1)", "table=1,reg0=1,actions=2", "table=1,reg0=0,actions=4")
	for n, want := range []string{"2", "2", "4", "4"} {
		frame := "in_port=1,dl_src=00:00:00:00:00:0" + string(rune('1'+n))
		if got := openflow.FormatDatapathActions(learnAll(t, p, frame, 1).Actions, nil); got != want {
			t.Errorf("frame %d goes to %s, want %s", n, got, want)
		}
	}
	if got := openflow.FormatDatapathActions(learnAll(t, p, "in_port=1,dl_src=00:00:00:00:00:01", 1).Actions, nil); got != "2" {
		t.Errorf("a frame of a flow that is already learned goes to %s, want 2", got)
	}
	apply(t, p, 1, openflow.Delete, "table=5,dl_dst=00:00:00:00:00:01")
	if got := openflow.FormatDatapathActions(learnAll(t, p, "in_port=1,dl_src=00:00:00:00:00:09", 1).Actions, nil); got != "2" {
		t.Errorf("after a delete: %s, want 2", got)
	}
}

func TestDeleteLearned(t *testing.T) {
	const learner = "actions=learn(table=5,cookie=7,delete_learned,eth_dst=eth_src)"
	p := pipelineOf(t, "in_port=1,"+learner, "in_port=2,actions=clone("+learner[8:]+")", "table=5,cookie=8,actions=drop")
	learnAll(t, p, "in_port=1,dl_src=00:00:00:00:00:01", 1)
	learnAll(t, p, "in_port=1,dl_src=00:00:00:00:00:02", 1)
	if p.Len() != 5 {
		t.Fatalf("%d rules, want 5", p.Len())
	}
	apply(t, p, 1, openflow.Delete, "in_port=1")
	if p.Len() != 4 {
		t.Errorf("one learner left: %d rules, want 4", p.Len())
	}
	before := dump(p)
	bad := []openflow.FlowMod{mustMod(t, openflow.Delete, "in_port=2"), mustMod(t, openflow.Add, "check_overlap,table=5,actions=1"), mustMod(t, openflow.Add, "check_overlap,table=5,ip,actions=1")}
	if _, err := p.Apply(bad, 1); err == nil {
		t.Fatal("a change with an overlapping flow was accepted")
	}
	if after := dump(p); len(after) != len(before) {
		t.Errorf("a failed change left %d rules of %d", len(after), len(before))
	}
	c := apply(t, p, 1, openflow.Modify, "in_port=2,actions=drop")
	if p.Len() != 2 || len(c.Removed) != 2 {
		t.Errorf("no learner left: %d rules, %d removed; want 2 and 2", p.Len(), len(c.Removed))
	}
	// When a rule with delete_learned expires, its learned flows are removed.
	apply(t, p, 1, openflow.Add, "hard_timeout=1,in_port=3,"+learner)
	learnAll(t, p, "in_port=3,dl_src=00:00:00:00:00:02", 1)
	if gone := p.Expire(5_000_000_000); len(gone) != 2 {
		t.Errorf("%d rules expired, want 2", len(gone))
	}
}

// A refused learned flow changes nothing, and the other flows are still added. Flows
// that exist already stay.
func TestApplyLearned(t *testing.T) {
	p := ofproto.NewTables(ofproto.Limits{})
	p.Configure(1, ofproto.TableConfig{Limit: 2})
	p.Configure(2, ofproto.TableConfig{Limit: 2, Evict: true})
	apply(t, p, 1, openflow.Add, "table=1,in_port=1,actions=1", "table=2,idle_timeout=5,in_port=1,actions=1", "table=2,idle_timeout=9,in_port=2,actions=2")
	var mods []openflow.FlowMod
	for _, text := range []string{
		"table=1,in_port=1,actions=1",                // exists already
		"table=1,in_port=2,actions=group:7",          // its group does not exist
		"table=1,in_port=3,actions=3",                // there is room for it
		"table=1,in_port=4,actions=4",                // there is no room for it
		"table=2,idle_timeout=5,in_port=5,actions=5", // evicts another
		"table=1,in_port=1,actions=9",                // modifies the existing flow
		"table=2,idle_timeout=5,in_port=6,actions=6", // evicts another
	} {
		mods = append(mods, mustMod(t, openflow.ModifyStrict, text))
	}
	c, refused := p.ApplyLearned(mods, 2)
	if len(c.Added) != 3 || len(c.Modified) != 1 || len(c.Removed) != 2 || refused != 2 {
		t.Errorf("unexpected counts: %d added, %d modified, %d removed, %d refused", len(c.Added), len(c.Modified), len(c.Removed), refused)
	}
	want := []string{"in_port=1 9", "in_port=3 3", "in_port=5 5", "in_port=6 6"}
	var got []string
	for _, r := range p.Select(&openflow.FlowMod{Command: openflow.Delete, Table: openflow.TableAll}) {
		got = append(got, r.Match.Format(nil)+" "+openflow.FormatActions(r.Actions, nil))
	}
	for i := range got {
		got[i] = strings.Replace(got[i], "output:", "", 1)
	}
	if !slices.Equal(got, want) {
		t.Errorf("flows %q, want %q", got, want)
	}
	again, refused := p.ApplyLearned(mods[2:3], 3)
	if len(again.Added)+len(again.Modified)+len(again.Removed)+refused != 0 {
		t.Errorf("the same flows were learned twice: %+v", again)
	}
}
