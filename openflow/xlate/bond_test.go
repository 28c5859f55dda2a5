// SPDX-License-Identifier: Apache-2.0

package xlate

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"weft/flowtable"
	"weft/openflow/fdb"
	"weft/openflow/openflowtest"
)

// bondEnv returns four ports, of which 1 and 2 are members of bond 9. Member 1 is active. Frames of
// even hash buckets go to member 1, those of odd ones to member 2. balance selects SpreadSources.
func bondEnv(balance bool) *fakeEnv {
	env := newEnv()
	env.ports = slices.DeleteFunc(env.ports, func(p PortInfo) bool { return p.Kind != PortNormal })
	env.ports[2].NoFlood = false
	env.ports[0].Bond, env.ports[1].Bond = 9, 9
	b := Bond{Active: 1}
	if balance {
		b.Spread = SpreadSources
	}
	for i := range b.Buckets {
		b.Buckets[i] = uint32(1 + i%2)
	}
	env.ports = append(env.ports, PortInfo{No: 9, Name: "bond", Kind: PortBond, Members: &b})
	return env
}

// The action normal handles the members of a bond like one port. It learns addresses behind the bond,
// sends to one member, and accepts frames to group addresses only from the active member.
func TestBonds(t *testing.T) {
	const guest, peer = "02:00:00:00:00:01", "02:00:00:00:00:02" // behind port 3 and behind the bond
	for _, c := range []struct {
		flows, frame string
		balance      bool
		want         string
		learns       uint32
	}{
		{"normal", "in_port=3,dl_src=" + guest, false, "4: 1:", 3},
		{"normal", "in_port=3,dl_src=" + guest + ",dl_dst=" + peer, false, "1:", 3},
		{"normal", "in_port=1,dl_src=" + peer, false, "3: 4:", 9},
		{"normal", "in_port=1,dl_src=" + peer + ",dl_dst=" + guest, false, "3:", 9},
		{"normal", "in_port=1,dl_src=02:00:00:00:00:03,dl_dst=" + peer, false, "", 9},
		{"normal", "in_port=2,dl_src=" + peer, false, "bond-backup", 0},
		{"normal", "in_port=2,dl_src=" + peer + ",dl_dst=" + guest, false, "bond-backup", 0},
		{"normal", "in_port=2,dl_src=" + peer, true, "bond-backup", 0},
		{"normal", "in_port=2,dl_src=" + peer + ",dl_dst=" + guest, true, "3:", 9},
		{"normal", "in_port=1,dl_src=" + guest, true, "bond-backup", 0}, // flooded back
		{"normal", "in_port=1,dl_src=" + guest + ",arp,arp_op=2", true, "3: 4:", 9},
		{"normal", "in_port=1,dl_src=" + guest + ",arp,arp_op=1,arp_spa=10.0.0.1,arp_tpa=10.0.0.1", true, "3: 4:", 9},
		{"normal", "in_port=1,dl_src=" + guest + ",arp,arp_op=1,arp_spa=10.0.0.1,arp_tpa=10.0.0.2", true, "bond-backup", 0},
		{"output:9", "in_port=3", false, "1:", 0},
		{"output:9,output:4", "in_port=2", false, "4:", 0},
		{"output:2", "in_port=3", false, "2:", 0},
		{"all", "in_port=3", false, "4: 1:", 0},
		{"all", "in_port=2", false, "3: 4:", 0},
	} {
		env := bondEnv(c.balance)
		env.macs.Learn(fdb.Learn{Valid: true, Port: 3, MAC: 0x020000000001}, 0)
		env.macs.Learn(fdb.Learn{Valid: true, Port: 9, MAC: 0x020000000002}, 0)
		if !strings.Contains(c.frame, "dl_dst") {
			c.frame += ",dl_dst=ff:ff:ff:ff:ff:ff"
		}
		k := keyOfText(t, c.frame)
		tr := Translate(pipelineOf(t, "actions="+c.flows), &k, env)
		if got := taggedOutputs(&k, &tr); got != c.want || learnOf(&tr).Port != c.learns || !tr.UsedPorts && c.flows != "output:2" {
			t.Errorf("%s: %s: sends %q and learns behind %d (ports %v), want %q and %d", c.flows, c.frame, got, learnOf(&tr).Port, tr.UsedPorts, c.want, c.learns)
		}
	}
}

// With SpreadSources, source addresses are spread over the members. Frames with the same address and
// VLAN stay with one member.
func TestBalance(t *testing.T) {
	env := bondEnv(true)
	p := pipelineOf(t, "actions=normal")
	members := map[string]int{}
	for n := range 400 {
		k := keyOfText(t, fmt.Sprintf("in_port=3,dl_src=02:00:00:00:%02x:%02x,dl_dst=ff:ff:ff:ff:ff:ff,dl_vlan=%d,ip,nw_src=10.0.0.%d", n>>1&0xff, n>>9, 1+n&1, n%200))
		tr := Translate(p, &k, env)
		members[fmt.Sprint(tr.Actions[len(tr.Actions)-1].U32)]++
	}
	if members["1"] < 150 || members["2"] < 150 || len(members) != 2 {
		t.Errorf("members of 400 addresses: %v", members)
	}
}

// With SpreadFlows and LACP, connections are spread over the members, and each connection stays with
// one. The bond accepts all frames on a member in use and none on another.
func TestAggregation(t *testing.T) {
	env := bondEnv(false)
	env.ports[4].Members = &Bond{Spread: SpreadFlows, Aggregated: true, Active: 1, Buckets: env.ports[4].Members.Buckets}
	p := pipelineOf(t, "actions=normal")
	members, of := map[uint32]int{}, map[int]uint32{}
	for n := range 800 {
		k := keyOfText(t, fmt.Sprintf("in_port=3,dl_src=02:00:00:00:00:01,dl_dst=02:00:00:00:00:09,tcp,nw_src=10.0.0.1,nw_dst=10.0.0.2,tp_src=%d,tp_dst=80", n%400+1))
		tr := Translate(p, &k, env)
		member := tr.Actions[len(tr.Actions)-1].U32
		if was, again := of[n%400]; again && was != member {
			t.Fatalf("connection %d moves from %d to %d", n%400, was, member)
		}
		of[n%400] = member
		members[member]++
	}
	if members[1] < 300 || members[2] < 300 || len(members) != 2 {
		t.Errorf("members of 400 connections: %v", members)
	}
	for _, c := range []struct {
		in, frame string
		standby   bool
		want      string
	}{
		{"2", "dl_src=02:00:00:00:00:01", false, "3: 4:"}, // behind port 3 so far
		{"2", "dl_src=02:00:00:00:00:01", true, "bond-backup"},
		{"1", "dl_src=02:00:00:00:00:01,dl_type=0x8809", false, "3: 4:"},
		{"1", "dl_src=02:00:00:00:00:01,dl_type=0x8809,dl_dst=01:80:c2:00:00:02", false, "reserved-address"},
		{"3", "dl_src=02:00:00:00:00:01,dl_type=0x8809,dl_dst=01:80:c2:00:00:02", false, "4: 1:"},
	} {
		env.ports[0].LACP, env.ports[1].LACP, env.ports[1].Standby = true, true, c.standby
		env.macs.Learn(fdb.Learn{Valid: true, Port: 3, MAC: 0x020000000001}, 0)
		if !strings.Contains(c.frame, "dl_dst") {
			c.frame += ",dl_dst=ff:ff:ff:ff:ff:ff"
		}
		actions := "actions=normal"
		if strings.Contains(c.frame, "01:80:c2") {
			actions = "actions=all" // this flow sends reserved addresses, too
		}
		k := keyOfText(t, "in_port="+c.in+","+c.frame)
		tr := Translate(pipelineOf(t, actions), &k, env)
		// The megaflow must match in_port: on another port, frames like these may be LACP frames,
		// which no flow sees.
		if got := taggedOutputs(&k, &tr); got != c.want || tr.Mask[flowtable.WPort]&flowtable.InPortBits != flowtable.InPortBits {
			t.Errorf("%s from port %s, standby %v: %s, want %s", c.frame, c.in, c.standby, got, c.want)
		}
	}
}

// A member without its bond and a bond without a member forward nothing.
func TestBondsThatAreIncomplete(t *testing.T) {
	for _, in := range []uint32{1, 3} {
		env := bondEnv(false)
		env.ports[0].Bond, env.ports[4].Members = 8, &Bond{}
		env.ports = slices.Delete(env.ports, 3, 4)
		k := keyOfText(t, "dl_src=02:00:00:00:00:01,dl_dst=ff:ff:ff:ff:ff:ff")
		k.SetInPort(in)
		tr := Translate(pipelineOf(t, "actions=normal"), &k, env)
		if got := taggedOutputs(&k, &tr); got != "no-port" || !tr.UsedPorts {
			t.Errorf("from port %d: %s", in, got)
		}
	}
}

// A mirror of a bond copies what its members send and receive.
func TestMirrorOfABond(t *testing.T) {
	p := pipelineOf(t, "actions=normal")
	for _, c := range []struct{ in, want string }{{"1", "4: 3:"}, {"2", "4: bond-backup"}, {"3", "1: 4:"}} {
		env := bondEnv(false).mirrored(Mirror{Src: map[uint32]bool{9: true}, Dst: map[uint32]bool{9: true}, Output: 4})
		k := keyOfText(t, "in_port="+c.in+",dl_src=02:00:00:00:00:01,dl_dst=ff:ff:ff:ff:ff:ff")
		tr := Translate(p, &k, env)
		if got := taggedOutputs(&k, &tr); got != c.want {
			t.Errorf("from port %s: %s, want %s", c.in, got, c.want)
		}
	}
}

// Megaflows of bonds match all that the choice of the member depends on.
func TestBondsAreSound(t *testing.T) {
	r := rand.New(rand.NewPCG(17, 1))
	p := pipelineOf(t, "in_port=4,actions=mod_dl_src:02:00:00:00:00:07,output:9,mod_vlan_vid:2,output:9", "priority=1,actions=normal,output:9")
	for round := range 200 {
		env := bondEnv(round%2 == 0)
		if state := env.ports[4].Members; round%3 == 0 {
			state.Spread, state.Aggregated = SpreadFlows, true
			env.ports[0].LACP, env.ports[1].LACP, env.ports[1].Standby = true, true, round%4 == 0
		}
		for i := range env.ports {
			env.ports[i].VLANs = randomVLANs(r)
		}
		env.macs.Learn(fdb.Learn{Valid: true, VLAN: 1, Port: 9, MAC: 2}, 0)
		env.macs.Learn(fdb.Learn{Valid: true, VLAN: 1, Port: 3, MAC: 3}, 0)
		k := openflowtest.Key(r)
		k.SetInPort(1 + r.Uint32N(4))
		tr := Translate(p, &k, env)
		for range 20 {
			o := agreeing(r, &k, &tr.Mask)
			if other := Translate(p, &o, env); !slices.EqualFunc(tr.Actions, other.Actions, func(a, b flowtable.Action) bool { return a == b }) {
				t.Fatalf("%x and %x agree on %x: %s, %s", k, o, tr.Mask, taggedOutputs(&k, &tr), taggedOutputs(&o, &other))
			}
		}
	}
}
