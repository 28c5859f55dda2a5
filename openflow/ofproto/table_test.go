// SPDX-License-Identifier: Apache-2.0

package ofproto

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"weft/openflow"
	"weft/openflow/openflowtest"
)

func mustMod(t *testing.T, command openflow.Command, text string) openflow.FlowMod {
	t.Helper()
	mod, err := openflow.ParseFlowMod(text, command, portNames())
	if err != nil {
		t.Fatal(err)
	}
	return mod
}

func apply(t *testing.T, p *Tables, nowNS uint64, command openflow.Command, texts ...string) Changes {
	t.Helper()
	var mods []openflow.FlowMod
	for _, text := range texts {
		mods = append(mods, mustMod(t, command, text))
	}
	c, err := p.Apply(mods, nowNS)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func dump(p *Tables) []string {
	var lines []string
	for _, r := range p.Select(&openflow.FlowMod{Command: openflow.Delete, Table: openflow.TableAll}) {
		mod := r.FlowMod()
		lines = append(lines, openflow.FormatFlowMod(&mod, nil))
	}
	return lines
}

func wantDump(t *testing.T, p *Tables, want ...string) {
	t.Helper()
	if got := dump(p); !slices.Equal(got, want) {
		t.Errorf("tables are\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestAddReplacesAndModifyKeeps(t *testing.T) {
	p := NewTables(Limits{})
	apply(t, p, 1, openflow.Add, "in_port=1,actions=2", "priority=5,in_port=1,actions=3")
	p.Rule(0).Credit(7, 700, 9)
	c := apply(t, p, 10, openflow.Add, "cookie=4,in_port=1,actions=4")
	if len(c.Added) != 1 || len(c.Removed) != 1 || c.Added[0].Packets != 0 || c.Added[0].CreatedNS != 10 || !c.Removed[0].Removed {
		t.Errorf("replacing a rule: unexpected changes %+v", c)
	}
	c.Added[0].Credit(3, 300, 12)
	c = apply(t, p, 20, openflow.Modify, "in_port=1,actions=9")
	if len(c.Modified) != 2 || len(c.Added) != 0 {
		t.Errorf("modifying changed %d, added %d; want 2, 0", len(c.Modified), len(c.Added))
	}
	if r := c.Modified[0]; r.CreatedNS == r.ModifiedNS || r.Cookie != 0 {
		t.Errorf("unexpected modified rule %+v", r)
	}
	wantDump(t, p, "in_port=1 actions=output:9", "priority=5,in_port=1 actions=output:9")
	apply(t, p, 30, openflow.ModifyStrict, "priority=5,in_port=1,cookie=3,actions=8")
	apply(t, p, 30, openflow.Modify, "in_port=2,actions=7")
	apply(t, p, 30, openflow.Modify, "cookie=99/-1,actions=1")
	wantDump(t, p, "in_port=1 actions=output:9", "in_port=2 actions=output:7", "cookie=0x3,priority=5,in_port=1 actions=output:8")
	if got := p.Select(&openflow.FlowMod{Command: openflow.Delete, Table: openflow.TableAll})[0].Packets; got != 3 {
		t.Errorf("modify left %d packets, want 3", got)
	}
}

func TestDeletes(t *testing.T) {
	flows := []string{"cookie=1,ip,nw_src=10.0.0.0/8,actions=1", "cookie=2,ip,nw_src=10.1.0.0/16,actions=2",
		"cookie=3,table=4,tcp,nw_src=10.1.0.0/16,actions=clone(2)", "arp,actions=normal"}
	tests := []struct {
		command   openflow.Command
		text      string
		remaining int
	}{
		{openflow.Delete, "", 0}, {openflow.Delete, "ip", 1}, {openflow.Delete, "ip,nw_src=10.1.0.0/16", 2}, {openflow.Delete, "tcp", 3},
		{openflow.Delete, "table=4", 3}, {openflow.Delete, "cookie=2/-1", 3}, {openflow.Delete, "cookie=2/2", 2}, {openflow.Delete, "out_port=2", 2},
		{openflow.Delete, "out_port=normal", 3}, {openflow.Delete, "ip,nw_src=10.1.1.0/24", 4},
		{openflow.DeleteStrict, "ip,nw_src=10.1.0.0/16", 3}, {openflow.DeleteStrict, "ip", 4}, {openflow.DeleteStrict, "priority=1,arp", 4},
		{openflow.DeleteStrict, "arp", 3}, {openflow.DeleteStrict, "cookie=9/-1,arp", 4},
	}
	for _, tt := range tests {
		p := NewTables(Limits{})
		apply(t, p, 1, openflow.Add, flows...)
		c := apply(t, p, 2, tt.command, tt.text)
		if p.Len() != tt.remaining || len(c.Removed) != len(flows)-tt.remaining {
			t.Errorf("delete %d %q leaves %d, removed %d; want %d left", tt.command, tt.text, p.Len(), len(c.Removed), tt.remaining)
		}
	}
}

func TestBundleIsAllOrNothing(t *testing.T) {
	p := NewTables(Limits{Rules: 4})
	apply(t, p, 1, openflow.Add, "in_port=1,actions=2", "in_port=2,actions=2", "table=3,ip,actions=normal")
	p.Rule(1).Credit(5, 50, 1)
	before, generation := dump(p), p.Generation()
	mods := []openflow.FlowMod{
		mustMod(t, openflow.Delete, "in_port=1"), mustMod(t, openflow.Modify, "actions=drop"), mustMod(t, openflow.Add, "in_port=2,actions=9"),
		mustMod(t, openflow.Add, "in_port=7,actions=9"), mustMod(t, openflow.Add, "in_port=8,actions=9"),
		mustMod(t, openflow.Add, "check_overlap,tcp,actions=1"),
	}
	for n := 5; n <= 6; n++ {
		if n == 5 {
			mods[4].Table, mods[3].Table = 9, 9
			mods = append(mods[:5:5], mustMod(t, openflow.Add, "in_port=10,actions=9"))
		} else {
			mods = append(mods[:2:2], mustMod(t, openflow.Add, "check_overlap,in_port=2,dl_src=00:00:00:00:00:01,actions=1"))
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
	c, err := p.Apply([]openflow.FlowMod{mustMod(t, openflow.Add, "in_port=5,actions=1"), mustMod(t, openflow.Modify, "in_port=5,actions=2"),
		mustMod(t, openflow.Delete, "in_port=5"), mustMod(t, openflow.Modify, "in_port=1,actions=5")}, 3)
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
	p := NewTables(Limits{})
	first := apply(t, p, 1, openflow.Add, "in_port=1,actions=2", "in_port=2,actions=2")
	c := apply(t, p, 2, openflow.Delete, "in_port=1")
	if c.Removed[0] != first.Added[0] || p.Rule(first.Added[0].Slot) != nil {
		t.Fatal("the removed rule is not the one added")
	}
	same := apply(t, p, 3, openflow.Add, "in_port=3,actions=2")
	if same.Added[0].Slot != first.Added[0].Slot {
		t.Errorf("slot %d, want %d to be used again", same.Added[0].Slot, first.Added[0].Slot)
	}
	replaced := apply(t, p, 4, openflow.Add, "in_port=3,actions=5")
	if replaced.Added[0].Slot == replaced.Removed[0].Slot {
		t.Error("a slot was used again within the change that freed it")
	}
	if p.Rule(99) != nil {
		t.Error("Rule returns a rule for an unused slot")
	}
}

func TestTimeouts(t *testing.T) {
	const second = 1_000_000_000
	p := NewTables(Limits{})
	apply(t, p, 0, openflow.Add, "idle_timeout=5,in_port=1,actions=2", "hard_timeout=8,in_port=2,actions=2", "in_port=3,actions=2")
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

func (unrecorded) Visit([]uint8, *openflow.Flow) {}
func (unrecorded) VisitWord(int, uint64)         {}

// TestClassifierFindsWhatASearchFinds compares the classifier with a linear search,
// for random rules.
func TestClassifierFindsWhatASearchFinds(t *testing.T) {
	conjunctions := 0
	for seed := range uint64(120) {
		r := rand.New(rand.NewPCG(seed, 3))
		p := NewTables(Limits{})
		p.tlvs.Store(testTLVs)
		for range 60 {
			text := fmt.Sprintf("priority=%d,%s,actions=drop", r.IntN(2000), openflowtest.MatchText(r))
			if seed%2 == 1 {
				text = randomPart(r)
			}
			mod, err := openflow.ParseFlowMod(text, openflow.Add, openflow.WithTLVs(nil, testTLVs))
			if err != nil {
				t.Fatal(err)
			}
			if r.IntN(3) == 0 && p.Len() > 0 {
				rules := p.Select(&openflow.FlowMod{Command: openflow.Delete, Table: openflow.TableAll})
				mod = rules[r.IntN(len(rules))].FlowMod()
				mod.Command = openflow.DeleteStrict
			}
			if _, err := p.Apply([]openflow.FlowMod{mod}, 0); err != nil {
				t.Fatal(err)
			}
			var f openflow.Flow
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

// randomPart returns the text of a random flow, for tables with conjunctions.
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
	mods := make([]openflow.FlowMod, 100_000)
	for i := range mods {
		mods[i], _ = openflow.ParseFlowMod(fmt.Sprintf("tcp,nw_src=10.%d.%d.%d,tp_dst=80,actions=2", i>>16, i>>8&255, i&255), openflow.Add, nil)
	}
	b.ReportAllocs()
	for b.Loop() {
		NewTables(Limits{}).Apply(mods, 0)
	}
}
