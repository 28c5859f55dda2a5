// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"testing"
	"time"

	"weft/api"
	"weft/openflow"
	"weft/openflow/ofproto"
)

// A client that does not read is told the number of lost events. It does not delay
// changes of flows.
func TestMonitorLoses(t *testing.T) {
	var all Monitors
	who := NewMonitor(openflow.FlowMod{Table: openflow.TableAll})
	who.events = make(chan *api.Event, 3)
	all.Add(who)
	rule, described := new(ofproto.Rule), 0
	tell := func() {
		all.TellFlow(time.Now(), api.EventModified, rule, func() api.Flow { described++; return api.Flow{} })
	}
	for range 5 {
		tell()
	}
	if len(who.events) != 3 || who.TakeLost() != 2 || who.TakeLost() != 0 {
		t.Errorf("%d events, %d lost", len(who.events), who.lost.Load())
	}
	all.Remove(who)
	tell()
	if who.TakeLost() != 0 || described != 5 || all.Count() != 0 {
		t.Errorf("after the end of the monitor %d flows are described", described)
	}
}

// TellFlow does not call describe if no monitor selects the flow.
func TestMonitorChooses(t *testing.T) {
	var all Monitors
	who := NewMonitor(openflow.FlowMod{Table: 3})
	all.Add(who)
	for table, want := range map[uint8]int{3: 1, 4: 0} {
		described := 0
		all.TellFlow(time.Now(), api.EventAdded, &ofproto.Rule{Table: table}, func() api.Flow { described++; return api.Flow{} })
		if described != want || len(who.Events()) != want {
			t.Errorf("table %d: described %d times, %d events; want %d", table, described, len(who.Events()), want)
		}
		for len(who.Events()) > 0 {
			<-who.Events()
		}
	}
}

// The first Update sends the states of all ports. Later calls send only changes.
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
