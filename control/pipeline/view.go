// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"net/netip"
	"sort"

	"weft/control/addresses"
	"weft/control/megaflows"
	"weft/control/underlay"
	"weft/control/usererr"
	"weft/flowtable"
	"weft/openflow"
	"weft/packet"
)

// View is the set of ports that translations use. A View is immutable.
type View struct {
	infos      []openflow.PortInfo          // key: number
	byNo       map[uint32]openflow.PortInfo // key: number in flows
	byDatapath map[uint32]openflow.PortInfo // key: number in the data path
	byName     map[string]uint32
	udpPort    map[uint32]uint16
	bound      bool // at least one port has a Binding or is off
	// anyCentral is true if weft-central has declared a port. centralTunnel is the
	// tunnel to the other hosts of its networks; nil: none.
	anyCentral    bool
	centralTunnel *openflow.PortInfo
}

// NewView makes a view of infos, which must be sorted by port number. udpPort maps the
// number of a tunnel port to its outer UDP destination port.
func NewView(infos []openflow.PortInfo, udpPort map[uint32]uint16) *View {
	v := &View{infos: infos, byNo: map[uint32]openflow.PortInfo{}, byDatapath: map[uint32]openflow.PortInfo{}, byName: map[string]uint32{}, udpPort: udpPort}
	for i, info := range infos {
		v.byNo[info.No], v.byDatapath[info.At()], v.byName[info.Name] = info, info, info.No
		v.bound = v.bound || info.Binding != nil || info.Off
		if v.anyCentral = v.anyCentral || info.Central; info.Central && info.Kind == openflow.PortTunnel {
			v.centralTunnel = &infos[i]
		}
	}
	return v
}

// PortByName and PortName implement openflow.Names. PortName also accepts port numbers
// of the data path.
func (v *View) PortByName(name string) (uint32, bool) {
	no, ok := v.byName[name]
	return no, ok
}

func (v *View) PortName(number uint32) (string, bool) {
	info, ok := v.byNo[number]
	if !ok {
		info, ok = v.byDatapath[number]
	}
	return info.Name, ok
}

// Datapath returns the data path's number of the port that has this number in flows; 0:
// no port.
func (v *View) Datapath(number uint32) uint32 {
	info := v.byNo[number]
	return info.At()
}

// DatapathByName returns the data path's number of the named port.
func (v *View) DatapathByName(name string) (uint32, bool) {
	no, ok := v.byName[name]
	return v.Datapath(no), ok
}

// InFlows returns the number in flows of the port that has this number in the data
// path.
func (v *View) InFlows(datapath uint32) uint32 {
	if info, ok := v.byDatapath[datapath]; ok {
		return info.No
	}
	return datapath
}

// PortWords selects how ports are shown in matches and actions: by name or by number.
type PortWords uint8

const (
	ByName PortWords = iota // by name if they have one
	ByNumber
)

// Names returns the port names of the view for text with names. It returns nil for text
// with numbers.
func (v *View) Names(words PortWords) openflow.Names {
	if words == ByNumber {
		return nil
	}
	return v
}

// Port and Ports, Bound, Central and CentralTunnel implement openflow.Env and
// openflow.Networks.
func (v *View) Port(number uint32) (openflow.PortInfo, bool) {
	info, ok := v.byNo[number]
	return info, ok
}

// PortAt implements openflow.Env.
func (v *View) PortAt(datapath uint32) (openflow.PortInfo, bool) {
	info, ok := v.byDatapath[datapath]
	return info, ok
}

func (v *View) Ports() []openflow.PortInfo { return v.infos }

func (v *View) Bound() bool { return v.bound }

func (v *View) Central() bool { return v.anyCentral }

func (v *View) CentralTunnel() (openflow.PortInfo, bool) {
	if v.centralTunnel == nil {
		return openflow.PortInfo{}, false
	}
	return *v.centralTunnel, true
}

// env is an openflow.Env: the switch's state for one translation.
type env struct {
	*View
	tunnels *underlay.Templates
	*addresses.Table
	*openflow.RecircTable
	*openflow.NoteTable
}

// The caller holds Pipeline.mu.
func (pl *Pipeline) env() *env {
	return &env{View: pl.view, tunnels: pl.templates, Table: pl.macs, RecircTable: pl.recircs, NoteTable: pl.notes}
}

func (e *env) Tunnel(number, _ uint32, local, remote netip.Addr) (uint32, packet.DropReason) {
	return e.tunnels.Template(underlay.Tunnel{Port: number, Local: local, Remote: remote}, e.udpPort[number])
}

// NoPort returns the error for a name that no port has.
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

// View returns the present view of the ports.
func (pl *Pipeline) View() *View {
	pl.mu.RLock()
	defer pl.mu.RUnlock()
	return pl.view
}

// Tracer implements observe.Tracer. It is valid while the tables are locked (Tracing).
type Tracer struct {
	tables *openflow.Pipeline
	env    *env
}

func (t *Tracer) Trace(key *flowtable.Key, visit func(openflow.TraceStep)) openflow.Translation {
	return t.tables.Trace(key, t.env, visit)
}

// Tracing calls fn with a Tracer, the present view, and the port names that words
// selects. The tables do not change while fn runs.
func (pl *Pipeline) Tracing(words PortWords, fn func(t *Tracer, view *View, names openflow.Names)) {
	pl.mu.RLock()
	defer pl.mu.RUnlock()
	fn(&Tracer{pl.tables, pl.env()}, pl.view, pl.view.Names(words))
}

// SetView makes v the present view. The caller then calls PortsChanged, which
// revalidates megaflows. The caller holds the lock of changes.
func (pl *Pipeline) SetView(v *View) {
	pl.mu.Lock()
	pl.view = v
	pl.macs.Declare(v.infos)
	changes := pl.setCentralFlows(v)
	pl.mu.Unlock()
	pl.tell(&changes)
}

// ViewNow returns the present view like View, but does not wait: it returns nil if
// Pipeline.mu is taken.
func (pl *Pipeline) ViewNow() *View {
	if !pl.mu.TryRLock() {
		return nil
	}
	defer pl.mu.RUnlock()
	return pl.view
}

// PortsChanged revalidates all megaflows after SetView. The caller holds the lock of
// changes.
func (pl *Pipeline) PortsChanged() {
	_ = pl.macs.TakeChanges() // all megaflows are translated again
	pl.revalidate(func(*megaflows.Megaflow) bool { return true })
}

// LivenessChanged revalidates the megaflows that depend on the liveness of ports. The
// caller holds the lock of changes.
func (pl *Pipeline) LivenessChanged() {
	pl.revalidate(func(m *megaflows.Megaflow) bool { return m.UsedPorts })
}
