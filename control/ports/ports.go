// SPDX-License-Identifier: Apache-2.0

package ports

import (
	"cmp"
	"errors"
	"maps"
	"net"
	"slices"
	"sort"
	"sync/atomic"

	"weft/api"
	"weft/control/change"
	"weft/control/loop"
	"weft/control/pipeline"
	"weft/control/store"
	"weft/control/underlay"
	"weft/control/usererr"
	"weft/openflow"
	"weft/openflow/fdb"
	"weft/openflow/xlate"
)

// switchPort is a port of the switch. The configuration lock guards it, except the driver,
// which has its own lock.
type switchPort struct {
	saved    store.Port
	kind     string
	explicit map[string]string
	values   map[string]string
	info     xlate.PortInfo
	udpPort  uint16 // outer destination port of a tunnel
	driver   portDriver
	problem  atomic.Pointer[string] // reason why the engine does not have the port; nil: it has the port
	opened   bool
	fresh    bool // new: the commit has not attached and saved the port yet; guarded by the configuration lock
	// interrupted means that the engine ended while the port was added, so that the addition waits for
	// the next engine. The configuration lock guards it.
	interrupted bool
	lost        bool   // the kernel has removed the port's device; guarded by the configuration lock
	added       uint64 // see Guest.Added; guarded by the configuration lock
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
	p.info = xlate.PortInfo{No: saved.Number, Bridge: bridge, Name: saved.Name, Kind: portKinds[kind].kind}
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
	if err := checkLACP(values); err != nil {
		return nil, err
	}
	if err := fillVLANs(&p.info, values); err != nil {
		return nil, err
	}
	if err := p.checkMirror(); err != nil {
		return nil, err
	}
	fillAdmin(&p.info, values)
	if err := fillQoS(&p.info, values); err != nil {
		return nil, err
	}
	device := kind
	if kind == kindLocal {
		device = kindTap // the engine knows this kind of device as a tap
	}
	p.driver = portKinds[kind].make(portContext{
		number: saved.Number, name: saved.Name, kind: device, values: values,
		log: ps.log.With("port", saved.Name), engine: ps.engine, offload: ps.pipeline, held: ps.Held, guests: ps.guests, exporters: ps.exporters, open: ps.sessions, remotes: ps.templates.Watched,
	})
	return p, nil
}

// Add adds a port. On an error nothing has changed.
func (ps *Ports) Add(name string, options []string) (api.Port, error) {
	return ps.changeOne(func(tx *change.Tx, onFailure func(error)) (*switchPort, error) {
		return ps.add(tx, name, options, onFailure)
	})
}

// AddIn adds a port as a part of the transaction tx. onFailure gets the error if the commit cannot
// attach or save the port. On an error nothing has changed.
func (ps *Ports) AddIn(tx *change.Tx, name string, options []string, onFailure func(error)) error {
	_, err := ps.add(tx, name, options, onFailure)
	return err
}

// Ensure adds a port like Add. If a port with this name and the same options exists
// already, Ensure returns it without an error.
func (ps *Ports) Ensure(name string, options []string) (api.Port, error) {
	return ps.changeOne(func(tx *change.Tx, onFailure func(error)) (*switchPort, error) {
		if p := ps.portByName(name); p != nil {
			return p, ps.sameOptions(p, options)
		}
		return ps.add(tx, name, options, onFailure)
	})
}

// CheckAdd returns the error with which Add would refuse the options. It opens no device.
func (ps *Ports) CheckAdd(name string, options []string) error {
	_, err := change.Read(ps.configuration, func(tx *change.Tx) (*switchPort, error) { return ps.checkedPort(name, options) })
	return err
}

// checkedPort makes a port without opening its device, and checks the port against the other ports.
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

func (ps *Ports) add(tx *change.Tx, name string, options []string, onFailure func(error)) (*switchPort, error) {
	p, err := ps.checkedPort(name, options)
	if err != nil {
		return nil, err
	}
	ps.settle(tx)
	if err := p.driver.open(nil); err != nil {
		return nil, err
	}
	p.opened = true
	ps.enterPort(tx, p, onFailure)
	return p, nil
}

// sameOptions returns an error if the options of the existing port p differ from the given
// ones.
func (ps *Ports) sameOptions(p *switchPort, options []string) error {
	_, _, given, err := parseOptions(ps.withoutFirst(options))
	if err != nil {
		return err
	}
	for _, key := range slices.Sorted(maps.Keys(mergedKeys(p.explicit, given))) {
		if has, wants := p.explicit[key], given[key]; has != wants {
			return usererr.Errorf("port %s: exists with %s=%s, not %s=%s; expected the same options, or mod-port", p.saved.Name, key, has, key, wants)
		}
	}
	return nil
}

// updateDependents updates what depends on the ports, except the megaflows: the table of tunnel ends
// in the workers, the tunnels' outer headers, and the tunnel endpoints of the uplinks.
func (ps *Ports) updateDependents(tx *change.Tx) {
	ps.sendTerminations(tx, ps.pipeline.Workers())
	ps.SetTunnels(tx)
	ps.updateEndpointsLocked(tx)
	loop.Notify(ps.kernel.Moved) // wakes followAddresses, which checks the ports' devices
}

func (ps *Ports) updateView(tx *change.Tx) {
	ps.joinPatches(tx)
	ps.joinBonds(tx)
	ps.joinMirrors(tx)
	ps.joinExporters(tx)
	ps.setBuckets(tx)
	ps.setWeights(tx)
	var infos []xlate.PortInfo
	udpPort := map[uint32]uint16{}
	for no, p := range ps.byNumber {
		infos = append(infos, ps.declaredInfo(p))
		if p.isTunnel() {
			udpPort[no] = p.udpPort
		}
	}
	slices.SortFunc(infos, func(a, b xlate.PortInfo) int {
		return cmp.Or(cmp.Compare(a.Bridge, b.Bridge), cmp.Compare(a.No, b.No))
	})
	if ps.declared != nil {
		if moved := ps.declared.Renumber(tx, ps.Numbers(tx)); len(moved) > 0 {
			ps.pipeline.Addresses().Change(&fdb.Change{Addresses: moved})
		}
	}
	ps.pipeline.SetView(tx, pipeline.NewView(infos, udpPort))
}

// Delete deletes a port. Flows that name the port by its number stay. On an error nothing has
// changed.
func (ps *Ports) Delete(name string) error {
	return ps.configuration.Update(func(tx *change.Tx) error { return ps.DeleteIn(tx, name) })
}

// DeleteAll deletes the ports of a bridge, as a part of the transaction tx.
func (ps *Ports) DeleteAll(tx *change.Tx, bridge uint8) {
	for _, p := range ps.inBridge(bridge) {
		ps.delete(tx, p)
	}
	tx.At(change.Tell, deletedBridge(bridge), func() error {
		if len(ps.inBridge(bridge)) == 0 {
			ps.forgetNumbers(bridge)
		}
		return nil
	})
}

// deletedBridge identifies the work that DeleteAll adds to a commit (see change.Tx.At).
type deletedBridge uint8

// DeleteIn deletes a port like Delete, as a part of the transaction tx.
func (ps *Ports) DeleteIn(tx *change.Tx, name string) error {
	p := ps.portByName(name)
	if p == nil {
		return ps.pipeline.View().NoPort(name)
	}
	if p == ps.central.tunnel {
		return usererr.Errorf("%s: weft-central's tunnel; expected another port", name)
	}
	ps.delete(tx, p)
	return nil
}

// closePort closes the device of a deleted port, which no worker uses any more.
func (ps *Ports) closePort(p *switchPort) {
	p.driver.close()
	if p.fresh {
		return
	}
	ps.suspects.Forget(p.saved.Number)
	ps.log.Info("port deleted", "port", p.saved.Name, "number", p.saved.Number)
}

// Exists reports whether a port has this name.
func (ps *Ports) Exists(name string) (exists bool) {
	ps.configuration.View(func(tx *change.Tx) { exists = ps.portByName(name) != nil })
	return exists
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
	return change.Read(ps.configuration, func(tx *change.Tx) ([]api.Port, error) {
		list := []api.Port{}
		guests, links := ps.guestMTUs(tx), ps.kernel.Links()
		for _, p := range ps.byNumber {
			if name == "" || p.saved.Name == name {
				a := ps.describe(tx, p, guests)
				a.Link = p.link(links)
				list = append(list, a)
			}
		}
		if name != "" && len(list) == 0 {
			return nil, ps.pipeline.View().NoPort(name)
		}
		sort.Slice(list, func(i, j int) bool { return list[i].Number < list[j].Number })
		return list, nil
	})
}

// link returns the kernel's information about the port's device. It returns nil if the device is not
// in the network namespace of this process.
func (p *switchPort) link(links map[string]underlay.Link) *api.Link {
	if p.kind != kindTap && p.kind != kindLocal && p.kind != kindDevice || p.explicit["netns"] != "" {
		return nil
	}
	l, there := links[cmp.Or(p.explicit["dev"], p.saved.Name)]
	if !there {
		return nil
	}
	a := &api.Link{MAC: net.HardwareAddr(l.MAC[:]).String(), Mbps: l.Mbps, Negotiated: l.Negotiated}
	switch l.Duplex {
	case underlay.DuplexHalf:
		a.Duplex = "half"
	case underlay.DuplexFull:
		a.Duplex = "full"
	}
	switch {
	case l.Copper:
		a.Medium = "copper"
	case l.Fiber:
		a.Medium = "fiber"
	}
	return a
}

// describeChanged describes a port after a request has added or changed it. The description includes
// warnings about tunnels whose MTU is too small for the port.
func (ps *Ports) describeChanged(tx *change.Tx, p *switchPort) api.Port {
	a := ps.describe(tx, p, ps.guestMTUs(tx))
	ps.warnGuest(tx, p, &a)
	return a
}

func (ps *Ports) describe(tx *change.Tx, p *switchPort, guests []guestMTU) api.Port {
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
		ps.describeRemotes(tx, p, &a, guests)
	}
	if p.kind == kindBond {
		a.Bond = ps.describeBond(p)
	}
	return a
}

// Fault tells the port's driver that the workers have stopped using the port, and why. It takes the
// configuration lock.
func (ps *Ports) Fault(number uint32, reason string) {
	ps.configuration.Do(func(tx *change.Tx) {
		if p := ps.byNumber[number]; p != nil {
			ps.log.Error("port is broken", "port", p.saved.Name, "why", reason)
			if !p.driver.fault(reason) {
				ps.failPort(tx, p, errors.New(reason))
			}
		}
	})
}
