// SPDX-License-Identifier: Apache-2.0

package xlate

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"weft/openflow"
	"weft/openflow/ofproto"
)

func groups(t *testing.T, p *ofproto.Tables, command openflow.GroupCommand, texts ...string) ofproto.Changes {
	t.Helper()
	var mods []openflow.GroupMod
	for _, text := range texts {
		mod, err := openflow.ParseGroupMod(text, command, newEnv())
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		mods = append(mods, mod)
	}
	c, err := p.ApplyGroups(mods, 1)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func actionsOf(p *ofproto.Tables, env Env, t *testing.T, frame string) string {
	t.Helper()
	k := keyOfText(t, frame)
	tr := Translate(p, &k, env)
	return openflow.FormatDatapathActions(tr.Actions, nil)
}

func TestGroups(t *testing.T) {
	p := ofproto.NewTables(ofproto.Limits{})
	env := newEnv()
	if _, err := p.Apply([]openflow.FlowMod{mustMod(t, openflow.Add, "actions=group:1")}, 1); err == nil || !strings.Contains(err.Error(), "group:1") {
		t.Errorf("adding a flow with a missing group: unexpected error %v", err)
	}
	groups(t, p, openflow.GroupAdd, "group_id=1,type=all,bucket=mod_dl_dst:00:00:00:00:00:09,2,bucket=4,strip_vlan", "group_id=2,type=indirect,bucket=group:1",
		"group_id=3,type=ff,bucket=watch_port:4,4,bucket=watch_group:4,2,bucket=watch_port:1,in_port", "group_id=4,type=select,bucket=watch_port:2,2")
	apply(t, p, 1, openflow.Add, "in_port=1,actions=group:1,3", "in_port=2,actions=group:2", "in_port=3,actions=write_actions(group:3)")
	frames := map[string]string{
		"in_port=1,dl_dst=00:00:00:00:00:05": "set(eth(dst=00:00:00:00:00:09)),2,set(eth(dst=00:00:00:00:00:05)),4,3",
		"in_port=2":                          "4", // not back to port 2
		"in_port=3":                          "4",
	}
	for frame, want := range frames {
		if got := actionsOf(p, env, t, frame); got != want {
			t.Errorf("%s: %s, want %s", frame, got, want)
		}
	}
	for _, tt := range []struct{ down, want string }{{"d", "2"}, {"b", "3"}, {"a", "drop(flow-drop)"}} {
		for i := range env.ports {
			env.ports[i].Down = env.ports[i].Down || env.ports[i].Name == tt.down
		}
		if got := actionsOf(p, env, t, "in_port=3"); got != tt.want {
			t.Errorf("with %s down: %s, want %s", tt.down, got, tt.want)
		}
	}
	before := len(p.Groups(openflow.GroupAny))
	bad := []openflow.GroupMod{{Command: openflow.GroupDelete, Group: openflow.Group{ID: openflow.GroupAny}}, {Command: openflow.GroupModify, Group: openflow.Group{ID: 1}}}
	if _, err := p.ApplyGroups(bad, 1); err == nil || len(p.Groups(openflow.GroupAny)) != before || p.Len() != 3 {
		t.Errorf("after a failed change: error %v, %d groups", err, len(p.Groups(openflow.GroupAny)))
	}
	c := groups(t, p, openflow.GroupDelete, "group_id=3")
	if len(c.Removed) != 1 || c.Removed[0].Why != ofproto.WhyGroup || p.Len() != 2 {
		t.Errorf("deleting a group: unexpected changes %+v", c)
	}
	groups(t, p, openflow.GroupModify, "group_id=1,type=all,bucket=1,bucket=2")
	if got := actionsOf(p, env, t, "in_port=1,dl_dst=00:00:00:00:00:05"); got != "2,3" {
		t.Errorf("a modified group: %s, want 2,3", got)
	}
	groups(t, p, openflow.GroupPut, "group_id=1,type=indirect,bucket=group:1")
	if got := actionsOf(p, env, t, "in_port=1"); got != "drop(loop)" {
		t.Errorf("a group that contains itself: unexpected actions %s", got)
	}
}

// A select group uses its buckets in proportion to their weights, and uses the same bucket for both
// directions of a connection. If a bucket fails, few connections of the other buckets move.
func TestSelectIsByWeightAndConnection(t *testing.T) {
	p := ofproto.NewTables(ofproto.Limits{})
	env := newEnv()
	groups(t, p, openflow.GroupAdd, "group_id=1,type=select,bucket=weight:1,watch_port:1,output:1,bucket=weight:3,watch_port:2,output:2,bucket=weight:4,watch_port:4,output:4,bucket=weight:0,output:3")
	apply(t, p, 1, openflow.Add, "actions=group:1")
	r := rand.New(rand.NewPCG(1, 9))
	const n = 8000
	count := map[string]int{}
	moved := 0
	for range n {
		a, b, sp, dp := r.Uint32(), r.Uint32(), r.IntN(65536), r.IntN(65536)
		frame := func(a, b uint32, sp, dp int) string {
			return fmt.Sprintf("in_port=9,tcp,nw_src=%s,nw_dst=%s,tp_src=%d,tp_dst=%d", openflow.ValueAddr(openflow.Value64(uint64(a)), 32), openflow.ValueAddr(openflow.Value64(uint64(b)), 32), sp, dp)
		}
		there := actionsOf(p, env, t, frame(a, b, sp, dp))
		if back := actionsOf(p, env, t, frame(b, a, dp, sp)); back != there {
			t.Fatalf("one direction goes to %s, the other to %s", there, back)
		}
		count[there]++
		env.ports[0].Down = true
		if after := actionsOf(p, env, t, frame(a, b, sp, dp)); after != there {
			moved++
			if there != "1" || after == "3" {
				t.Fatalf("a connection moved from %s to %s", there, after)
			}
		}
		env.ports[0].Down = false
	}
	for out, weight := range map[string]float64{"1": 1, "2": 3, "4": 4} {
		want := n * weight / 8
		if got := float64(count[out]); math.Abs(got-want) > 5*math.Sqrt(want) {
			t.Errorf("%s has %g connections, want about %g", out, got, want)
		}
	}
	if moved != count["1"] {
		t.Errorf("%d connections moved, want only the %d of the failed bucket", moved, count["1"])
	}
}

// Frames without IP are spread by their Ethernet addresses, and ARP frames by each address in the
// message.
func TestSelectSpreadsFramesWithoutIP(t *testing.T) {
	p, env := ofproto.NewTables(ofproto.Limits{}), newEnv()
	groups(t, p, openflow.GroupAdd, "group_id=1,type=select,bucket=output:1,bucket=output:2")
	apply(t, p, 1, openflow.Add, "actions=group:1")
	for _, field := range []string{"dl_type=0x88b5,dl_src=00:00:00:00:00:%02x", "dl_type=0x88b5,dl_dst=00:00:00:00:00:%02x",
		"arp,arp_spa=10.0.0.%d", "arp,arp_tpa=10.0.0.%d", "arp,arp_sha=00:00:00:00:00:%02x", "arp,arp_tha=00:00:00:00:00:%02x"} {
		count := map[string]int{}
		for n := range 40 {
			count[actionsOf(p, env, t, "in_port=9,"+fmt.Sprintf(field, n+1))]++
		}
		if len(count) != 2 {
			t.Errorf("%s: all frames go to one bucket: %v", field, count)
		}
	}
}

func meters(t *testing.T, p *ofproto.Tables, command openflow.MeterCommand, texts ...string) (ofproto.Changes, []*openflow.Meter) {
	t.Helper()
	var mods []openflow.MeterMod
	for _, text := range texts {
		mod, err := openflow.ParseMeterMod(text, command)
		if err != nil {
			t.Fatal(err)
		}
		mods = append(mods, mod)
	}
	c, changed, err := p.ApplyMeters(mods, 1)
	if err != nil {
		t.Fatal(err)
	}
	return c, changed
}

func TestMeters(t *testing.T) {
	p := ofproto.NewTables(ofproto.Limits{})
	if _, err := p.Apply([]openflow.FlowMod{mustMod(t, openflow.Add, "actions=meter:1,2")}, 1); err == nil {
		t.Error("a flow with a missing meter was accepted")
	}
	_, changed := meters(t, p, openflow.MeterAdd, "meter=1,pktps,bands=type=drop,rate=5 type=drop,rate=7", "meter=2,kbps,band=type=dscp_remark,rate=5")
	if len(changed) != 2 || changed[1].Bands[0].Slot != 2 {
		t.Errorf("unexpected changed meters %+v", changed)
	}
	apply(t, p, 1, openflow.Add, "in_port=1,actions=meter:1,2", "in_port=2,actions=meter:2,1")
	if got := actionsOf(p, newEnv(), t, "in_port=1"); got != "meter(0),meter(1),2" {
		t.Errorf("unexpected actions %s", got)
	}
	if _, _, err := p.ApplyMeters([]openflow.MeterMod{{Command: openflow.MeterDelete, Meter: openflow.Meter{ID: 1}}, {Command: openflow.MeterModify, Meter: openflow.Meter{ID: 9}}}, 1); err == nil || p.Len() != 2 {
		t.Errorf("unexpected error of the failing change: %v", err)
	}
	if c, _ := meters(t, p, openflow.MeterDelete, "meter=1"); len(c.Removed) != 1 || c.Removed[0].Why != ofproto.WhyMeter {
		t.Errorf("deleting a meter: unexpected changes %+v", c)
	}
	if _, changed := meters(t, p, openflow.MeterAdd, "meter=3,kbps,band=type=drop,rate=5"); changed[0].Bands[0].Slot > 1 {
		t.Errorf("slot %d, want one of the freed slots", changed[0].Bands[0].Slot)
	}
	if c, _ := meters(t, p, openflow.MeterDelete, "meter=all"); len(c.Removed) != 1 || len(p.Meters(openflow.MeterAll)) != 0 {
		t.Errorf("deleting all meters: unexpected changes %+v", c)
	}
}

// Groups may watch each other in a circle. A bucket in the circle is live if one of
// these groups has a bucket with a live port.
func TestGroupsThatWatchEachOther(t *testing.T) {
	watches := func(id int, ports string, watchers ...int) string {
		text := fmt.Sprintf("group_id=%d,type=ff", id)
		for _, to := range watchers {
			text += fmt.Sprintf(",bucket=watch_group:%d,actions=1,bucket=watch_group:%d,actions=1", to, to)
		}
		return text + ports
	}
	env, up, down := newEnv(), ",bucket=watch_port:2,actions=2", ",bucket=watch_port:99,actions=2"
	tests := []struct {
		last string // text of the last group in the circle
		want string
	}{
		{watches(3, down, 1, 2, 3), "drop(flow-drop)"},
		{watches(3, up, 1, 2, 3), "1"},
	}
	for _, tt := range tests {
		p := ofproto.NewTables(ofproto.Limits{})
		groups(t, p, openflow.GroupAdd, watches(1, "", 1, 2, 3), watches(2, "", 1, 2, 3), tt.last)
		apply(t, p, 1, openflow.Add, "actions=group:1")
		got := make(chan string)
		go func() { got <- actionsOf(p, env, t, "in_port=3") }()
		select {
		case actions := <-got:
			if actions != tt.want {
				t.Errorf("%s: %s, want %s", tt.last, actions, tt.want)
			}
		case <-time.After(30 * time.Second):
			t.Fatalf("%s: the translation does not end", tt.last)
		}
	}
}

// A port that is off is no output of flows and floods, and its frames are dropped.
func TestPortOff(t *testing.T) {
	p := ofproto.NewTables(ofproto.Limits{})
	env := newEnv()
	apply(t, p, 1, openflow.Add, "in_port=1,actions=flood", "in_port=2,actions=4", "in_port=4,actions=2")
	before := actionsOf(p, env, t, "in_port=1")
	env.ports[3].Off = true
	for frame, want := range map[string]string{"in_port=1": strings.Replace(before, ",4", "", 1), "in_port=2": "drop(port-off)", "in_port=4": "drop(port-off)"} {
		if got := actionsOf(p, env, t, frame); got != want || got == before {
			t.Errorf("%s: %s, want %s", frame, got, want)
		}
	}
	env.ports[3].Off, env.ports[3].NoFlood = false, true
	for frame, want := range map[string]string{"in_port=1": strings.Replace(before, ",4", "", 1), "in_port=2": "4"} {
		if got := actionsOf(p, env, t, frame); got != want {
			t.Errorf("without floods to the port, %s: %s, want %s", frame, got, want)
		}
	}
}
