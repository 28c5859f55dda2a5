// SPDX-License-Identifier: Apache-2.0

package xlate

import (
	"math/rand/v2"
	"reflect"
	"testing"

	"weft/openflow"
	"weft/openflow/ofproto"
)

func mustMod(t *testing.T, command openflow.Command, text string) openflow.FlowMod {
	t.Helper()
	mod, err := openflow.ParseFlowMod(text, command, newEnv())
	if err != nil {
		t.Fatal(err)
	}
	return mod
}

func apply(t *testing.T, p *ofproto.Tables, nowNS uint64, command openflow.Command, texts ...string) ofproto.Changes {
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

func dump(p *ofproto.Tables) []string {
	var lines []string
	for _, r := range p.Select(&openflow.FlowMod{Command: openflow.Delete, Table: openflow.TableAll}) {
		mod := r.FlowMod()
		lines = append(lines, openflow.FormatFlowMod(&mod, nil))
	}
	return lines
}

// Among overlapping rules of equal priority the same rule always wins, whatever the
// order in which they were added.
func TestOrderOfAddsDoesNotMatter(t *testing.T) {
	flows := []string{"in_port=1,actions=1", "ip,actions=2", "dl_src=00:00:00:00:00:01,actions=3", "tcp,actions=4", "actions=5"}
	k := keyOfText(t, "in_port=1,tcp,dl_src=00:00:00:00:00:01")
	var want *Translation
	for seed := range uint64(20) {
		rand.New(rand.NewPCG(seed, 1)).Shuffle(len(flows), func(i, j int) { flows[i], flows[j] = flows[j], flows[i] })
		tr := Translate(pipelineOf(t, flows...), &k, newEnv())
		tr.Rules = nil
		if want == nil {
			want = &tr
		} else if !reflect.DeepEqual(*want, tr) {
			t.Fatalf("the order of adds changes the translation:\n%+v\n%+v", *want, tr)
		}
	}
}
