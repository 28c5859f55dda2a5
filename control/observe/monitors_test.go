// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"testing"
	"time"

	"weft/api"
	"weft/openflow"
	"weft/openflow/ofproto"
)

// A client that does not read loses events and learns how many. It does not delay changes of flows.
func TestMonitorLoses(t *testing.T) {
	var all Monitors
	who := NewMonitor(openflow.FlowMod{Table: openflow.TableAll})
	who.events = make(chan Describe, 3)
	all.Add(who)
	rule, described := new(ofproto.Rule), 0
	tell := func() {
		all.TellFlow(time.Now(), api.EventModified, rule, func(*ofproto.Rule) api.Flow { described++; return api.Flow{} })
	}
	for range 5 {
		tell()
	}
	if len(who.events) != 3 || who.TakeLost() != 2 || who.TakeLost() != 0 {
		t.Errorf("%d events, %d lost", len(who.events), who.lost.Load())
	}
	if described != 0 {
		t.Errorf("a change of flows waits for %d descriptions", described)
	}
	for range 3 {
		(<-who.Events())()
	}
	all.Remove(who)
	tell()
	if who.TakeLost() != 0 || described != 3 || all.Count() != 0 {
		t.Errorf("after the end of the monitor %d flows are described", described)
	}
}

// A monitor gets only the flows that it selects. It describes a flow as the flow was at the event, not
// as it is when the event is read.
func TestMonitorChooses(t *testing.T) {
	var all Monitors
	who := NewMonitor(openflow.FlowMod{Table: 3})
	all.Add(who)
	for table, want := range map[uint8]int{3: 1, 4: 0} {
		described := 0
		rule := &ofproto.Rule{Table: table, Cookie: 7}
		all.TellFlow(time.Now(), api.EventAdded, rule, func(r *ofproto.Rule) api.Flow { described++; return api.Flow{Cookie: r.Cookie} })
		rule.Cookie = 8
		if len(who.Events()) != want {
			t.Errorf("table %d: %d events, want %d", table, len(who.Events()), want)
		}
		for len(who.Events()) > 0 {
			describe := <-who.Events()
			if describe(); describe().Flow.Cookie != 7 {
				t.Errorf("%+v, want the flow at its event", describe().Flow)
			}
		}
		if described != want {
			t.Errorf("table %d: described %d times, want %d", table, described, want)
		}
	}
}

// The first Update sends the states of all ports, and later ones only changes.
func TestPortStates(t *testing.T) {
	var p PortStates
	var got []string
	send := func(e *api.Event) error {
		got = append(got, e.Event+" "+e.Port.Name)
		return nil
	}
	for _, step := range []struct {
		ports   []api.Port
		initial bool
		want    string
	}{
		{[]api.Port{{Number: 1, Name: "a", State: "up"}}, true, "initial a"},
		{[]api.Port{{Number: 1, Name: "a", State: "up"}}, false, ""},
		{[]api.Port{{Number: 1, Name: "a", State: "down"}}, false, "down a"},
		{[]api.Port{{Number: 1, Name: "b", State: "up"}}, false, "deleted a;added b"},
		{nil, false, "deleted b"},
	} {
		got = nil
		if err := p.Update(step.ports, step.initial, send); err != nil {
			t.Fatal(err)
		}
		text := ""
		for i, g := range got {
			if i > 0 {
				text += ";"
			}
			text += g
		}
		if text != step.want {
			t.Errorf("ports %+v: told %q, want %q", step.ports, text, step.want)
		}
	}
}
