// SPDX-License-Identifier: Apache-2.0

package ports

import (
	"cmp"
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
	"weft/control/underlay"
	"weft/control/usererr"
	"weft/engine"
	"weft/internal/privilege"
	"weft/openflow"
	"weft/vhost"
)

// portDriver controls the device of a port, under a lock of its own. The methods fault,
// network and status may be called at any time. The other methods are called under the
// configuration lock.
type portDriver interface {
	// open makes the device of the port. If device is not nil, open takes over this
	// device of an earlier control process and owns its descriptors.
	open(device *engine.Kept) error
	// attach passes a ready device to the engine. resume means that a killed engine
	// used the device before.
	attach(resume bool) error
	// fault handles a device that the workers have stopped using, for the given reason.
	// If it returns false, the caller opens the device again.
	fault(reason string) (mended bool)
	// network is called after links, addresses or tunnel endpoints have changed.
	// endpoints are the present ones.
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

// portKinds maps the value of type= to the kind of port. Each kind adds its entry in
// its own file.
var portKinds = map[string]portKind{}

// allOptions returns the options of this kind of port, with the options that all ports
// except uplinks have. Patch ports have no queues and no policing.
func (k *portKind) allOptions() optionTable {
	if k.kind == openflow.PortUplink {
		return k.options
	}
	all := maps.Clone(k.options)
	maps.Copy(all, vlanOptions)
	maps.Copy(all, adminOptions)
	maps.Copy(all, bridgeOptions)
	if k.kind != openflow.PortPatch {
		maps.Copy(all, qosOptions)
	}
	maps.Copy(all, numberOptions)
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

// portContext gives a driver access to its port and to the daemon.
type portContext struct {
	number uint32
	name   string
	kind   string
	values map[string]string // options, with defaults
	log    *slog.Logger
	engine Engine
	// returns the reason why a port is held back from engines; nil: it is not held back
	held   func(number uint32) error
	guests *vhost.MemoryPool // memory that guests have mapped
	open   *sessions
	// pack returns the state that keep stores, made from the device's state. If pack is
	// nil, keep stores the device's state itself.
	pack func(device []byte) ([]byte, error)
	// remotes counts the watched remote endpoints of the port by state.
	remotes func(number uint32) underlay.Summary
}

// keepKey returns the name under which the engine keeps the device of a port.
func keepKey(number uint32) string { return fmt.Sprintf("port/%d", number) }

// permitted returns an error that names the port if this process lacks a capability that
// the port needs.
func (c *portContext) permitted(n privilege.Need) error {
	if err := n.Check(); err != nil {
		return fmt.Errorf("port %s: %w", c.name, err)
	}
	return nil
}

// keep stores a device in the engine, so that the next control process can take it over
// with the function open.
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

// switchPort is a port of the switch. The configuration lock guards it, except the driver,
// which has its own lock.
type switchPort struct {
	saved    store.Port
	kind     string
	explicit map[string]string
	values   map[string]string
	info     openflow.PortInfo
	udpPort  uint16 // outer destination port of a tunnel
	driver   portDriver
	problem  atomic.Pointer[string] // reason why the device is not open or not attached; nil: it is attached
	opened   bool
	lost     bool   // the port's device has disappeared; guarded by the configuration lock
	added    uint64 // see Guest.Added; guarded by the configuration lock
}

func (p *switchPort) fail(err error) {
	text := err.Error()
	p.problem.Store(&text)
}

// newPort checks the options of a port and makes the port. It does not open the device.
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
	bridge, err := ps.bridgeNumber(values)
	if err != nil {
		return nil, err
	}
	p.info = openflow.PortInfo{No: saved.Number, Bridge: bridge, Name: saved.Name, Kind: portKinds[kind].kind}
	switch {
	case kind == kindLocal:
		p.info.No, p.info.Datapath = openflow.PortLocal, saved.Number
	case saved.InFlows != 0:
		p.info.No, p.info.Datapath = saved.InFlows, saved.Number
	}
	p.saved.Bridge = bridge
	if p.isTunnel() {
		p.udpPort = fillTunnel(&p.info, values)
	} else {
		fillMember(&p.info, values)
		if err := fillBinding(&p.info, kind, values); err != nil {
			return nil, err
		}
	}
	if err := fillVLANs(&p.info, values); err != nil {
		return nil, err
	}
	fillAdmin(&p.info, values)
	if err := fillQoS(&p.info, values); err != nil {
		return nil, err
	}
	device := kind
	if kind == kindLocal {
		device = kindTap // the engine's name of the device
	}
	p.driver = portKinds[kind].make(portContext{
		number: saved.Number, name: saved.Name, kind: device, values: values,
		log: ps.log.With("port", saved.Name), engine: ps.engine, held: ps.Held, guests: ps.guests, open: ps.sessions, remotes: ps.templates.Watched,
	})
	return p, nil
}

// Add adds a port. On an error nothing has changed.
func (ps *Ports) Add(name string, options []string) (api.Port, error) {
	ps.change.Lock()
	defer ps.change.Unlock()
	return ps.add(name, options)
}

// Ensure adds a port like Add. If a port with this name and the same options exists
// already, Ensure returns it without an error.
func (ps *Ports) Ensure(name string, options []string) (api.Port, error) {
	ps.change.Lock()
	defer ps.change.Unlock()
	if p := ps.portByName(name); p != nil {
		return ps.existing(p, options)
	}
	return ps.add(name, options)
}

// CheckAdd returns the error with which Add would refuse the options. It opens no device.
func (ps *Ports) CheckAdd(name string, options []string) error {
	ps.change.Lock()
	defer ps.change.Unlock()
	_, err := ps.checkedPort(name, options)
	return err
}

// checkedPort makes a port that is not open, and checks it against the other ports.
func (ps *Ports) checkedPort(name string, options []string) (*switchPort, error) {
	saved := store.Port{Name: name, Options: ps.withoutFirst(options)}
	if err := ps.chooseNumbers(&saved); err != nil {
		return nil, err
	}
	p, err := ps.newPort(saved)
	if err != nil {
		return nil, err
	}
	if name == CentralPort {
		return nil, usererr.Errorf("port name %s: weft-central's tunnel has it; expected another", name)
	}
	return p, ps.conflict(p)
}

func (ps *Ports) add(name string, options []string) (api.Port, error) {
	p, err := ps.checkedPort(name, options)
	if err != nil {
		return api.Port{}, err
	}
	number := p.saved.Number
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
	ps.remember(p)
	ps.log.Info("port added", "port", name, "number", number, "type", p.kind)
	return ps.describeChanged(p), nil
}

// existing describes the existing port p. It returns an error if the port's options
// differ from the given ones.
func (ps *Ports) existing(p *switchPort, options []string) (api.Port, error) {
	_, _, given, err := parseOptions(ps.withoutFirst(options))
	if err != nil {
		return api.Port{}, err
	}
	for _, key := range slices.Sorted(maps.Keys(mergedKeys(p.explicit, given))) {
		if has, wants := p.explicit[key], given[key]; has != wants {
			return api.Port{}, usererr.Errorf("port %s: exists with %s=%s, not %s=%s; expected the same options, or mod-port", p.saved.Name, key, has, key, wants)
		}
	}
	return ps.describeChanged(p), nil
}

func (ps *Ports) conflict(p *switchPort) error {
	if err := ps.checkBuckets(p); err != nil {
		return err
	}
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
		if err := checksumConflict(p, o); err != nil {
			return err
		}
		if err := checkUDPPort(p, o); err != nil {
			return err
		}
		if o.kind != p.kind {
			continue
		}
		if p.kind == kindLocal && o.info.Bridge == p.info.Bridge {
			return usererr.Errorf("type=local: port %s is LOCAL already; expected one such port in a bridge", o.saved.Name)
		}
		for _, key := range exclusive[p.kind] {
			if p.values[key] == o.values[key] && p.values[key] != "" && p.values["netns"] == o.values["netns"] {
				return usererr.Errorf("%s=%s: port %s has it already; expected another", key, p.values[key], o.saved.Name)
			}
		}
		if p.isTunnel() && p.udpPort == o.udpPort && p.values["vni"] == o.values["vni"] &&
			p.values["remote"] == o.values["remote"] && p.values["local"] == o.values["local"] {
			return usererr.Errorf("vni=%s: port %s has the same vni, remote, local and dst_port; expected one of them to differ",
				p.values["vni"], o.saved.Name)
		}
	}
	return nil
}

// checksumConflict returns an error if one of two ports is an AF_XDP uplink on the tap of the
// other, and the tap has offloads. XDP programs run before the kernel notes that a frame's
// checksum is unfinished, so the uplink would deliver frames with wrong checksums.
func checksumConflict(p, o *switchPort) error {
	xdp, tap := p, o
	if o.kind == kindXDP {
		xdp, tap = o, p
	}
	if xdp.kind != kindXDP || tap.kind != kindTap && tap.kind != kindLocal {
		return nil
	}
	dev := tap.values["dev"]
	if dev == "" {
		dev = tap.saved.Name
	}
	if dev != xdp.values["dev"] || tap.values["netns"] != "" || tap.values["offloads"] != "on" {
		return nil
	}
	return usererr.Errorf("port %s: its tap %s passes unfinished checksums, which type=af_xdp of port %s cannot see; expected offloads=off of port %s, or type=af_packet of port %s",
		tap.saved.Name, dev, xdp.saved.Name, tap.saved.Name, xdp.saved.Name)
}

// exclusive has, for each kind of port, the options whose values must differ between
// all ports of the kind.
var exclusive = map[string][]string{kindVhost: {"path"}, kindTap: {"dev"}, kindXDP: {"dev"}, kindPacket: {"dev"}, kindUplink: {"dev"}}

// enterPort makes a new port visible to flows, with empty statistics.
func (ps *Ports) enterPort(p *switchPort) {
	ps.additions++
	p.added = ps.additions
	ps.byNumber[p.saved.Number] = p
	ps.pipeline.ForgetSeen(p.saved.Number)
	ps.statistics.ResetPort(p.saved.Number)
	ps.portsChanged()
}

// leavePort hides a port from flows. When it returns, no worker sends to the port.
func (ps *Ports) leavePort(p *switchPort) {
	delete(ps.byNumber, p.saved.Number)
	ps.updateView() // after this call, no address is learned on the port
	ps.pipeline.Addresses().Forget(p.saved.Number)
	ps.portsChanged()
	ps.templates.DropPort(p.saved.Number)
}

// portsChanged makes a new view of the ports, and updates everything that depends on
// it.
func (ps *Ports) portsChanged() {
	ps.updateView()
	ps.sendTerminations(ps.pipeline.Workers())
	ps.SetTunnels()
	ps.updateEndpointsLocked()
	loop.Notify(ps.kernel.Moved) // wakes up followAddresses, which checks the devices of the ports
	ps.pipeline.PortsChanged()
}

func (ps *Ports) updateView() {
	ps.joinPatches()
	ps.setBuckets()
	var infos []openflow.PortInfo
	udpPort := map[uint32]uint16{}
	for no, p := range ps.byNumber {
		infos = append(infos, ps.declaredInfo(p))
		if p.isTunnel() {
			udpPort[no] = p.udpPort
		}
	}
	slices.SortFunc(infos, func(a, b openflow.PortInfo) int {
		return cmp.Or(cmp.Compare(a.Bridge, b.Bridge), cmp.Compare(a.No, b.No))
	})
	if ps.Renumbered != nil {
		ps.Renumbered()
	}
	ps.pipeline.SetView(pipeline.NewView(infos, udpPort))
}

// Delete deletes a port. Flows that name the port by its number stay.
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
	return ps.delete(p)
}

func (ps *Ports) delete(p *switchPort) error {
	if err := ps.store.DeletePort(p.saved.Number); err != nil {
		return fmt.Errorf("state: %w", err)
	}
	ps.leavePort(p)
	p.driver.close()
	ps.suspects.Forget(p.saved.Number)
	ps.log.Info("port deleted", "port", p.saved.Name, "number", p.saved.Number)
	return nil
}

// Exists reports whether a port has this name.
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

// List describes the port with this name. If name is empty, it describes all ports, in
// order of their numbers.
func (ps *Ports) List(name string) ([]api.Port, error) {
	ps.change.Lock()
	defer ps.change.Unlock()
	list := []api.Port{}
	guests := ps.guestMTUs()
	for _, p := range ps.byNumber {
		if name == "" || p.saved.Name == name {
			list = append(list, ps.describe(p, guests))
		}
	}
	if name != "" && len(list) == 0 {
		return nil, ps.pipeline.View().NoPort(name)
	}
	sort.Slice(list, func(i, j int) bool { return list[i].Number < list[j].Number })
	return list, nil
}

// describeChanged describes a port that a request has added or changed, with the warnings
// of tunnels that concern it.
func (ps *Ports) describeChanged(p *switchPort) api.Port {
	a := ps.describe(p, ps.guestMTUs())
	ps.warnGuest(p, &a)
	return a
}

func (ps *Ports) describe(p *switchPort, guests []guestMTU) api.Port {
	s := portStatus{state: stateFailed}
	if problem := p.problem.Load(); problem != nil {
		s.detail = *problem
	} else if s = p.driver.status(); p.info.Off && s.state == StateUp {
		s.state, s.detail = stateDown, adminDown
	}
	a := api.Port{
		Number: p.saved.Number, Name: p.saved.Name, Type: p.kind, Bridge: p.explicit[bridgeOption], Local: p.info.No == openflow.PortLocal, OpenFlow: p.saved.InFlows, Options: p.explicit,
		State: s.state, Detail: s.detail, Mode: s.mode, Reason: s.reason, Stats: ps.statistics.Port(p.saved.Number),
	}
	if p.isTunnel() {
		ps.describeRemotes(p, &a, guests)
	}
	return a
}

// Fault implements the pipeline's interface Ports: it reports the fault to the port's
// driver.
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

// loadPort makes a saved port. device is the device that the engine has kept for the
// port, or nil. If the port cannot be set up, this is tried again later.
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

// attachPort passes a port's device to the engine. It stores an error in the port.
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
	p.problem.Store(nil) // the stored failure concerned an earlier engine
}

const (
	// interval of attempts to set up a failed port
	retryInterval = 2 * time.Second
	// firstRetry is the time until the first attempt after a startup. It is short,
	// because a killed process may hold sockets and XDP programs for a moment. The time
	// doubles up to retryInterval.
	firstRetry = 50 * time.Millisecond
)

// retryPorts repeats the set-up of failed ports, until ctx ends.
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
	resume := p.opened // if the device stayed open, it may have ring positions of an earlier engine
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
