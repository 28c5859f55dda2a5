// SPDX-License-Identifier: Apache-2.0

package openflow

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"weft/openflow/openflowtest"
)

func mustMod(t *testing.T, command Command, text string) FlowMod {
	t.Helper()
	mod, err := ParseFlowMod(text, command, newNames())
	if err != nil {
		t.Fatal(err)
	}
	return mod
}

func apply(t *testing.T, p *Pipeline, nowNS uint64, command Command, texts ...string) Changes {
	t.Helper()
	var mods []FlowMod
	for _, text := range texts {
		mods = append(mods, mustMod(t, command, text))
	}
	c, err := p.Apply(mods, nowNS)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func dump(p *Pipeline) []string {
	var lines []string
	for _, r := range p.Select(&FlowMod{Command: Delete, Table: TableAll}) {
		mod := r.FlowMod()
		lines = append(lines, FormatFlowMod(&mod, nil))
	}
	return lines
}

func wantDump(t *testing.T, p *Pipeline, want ...string) {
	t.Helper()
	if got := dump(p); !slices.Equal(got, want) {
		t.Errorf("tables are\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestAddReplacesAndModifyKeeps(t *testing.T) {
	p := NewPipeline(Limits{})
	apply(t, p, 1, Add, "in_port=1,actions=2", "priority=5,in_port=1,actions=3")
	p.Rule(0).Credit(7, 700, 9)
	c := apply(t, p, 10, Add, "cookie=4,in_port=1,actions=4")
	if len(c.Added) != 1 || len(c.Removed) != 1 || c.Added[0].Packets != 0 || c.Added[0].CreatedNS != 10 || !c.Removed[0].Removed {
		t.Errorf("replacing a rule: unexpected changes %+v", c)
	}
	c.Added[0].Credit(3, 300, 12)
	c = apply(t, p, 20, Modify, "in_port=1,actions=9")
	if len(c.Modified) != 2 || len(c.Added) != 0 {
		t.Errorf("modifying changed %d, added %d; want 2, 0", len(c.Modified), len(c.Added))
	}
	if r := c.Modified[0]; r.CreatedNS == r.ModifiedNS || r.Cookie != 0 {
		t.Errorf("unexpected modified rule %+v", r)
	}
	wantDump(t, p, "in_port=1 actions=output:9", "priority=5,in_port=1 actions=output:9")
	apply(t, p, 30, ModifyStrict, "priority=5,in_port=1,cookie=3,actions=8")
	apply(t, p, 30, Modify, "in_port=2,actions=7")
	apply(t, p, 30, Modify, "cookie=99/-1,actions=1")
	wantDump(t, p, "in_port=1 actions=output:9", "in_port=2 actions=output:7", "cookie=0x3,priority=5,in_port=1 actions=output:8")
	if got := p.Select(&FlowMod{Command: Delete, Table: TableAll})[0].Packets; got != 3 {
		t.Errorf("modify left %d packets, want 3", got)
	}
}

func TestDeletes(t *testing.T) {
	flows := []string{"cookie=1,ip,nw_src=10.0.0.0/8,actions=1", "cookie=2,ip,nw_src=10.1.0.0/16,actions=2",
		"cookie=3,table=4,tcp,nw_src=10.1.0.0/16,actions=clone(2)", "arp,actions=normal"}
	tests := []struct {
		command   Command
		text      string
		remaining int
	}{
		{Delete, "", 0}, {Delete, "ip", 1}, {Delete, "ip,nw_src=10.1.0.0/16", 2}, {Delete, "tcp", 3},
		{Delete, "table=4", 3}, {Delete, "cookie=2/-1", 3}, {Delete, "cookie=2/2", 2}, {Delete, "out_port=2", 2},
		{Delete, "out_port=normal", 3}, {Delete, "ip,nw_src=10.1.1.0/24", 4},
		{DeleteStrict, "ip,nw_src=10.1.0.0/16", 3}, {DeleteStrict, "ip", 4}, {DeleteStrict, "priority=1,arp", 4},
		{DeleteStrict, "arp", 3}, {DeleteStrict, "cookie=9/-1,arp", 4},
	}
	for _, tt := range tests {
		p := NewPipeline(Limits{})
		apply(t, p, 1, Add, flows...)
		c := apply(t, p, 2, tt.command, tt.text)
		if p.Len() != tt.remaining || len(c.Removed) != len(flows)-tt.remaining {
			t.Errorf("delete %d %q leaves %d, removed %d; want %d left", tt.command, tt.text, p.Len(), len(c.Removed), tt.remaining)
		}
	}
}

func TestBundleIsAllOrNothing(t *testing.T) {
	p := NewPipeline(Limits{Rules: 4})
	apply(t, p, 1, Add, "in_port=1,actions=2", "in_port=2,actions=2", "table=3,ip,actions=normal")
	p.Rule(1).Credit(5, 50, 1)
	before, generation := dump(p), p.Generation()
	mods := []FlowMod{
		mustMod(t, Delete, "in_port=1"), mustMod(t, Modify, "actions=drop"), mustMod(t, Add, "in_port=2,actions=9"),
		mustMod(t, Add, "in_port=7,actions=9"), mustMod(t, Add, "in_port=8,actions=9"),
		mustMod(t, Add, "check_overlap,tcp,actions=1"),
	}
	for n := 5; n <= 6; n++ {
		if n == 5 {
			mods[4].Table, mods[3].Table = 9, 9
			mods = append(mods[:5:5], mustMod(t, Add, "in_port=10,actions=9"))
		} else {
			mods = append(mods[:2:2], mustMod(t, Add, "check_overlap,in_port=2,dl_src=00:00:00:00:00:01,actions=1"))
		}
		_, err := p.Apply(mods, 2)
		var ae *ApplyError
		if err == nil || !asApplyError(err, &ae) || ae.Index != len(mods)-1 || ae.Line != 0 {
			t.Fatalf("bundle: %v, want an error of change %d", err, len(mods)-1)
		}
		if after := dump(p); !slices.Equal(before, after) || p.Generation() != generation || p.Rule(1).Packets != 5 {
			t.Errorf("after a failed bundle\n%s\nwas\n%s", strings.Join(after, "\n"), strings.Join(before, "\n"))
		}
	}
	c, err := p.Apply([]FlowMod{mustMod(t, Add, "in_port=5,actions=1"), mustMod(t, Modify, "in_port=5,actions=2"),
		mustMod(t, Delete, "in_port=5"), mustMod(t, Modify, "in_port=1,actions=5")}, 3)
	if err != nil || len(c.Added) != 0 || len(c.Removed) != 0 || len(c.Modified) != 1 {
		t.Errorf("a rule added and deleted in one bundle is in the changes: %+v, %v", c, err)
	}
}

func asApplyError(err error, target **ApplyError) bool {
	ae, ok := err.(*ApplyError)
	*target = ae
	return ok
}

func TestSlotsAreStableAndRest(t *testing.T) {
	p := NewPipeline(Limits{})
	first := apply(t, p, 1, Add, "in_port=1,actions=2", "in_port=2,actions=2")
	c := apply(t, p, 2, Delete, "in_port=1")
	if c.Removed[0] != first.Added[0] || p.Rule(first.Added[0].Slot) != nil {
		t.Fatal("the removed rule is not the one added")
	}
	same := apply(t, p, 3, Add, "in_port=3,actions=2")
	if same.Added[0].Slot != first.Added[0].Slot {
		t.Errorf("slot %d, want %d to be used again", same.Added[0].Slot, first.Added[0].Slot)
	}
	replaced := apply(t, p, 4, Add, "in_port=3,actions=5")
	if replaced.Added[0].Slot == replaced.Removed[0].Slot {
		t.Error("a slot was used again within the change that freed it")
	}
	if p.Rule(99) != nil {
		t.Error("Rule returns a rule for an unused slot")
	}
}

func TestTimeouts(t *testing.T) {
	const second = 1_000_000_000
	p := NewPipeline(Limits{})
	apply(t, p, 0, Add, "idle_timeout=5,in_port=1,actions=2", "hard_timeout=8,in_port=2,actions=2", "in_port=3,actions=2")
	p.Rule(0).Credit(1, 60, 3*second)
	steps := []struct{ atNS, remaining uint64 }{{5, 3}, {7, 3}, {8, 1}}
	for _, s := range steps {
		if s.atNS == 8 {
			generation := p.Generation()
			defer func() {
				if p.Generation() == generation {
					t.Error("Expire did not change the generation")
				}
			}()
		}
		p.Expire(s.atNS * second)
		if p.Len() != int(s.remaining) {
			t.Errorf("%d s: %d rules, want %d", s.atNS, p.Len(), s.remaining)
		}
	}
}

// unrecorded is a Visitor that records nothing.
type unrecorded struct{}

func (unrecorded) Visit([]uint8, *Flow)  {}
func (unrecorded) VisitWord(int, uint64) {}

// TestClassifierFindsWhatASearchFinds compares the classifier with a linear search,
// for random rules.
func TestClassifierFindsWhatASearchFinds(t *testing.T) {
	conjunctions := 0
	for seed := range uint64(120) {
		r := rand.New(rand.NewPCG(seed, 3))
		p := NewPipeline(Limits{})
		p.tlvs.Store(testTLVs)
		for range 60 {
			text := fmt.Sprintf("priority=%d,%s,actions=drop", r.IntN(2000), openflowtest.MatchText(r))
			if seed%2 == 1 {
				text = randomPart(r)
			}
			mod, err := ParseFlowMod(text, Add, WithTLVs(nil, testTLVs))
			if err != nil {
				t.Fatal(err)
			}
			if r.IntN(3) == 0 && p.Len() > 0 {
				rules := p.Select(&FlowMod{Command: Delete, Table: TableAll})
				mod = rules[r.IntN(len(rules))].FlowMod()
				mod.Command = DeleteStrict
			}
			if _, err := p.Apply([]FlowMod{mod}, 0); err != nil {
				t.Fatal(err)
			}
			var f Flow
			k := openflowtest.Key(r)
			copy(f[:], k[:])
			got, conj := p.tables[0].lookup(&f, unrecorded{})
			if conj != 0 {
				conjunctions++
			}
			want := slowLookup(p, 0, &f)
			if got != want && (got == nil || want == nil || got.Priority != want.Priority) {
				t.Fatalf("seed %d: found %+v, want %+v", seed, got, want)
			}
		}
		checkClassifier(t, &p.tables[0])
	}
	if conjunctions < 30 {
		t.Errorf("only %d look-ups went through a conjunction", conjunctions)
	}
}

// randomPart returns the text of a flow for tables with conjunctions.
func randomPart(r *rand.Rand) string {
	match := openflowtest.Pick(r, "ip", "ip,nw_src=10.0.0.0/14", "arp", "tcp", "dl_dst=00:00:00:00:00:01", "in_port=1", "in_port=2", "ip,nw_tos=0", openflowtest.MatchText(r))
	switch r.IntN(4) {
	case 0:
		return fmt.Sprintf("priority=%d,%s,actions=drop", r.IntN(3), match)
	case 1:
		return fmt.Sprintf("priority=%d,%s,conj_id=%d,actions=drop", r.IntN(3), openflowtest.Pick(r, "", "", "ip"), 1+r.IntN(4))
	}
	return fmt.Sprintf("priority=%d,%s,actions=%s", 2+r.IntN(2), match, openflowtest.ConjunctionsText(r))
}

func checkClassifier(t *testing.T, c *classifier) {
	t.Helper()
	if !slices.IsSortedFunc(c.subtables, compareSubtables) || len(c.byMask) != len(c.subtables) {
		t.Error("subtables are out of order")
	}
	for _, s := range c.subtables {
		highest := -1
		for _, r := range s.rules {
			for ; r != nil; r = r.next {
				if r.next != nil && r.next.Priority > r.Priority {
					t.Error("rules of one hash are out of order")
				}
				highest = max(highest, int(r.Priority))
			}
		}
		if highest != s.max {
			t.Errorf("a subtable's highest priority is %d, it has %d", highest, s.max)
		}
	}
}

func BenchmarkApply100k(b *testing.B) {
	mods := make([]FlowMod, 100_000)
	for i := range mods {
		mods[i], _ = ParseFlowMod(fmt.Sprintf("tcp,nw_src=10.%d.%d.%d,tp_dst=80,actions=2", i>>16, i>>8&255, i&255), Add, nil)
	}
	b.ReportAllocs()
	for b.Loop() {
		NewPipeline(Limits{}).Apply(mods, 0)
	}
}
