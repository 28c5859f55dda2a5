package control

import (
	"net/netip"
	"sort"

	"weft/control/underlay"
	"weft/openflow"
	"weft/packet"
)

// portView is the ports as translation sees them. Never changed once made.
type portView struct {
	infos   []openflow.PortInfo // by number
	byNo    map[uint32]openflow.PortInfo
	byName  map[string]uint32
	udpPort map[uint32]uint16
	bound   bool // some port has a Binding
}

// PortByName and PortName are openflow.Names.
func (v *portView) PortByName(name string) (uint32, bool) {
	no, ok := v.byName[name]
	return no, ok
}

func (v *portView) PortName(no uint32) (string, bool) {
	info, ok := v.byNo[no]
	return info.Name, ok
}

// env is openflow.Env: the switch as one translation sees it.
type env struct {
	view    *portView
	tunnels *underlay.Templates
	macs    *macs
	*openflow.RecircTable
}

// env is that of now. Caller holds mu.
func (d *Pipeline) env() *env {
	return &env{view: d.view, tunnels: d.templates, macs: d.macs, RecircTable: d.recircs}
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
func (v *portView) NoPort(name string) error {
	var names []string
	for _, info := range v.infos {
		names = append(names, info.Name)
	}
	sort.Strings(names)
	if len(names) == 0 {
		return inputf("%s: no such port; there are none", name)
	}
	if len(names) > 16 {
		return inputf("%s: no such port; see weft dump-ports", name)
	}
	return inputf("%s: no such port; expected one of %v", name, names)
}

// View is the present view of the ports, which does not change.
func (d *Pipeline) View() *portView {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.view
}
