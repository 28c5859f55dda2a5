// SPDX-License-Identifier: Apache-2.0

package control

import (
	"encoding/json"
	"net/http"
	"time"

	"weft/api"
	"weft/control/access"
	"weft/control/bridges"
	"weft/control/change"
	"weft/control/observe"
	"weft/control/pipeline"
	"weft/control/usererr"
	"weft/openflow"
)

// portInterval is the interval at which a monitor checks the ports' states.
const portInterval = 200 * time.Millisecond

// monitoring has the parameters of GET /v1/monitor.
type monitoring struct {
	api.MonitorRequest
	bridge      *bridges.Bridge
	filter      openflow.FlowMod
	monitor     *observe.Monitor
	connections *observe.ConnectionFollower // nil: no connections
}

func (d *Daemon) monitorRoutes(mux *access.Mux) {
	mux.HandleFunc("GET /v1/monitor", d.streamMonitor)
}

func (d *Daemon) monitorRequest(r *http.Request) (*monitoring, error) {
	q, want := r.URL.Query(), &monitoring{}
	var err error
	for name, to := range map[string]*bool{"flows": &want.Flows, "ports": &want.Ports, "connections": &want.Connections, "initial": &want.Initial} {
		if *to, err = truthOf(q, name); err != nil {
			return nil, err
		}
	}
	if !want.Flows && !want.Ports && !want.Connections {
		want.Flows, want.Ports = true, true
	}
	if want.bridge, err = d.bridgeOf(r); err != nil {
		return nil, err
	}
	if want.filter, err = openflow.ParseFilter(q.Get("match"), want.bridge.Pipeline.Names(pipeline.ByName)); err != nil {
		return nil, usererr.Mark(err)
	}
	want.filter.Bridge = want.bridge.Number
	want.monitor = observe.NewMonitor(want.filter)
	for _, name := range []string{"zone", "events"} {
		if q.Get(name) != "" && !want.Connections {
			return nil, usererr.Errorf("%s=%s: expected connections=true as well, because it selects events of connections", name, q.Get(name))
		}
	}
	if want.Connections {
		if want.connections, err = observe.FollowConnections(want.monitor, q.Get("zone"), q.Get("events")); err != nil {
			return nil, err
		}
	}
	if want.filter.ByOutPort || want.filter.ByOutGroup {
		return nil, usererr.Errorf("match %s: expected no out_port or out_group, because a change may remove them from the flow", q.Get("match"))
	}
	return want, nil
}

func (d *Daemon) streamMonitor(w http.ResponseWriter, r *http.Request) {
	want, err := d.monitorRequest(r)
	if err != nil {
		d.reply(w, nil, err)
		return
	}
	if want.connections != nil {
		d.connections.Begin(want.connections)
		defer d.connections.End(want.connections)
	}
	out := newStream(w)
	if want.Flows {
		defer d.monitors.Remove(want.monitor)
	}
	if err := d.beginMonitor(w, r, want); err != nil {
		return
	}
	var ports observe.PortStates
	if want.Ports {
		var send func(*api.Event) error
		if want.Initial {
			send = out.sendEvent
		}
		if d.sendPorts(&ports, true, send) != nil {
			return
		}
	}
	d.passOn(r, want, out, &ports)
}

// beginMonitor makes the client a monitor of flows. If the client wants the present
// flows, it gets them first. If beginMonitor returns an error, the client has already
// got it.
func (d *Daemon) beginMonitor(w http.ResponseWriter, r *http.Request, want *monitoring) error {
	if !want.Flows || !want.Initial {
		d.enroll(want)
		return newStream(w).begin()
	}
	done, err := access.Expensive(r)
	if err != nil {
		d.reply(w, nil, err)
		return err
	}
	defer done()
	dump := json.NewEncoder(access.Pace(w))
	initial := d.enroll(want)
	if err := newStream(w).begin(); err != nil {
		return err
	}
	for i := range initial {
		e := &api.Event{Time: time.Now(), Kind: api.EventFlow, Event: api.EventInitial, Flow: &initial[i]}
		if err := dump.Encode(e); err != nil {
			return err
		}
	}
	return nil
}

func (d *Daemon) enroll(want *monitoring) (initial []api.Flow) {
	if !want.Flows {
		return nil
	}
	d.configuration.View(func(tx *change.Tx) {
		d.monitors.Add(want.monitor)
		if want.Initial {
			initial = want.bridge.Tables.FlowsOf(tx, &want.filter, nil, pipeline.ByName)
		}
	})
	return initial
}

// sendPorts sends the ports whose state has changed since the last call. If initial is
// true, it marks new ports as initial states.
func (d *Daemon) sendPorts(ports *observe.PortStates, initial bool, send func(*api.Event) error) error {
	list, err := d.ports.List("")
	if err != nil {
		return err
	}
	return ports.Update(list, initial, send)
}

func (d *Daemon) passOn(r *http.Request, want *monitoring, dst *stream, ports *observe.PortStates) {
	tick := time.NewTicker(portInterval)
	defer tick.Stop()
	events := want.monitor.Events()
	for {
		if dst.flush() != nil {
			return
		}
		var err error
		select {
		case <-r.Context().Done():
			return
		case describe := <-events:
			err = dst.send(describe())
			for more := len(events); more > 0 && err == nil; more-- {
				err = dst.send((<-events)())
			}
		case <-tick.C:
			if want.Ports {
				err = d.sendPorts(ports, false, dst.sendEvent)
			}
		}
		if lost := want.monitor.TakeLost(); lost > 0 && err == nil {
			err = dst.send(&api.Event{Time: time.Now(), Kind: api.EventLost, Lost: lost})
		}
		if err != nil {
			return
		}
	}
}
