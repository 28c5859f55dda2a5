// SPDX-License-Identifier: Apache-2.0

package control

import (
	"slices"
	"strings"
	"testing"

	"weft/api"
	"weft/control/observe"
	"weft/control/pipeline"
	"weft/openflow"
)

func TestTrace(t *testing.T) {
	f := newFakes(t)
	f.vxlanPorts(3)
	f.add("priority=7,cookie=5,in_port=p1,tcp,actions=mod_nw_tos:8,resubmit(,3),p2",
		"table=3,nw_dst=10.0.0.0/8,tcp,actions=p3,p1", "table=3,priority=1,actions=drop")
	tr, err := f.trace("in_port=p1,tcp,nw_dst=10.1.2.3,tp_dst=80", "")
	if err != nil {
		t.Fatal(err)
	}
	var words []string
	for _, s := range tr.Steps {
		switch s.Kind {
		case api.StepTable:
			words = append(words, s.Rule.Match)
		default:
			words = append(words, s.Action+s.Note)
		}
	}
	want := []string{"tcp,in_port=p1", "mod_nw_tos:8", "resubmit(,3)", "tcp,nw_dst=10.0.0.0/8", "output:p3", "output:p1",
		"not sent back to its input port", "output:p2"}
	if !slices.EqualFunc(words, want, strings.Contains) {
		t.Errorf("steps %q, want %q", words, want)
	}
	if r := tr.Steps[0].Rule; r.Priority != 7 || r.Cookie != 5 || tr.Steps[3].Table != 3 {
		t.Errorf("%+v", tr.Steps)
	}
	if tr.Flow != "tcp,in_port=p1,nw_dst=10.1.2.3,tp_dst=80" {
		t.Errorf("flow %q", tr.Flow)
	}
	for _, word := range []string{"in_port=p1", "nw_dst=10.0.0.0/8"} {
		if !strings.Contains(tr.Megaflow, word) || strings.Contains(tr.Megaflow, "tp_dst") {
			t.Errorf("megaflow %q, want %q and no tp_dst", tr.Megaflow, word)
		}
	}
	if strings.Count(tr.Actions, "tunnel") != 2 || tr.Drop != "" {
		t.Errorf("%q, drop %q", tr.Actions, tr.Drop)
	}

	// A frame that matches no flow is dropped.
	tr, err = f.trace("in_port=p2,udp", "")
	if err != nil || tr.Drop != "table-miss" || len(tr.Steps) != 1 || tr.Steps[0].Rule != nil {
		t.Errorf("%+v, %v", tr, err)
	}
	for _, c := range []struct{ flow, word string }{
		{"", "missing"}, {"nw_sorc=1", "nw_sorc"}, {"in_port=p9", "p9"}, {"table=3", "table=3"},
	} {
		if _, err := f.trace(c.flow, ""); err == nil || !strings.Contains(err.Error(), c.word) {
			t.Errorf("trace %q: %v, want %q", c.flow, err, c.word)
		}
	}
	if n := f.d.pipeline.Counts().Megaflows; n != 0 {
		t.Errorf("a trace left %d megaflows", n)
	}
}

// A trace continues after connection tracking, with the given ct_state or as a frame of
// a new connection.
func TestTraceThroughTracking(t *testing.T) {
	f := newFakes(t)
	f.vxlanPorts(2)
	f.add("in_port=p1,tcp,actions=mod_nw_tos:8,ct(table=1,zone=5)",
		"table=1,ct_state=+new+trk,tcp,actions=ct(commit,zone=5),p2", "table=1,ct_state=+est+trk,ct_zone=5,ip,nw_tos=8,actions=drop")
	tr, err := f.trace("in_port=p1,tcp,nw_dst=10.1.2.3", "")
	if err != nil || len(tr.Then) != 1 {
		t.Fatalf("%+v, %v", tr, err)
	}
	if then := tr.Then[0]; then.Steps[0].Table != 1 || then.Steps[0].Rule == nil || !strings.Contains(then.Steps[0].Rule.Match, "+new") ||
		!strings.Contains(then.Actions, "tunnel") || then.Drop != "" {
		t.Errorf("new: %+v", then)
	}
	tr, err = f.trace("in_port=p1,tcp,nw_dst=10.1.2.3", "+est+trk")
	if err != nil || len(tr.Then) != 1 || tr.Then[0].Drop != "flow-drop" || tr.Then[0].Steps[0].Rule == nil {
		t.Errorf("established: %+v, %v", tr, err)
	}
	if _, err := f.trace("in_port=p1,tcp", "+frob"); err == nil || !strings.Contains(err.Error(), "frob") {
		t.Errorf("%v", err)
	}
	// a frame may be tracked again and again without an end: the trace stops at a limit
	f.add("table=2,ip,actions=ct(table=2)", "in_port=p2,ip,actions=ct(table=2)")
	if _, err := f.trace("in_port=p2,tcp", ""); err != nil {
		t.Error(err)
	}
}

// A trace continues with the look-up after a pop, which sees the headers that the pop has revealed.
func TestTraceThroughPops(t *testing.T) {
	f := newFakes(t)
	f.vxlanPorts(2)
	f.add("table=0,mpls,mpls_label=5,in_port=p1,actions=pop_mpls:0x0800,resubmit(,1)",
		"table=0,mpls,mpls_label=6,in_port=p1,actions=decap(),decap(packet_type(ns=1,type=0x0800)),encap(ethernet),resubmit(,1)",
		"table=0,mpls,mpls_label=7,in_port=p1,actions=clone(pop_mpls:0x0800,resubmit(,1)),ct_clear,p2",
		"table=0,tcp,in_port=p1,actions=ct(table=2)", "table=2,tcp,actions=clone(push_mpls:0x8847,p2),resubmit(,3)",
		"table=1,ip,actions=p2", "table=3,tcp,ct_state=+new,actions=p2")
	for _, flow := range []string{"mpls,mpls_label=5,mpls_bos=1", "mpls,mpls_label=6,mpls_bos=1", "mpls,mpls_label=7,mpls_bos=1"} {
		tr, err := f.trace("in_port=p1,"+flow, "")
		for err == nil && len(tr.Then) == 1 && !slices.ContainsFunc(tr.Steps, func(s api.TraceStep) bool { return s.Table == 1 && s.Rule != nil && s.Rule.Match == "ip" }) {
			tr = tr.Then[0]
		}
		if err != nil || !strings.Contains(tr.Flow, "ip") || !strings.Contains(tr.Actions, "tunnel") || tr.Tracked {
			t.Errorf("%s ends with %+v, %v", flow, tr, err)
		}
	}
	tr, err := f.trace("in_port=p1,tcp", "")
	if err != nil || len(tr.Then) != 1 || !tr.Then[0].Tracked || len(tr.Then[0].Then) != 1 || tr.Then[0].Then[0].Tracked {
		t.Errorf("a look-up without tracking behind tracking: %+v, %v", tr, err)
	}
}

func (f *fakes) trace(flow, ctNext string) (tr api.Trace, err error) {
	f.d.pipeline.Tracing(pipeline.ByName, func(t *pipeline.Tracer, view *pipeline.View, names openflow.Names) {
		tr, err = observe.Trace(t, view, names, f.d.bridges.TraceNames(view, pipeline.ByName), flow, ctNext)
	})
	return tr, err
}
