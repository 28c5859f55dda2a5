// SPDX-License-Identifier: Apache-2.0

package xlate

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"weft/flowtable"
	"weft/openflow/ofproto"
	"weft/openflow/openflowtest"
)

// exporting adds exporters to the environment, as ports with numbers from 100 on.
func (e *fakeEnv) exporting(list ...Exporter) *fakeEnv {
	e.exporters = nil
	for i := range list {
		e.exporters = append(e.exporters, PortInfo{No: uint32(100 + i), Name: "x", Kind: PortExporter, Exporter: &list[i]})
	}
	return e
}

// samplesOf returns the samples and outputs of actions as text.
func samplesOf(actions []flowtable.Action) string {
	var b strings.Builder
	for _, a := range actions {
		switch tag := flowtable.TagOf(a.U64); a.Op {
		case flowtable.OpObserve:
			fmt.Fprintf(&b, "of(%d,%d) ", a.U64>>32, uint32(a.U64))
		case flowtable.OpSample:
			way := "<"
			if tag.Egress {
				way = ">"
			}
			if tag.Unknown {
				way += "?"
			}
			fmt.Fprintf(&b, "%d%s%d/%d@%x ", tag.Exporter, way, tag.Output, tag.Outputs, a.U32)
		case flowtable.OpOutput:
			fmt.Fprintf(&b, "%d ", a.U32)
		case flowtable.OpRecirc:
			b.WriteString("recirc ")
		case flowtable.OpSetEthSrc:
			b.WriteString("src ")
		case flowtable.OpDrop:
			b.WriteString("drop ")
		}
	}
	return strings.TrimSpace(b.String())
}

// A frame is sampled where it arrives, where it leaves, and where the action says so. A sample knows how many
// outputs the frame has.
func TestExporters(t *testing.T) {
	both := Exporter{Arriving: 16, Leaving: 32}
	set := Exporter{OfSet: true, Set: 7}
	for _, c := range []struct {
		name, flow, frame string
		exporters         []Exporter
		want              string
	}{
		{"none", "actions=1,sample(probability=1,collector_set_id=7)", "in_port=3", nil, "1"},
		{"arrival and departure", "actions=2,mod_dl_src:00:00:00:00:00:09,1", "in_port=3", []Exporter{both},
			"100<0/2@10 100>2/2@20 2 src 100>1/2@20 1"},
		{"one output", "actions=2", "in_port=3", []Exporter{{Arriving: 16}}, "100<2/1@10 2"},
		{"no output", "actions=drop", "in_port=3", []Exporter{both}, "100<0/0@10 drop"},
		{"changes behind the last sample", "actions=mod_dl_src:00:00:00:00:00:09", "in_port=3", []Exporter{both}, "100<0/0@10 drop"},
		{"of a set", "actions=mod_dl_src:00:00:00:00:00:09,sample(probability=1,collector_set_id=7,obs_domain_id=5,obs_point_id=6),2", "in_port=3",
			[]Exporter{both, set}, "100<2/1@10 src of(5,6) 101<2/1@10001 100>2/1@20 2"},
		{"of another set", "actions=sample(probability=1,collector_set_id=8),2", "in_port=3", []Exporter{set}, "2"},
		{"of fields", "actions=set_field:0x12345->reg0,sample(probability=65535,collector_set_id=7,obs_domain_id=reg0[0..15],obs_point_id=in_port)", "in_port=3",
			[]Exporter{set}, "of(9029,3) 100<0/0@ffffffff drop"},
		{"of a field that the frame lacks", "actions=sample(probability=1,collector_set_id=7,obs_point_id=reg3,obs_domain_id=1),2", "in_port=3", []Exporter{set}, "of(1,0) 100<2/1@10001 2"},
		{"towards a port", "actions=sample(probability=1,collector_set_id=7,sampling_port=1),2,1", "in_port=3", []Exporter{set}, "of(0,0) 100>1/2@10001 2 1"},
		{"from a port", "actions=sample(probability=1,collector_set_id=7,sampling_port=1,ingress),2,1", "in_port=3", []Exporter{set}, "of(0,0) 100<1/2@10001 2 1"},
	} {
		env := newEnv().exporting(c.exporters...)
		k := keyOfText(t, c.frame)
		tr := Translate(pipelineOf(t, c.flow), &k, env)
		if got := samplesOf(tr.Actions); got != c.want {
			t.Errorf("%s: %s\nwant %s", c.name, got, c.want)
		}
	}
}

// A frame that is looked up again is not sampled again as an arriving frame. The number of its
// outputs is unknown in the samples of the first look-up.
func TestExportersBehindCT(t *testing.T) {
	r := newBridgeRig(t)
	r.add(0, "ct_state=-trk,ip,actions=ct(table=1)", "table=1,actions=2")
	r.env.exporting(Exporter{Arriving: math.MaxUint32})
	r.env.ports[1].Kind = PortNormal
	tr, _ := r.translate(bridgedFrame+",ip,nw_src=10.0.0.1", 0)
	if got := samplesOf(tr.Actions); got != "100<?0/0@ffffffff recirc" {
		t.Errorf("before ct: %s", got)
	}
	id := tr.Actions[len(tr.Actions)-1].U32
	tr, _ = r.translate(bridgedFrame+",ip,nw_src=10.0.0.1,ct_state=+new+trk", id)
	if got := samplesOf(tr.Actions); got != "2" {
		t.Errorf("behind ct: %s", got)
	}
}

// Exporters do not change what ports get.
func TestExportersLeaveTheFrames(t *testing.T) {
	tables, samples, frames := 100, 0, 0
	if testing.Short() {
		tables = 20
	}
	r := rand.New(rand.NewPCG(33, 1))
	for range tables {
		p := ofproto.NewTables(ofproto.Limits{})
		flows := addRandom(p, r, 12)
		for range 20 {
			k, env := openflowtest.Key(r), newEnv()
			want := Translate(p, &k, env)
			env.exporting(Exporter{Arriving: 1, Leaving: 1}, Exporter{OfSet: true})
			got := Translate(p, &k, env)
			if want.Drop != got.Drop || !slices.Equal(runDatapath(&k, got.Actions), runDatapath(&k, want.Actions)) {
				t.Fatalf("flows %q, key %x: %q, %s with exporters, %q, %s without", flows, k, runDatapath(&k, got.Actions), got.Drop, runDatapath(&k, want.Actions), want.Drop)
			}
			samples += strings.Count(samplesOf(got.Actions), "@")
			frames++
		}
	}
	if samples < frames {
		t.Errorf("only %d samples of %d frames", samples, frames)
	}
}
