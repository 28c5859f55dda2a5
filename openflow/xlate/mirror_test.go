// SPDX-License-Identifier: Apache-2.0

package xlate

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"weft/openflow/fdb"
	"weft/openflow/openflowtest"
)

// mirrored adds mirrors to the environment, and makes their outputs carry nothing else.
func (e *fakeEnv) mirrored(list ...Mirror) *fakeEnv {
	e.mirrors = nil
	for i := range list {
		e.mirrors = append(e.mirrors, PortInfo{No: uint32(100 + i), Name: "m", Kind: PortMirror, Mirror: &list[i]})
		for k := range e.ports {
			e.ports[k].MirrorOut = e.ports[k].MirrorOut || list[i].Output == e.ports[k].At()
		}
	}
	return e
}

func vlans(list ...uint16) *VLANSet {
	s := new(VLANSet)
	for _, vid := range list {
		s.Add(vid)
	}
	return s
}

// A frame is copied once for each output, whatever the flows do with it. Ports 1 and 2 carry
// VLAN 5 without a tag; port 4 gets the copies.
func TestMirrors(t *testing.T) {
	all := Mirror{All: true, Output: 4}
	port := func(src, dst uint32) Mirror {
		return Mirror{Src: map[uint32]bool{src: true}, Dst: map[uint32]bool{dst: true}, Output: 4}
	}
	for _, c := range []struct {
		name, flows, frame string
		mirrors            []Mirror
		want, counts       string // outputs as PORT:VIDS; numbers of the mirrors that count the frame
	}{
		{"none", "actions=normal", "in_port=3", nil, "1: 2: 4:", ""},
		{"all", "actions=output:3", "in_port=3,dl_vlan=7", []Mirror{all}, "4:7", "100"},
		{"all, not sent", "actions=drop", "in_port=3,dl_vlan=7", []Mirror{all}, "4:7", "100"},
		{"all, flooded", "actions=normal", "in_port=1", []Mirror{all}, "4:5 2:", "100"},
		{"source", "actions=output:2", "in_port=3", []Mirror{port(3, 9)}, "4: 2:", "100"},
		{"another source", "actions=output:2", "in_port=3", []Mirror{port(1, 9)}, "2:", ""},
		{"destination, as sent", "actions=mod_vlan_vid:6,output:3", "in_port=1,dl_vlan=7", []Mirror{port(9, 3)}, "3:6 4:6", "100"},
		{"destination, twice", "actions=output:3,output:3", "in_port=1", []Mirror{port(9, 3)}, "3: 4: 3:", "100"},
		{"two mirrors, one output", "actions=output:2", "in_port=1", []Mirror{port(1, 9), all}, "4:5 2:", "100"},
		{"in the VLAN", "actions=output:2", "in_port=1", []Mirror{{All: true, VLANs: vlans(5), Output: 4}}, "4:5 2:", "100"},
		{"in another VLAN", "actions=output:2", "in_port=1", []Mirror{{All: true, VLANs: vlans(6), Output: 4}}, "2:", ""},
		{"not carried", "actions=output:3", "in_port=1,dl_vlan=6", []Mirror{port(1, 9)}, "3:6", ""},
		{"to a VLAN", "actions=drop", "in_port=3,dl_vlan=7", []Mirror{{All: true, OutputVLAN: 5}}, "1: 2: 3:5 4:5", "100"},
		{"to its own VLAN", "actions=drop", "in_port=1", []Mirror{{All: true, OutputVLAN: 5}}, "", "100"},
		{"from the output", "actions=output:2", "in_port=4", []Mirror{all}, "no-port", ""},
		{"to the output", "actions=output:4", "in_port=1", []Mirror{port(9, 9)}, "no-port", ""},
		{"to the output and elsewhere", "actions=output:4,output:3", "in_port=1", []Mirror{port(9, 9)}, "3:", ""},
		{"output gone", "actions=output:3", "in_port=1", []Mirror{{All: true, Output: 50}}, "3:", "100"},
	} {
		env := newEnv()
		env.ports = slices.DeleteFunc(env.ports, func(p PortInfo) bool { return p.Kind != PortNormal })
		env.mirrored(c.mirrors...)
		access := &PortVLANs{Mode: VLANAccess, VID: 5}
		env.ports[0].VLANs, env.ports[1].VLANs = access, access
		if c.name == "none" {
			env.ports[0].VLANs, env.ports[1].VLANs = nil, nil
		}
		k := keyOfText(t, c.frame+",dl_src=02:00:00:00:00:01,dl_dst=ff:ff:ff:ff:ff:ff")
		tr := Translate(pipelineOf(t, c.flows), &k, env)
		var counts []string
		for _, p := range tr.Patches {
			if p.In != 0 {
				t.Errorf("%s: counts as received: %+v", c.name, p)
			}
			counts = append(counts, map[uint32]string{100: "100", 101: "101"}[p.Out])
		}
		if got := taggedOutputs(&k, &tr); got != c.want || strings.Join(counts, " ") != c.counts {
			t.Errorf("%s: sends %q and counts for %v, want %q and %q", c.name, got, counts, c.want, c.counts)
		}
	}
}

// A copy has at most snaplen bytes. The outputs of flows have all bytes.
func TestMirrorSnaplen(t *testing.T) {
	env := newEnv().mirrored(Mirror{All: true, Output: 4, Snaplen: 64})
	k := keyOfText(t, "in_port=1")
	tr := Translate(pipelineOf(t, "actions=output:2"), &k, env)
	if len(tr.Actions) != 2 || tr.Actions[0].U32 != 4 || tr.Actions[0].U64 != 64 || tr.Actions[1].U32 != 2 || tr.Actions[1].U64 != 0 {
		t.Errorf("%+v", tr.Actions)
	}
}

// A frame that crosses several bridges is copied by the mirrors of each.
func TestMirrorsBehindAPatchPort(t *testing.T) {
	r := newBridgeRig(t)
	r.add(0, "actions=2,4")
	r.add(1, "actions=3")
	r.env.mirrored(Mirror{All: true, Output: 3})
	r.env.bridges[1].env.mirrored(Mirror{Src: map[uint32]bool{11: true}, Output: 14}, Mirror{Dst: map[uint32]bool{13: true}, Output: 14})
	if _, actions := r.translate("in_port=1", 0); actions != "3,14,13,4" {
		t.Errorf("a frame through a patch port: %s", actions)
	}
}

// A frame that is looked up again is not copied again.
func TestMirrorsBehindCT(t *testing.T) {
	r := newBridgeRig(t)
	r.add(0, "ct_state=-trk,ip,actions=ct(table=1)", "table=1,actions=2")
	r.env.mirrored(Mirror{All: true, Output: 4})
	r.env.ports[1].Kind = PortNormal
	tr, _ := r.translate(bridgedFrame+",ip,nw_src=10.0.0.1", 0)
	id := tr.Actions[len(tr.Actions)-1].U32
	if _, actions := r.translate(bridgedFrame+",ip,nw_src=10.0.0.1,ct_state=+new+trk", id); actions != "2" || tr.Actions[0].U32 != 4 {
		t.Errorf("behind ct: %s", actions)
	}
}

// randomMirrors adds random mirrors to the environment, with port 4 as their output.
func randomMirrors(r *rand.Rand, env *fakeEnv) {
	var list []Mirror
	for range 1 + r.IntN(3) {
		m := Mirror{All: r.IntN(4) == 0, Src: map[uint32]bool{1 + r.Uint32N(6): true}, Dst: map[uint32]bool{1 + r.Uint32N(6): true}, Output: 4}
		if r.IntN(2) == 0 {
			m.VLANs = vlans(uint16(r.IntN(3)), uint16(r.IntN(3)))
		}
		list = append(list, m)
	}
	env.mirrored(list...)
}

// Mirrors do not change what the ports of the bridge get, except that their output gets
// nothing else.
func TestMirrorsLeaveTheRest(t *testing.T) {
	rounds, copies := 2000, 0
	if testing.Short() {
		rounds = 400
	}
	r := rand.New(rand.NewPCG(16, 1))
	pipelines := []string{"actions=normal", "in_port=1,actions=mod_vlan_vid:1,normal,strip_vlan,output:2", "ip,actions=push_vlan:0x88a8,normal,3"}
	p := pipelineOf(t, append(pipelines[1:], "priority=1,"+pipelines[0])...)
	for range rounds {
		env := newEnv()
		env.ports = slices.DeleteFunc(env.ports, func(p PortInfo) bool { return p.Kind != PortNormal })
		for i := range env.ports {
			env.ports[i].VLANs = randomVLANs(r)
		}
		env.macs.Learn(fdb.Learn{Valid: true, VLAN: 1, Port: 2, MAC: 2}, 0)
		randomMirrors(r, env)
		k := openflowtest.Key(r)
		k.SetInPort(1 + r.Uint32N(3))
		got := Translate(p, &k, env)
		env.ports, env.mirrors = env.ports[:3], nil
		want := Translate(p, &k, env)
		var rest []string
		for _, word := range strings.Fields(taggedOutputs(&k, &got)) {
			if strings.HasPrefix(word, "4:") {
				copies++
			} else {
				rest = append(rest, word)
			}
		}
		if plain := taggedOutputs(&k, &want); strings.Join(rest, " ") != plain {
			t.Fatalf("%x: sends %q with mirrors, %q without", k, rest, plain)
		}
	}
	if copies < rounds/10 {
		t.Errorf("only %d copies of %d frames", copies, rounds)
	}
}
