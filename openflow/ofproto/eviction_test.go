// SPDX-License-Identifier: Apache-2.0

package ofproto

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"weft/openflow"
)

func TestEviction(t *testing.T) {
	tests := []struct {
		name, flows, add string
		evicted          string // match on in_port that identifies the evicted rule; "" if the add must fail
	}{
		{"least important first", "importance=3,in_port=1|importance=1,in_port=2|importance=2,in_port=3", "importance=5,in_port=9", "2"},
		{"timed first", "importance=1,in_port=1|importance=1,idle_timeout=9,in_port=2|importance=1,in_port=3", "importance=5,in_port=9", "2"},
		{"equal and timed", "in_port=1|hard_timeout=9,in_port=2|in_port=3", "in_port=9", "2"},
		{"equal and not timed", "in_port=1|in_port=2|in_port=3", "in_port=9", ""},
		{"all more important", "importance=3,in_port=1|importance=4,in_port=2|importance=4,in_port=3", "importance=2,in_port=9", ""},
		{"replaced instead", "in_port=1|in_port=2|in_port=3", "in_port=2", "2"},
	}
	for _, tt := range tests {
		p := NewTables(Limits{})
		p.Configure(0, TableConfig{Limit: 3, Evict: true})
		for _, f := range strings.Split(tt.flows, "|") {
			apply(t, p, 1, openflow.Add, f+",actions=drop")
		}
		c, err := p.Apply([]openflow.FlowMod{mustMod(t, openflow.Add, tt.add+",actions=drop")}, 2)
		if tt.evicted == "" {
			if err == nil || !strings.Contains(err.Error(), "at most 3 flows") || p.Len() != 3 {
				t.Errorf("%s: %v and %d rules, want a refusal", tt.name, err, p.Len())
			}
			continue
		}
		if err != nil || len(c.Removed) != 1 {
			t.Errorf("%s: unexpected changes %+v or error %v", tt.name, c, err)
			continue
		}
		want := WhyEvicted
		if tt.name == "replaced instead" {
			want = WhyDeleted
		}
		if got := c.Removed[0].Match.Format(nil); got != "in_port="+tt.evicted || c.Removed[0].Why != want {
			t.Errorf("%s: evicted %s (%v), want in_port=%s (%v)", tt.name, got, c.Removed[0].Why, tt.evicted, want)
		}
	}
}

// Evictions remove the rules that were unused for the longest time. A failed change
// undoes all its evictions.
func TestEvictionInBundles(t *testing.T) {
	p := NewTables(Limits{Rules: 10})
	for table := range uint8(openflow.Tables) {
		p.Configure(table, TableConfig{Evict: true})
	}
	var mods []openflow.FlowMod
	for i := range 10 {
		c := apply(t, p, uint64(i), openflow.Add, fmt.Sprintf("idle_timeout=9,table=%d,in_port=%d,actions=drop", i%2, i))
		c.Added[0].Credit(1, 1, uint64(1000-10*i))
		mods = append(mods, mustMod(t, openflow.Add, fmt.Sprintf("importance=1,in_port=%d,actions=drop", 100+i)))
	}
	before := dump(p)
	if _, err := p.Apply(append(slices.Clone(mods[:4]), mustMod(t, openflow.Add, "check_overlap,priority=32768,dl_src=00:00:00:00:00:01,actions=1")), 5); err == nil {
		t.Fatal("a change with an overlapping flow was accepted")
	}
	if after := dump(p); !slices.Equal(before, after) {
		t.Errorf("a failed change left\n%s\nwas\n%s", strings.Join(after, "\n"), strings.Join(before, "\n"))
	}
	c, err := p.Apply(mods[:4], 5)
	if err != nil || len(c.Removed) != 4 || p.Len() != 10 {
		t.Fatalf("error %v, %d rules removed, %d left", err, len(c.Removed), p.Len())
	}
	for i, r := range c.Removed {
		if want := fmt.Sprintf("in_port=%d", 9-i); r.Match.Format(nil) != want {
			t.Errorf("removal %d is %s, want %s", i, r.Match.Format(nil), want)
		}
	}
	if _, n := p.Config(0); n != 5-2+4 {
		t.Errorf("table 0 has %d rules", n)
	}
}

func TestWhyRulesExpire(t *testing.T) {
	const second = 1_000_000_000
	p := NewTables(Limits{})
	apply(t, p, 0, openflow.Add, "idle_timeout=5,in_port=1,actions=2", "hard_timeout=5,in_port=2,actions=2", "idle_timeout=5,hard_timeout=5,in_port=3,actions=2")
	var got []string
	for _, r := range p.Expire(5 * second) {
		got = append(got, r.Why.String())
	}
	if want := []string{"idle", "hard", "hard"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestModifyResetsCounts(t *testing.T) {
	p := NewTables(Limits{})
	apply(t, p, 0, openflow.Add, "in_port=1,actions=2")
	p.Rule(0).Credit(3, 30, 1)
	apply(t, p, 1, openflow.Modify, "in_port=1,actions=4")
	if p.Rule(0).Packets != 3 {
		t.Errorf("modify left %d packets, want 3", p.Rule(0).Packets)
	}
	apply(t, p, 1, openflow.Modify, "reset_counts,in_port=1,actions=4")
	if p.Rule(0).Packets != 0 {
		t.Errorf("modify with reset_counts left %d packets", p.Rule(0).Packets)
	}
}
