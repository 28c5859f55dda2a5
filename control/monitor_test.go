// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"weft/api"
	"weft/control/workers/workertest"
)

func (f *fakes) monitor(r api.MonitorRequest) <-chan *api.Event {
	f.t.Helper()
	client, err := api.NewClient(f.config.Socket)
	if err != nil {
		f.t.Fatal(err)
	}
	ctx, stop := context.WithTimeout(context.Background(), 60*time.Second)
	f.t.Cleanup(stop)
	ready, events := make(chan struct{}), make(chan *api.Event, 1000)
	go func() {
		defer close(events)
		defer stop()
		// error ignored: the daemon may end first
		_ = client.Monitor(ctx, r, func() { close(ready) }, func(e *api.Event) error { events <- e; return nil })
	}()
	select {
	case <-ready:
	case <-ctx.Done():
		f.t.Fatal("the daemon does not answer")
	}
	return events
}

func (f *fakes) mustTell(events <-chan *api.Event, want ...string) {
	f.t.Helper()
	for _, w := range want {
		e := <-events
		if e == nil {
			f.t.Fatalf("the stream ended before %q", w)
		}
		got := e.Kind + " " + e.Event
		if e.Reason != "" {
			got += " " + e.Reason
		}
		if e.Flow != nil {
			got += fmt.Sprintf(" %s %s %d", e.Flow.Match, e.Flow.Actions, e.Flow.Packets)
		}
		if e.Port != nil {
			got += " " + e.Port.Name + " " + e.Port.State
		}
		if got != w {
			f.t.Fatalf("told %q, want %q", got, w)
		}
	}
}

// A monitor receives every change of a flow, in order, with its reason and counts.
func TestMonitorFlows(t *testing.T) {
	f := newFakes(t)
	f.add("udp,tp_dst=1,actions=drop", "tcp,actions=drop")
	all := f.monitor(api.MonitorRequest{Flows: true})
	some := f.monitor(api.MonitorRequest{Flows: true, Match: "udp", Initial: true})
	f.mustTell(some, "flow initial udp,tp_dst=1 drop 0")
	f.worker().Frame(workertest.UDPKey(1, 1, 2, 1), 100)
	f.settle()
	f.add("modify udp,actions=resubmit(,1)", "arp,idle_timeout=1,actions=drop", "tcp,actions=normal")
	f.mustTell(all, "flow deleted delete tcp drop 0", "flow modified udp,tp_dst=1 resubmit(,1) 1", "flow added arp drop 0", "flow added tcp NORMAL 0")
	f.mustTell(some, "flow modified udp,tp_dst=1 resubmit(,1) 1")
	f.mustTell(all, "flow expired idle arp drop 0")
	for range 3 {
		f.worker().Frame(workertest.UDPKey(1, 1, 2, 1), 100)
	}
	f.settle()
	if _, err := f.d.bridges.Megaflows().DeleteFlows("", false); err != nil {
		t.Fatal(err)
	}
	f.mustTell(some, "flow deleted delete udp,tp_dst=1 resubmit(,1) 4")
	if n := f.d.monitors.Count(); n != 2 {
		t.Errorf("%d monitors", n)
	}
	f.end()
	for range all { // ends when the channel of events is closed
	}
	for range some {
	}
}

func TestMonitorPorts(t *testing.T) {
	f := newFakes(t)
	f.vxlanPorts(1)
	events := f.monitor(api.MonitorRequest{Ports: true, Initial: true})
	f.mustTell(events, "port initial p1 "+f.stateOf("p1"))
	if _, err := f.d.ports.Add("p2", []string{"type=vxlan", "vni=9", "remote=192.0.2.1"}); err != nil {
		t.Fatal(err)
	}
	f.mustTell(events, "port added p2 "+f.stateOf("p2"))
	number := f.port("p2").Number
	tx := f.d.configuration.Begin()
	f.d.ports.Fail(tx, number, io.ErrUnexpectedEOF)
	tx.Commit()
	f.mustTell(events, "port failed p2 failed")
	if err := f.d.ports.Delete("p1"); err != nil {
		t.Fatal(err)
	}
	for e := range events { // events of other ports may arrive first
		if e.Port.Name == "p1" {
			if e.Event != api.EventDeleted {
				t.Errorf("%+v", e)
			}
			return
		}
	}
	t.Error("the stream ended before the event of the deleted port")
}

func (f *fakes) stateOf(name string) string {
	f.t.Helper()
	list, err := f.d.ports.List(name)
	if err != nil {
		f.t.Fatal(err)
	}
	return list[0].State
}

func TestMonitorRefusals(t *testing.T) {
	f := newFakes(t)
	for _, c := range []struct{ query, word string }{
		{"flows=x", "flows=x"}, {"match=nw_sorc%3D1", "nw_sorc"}, {"match=out_port%3D1", "out_port"},
		{"connections=x", "connections=x"}, {"zone=5", "zone=5: expected connections=true"}, {"events=new", "events=new: expected connections=true"},
		{"connections=true&zone=x", "zone"}, {"connections=true&zone=65536", "65536"}, {"connections=true&zone=-1", "-1"},
		{"connections=true&events=begun", "events=begun"}, {"connections=true&events=new,", "events="}, {"connections=true&events=new,old", "events=old"},
	} {
		resp, err := overSocket(f.config.Socket).Get("http://weft/v1/monitor?" + c.query)
		if err != nil {
			t.Fatal(err)
		}
		text, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode != http.StatusBadRequest || !strings.Contains(string(text), c.word) {
			t.Errorf("%s: %d %s", c.query, resp.StatusCode, text)
		}
	}
}
