// SPDX-License-Identifier: Apache-2.0

package ports

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sort"
	"sync/atomic"
	"time"

	"weft/api"
	"weft/control/loop"
	"weft/control/pipeline"
	"weft/control/store"
	"weft/control/usererr"
	"weft/engine"
	"weft/openflow"
	"weft/port"
	"weft/vhost"
)

// portDriver controls a port's device under its own lock. The methods fault, network
// and status may be called at any time, the others under the lock of changes.
type portDriver interface {
	// open makes the device. If device is not nil, open takes over this device of an
	// earlier control process and owns its descriptors.
	open(device *engine.Kept) error
	// attach passes a ready device to the engine. resume means that a killed engine
	// had the device.
	attach(resume bool) error
	// fault handles a device that the workers have stopped using, and gets the reason. If
	// it returns false, the caller opens the device again.
	fault(reason string) (mended bool)
	// network reports that links, addresses or endpoints have changed.
	network(endpoints []netip.AddrPort)
	status() portStatus
	// close detaches the device and frees what open made.
	close()
}

// portStatus has the fields of api.Port that describe a port's state.
type portStatus struct{ state, detail, mode, reason string }

// States of a port.
const (
	StateUp      = "up"
	stateDown    = "down"    // the device exists but does not forward
	stateWaiting = "waiting" // waits for a guest
	stateFailed  = "failed"  // broken; control tries again
)

// portKind describes a type of port.
type portKind struct {
	options optionTable
	kind    openflow.PortKind
	make    func(c portContext) portDriver
}

// portKinds has the kinds of ports by the value of type=. Each kind's file adds an
// entry.
var portKinds = map[string]portKind{}

// allOptions returns the options of the kind with those of all ports that take part in
// the action normal.
func (k *portKind) allOptions() optionTable {
	if k.kind == openflow.PortUplink {
		return k.options
	}
	all := maps.Clone(k.options)
	maps.Copy(all, vlanOptions)
	return all
}

func kindNames() []string {
	var names []string
	for name := range portKinds {
		names = append(names, name)
	}
	sort.Strings(names)
	return names
}

// portContext is a driver's access to its port and to the daemon.
type portContext struct {
	number uint32
	name   string
	kind   string
	values map[string]string // options, with defaults
	log    *slog.Logger
	engine Engine
	held   func(number uint32) error // why a port is held back from the engines; nil: it is not
	guests *vhost.MemoryPool         // memory that guests have mapped
	open   *sessions
	// pack makes the state that keep stores from the device's state; nil: they are the
	// same.
	pack func(device []byte) ([]byte, error)
}

// keepKey is the engine's key for a port's kept device.
func keepKey(number uint32) string { return fmt.Sprintf("port/%d", number) }

// keep stores the device in the engine for the next control process, whose open takes
// it over.
func (c *portContext) keep(blob []byte, fds []int) error {
	client := c.engine.Client()
	if client == nil {
		return engine.ErrGone
	}
	if c.pack != nil {
		var err error
		if blob, err = c.pack(blob); err != nil {
			return err
		}
	}
	return client.Keep(keepKey(c.number), blob, fds)
}

func (c *portContext) attach(spec []byte, fds []int, tunnel bool) error {
	if err := c.held(c.number); err != nil {
		return err
	}
	client := c.engine.Client()
	if client == nil {
		return engine.ErrGone
	}
	return client.Attach(engine.Attach{Port: c.number, Name: c.name, Kind: c.kind, Spec: spec, Tunnel: tunnel}, fds)
}

func (c *portContext) detach() (json.RawMessage, error) {
	client := c.engine.Client()
	if client == nil {
		return nil, engine.ErrGone
	}
	return client.Detach(c.number)
}

func (c *portContext) forget() {
	if client := c.engine.Client(); client != nil {
		_ = client.Forget(keepKey(c.number)) // error ignored: a dead engine keeps no state
	}
}

// switchPort is a port of the switch, guarded by the lock of changes. The driver has
// its own lock.
type switchPort struct {
	saved    store.Port
	kind     string
	explicit map[string]string
	values   map[string]string
	info     openflow.PortInfo
	udpPort  uint16 // outer destination port of a vxlan port
	driver   portDriver
	problem  atomic.Pointer[string] // why the device is not open or attached; nil: it is
	opened   bool
	lost     bool   // the port's device has disappeared; guarded by the lock of changes
	added    uint64 // see Guest.Added; guarded by the lock of changes
}

func (p *switchPort) fail(err error) {
	text := err.Error()
	p.problem.Store(&text)
}

// newPort checks the options. It does not open the device.
func (ps *Ports) newPort(saved store.Port) (*switchPort, error) {
	if err := checkPortName(saved.Name); err != nil {
		return nil, err
	}
	kind, values, given, err := parseOptions(saved.Options)
	if err != nil {
		return nil, err
	}
	if err := checkSocketAccess(values); err != nil {
		return nil, err
	}
	p := &switchPort{saved: saved, kind: kind, explicit: given, values: values}
	p.info = openflow.PortInfo{No: saved.Number, Name: saved.Name, Kind: portKinds[kind].kind}
	if kind == kindLocal {
		p.info.No, p.info.Datapath = openflow.PortLocal, saved.Number
	}
	if kind == kindVXLAN {
		p.udpPort = fillVXLAN(&p.info, values)
	} else {
		fillMember(&p.info, values)
		if err := fillBinding(&p.info, kind, values); err != nil {
			return nil, err
		}
	}
	if err := fillVLANs(&p.info, values); err != nil {
		return nil, err
	}
	device := kind
	if kind == kindLocal {
		device = kindTap // the engine's name of the device
	}
	p.driver = portKinds[kind].make(portContext{
		number: saved.Number, name: saved.Name, kind: device, values: values,
		log: ps.log.With("port", saved.Name), engine: ps.engine, held: ps.Held, guests: ps.guests, open: ps.sessions,
	})
	return p, nil
}

// Add adds a port. On an error nothing has changed.
func (ps *Ports) Add(name string, options []string) (api.Port, error) {
	ps.change.Lock()
	defer ps.change.Unlock()
	return ps.add(name, options)
}

// Ensure is Add, except that a port of the name with the same options is no error.
func (ps *Ports) Ensure(name string, options []string) (api.Port, error) {
	ps.change.Lock()
	defer ps.change.Unlock()
	if p := ps.portByName(name); p != nil {
		return ps.existing(p, options)
	}
	return ps.add(name, options)
}

func (ps *Ports) add(name string, options []string) (api.Port, error) {
	number, err := ps.freeNumber(name)
	if slices.Contains(options, "type="+kindLocal) {
		number, err = ps.lastNumber()
	}
	if err != nil {
		return api.Port{}, err
	}
	p, err := ps.newPort(store.Port{Number: number, Name: name, Options: options})
	if err != nil {
		return api.Port{}, err
	}
	if name == CentralPort {
		return api.Port{}, usererr.Errorf("port name %s: weft-central's tunnel has it; expected another", name)
	}
	if err := ps.conflict(p); err != nil {
		return api.Port{}, err
	}
	if err := p.driver.open(nil); err != nil {
		return api.Port{}, err
	}
	p.opened = true
	ps.enterPort(p)
	if err = p.driver.attach(false); err == nil {
		err = ps.store.SavePort(p.saved)
	}
	if err != nil {
		ps.leavePort(p)
		p.driver.close()
		return api.Port{}, err
	}
	ps.numbers[number] = name
	ps.log.Info("port added", "port", name, "number", number, "type", p.kind)
	return ps.describe(p), nil
}

// existing describes a port whose options are the given ones.
func (ps *Ports) existing(p *switchPort, options []string) (api.Port, error) {
	_, _, given, err := parseOptions(options)
	if err != nil {
		return api.Port{}, err
	}
	for _, key := range slices.Sorted(maps.Keys(mergedKeys(p.explicit, given))) {
		if has, wants := p.explicit[key], given[key]; has != wants {
			return api.Port{}, usererr.Errorf("port %s: exists with %s=%s, not %s=%s; expected the same options, or mod-port", p.saved.Name, key, has, key, wants)
		}
	}
	return ps.describe(p), nil
}

func (ps *Ports) conflict(p *switchPort) error {
	for number, o := range ps.byNumber {
		if number == p.saved.Number { // p replaces it
			continue
		}
		if o.saved.Name == p.saved.Name {
			return usererr.Errorf("port name %s: there is a port of that name; expected another, or del-port first", p.saved.Name)
		}
		if id := p.values["id"]; id != "" && id == o.values["id"] {
			return usererr.Errorf("id=%s: port %s has it already; expected another", id, o.saved.Name)
		}
		if o.kind != p.kind {
			continue
		}
		if p.kind == kindLocal {
			return usererr.Errorf("type=local: port %s is LOCAL already; expected one such port", o.saved.Name)
		}
		for _, key := range exclusive[p.kind] {
			if p.values[key] == o.values[key] && p.values[key] != "" && p.values["netns"] == o.values["netns"] {
				return usererr.Errorf("%s=%s: port %s has it already; expected another", key, p.values[key], o.saved.Name)
			}
		}
		if p.kind == kindVXLAN && p.udpPort == o.udpPort && p.values["vni"] == o.values["vni"] &&
			p.values["remote"] == o.values["remote"] && p.values["local"] == o.values["local"] {
			return usererr.Errorf("vni=%s: port %s has the same vni, remote, local and dst_port; expected one of them to differ",
				p.values["vni"], o.saved.Name)
		}
	}
	return nil
}

// exclusive options have a different value in each port of a kind.
var exclusive = map[string][]string{kindVhost: {"path"}, kindTap: {"dev"}, kindXDP: {"dev"}, kindPacket: {"dev"}, kindUplink: {"dev"}}

// freeNumber prefers the last number of a port with this name, so that flows keep
// their meaning. Otherwise it prefers a number that was never used.
func (ps *Ports) freeNumber(name string) (uint32, error) {
	fresh, free := uint32(0), uint32(0)
	for n := uint32(port.MaxPorts - 1); n > 0; n-- {
		if ps.byNumber[n] != nil {
			continue
		}
		free = n
		switch last, used := ps.numbers[n]; {
		case !used:
			fresh = n
		case last == name:
			return n, nil
		}
	}
	if fresh == 0 {
		fresh = free
	}
	if fresh == 0 {
		return 0, fmt.Errorf("%d ports exist already, which is the limit; delete one first", port.MaxPorts-1)
	}
	return fresh, nil
}

// lastNumber returns the highest free number for LOCAL, which flows do not see, so that
// the other ports count from 1.
func (ps *Ports) lastNumber() (uint32, error) {
	for n := uint32(port.MaxPorts - 1); n > 0; n-- {
		if ps.byNumber[n] == nil && n != centralNumber {
			return n, nil
		}
	}
	return ps.freeNumber("")
}

// enterPort shows a new port to flows, with empty statistics.
func (ps *Ports) enterPort(p *switchPort) {
	ps.additions++
	p.added = ps.additions
	ps.byNumber[p.saved.Number] = p
	ps.pipeline.ForgetSeen(p.saved.Number)
	ps.statistics.ResetPort(p.saved.Number)
	ps.portsChanged()
}

// leavePort hides a port from flows. After it, no worker sends to the port.
func (ps *Ports) leavePort(p *switchPort) {
	delete(ps.byNumber, p.saved.Number)
	ps.updateView() // no address is learned on the port any more
	ps.pipeline.Addresses().Forget(p.saved.Number)
	ps.portsChanged()
	ps.templates.DropPort(p.saved.Number)
}

// portsChanged makes a new view of the ports and updates its users.
func (ps *Ports) portsChanged() {
	ps.updateView()
	ps.sendTerminations(ps.pipeline.Workers())
	ps.SetTunnels()
	ps.updateEndpointsLocked()
	loop.Notify(ps.kernel.Moved) // makes followAddresses check the ports' devices
	ps.pipeline.PortsChanged()
}

func (ps *Ports) updateView() {
	var infos []openflow.PortInfo
	udpPort := map[uint32]uint16{}
	for no, p := range ps.byNumber {
		infos = append(infos, ps.declaredInfo(p))
		if p.kind == kindVXLAN {
			udpPort[no] = p.udpPort
		}
	}
	slices.SortFunc(infos, func(a, b openflow.PortInfo) int { return int(a.No) - int(b.No) })
	if ps.Renumbered != nil {
		ps.Renumbered()
	}
	ps.pipeline.SetView(pipeline.NewView(infos, udpPort))
}

// Delete deletes a port. Flows keep its number.
func (ps *Ports) Delete(name string) error {
	ps.change.Lock()
	defer ps.change.Unlock()
	p := ps.portByName(name)
	if p == nil {
		return ps.pipeline.View().NoPort(name)
	}
	if p == ps.central.tunnel {
		return usererr.Errorf("%s: weft-central's tunnel; expected another port", name)
	}
	if err := ps.store.DeletePort(p.saved.Number); err != nil {
		return fmt.Errorf("state: %w", err)
	}
	ps.leavePort(p)
	p.driver.close()
	ps.suspects.Forget(p.saved.Number)
	ps.log.Info("port deleted", "port", name, "number", p.saved.Number)
	return nil
}

// Exists reports whether there is a port of the name.
func (ps *Ports) Exists(name string) bool {
	ps.change.Lock()
	defer ps.change.Unlock()
	return ps.portByName(name) != nil
}

func (ps *Ports) portByName(name string) *switchPort {
	for _, p := range ps.byNumber {
		if p.saved.Name == name {
			return p
		}
	}
	return nil
}

// List describes the named port, or all ports by number if name is empty.
func (ps *Ports) List(name string) ([]api.Port, error) {
	ps.change.Lock()
	defer ps.change.Unlock()
	list := []api.Port{}
	for _, p := range ps.byNumber {
		if name == "" || p.saved.Name == name {
			list = append(list, ps.describe(p))
		}
	}
	if name != "" && len(list) == 0 {
		return nil, ps.pipeline.View().NoPort(name)
	}
	sort.Slice(list, func(i, j int) bool { return list[i].Number < list[j].Number })
	return list, nil
}

func (ps *Ports) describe(p *switchPort) api.Port {
	s := portStatus{state: stateFailed}
	if problem := p.problem.Load(); problem != nil {
		s.detail = *problem
	} else {
		s = p.driver.status()
	}
	return api.Port{
		Number: p.saved.Number, Name: p.saved.Name, Type: p.kind, Local: p.info.No == openflow.PortLocal, Options: p.explicit,
		State: s.state, Detail: s.detail, Mode: s.mode, Reason: s.reason, Stats: ps.statistics.Port(p.saved.Number),
	}
}

// Fault implements pipeline.Ports for the port's driver.
func (ps *Ports) Fault(number uint32, reason string) {
	ps.change.Lock()
	defer ps.change.Unlock()
	if p := ps.byNumber[number]; p != nil {
		ps.log.Error("port is broken", "port", p.saved.Name, "why", reason)
		if p.driver.fault(reason) {
			return
		}
		ps.failPort(p, errors.New(reason))
	}
}

// loadPort makes a saved port, with its kept device if there is one. A failed port is
// retried later.
func (ps *Ports) loadPort(saved store.Port, device *engine.Kept) {
	p, err := ps.newPort(saved)
	if err != nil {
		ps.log.Error("cannot make a saved port, leaving it out", "port", saved.Name, "error", err)
		if device != nil {
			device.CloseFDs()
		}
		return
	}
	ps.byNumber[saved.Number] = p
	if err := p.driver.open(device); err != nil {
		ps.log.Error("port cannot be set up, trying again later", "port", saved.Name, "error", err)
		p.fail(err)
		return
	}
	p.opened = true
}

// attachPort passes a port's device to the engine, and stores a failure in the port.
func (ps *Ports) attachPort(p *switchPort, resume bool) {
	if !p.opened {
		return
	}
	if err := ps.Held(p.saved.Number); err != nil {
		p.fail(err)
		return
	}
	if err := p.driver.attach(resume); err != nil {
		ps.log.Error("port cannot be attached, trying again later", "port", p.saved.Name, "error", err)
		p.fail(err)
		return
	}
	p.problem.Store(nil) // the failure concerned an earlier engine
}

const (
	// interval of attempts to set up a failed port
	retryInterval = 2 * time.Second
	// The first retry after a startup is early: a killed process may hold sockets and
	// XDP programs for a moment. The time doubles up to retryInterval.
	firstRetry = 50 * time.Millisecond
)

// retryPorts sets up failed ports again, until ctx ends.
func (ps *Ports) retryPorts(ctx context.Context) {
	atStart := map[*switchPort]bool{}
	ps.change.Lock()
	for _, p := range ps.byNumber {
		atStart[p] = p.problem.Load() != nil
	}
	ps.change.Unlock()
	for pause := firstRetry; loop.Sleep(ctx, pause); pause = min(2*pause, retryInterval) {
		ps.change.Lock()
		ps.checkDevices()
		for _, p := range ps.byNumber {
			if pause == retryInterval || atStart[p] {
				ps.retryPort(p)
			}
		}
		ps.change.Unlock()
	}
}

func (ps *Ports) retryPort(p *switchPort) {
	if p.problem.Load() == nil || ps.engine.Client() == nil {
		return
	}
	if err := ps.Held(p.saved.Number); err != nil {
		p.fail(err)
		return
	}
	resume := p.opened // an open device may have ring positions of an earlier engine
	if !p.opened {
		if err := p.driver.open(nil); err != nil {
			p.fail(err)
			return
		}
		p.opened = true
	}
	if err := p.driver.attach(resume); err != nil {
		p.fail(err)
		return
	}
	p.problem.Store(nil)
	ps.log.Info("port is set up now", "port", p.saved.Name)
	ps.portsChanged()
}
