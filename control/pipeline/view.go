// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"hash/fnv"
	"net/netip"
	"slices"
	"sort"

	"weft/control/change"
	"weft/control/underlay"
	"weft/control/usererr"
	"weft/flowtable"
	"weft/openflow"
	"weft/openflow/xlate"
	"weft/packet"
)

// View is the set of ports that look-ups in the OpenFlow tables read, either the ports of one bridge
// or those of all bridges. NewView makes a View, which then never changes.
//
// If there is only the first bridge, its View is also the View of all bridges. The View of all
// bridges uses the OpenFlow numbers of the first bridge's ports, and the datapath numbers of other
// ports. These numbers never collide.
type View struct {
	infos      []xlate.PortInfo          // without mirrors and exporters, sorted by bridge and number
	mirrors    []xlate.PortInfo          // ports of kind PortMirror; no other field contains them
	exporters  []xlate.PortInfo          // ports of kind PortExporter; no other field contains them
	byNo       map[uint32]xlate.PortInfo // key: OpenFlow number; in the view of all ports, only ports of the first bridge
	byDatapath map[uint32]xlate.PortInfo // key: number in the data path
	byName     map[string]xlate.PortInfo
	udpPort    map[uint32]uint16
	geneve     bool // at least one port is of EncapGeneve
	bound      bool // at least one port has a Binding, Policing or LACP, is off, or is a mirror's output
	// anyCentral is true if a port is in a network of weft-central, the service that configures the
	// networks of many hosts. centralTunnel is the tunnel between these hosts; nil: none.
	anyCentral    bool
	centralTunnel *xlate.PortInfo

	whole   *View
	bridges map[uint8]*View // by number, in the view of all ports; nil: only the first bridge has ports
}

// NewView makes the View of all bridges. infos has the ports, sorted by bridge and number. udpPort
// has the outer destination port of each tunnel, by datapath number.
func NewView(infos []xlate.PortInfo, udpPort map[uint32]uint16) *View {
	whole := newView(infos, udpPort)
	whole.whole = whole
	if !slices.ContainsFunc(infos, func(p xlate.PortInfo) bool { return p.Bridge != 0 }) {
		return whole
	}
	whole.bridges = map[uint8]*View{}
	for from := 0; from < len(infos); {
		to := from + 1
		for to < len(infos) && infos[to].Bridge == infos[from].Bridge {
			to++
		}
		own := newView(infos[from:to:to], udpPort)
		own.whole, whole.bridges[infos[from].Bridge] = whole, own
		from = to
	}
	clear(whole.byNo)
	for _, info := range whole.infos {
		if info.Bridge == 0 {
			whole.byNo[info.No] = info
		}
	}
	return whole
}

func newView(infos []xlate.PortInfo, udpPort map[uint32]uint16) *View {
	v := &View{byNo: map[uint32]xlate.PortInfo{}, byDatapath: map[uint32]xlate.PortInfo{}, byName: map[string]xlate.PortInfo{}, udpPort: udpPort}
	for _, info := range infos {
		switch info.Kind {
		case xlate.PortMirror:
			v.mirrors = append(v.mirrors, info)
		case xlate.PortExporter:
			v.exporters = append(v.exporters, info)
		}
	}
	if len(v.mirrors)+len(v.exporters) > 0 {
		infos = slices.DeleteFunc(slices.Clone(infos), func(p xlate.PortInfo) bool { return p.Kind.Hidden() })
	}
	v.infos = infos
	for i, info := range infos {
		v.byNo[info.No], v.byDatapath[info.At()], v.byName[info.Name] = info, info, info
		v.geneve = v.geneve || info.Kind == xlate.PortTunnel && info.Encap == xlate.EncapGeneve
		v.bound = v.bound || info.Binding != nil || info.LACP || info.Off || info.MirrorOut || len(info.Policing) > 0
		if v.anyCentral = v.anyCentral || info.Central; info.Central && info.Kind == xlate.PortTunnel {
			v.centralTunnel = &infos[i]
		}
	}
	return v
}

// Of returns the View of one bridge. It is empty for a bridge without ports.
func (v *View) Of(bridge uint8) *View {
	if v.whole.bridges == nil && bridge == 0 {
		return v.whole
	}
	if own := v.whole.bridges[bridge]; own != nil {
		return own
	}
	empty := newView(nil, nil)
	empty.whole = v.whole
	return empty
}

// PortByName and PortName implement openflow.Names. PortName also accepts datapath numbers.
func (v *View) PortByName(name string) (uint32, bool) {
	info, ok := v.byName[name]
	if v == v.whole && info.Bridge != 0 {
		return info.At(), ok
	}
	return info.No, ok
}

func (v *View) PortName(number uint32) (string, bool) {
	info, ok := v.byNo[number]
	if !ok {
		info, ok = v.byDatapath[number]
	}
	return info.Name, ok
}

// Datapath returns the datapath number of the port that has this number in flows. It returns 0 if
// there is no such port.
func (v *View) Datapath(number uint32) uint32 {
	info := v.byNo[number]
	return info.At()
}

// DatapathByName returns the datapath number of the port with this name.
func (v *View) DatapathByName(name string) (uint32, bool) {
	info, ok := v.byName[name]
	return info.At(), ok
}

// InFlows returns the number in flows of the port with this datapath number. It returns the argument
// if there is no such port.
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

// Names returns the View as the source of port names, or nil if words selects port numbers.
func (v *View) Names(words PortWords) openflow.Names {
	if words == ByNumber {
		return nil
	}
	return v
}

// megaflowNames has the names for the text of a megaflow: port names and Geneve options.
type megaflowNames struct {
	openflow.Names
	*xlate.OptionTable
}

// MegaflowNames returns the names for the text of a megaflow. It has the port names of all bridges.
func (pl *Pipeline) MegaflowNames(words PortWords) openflow.Names {
	return megaflowNames{openflow.WithTLVs(pl.View().Names(words), nil), pl.options}
}

// Port and Ports, Bound, Central and CentralTunnel implement xlate.Env and
// xlate.Networks.
func (v *View) Port(number uint32) (xlate.PortInfo, bool) {
	info, ok := v.byNo[number]
	return info, ok
}

// PortAt returns a port of any bridge by its datapath number. It implements xlate.Env.
func (v *View) PortAt(datapath uint32) (xlate.PortInfo, bool) {
	info, ok := v.whole.byDatapath[datapath]
	return info, ok
}

func (v *View) Ports() []xlate.PortInfo { return v.infos }

func (v *View) Bound() bool { return v.bound }

// Mirrors returns the bridge's mirrors. It implements xlate.Env.
func (v *View) Mirrors() []xlate.PortInfo { return v.mirrors }

// Exporters returns the bridge's IPFIX and sFlow exporters. It implements xlate.Env.
func (v *View) Exporters() []xlate.PortInfo { return v.exporters }

// Geneve implements xlate's interface tunnelOptions. It is true if any bridge has a Geneve port.
func (v *View) Geneve() bool { return v.whole.geneve }

func (v *View) Central() bool { return v.anyCentral }

func (v *View) CentralTunnel() (xlate.PortInfo, bool) {
	if v.centralTunnel == nil {
		return xlate.PortInfo{}, false
	}
	return *v.centralTunnel, true
}

func (e *env) Tunnel(number, _ uint32, local, remote netip.Addr) (uint32, packet.DropReason) {
	return e.tunnels.Template(underlay.Tunnel{Port: number, Local: local, Remote: remote}, e.udpPort[number])
}

// NoPort returns the error about a port name that does not exist.
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

// View returns the present set of the ports of all bridges.
func (pl *Pipeline) View() *View {
	pl.mu.RLock()
	defer pl.mu.RUnlock()
	return pl.view
}

// Tracer looks up frames in the tables of a bridge and reports each step. It implements
// observe.Tracer. It is valid until the function that Bridge.Tracing calls returns.
type Tracer struct {
	bridge *Bridge
	env    *env
}

func (t *Tracer) Trace(key *flowtable.Key, visit func(xlate.TraceStep)) xlate.Translation {
	k := *key
	if local := t.env.Datapath(openflow.PortLocal); local != 0 && k.InPort() == openflow.PortLocal {
		k.SetInPort(local)
	}
	return xlate.Trace(t.bridge.tables, &k, t.env, visit)
}

// KeepOptions stores the Geneve options of a traced frame and returns their hash. The hash stands
// for the options in the frame's key. OptionTable.Collect later removes options that no megaflow
// uses. KeepOptions implements observe.Tracer.
func (t *Tracer) KeepOptions(raw []byte) uint64 {
	h := fnv.New64a()
	h.Write(raw)
	hash := max(h.Sum64(), 1)
	t.bridge.pl.options.Put(0, hash, raw)
	return hash
}

// Tracing calls fn with a Tracer, the present set of the bridge's ports, and the port names of all
// bridges. If words selects numbers, "names" is nil. The tables do not change during the call.
func (b *Bridge) Tracing(words PortWords, fn func(t *Tracer, view *View, names openflow.Names)) {
	pl := b.pl
	pl.mu.RLock()
	defer pl.mu.RUnlock()
	view := pl.view.Of(b.number)
	fn(&Tracer{b, b.env()}, view, pl.view.Names(words))
}

// SetView replaces the set of ports by v, which has the ports of all bridges. The caller then calls
// PortsChanged or LivenessChanged, so that the commit looks up the megaflows again.
func (pl *Pipeline) SetView(tx *change.Tx, v *View) {
	pl.mu.Lock()
	pl.view = v
	pl.macs.Declare(xlate.Declares(v.infos))
	changes := pl.setCentralFlows(tx, v)
	pl.mu.Unlock()
	pl.tell(tx, &changes)
}

// ViewNow returns the same as View, but does not wait. It returns nil if Pipeline.mu is locked.
func (pl *Pipeline) ViewNow() *View {
	if !pl.mu.TryRLock() {
		return nil
	}
	defer pl.mu.RUnlock()
	return pl.view
}
