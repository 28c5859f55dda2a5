// SPDX-License-Identifier: Apache-2.0

package ports

import (
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"

	"weft/control/change"
	"weft/control/store"
	"weft/openflow/xlate"
	"weft/port"
)

// This file has what weft-central, the service that configures the networks of many hosts, has
// declared for this host: the tunnel between the hosts, and which port belongs to which network.
// weft-central's agent (control/agent) saves the declarations.

// CentralPort is the reserved name of the tunnel port that leads to the other hosts of the service
// weft-central.
const CentralPort = "central"

// centralNumber is the port number of the tunnel of the service weft-central, unless another port
// already has this number. Megaflows contain the number. They stay valid when a new control process
// starts, because the number is constant.
const centralNumber = port.MaxPorts - 1

// portID is the option id=, by which the service weft-central identifies the port.
var portID = option{check: func(value string) string {
	if value == "" || len(value) > 255 || strings.ContainsFunc(value, func(r rune) bool { return r <= ' ' || r > '~' || r == ',' }) {
		return "1 to 255 printable characters without blanks and commas"
	}
	return ""
}}

// Declaration says to which network of the service weft-central a port belongs.
type Declaration struct {
	VNI uint32
	// Binding restricts the addresses from which the port may send; nil: no
	// restriction.
	Binding *xlate.Binding
	// Policy has the firewall rules of the port's groups; nil: the port is in no group.
	Policy *xlate.Policy
}

// central has what the service weft-central has declared for this host. The configuration lock
// guards it.
type central struct {
	loaded   bool                   // Load has made the saved ports
	endpoint netip.Addr             // local address of weft-central's tunnel; invalid: no tunnel
	tunnel   *switchPort            // port of the tunnel; nil: there is no tunnel
	ports    map[string]Declaration // by port name; the port may not exist
}

// Declare assigns ports to networks of the service weft-central. declared has the declarations by
// port name; a nil entry removes the port from its network. A declaration also applies to a port
// that is added later. "endpoint" is the local address of the tunnel to the other hosts. If it is
// invalid, the tunnel does not change. The error is only about the tunnel; the ports are assigned
// even then.
func (ps *Ports) Declare(tx *change.Tx, endpoint netip.Addr, declared map[string]*Declaration) error {
	c, changed := &ps.central, false
	if c.ports == nil {
		c.ports = map[string]Declaration{}
	}
	for name, d := range declared {
		old, was := c.ports[name]
		switch {
		case d == nil && was:
			delete(c.ports, name)
		case d != nil && (!was || !old.equal(d)):
			c.ports[name] = *d
			if p := ps.portByName(name); p != nil {
				ps.pipeline.ForgetSeen(p.saved.Number)
			}
		default:
			continue
		}
		changed = true
	}
	if endpoint.IsValid() {
		c.endpoint = endpoint
	}
	if !c.loaded { // Load will make the tunnel and the view
		return nil
	}
	if changed {
		ps.look(tx)
		ps.pipeline.PortsChanged(tx)
	}
	moved, err := ps.setTunnel(tx)
	if moved {
		ps.touch(tx)
		ps.pipeline.ForgetSeen(c.tunnel.saved.Number)
		ps.statistics.ResetPort(c.tunnel.saved.Number)
	}
	return err
}

func (d *Declaration) equal(o *Declaration) bool {
	if d.VNI != o.VNI || (d.Binding == nil) != (o.Binding == nil) || !reflect.DeepEqual(d.Policy, o.Policy) {
		return false
	}
	return d.Binding == nil || slices.EqualFunc(d.Binding.Hosts, o.Binding.Hosts, func(a, b xlate.BoundHost) bool {
		return a.MAC == b.MAC && slices.Equal(a.Prefixes, b.Prefixes)
	})
}

// declaredInfo returns the PortInfo of a port, which look-ups of frames read. A declaration of the
// service weft-central replaces the options vni=, mac= and addresses=.
func (ps *Ports) declaredInfo(p *switchPort) xlate.PortInfo {
	info := p.info
	if d, ok := ps.central.ports[p.saved.Name]; ok && info.Kind == xlate.PortNormal && info.Bridge == 0 && p.kind != kindLocal {
		info.Central, info.InVNI, info.VNI, info.Binding, info.Policy = true, true, d.VNI, d.Binding, d.Policy
	}
	return info
}

// setTunnel opens the tunnel of the service weft-central with the declared local address, and
// replaces a tunnel with an earlier address. If changed is true, the caller updates the set of ports
// and what depends on it.
func (ps *Ports) setTunnel(tx *change.Tx) (changed bool, err error) {
	c := &ps.central
	old := c.tunnel
	if !c.endpoint.IsValid() || old != nil && old.info.Local == c.endpoint {
		return false, nil
	}
	number := uint32(centralNumber)
	if old != nil {
		number = old.saved.Number
	} else if ps.byNumber[number] != nil {
		if number, err = ps.freeNumber(CentralPort); err != nil {
			return false, err
		}
	}
	delete(ps.byNumber, number) // lets the conflict check pass, because the new tunnel replaces this one
	p, err := ps.openTunnel(number)
	if err != nil {
		if old != nil {
			c.tunnel = nil
			ps.leave(tx, old)
		}
		return false, err
	}
	ps.byNumber[number], c.tunnel = p, p
	if old != nil {
		ps.touch(tx).replaced(number)
		tx.At(change.Close, p, func() error { old.driver.close(); return nil })
	}
	return true, nil
}

// openTunnel opens the tunnel port of the service weft-central with the given number. The caller
// adds it to the set of ports.
func (ps *Ports) openTunnel(number uint32) (*switchPort, error) {
	options := []string{"type=" + kindVXLAN, "vni=flow", "remote=flow", "local=" + ps.central.endpoint.String()}
	p, err := ps.newPort(store.Port{Number: number, Name: CentralPort, Options: options})
	if err != nil {
		return nil, err
	}
	p.info.Central = true
	if err := ps.conflict(p); err != nil {
		return nil, err
	}
	if err := p.driver.open(nil); err != nil {
		return nil, err
	}
	p.opened = true
	return p, nil
}

// CentralTrouble returns the reason why the tunnel of the service weft-central reaches no other
// host, or "".
func (ps *Ports) CentralTrouble() (reason string) {
	ps.configuration.View(func(tx *change.Tx) {
		if ps.central.tunnel != nil && len(ps.uplinks(tx)) == 0 {
			reason = "no working uplink: weft add-port uplink type=uplink dev=DEVICE, with the device that has " + ps.central.endpoint.String()
		}
	})
	return reason
}

// Numbers returns the data-path numbers of all ports, by port name.
func (ps *Ports) Numbers(*change.Tx) map[string]uint32 {
	numbers := make(map[string]uint32, len(ps.byNumber))
	for no, p := range ps.byNumber {
		numbers[p.saved.Name] = no
	}
	return numbers
}

// Guest is a guest's port, which the service weft-central may assign to a network.
type Guest struct {
	Name, ID string
	Up       bool
	// Added is a number that tells a port from a deleted port with the same name.
	Added uint64
}

// Guests returns the ports of guests in the first bridge, by name. The service weft-central knows no
// other bridge.
func (ps *Ports) Guests() (list []Guest) {
	ps.configuration.View(func(tx *change.Tx) {
		byName := map[string]Guest{}
		for _, p := range ps.byNumber {
			if p.info.Kind != xlate.PortNormal || p.info.Bridge != 0 || p.kind == kindLocal {
				continue
			}
			up := !p.info.Off && p.problem.Load() == nil && p.driver.status().state == StateUp
			byName[p.saved.Name] = Guest{p.saved.Name, p.values["id"], up, p.added}
		}
		list = make([]Guest, 0, len(byName))
		for _, name := range slices.Sorted(maps.Keys(byName)) {
			list = append(list, byName[name])
		}
	})
	return list
}
