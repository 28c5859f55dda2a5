// SPDX-License-Identifier: Apache-2.0

package xlate

import (
	"slices"
	"testing"

	"weft/openflow"
	"weft/openflow/fdb"
	"weft/openflow/ofproto"
)

// Flows name the port LOCAL by its reserved number. The data path and the table of
// addresses use the port's number in the data path instead.
func TestLocalPort(t *testing.T) {
	env := &fakeEnv{macs: fdb.New(0, 0), ports: []PortInfo{{No: 1}, {No: 2}, {No: openflow.PortLocal, Datapath: 9, Name: "sw"}}}
	for _, c := range []struct {
		flow, from string
		want       []uint32
	}{
		{"in_port=LOCAL,actions=output:1", "9", []uint32{1}},
		{"in_port=9,actions=output:1", "9", nil},
		{"in_port=sw,actions=in_port", "9", []uint32{9}},
		{"actions=LOCAL", "9", nil},
		{"actions=LOCAL", "1", []uint32{9}},
		{"actions=output:9", "1", nil},
		{"actions=flood", "1", []uint32{2, 9}},
		{"actions=all", "9", []uint32{1, 2}},
		{"actions=move:NXM_OF_IN_PORT[]->NXM_NX_REG0[0..15],output:NXM_NX_REG0[]", "9", nil},
		{"actions=load:0xfffe->NXM_NX_REG0[],output:NXM_NX_REG0[]", "1", []uint32{9}},
	} {
		mod, err := openflow.ParseFlowMod(c.flow, openflow.Add, env)
		if err != nil {
			t.Fatal(err)
		}
		p := ofproto.NewTables(ofproto.Limits{})
		if _, err := p.Apply([]openflow.FlowMod{mod}, 0); err != nil {
			t.Fatal(err)
		}
		k := keyOfText(t, "dl_src=00:00:00:00:00:01,dl_dst=ff:ff:ff:ff:ff:ff,in_port="+c.from)
		tr := Translate(p, &k, env)
		if got := reached(&tr); !slices.Equal(got, c.want) {
			t.Errorf("%s from %s: %v, want %v", c.flow, c.from, got, c.want)
		}
	}
	p := pipelineOf(t, "actions=normal")
	k := keyOfText(t, "in_port=9,dl_src=00:00:00:00:00:07,dl_dst=ff:ff:ff:ff:ff:ff")
	tr := Translate(p, &k, env)
	if learnOf(&tr).Port != 9 {
		t.Errorf("learns %+v, want port 9", learnOf(&tr))
	}
	env.macs.Learn(learnOf(&tr), 1)
	for from, want := range map[string][]uint32{"1": {9}, "9": nil} {
		k := keyOfText(t, "in_port="+from+",dl_src=00:00:00:00:00:01,dl_dst=00:00:00:00:00:07")
		tr := Translate(p, &k, env)
		if got := reached(&tr); !slices.Equal(got, want) {
			t.Errorf("to LOCAL's address from port %s: %v, want %v", from, got, want)
		}
	}
}
