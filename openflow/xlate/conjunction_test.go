// SPDX-License-Identifier: Apache-2.0

package xlate

import (
	"fmt"
	"strings"
	"testing"

	"weft/flowtable"
	"weft/openflow"
)

// outputs returns the ports to which a frame goes.
func outputs(tr *Translation) string {
	var ports []string
	for _, a := range tr.Actions {
		if a.Op == flowtable.OpOutput {
			ports = append(ports, fmt.Sprint(a.U32))
		}
	}
	return strings.Join(ports, ",")
}

// The flows have conjunctions of two and three parts, parts of several conjunctions, and several
// priorities (ovs-fields(7), "Conjunctive Match Fields").
func TestConjunctions(t *testing.T) {
	p := pipelineOf(t,
		"conj_id=1,actions=1", "conj_id=2,actions=2", "conj_id=3,tcp,actions=3", "conj_id=4,actions=4",
		"priority=5,ip,nw_src=10.1.0.0/16,actions=conjunction(1,1/2),conjunction(2,1/2)",
		"priority=5,ip,nw_src=10.2.0.0/16,actions=conjunction(1,1/2),conjunction(3,1/3)",
		"priority=5,ip,nw_dst=10.9.0.1,actions=note:01,conjunction(1,2/2)",
		"priority=5,ip,nw_dst=10.9.0.2,actions=conjunction(2,2/2),conjunction(3,2/3)",
		"priority=5,tcp,tp_dst=80,actions=conjunction(3,3/3)",
		"priority=5,udp,tp_dst=80,actions=conjunction(3,3/3)",
		"priority=3,ip,nw_src=10.1.0.0/16,actions=conjunction(4,1/2)",
		"priority=3,ip,nw_dst=10.9.0.0/16,actions=conjunction(4,2/2)",
		"priority=4,ip,nw_dst=10.9.0.4,actions=5",
		"priority=5,ip,nw_dst=10.9.0.5,actions=conjunction(1,2/2)", "priority=5,icmp,actions=6",
		"priority=1,actions=in_port", "priority=0,actions=drop",
	)
	for _, tt := range []struct{ frame, ports string }{
		{"tcp,nw_src=10.1.0.7,nw_dst=10.9.0.1", "1"},
		{"tcp,nw_src=10.1.0.7,nw_dst=10.9.0.2", "2"},
		{"tcp,nw_src=10.2.0.7,nw_dst=10.9.0.1", "1"},
		{"tcp,nw_src=10.2.0.7,nw_dst=10.9.0.2,tp_dst=80", "3"},
		{"udp,nw_src=10.2.0.7,nw_dst=10.9.0.2,tp_dst=80", "9"}, // conj_id=3 needs tcp
		{"tcp,nw_src=10.2.0.7,nw_dst=10.9.0.2,tp_dst=81", "9"}, // the third part is missing
		{"tcp,nw_src=10.1.0.7,nw_dst=10.9.0.3,tp_dst=80", "4"}, // a conjunction of lower priority
		{"tcp,nw_src=10.1.0.7,nw_dst=10.9.0.4", "5"},           // a flow between both priorities
		{"icmp,nw_src=10.1.0.7,nw_dst=10.9.0.1", "6"},          // a flow of the same priority
		{"arp", "9"}, {"tcp,nw_src=10.3.0.7,nw_dst=10.9.0.1", "9"},
	} {
		k := keyOfText(t, "in_port=9,"+tt.frame)
		tr := Translate(p, &k, newEnv9())
		if got := outputs(&tr); got != tt.ports {
			t.Errorf("%s goes to port %q, want %q", tt.frame, got, tt.ports)
		}
	}
}

func newEnv9() *fakeEnv {
	e := newEnv()
	e.ports = nil
	for n := range uint32(9) {
		e.ports = append(e.ports, PortInfo{No: n + 1, Name: fmt.Sprint("p", n+1)})
	}
	return e
}

// The megaflow of a frame matches exactly the bits that decided which parts of a
// conjunction match.
func TestMaskOfConjunction(t *testing.T) {
	p := pipelineOf(t, "conj_id=7,actions=1", "ip,nw_src=10.1.0.0/16,actions=conjunction(7,1/2)", "tcp,tp_dst=80,actions=conjunction(7,2/2)")
	k := keyOfText(t, "in_port=2,tcp,nw_src=10.1.2.3,nw_dst=10.9.9.9,tp_src=5,tp_dst=80")
	tr := Translate(p, &k, newEnv())
	m := openflow.MatchOf(&k, &tr.Mask)
	if got, want := openflow.FormatMatch(&m, nil), "tcp,recirc_id"; !strings.Contains(got, "nw_src=10.1.0.0/16") || !strings.Contains(got, "tp_dst=80") ||
		strings.Contains(got, "nw_dst") || strings.Contains(got, "tp_src") || strings.Contains(got, "conj_id") || outputs(&tr) != "1" {
		t.Errorf("megaflow %s to %s; want nw_src=10.1.0.0/16 and tp_dst=80, %s", got, outputs(&tr), want)
	}
}

// A change of its actions can make a flow a part of a conjunction, or end this.
func TestModifyConjunction(t *testing.T) {
	p := pipelineOf(t, "conj_id=7,actions=1", "priority=9,in_port=2,actions=conjunction(7,1/2)", "priority=9,ip,actions=3")
	k := keyOfText(t, "in_port=2,tcp")
	for i, step := range []struct{ change, ports string }{
		{"", "3"}, {"ip,actions=conjunction(7,2/2)", "1"}, {"in_port=2,actions=4", "4"}, {"in_port=2,actions=conjunction(7,1/2)", "1"},
	} {
		if step.change != "" {
			apply(t, p, uint64(i), openflow.Modify, step.change)
		}
		tr := Translate(p, &k, newEnv())
		if got := outputs(&tr); got != step.ports {
			t.Errorf("after %q: port %q, want %q", step.change, got, step.ports)
		}
	}
}

// A trace names the conjunction.
func TestTraceOfConjunction(t *testing.T) {
	p := pipelineOf(t, "conj_id=7,actions=1", "in_port=2,actions=conjunction(7,1/2)", "ip,actions=conjunction(7,2/2)")
	k := keyOfText(t, "in_port=2,tcp")
	var notes []string
	Trace(p, &k, newEnv(), func(s TraceStep) {
		if s.Lookup {
			notes = append(notes, s.Note)
		}
	})

	if len(notes) != 1 || notes[0] != "all parts of conjunction 7 match" {
		t.Errorf("remarks on look-ups: %q", notes)
	}
}
