// SPDX-License-Identifier: Apache-2.0

package xlate

import (
	"math/rand/v2"
	"strings"
	"testing"

	"weft/flowtable"
	"weft/openflow"
	"weft/openflow/openflowtest"
	"weft/packet"
)

// oneTagEnv is a fakeEnv whose VLANLimit is 1, so that flows see one VLAN tag.
type oneTagEnv struct{ *fakeEnv }

func (oneTagEnv) VLANLimit() int { return 1 }

// hideInnerTag returns the key of a frame as flows that see one VLAN tag see it. k is the frame's own
// key.
func hideInnerTag(k flowtable.Key) flowtable.Key {
	if k.InnerTCI() == 0 {
		return k
	}
	seen := flowtable.Key{flowtable.WPort: k[flowtable.WPort], flowtable.WEthDst: k[flowtable.WEthDst]&^0xffff | packet.EtherTypeVLAN,
		flowtable.WEthSrc: k[flowtable.WEthSrc]}
	*seen.Tunnel() = *k.Tunnel()
	*seen.CT() = *k.CT()
	return seen
}

// With a VLAN limit of 1, a frame with two tags is translated like a frame without the second tag and
// without later headers. The test compares the translation with the interpreter, for the translated
// frame and for others that the megaflow matches.
func TestVLANLimit(t *testing.T) {
	r := rand.New(rand.NewPCG(33, 1))
	pipelines := []string{
		"dl_type=0x8100,actions=output:2\nip,actions=output:3\npriority=1,actions=output:4",
		"actions=strip_vlan,resubmit(,1)\ntable=1,dl_type=0x8100,vlan_tci=0,actions=mod_dl_src:00:00:00:00:00:07,output:2\ntable=1,ip,actions=dec_ttl,output:3\ntable=1,priority=1,actions=output:4",
		"actions=push_vlan:0x88a8,normal,mod_vlan_vid:3,output:4",
		"actions=mod_nw_tos:8,mod_nw_dst:10.0.0.9,normal",
	}
	hidden, rounds := 0, 800
	if testing.Short() {
		rounds = 200
	}
	for round := range rounds {
		env, p := newEnv(), pipelineOf(t, strings.Split(pipelines[round%len(pipelines)], "\n")...)
		k := openflowtest.Key(r)
		tr := Translate(p, &k, oneTagEnv{env})
		for range 6 {
			if !realFrame(&k) {
				break
			}
			seen := hideInnerTag(k)
			in := interpret(p, env, &seen)
			want, got := strings.Join(in.sent, "\n"), strings.Join(runDatapath(&seen, tr.Actions), "\n")
			if got != want {
				t.Fatalf("round %d, frame %x\nmegaflow %s sends\n%s\nwant\n%s", round, k, openflow.FormatDatapathActions(tr.Actions, nil), got, want)
			}
			if seen != k {
				hidden++
			}
			o := openflowtest.Key(r)
			for i := range o {
				o[i] = k[i]&tr.Mask[i] | o[i]&^tr.Mask[i]
			}
			k = o
		}
	}
	if hidden < rounds/8 {
		t.Errorf("%d frames of two tags in %d rounds", hidden, rounds)
	}
}
