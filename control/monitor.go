package control

import (
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"weft/api"
	"weft/internal/clock"
	"weft/openflow"
)

const (
	// monitorBacklog bounds the events that wait for a client; beyond it they are
	// lost, and the client is told how many.
	monitorBacklog = 1 << 16
	// portInterval is the time between two looks at the ports' states.
	portInterval = 200 * time.Millisecond
)

// monitors are those who follow the flow tables. mu is a leaf.
type monitors struct {
	count atomic.Int32 // of all; so that nobody's changes cost nothing
	mu    sync.Mutex
	all   map[*monitor]struct{}
}

// monitor is one who does.
type monitor struct {
	filter      openflow.FlowMod
	events      chan *api.Event
	lost        atomic.Uint64
	connections *connectionFollower // nil: none
}

func (m *monitors) add(who *monitor) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.all == nil {
		m.all = map[*monitor]struct{}{}
	}
	m.all[who] = struct{}{}
	m.count.Store(int32(len(m.all)))
}

func (m *monitors) remove(who *monitor) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.all, who)
	m.count.Store(int32(len(m.all)))
}

// tell tells of a change that is in force, when the last frames of the flows that
// went have been counted. Caller holds change.
func (d *Daemon) tell(c *openflow.Changes) {
	if d.monitors.count.Load() == 0 {
		return
	}
	now, list := time.Now(), slices.Concat(c.Removed, c.Modified, c.Added)
	d.inTurns(len(list), func(i int) {
		event, r := api.EventAdded, list[i]
		switch {
		case i < len(c.Removed) && (r.Why == openflow.WhyIdle || r.Why == openflow.WhyHard):
			event = api.EventExpired
		case i < len(c.Removed):
			event = api.EventDeleted
		case i < len(c.Removed)+len(c.Modified):
			event = api.EventModified
		}
		d.tellFlow(now, event, r.Why.String(), r)
	})
}

// tellFlow tells those whose filter selects the rule. Caller holds mu.
func (d *Daemon) tellFlow(now time.Time, event, reason string, r *openflow.Rule) {
	d.monitors.mu.Lock()
	defer d.monitors.mu.Unlock()
	var e *api.Event // made once somebody wants it
	for m := range d.monitors.all {
		if !m.wants(r) {
			continue
		}
		if e == nil {
			flow := d.flowOf(r, clock.Monotonic(), byName)
			e = &api.Event{Time: now, Kind: api.EventFlow, Event: event, Reason: reason, Flow: &flow}
		}
		select {
		case m.events <- e:
		default:
			m.lost.Add(1)
		}
	}
}

func (m *monitor) wants(r *openflow.Rule) bool {
	f, within := &m.filter, m.filter.Match.Unpack()
	return (f.Table == openflow.TableAll || f.Table == r.Table) && (r.Cookie^f.Cookie)&f.CookieMask == 0 && r.Match.Within(&within)
}

// monitorRequest is what a GET /v1/monitor asks for.
func (d *Daemon) monitorRequest(r *http.Request) (want api.MonitorRequest, who *monitor, err error) {
	q := r.URL.Query()
	for name, to := range map[string]*bool{"flows": &want.Flows, "ports": &want.Ports, "connections": &want.Connections, "initial": &want.Initial} {
		if *to, err = yesWord(name, q.Get(name)); err != nil {
			return want, nil, err
		}
	}
	if !want.Flows && !want.Ports && !want.Connections {
		want.Flows, want.Ports = true, true
	}
	d.mu.RLock()
	view := d.view
	d.mu.RUnlock()
	who = &monitor{events: make(chan *api.Event, monitorBacklog)}
	if who.filter, err = openflow.ParseFilter(q.Get("match"), view); err != nil {
		return want, nil, asInput(err)
	}
	for _, name := range []string{"zone", "events"} {
		if q.Get(name) != "" && !want.Connections {
			return want, nil, inputf("%s=%s: expected connections=true too, which it chooses among", name, q.Get(name))
		}
	}
	if want.Connections {
		if who.connections, err = followConnections(who, q.Get("zone"), q.Get("events")); err != nil {
			return want, nil, err
		}
	}
	if who.filter.ByOutPort || who.filter.ByOutGroup {
		return want, nil, inputf("match %s: expected no out_port or out_group, which the flow may lose as it changes", q.Get("match"))
	}
	return want, who, nil
}

func yesWord(name, word string) (bool, error) {
	switch word {
	case "", "false":
		return false, nil
	case "true":
		return true, nil
	}
	return false, inputf("%s=%s: expected true or false", name, word)
}

// streamMonitor answers a request with events, for as long as the client listens.
func (d *Daemon) streamMonitor(w http.ResponseWriter, r *http.Request) {
	want, who, err := d.monitorRequest(r)
	if err != nil {
		d.reply(w, nil, err)
		return
	}
	if who.connections != nil {
		d.connected.begin(who.connections)
		defer d.connected.end(who.connections)
	}
	out := newStream(w)
	if initial := d.enroll(want, who); want.Flows {
		defer d.monitors.remove(who)
		if out.begin() != nil {
			return
		}
		for i := range initial {
			e := &api.Event{Time: time.Now(), Kind: api.EventFlow, Event: api.EventInitial, Flow: &initial[i]}
			if out.send(e) != nil {
				return
			}
		}
	} else if out.begin() != nil {
		return
	}
	ports := portStates{d: d, known: map[uint32]api.PortState{}}
	if want.Ports && ports.tell(out, want.Initial, true) != nil {
		return
	}
	d.passOn(r, want, who, out, &ports)
}

// enroll enters who among those that are told of flows, and returns the flows
// that there were then, if they are wanted.
func (d *Daemon) enroll(want api.MonitorRequest, who *monitor) (initial []api.Flow) {
	if !want.Flows {
		return nil
	}
	d.change.Lock()
	defer d.change.Unlock()
	d.monitors.add(who)
	if !want.Initial {
		return nil
	}
	return d.flowsOf(&who.filter, nil, byName)
}

func (d *Daemon) passOn(r *http.Request, want api.MonitorRequest, who *monitor, out *stream, ports *portStates) {
	tick := time.NewTicker(portInterval)
	defer tick.Stop()
	for {
		if out.flush() != nil {
			return
		}
		var err error
		select {
		case <-r.Context().Done():
			return
		case e := <-who.events:
			err = out.send(e)
			for more := len(who.events); more > 0 && err == nil; more-- {
				err = out.send(<-who.events)
			}
		case <-tick.C:
			if want.Ports {
				err = ports.tell(out, true, false)
			}
		}
		if lost := who.lost.Swap(0); lost > 0 && err == nil {
			err = out.send(&api.Event{Time: time.Now(), Kind: api.EventLost, Lost: lost})
		}
		if err != nil {
			return
		}
	}
}

// portStates is what one client has been told of the ports.
type portStates struct {
	d     *Daemon
	known map[uint32]api.PortState
}

// tell notes how the ports are and, if wanted, sends what is not as it was.
func (p *portStates) tell(out *stream, send, initial bool) error {
	list, err := p.d.listPorts("")
	if err != nil {
		return err
	}
	now := map[uint32]api.PortState{}
	emit := func(event string, s api.PortState) {
		if send && err == nil {
			err = out.send(&api.Event{Time: time.Now(), Kind: api.EventPort, Event: event, Port: &s})
		}
	}
	for _, port := range list {
		s := api.PortState{Number: port.Number, Name: port.Name, Type: port.Type, State: port.State, Detail: port.Detail}
		now[s.Number] = s
		old, was := p.known[s.Number]
		switch {
		case was && old == s:
		case was && old.Name == s.Name && old.Type == s.Type:
			emit(s.State, s)
		case initial:
			emit(api.EventInitial, s)
		default:
			if was { // its number is another's now
				emit(api.EventDeleted, old)
			}
			emit(api.EventAdded, s)
		}
	}
	for no, old := range p.known {
		if _, is := now[no]; !is {
			emit(api.EventDeleted, old)
		}
	}
	p.known = now
	return err
}
