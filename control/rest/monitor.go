// SPDX-License-Identifier: Apache-2.0

package rest

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

// portInterval is the interval at which a monitor compares the ports' states with the ones it
// has sent.
const portInterval = 200 * time.Millisecond

// monitoring has the parameters of GET /v1/monitor.
type monitoring struct {
	api.MonitorRequest
	bridge      *bridges.Bridge
	filter      openflow.FlowMod
	monitor     *observe.Monitor
	connections *observe.ConnectionFollower // nil: no connections
}

func (h *Handlers) monitorRoutes(mux *access.Mux) {
	mux.HandleFunc("GET /v1/monitor", h.streamMonitor)
}

func (h *Handlers) monitorRequest(r *http.Request) (*monitoring, error) {
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
	if want.bridge, err = h.bridgeOf(r); err != nil {
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

func (h *Handlers) streamMonitor(w http.ResponseWriter, r *http.Request) {
	want, err := h.monitorRequest(r)
	if err != nil {
		h.reply(w, nil, err)
		return
	}
	if want.connections != nil {
		h.Connections.Begin(want.connections)
		defer h.Connections.End(want.connections)
	}
	out := newStream(w)
	if want.Flows {
		defer h.Monitors.Remove(want.monitor)
	}
	if err := h.beginMonitor(w, r, want); err != nil {
		return
	}
	var ports observe.PortStates
	if want.Ports {
		var send func(*api.Event) error
		if want.Initial {
			send = out.sendEvent
		}
		if h.sendPorts(&ports, true, send) != nil {
			return
		}
	}
	h.passOn(r, want, out, &ports)
}

// beginMonitor makes the client a monitor of flows. If the client wants the present flows, it
// first gets them. After an error, the response is already complete.
func (h *Handlers) beginMonitor(w http.ResponseWriter, r *http.Request, want *monitoring) error {
	if !want.Flows || !want.Initial {
		h.enroll(want)
		return newStream(w).begin()
	}
	done, err := access.Expensive(r)
	if err != nil {
		h.reply(w, nil, err)
		return err
	}
	defer done()
	dump := json.NewEncoder(access.Pace(w))
	initial := h.enroll(want)
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

func (h *Handlers) enroll(want *monitoring) (initial []api.Flow) {
	if !want.Flows {
		return nil
	}
	h.Configuration.View(func(tx *change.Tx) {
		h.Monitors.Add(want.monitor)
		if want.Initial {
			initial = want.bridge.Tables.FlowsOf(tx, &want.filter, nil, pipeline.ByName)
		}
	})
	return initial
}

// sendPorts sends the client the ports whose state has changed since the last call. If initial
// is true, it marks new ports as present from the start.
func (h *Handlers) sendPorts(ports *observe.PortStates, initial bool, send func(*api.Event) error) error {
	list, err := h.Ports.List("")
	if err != nil {
		return err
	}
	return ports.Update(list, initial, send)
}

func (h *Handlers) passOn(r *http.Request, want *monitoring, dst *stream, ports *observe.PortStates) {
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
				err = h.sendPorts(ports, false, dst.sendEvent)
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
