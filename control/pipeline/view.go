package pipeline

import (
	"net/netip"
	"sort"

	"weft/control/underlay"
	"weft/control/usererr"
	"weft/flowtable"
	"weft/openflow"
	"weft/packet"
)

// View is the ports as translation sees them. Never changed once made.
type View struct {
	infos   []openflow.PortInfo // by number
	byNo    map[uint32]openflow.PortInfo
	byName  map[string]uint32
	udpPort map[uint32]uint16
	bound   bool // some port has a Binding
}

// NewView makes the view of these ports, sorted by number. udpPort has the outer
// destination ports of tunnels, by number.
func NewView(infos []openflow.PortInfo, udpPort map[uint32]uint16) *View {
	v := &View{infos: infos, byNo: map[uint32]openflow.PortInfo{}, byName: map[string]uint32{}, udpPort: udpPort}
	for _, info := range infos {
		v.byNo[info.No], v.byName[info.Name] = info, info.No
		v.bound = v.bound || info.Binding != nil
	}
	return v
}

// PortByName and PortName are openflow.Names.
func (v *View) PortByName(name string) (uint32, bool) {
	no, ok := v.byName[name]
	return no, ok
}

func (v *View) PortName(no uint32) (string, bool) {
	info, ok := v.byNo[no]
	return info.Name, ok
}

// env is openflow.Env: the switch as one translation sees it.
type env struct {
	view    *View
	tunnels *underlay.Templates
	macs    *macs
	*openflow.RecircTable
}

// env is that of now. Caller holds mu.
func (pl *Pipeline) env() *env {
	return &env{view: pl.view, tunnels: pl.templates, macs: pl.macs, RecircTable: pl.recircs}
}

func (e *env) Port(no uint32) (openflow.PortInfo, bool) {
	info, ok := e.view.byNo[no]
	return info, ok
}

func (e *env) Ports() []openflow.PortInfo { return e.view.infos }

func (e *env) Bound() bool { return e.view.bound }

func (e *env) Tunnel(no, _ uint32, local, remote netip.Addr) (uint32, packet.DropReason) {
	return e.tunnels.Template(underlay.Tunnel{Port: no, Local: local, Remote: remote}, e.view.udpPort[no])
}

func (e *env) VTEP(s openflow.Segment, vlan uint16, mac uint64) netip.Addr {
	return e.macs.vtep(s, vlan, mac)
}

func (e *env) MAC(s openflow.Segment, vlan uint16, mac uint64) (uint32, bool) {
	return e.macs.lookup(s, vlan, mac)
}

func (e *env) Announced(s openflow.Segment, vlan uint16, mac uint64, port uint32) bool {
	return e.macs.announced(s, vlan, mac, port)
}

func (e *env) Neighbour(s openflow.Segment, vlan uint16, ip netip.Addr) (uint64, bool) {
	return e.macs.neighbour(s, vlan, ip)
}

// NoPort is the error of a client that names a port which does not exist.
func (v *View) NoPort(name string) error {
	var names []string
	for _, info := range v.infos {
		names = append(names, info.Name)
	}
	sort.Strings(names)
	if len(names) == 0 {
		return usererr.Errorf("%s: no such port; there are none", name)
	}
	if len(names) > 16 {
		return usererr.Errorf("%s: no such port; see weft dump-ports", name)
	}
	return usererr.Errorf("%s: no such port; expected one of %v", name, names)
}

// View is the present view of the ports, which does not change.
func (pl *Pipeline) View() *View {
	pl.mu.RLock()
	defer pl.mu.RUnlock()
	return pl.view
}

// Tracer is observe.Tracer: the tables, held for tracing.
type Tracer struct {
	tables *openflow.Pipeline
	env    *env
}

func (t *Tracer) Trace(key *flowtable.Key, visit func(openflow.TraceStep)) openflow.Translation {
	return t.tables.Trace(key, t.env, visit)
}

// Tracing calls do with the tables, which do not change meanwhile, and with what shows
// ports in words.
func (pl *Pipeline) Tracing(words PortWords, do func(t *Tracer, view *View, names openflow.Names)) {
	pl.mu.RLock()
	defer pl.mu.RUnlock()
	do(&Tracer{pl.tables, pl.env()}, pl.view, pl.names(words))
}

// SetView makes v the present view. Megaflows are as they were before: see Revalidate.
// Caller holds the change lock.
func (pl *Pipeline) SetView(v *View) {
	pl.mu.Lock()
	defer pl.mu.Unlock()
	pl.view = v
	pl.macs.declare(v.infos)
}

// ViewNow is View for a caller that must not wait: nil if the lock is not free.
func (pl *Pipeline) ViewNow() *View {
	if !pl.mu.TryRLock() {
		return nil
	}
	defer pl.mu.RUnlock()
	return pl.view
}

// PortsChanged translates all megaflows again, for a view with other ports. Caller holds
// the change lock.
func (pl *Pipeline) PortsChanged() { pl.revalidate(func(*megaflow) bool { return true }) }

// LivenessChanged translates the megaflows again that came out of ports being up or down.
// Caller holds the change lock.
func (pl *Pipeline) LivenessChanged() { pl.revalidate(func(m *megaflow) bool { return m.usedPorts }) }

// ForgetPort forgets the addresses of a port that is gone. Caller holds the change lock.
func (pl *Pipeline) ForgetPort(number uint32) { pl.macs.forget(number) }
