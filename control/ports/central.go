// SPDX-License-Identifier: Apache-2.0

package ports

import (
	"maps"
	"net/netip"
	"slices"
	"strings"

	"weft/control/store"
	"weft/openflow"
	"weft/port"
)

// Ports that weft-central declares, and its tunnel. The declarations are not saved:
// weft-central's agent has them on disk.

// CentralPort is the name of the tunnel to the other hosts of weft-central's networks. No
// other port may have this name.
const CentralPort = "central"

// centralNumber is the tunnel's port number, unless another port has it. The number stays
// the same when control starts again, and so do the tunnel's megaflows and templates.
const centralNumber = port.MaxPorts - 1

// portID is the option of a guest's port by which weft-central may find the port.
var portID = option{check: func(value string) string {
	if value == "" || len(value) > 255 || strings.ContainsFunc(value, func(r rune) bool { return r <= ' ' || r > '~' || r == ',' }) {
		return "1 to 255 printable characters without blanks and commas"
	}
	return ""
}}

// Declaration puts a port into a network.
type Declaration struct {
	VNI uint32
	// Binding restricts the addresses that the port may send from; nil: no restriction.
	Binding *openflow.Binding
}

// central has what weft-central declares. The lock of changes guards it.
type central struct {
	loaded   bool                   // the saved ports are there
	endpoint netip.Addr             // local address of the tunnel; invalid: no tunnel
	tunnel   *switchPort            // nil: there is none
	ports    map[string]Declaration // declarations by port name, also for ports that do not exist
}

// Declare puts ports into networks, by name; nil takes a port out. A port that does not
// exist is put into its network when it is added. A valid endpoint becomes the local
// address of the tunnel to the other hosts. changed reports whether the pipeline has a new
// view; the caller then revalidates (pipeline.PortsChanged). An error concerns the
// endpoint; the ports are declared all the same. The caller holds the lock of changes.
func (ps *Ports) Declare(endpoint netip.Addr, declared map[string]*Declaration) (changed bool, err error) {
	c := &ps.central
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
	if !c.loaded { // Load makes the tunnel and the view
		return false, nil
	}
	moved, err := ps.setTunnel()
	if moved {
		if c.tunnel != nil {
			ps.pipeline.ResetPort(c.tunnel.saved.Number)
		}
		ps.portsChanged()
	} else if changed {
		ps.updateView()
	}
	return changed || moved, err
}

func (d *Declaration) equal(o *Declaration) bool {
	if d.VNI != o.VNI || (d.Binding == nil) != (o.Binding == nil) {
		return false
	}
	return d.Binding == nil || slices.EqualFunc(d.Binding.Hosts, o.Binding.Hosts, func(a, b openflow.BoundHost) bool {
		return a.MAC == b.MAC && slices.Equal(a.Prefixes, b.Prefixes)
	})
}

// declaredInfo returns a port's data for translation, with its declaration in place of
// the options vni=, mac= and addresses=.
func (ps *Ports) declaredInfo(p *switchPort) openflow.PortInfo {
	info := p.info
	if d, ok := ps.central.ports[p.saved.Name]; ok && info.Kind == openflow.PortNormal {
		info.Central, info.InVNI, info.VNI, info.Binding = true, true, d.VNI, d.Binding
	}
	return info
}

// setTunnel makes the tunnel, or makes it anew if its endpoint has changed. The caller
// then calls portsChanged.
func (ps *Ports) setTunnel() (changed bool, err error) {
	c := &ps.central
	if !c.endpoint.IsValid() || c.tunnel != nil && c.tunnel.info.Local == c.endpoint {
		return false, nil
	}
	if old := c.tunnel; old != nil {
		c.tunnel = nil
		ps.leavePort(old)
		old.driver.close()
		changed = true
	}
	number := uint32(centralNumber)
	if ps.all[number] != nil {
		if number, err = ps.freeNumber(CentralPort); err != nil {
			return changed, err
		}
	}
	options := []string{"type=" + kindVXLAN, "vni=flow", "remote=flow", "local=" + c.endpoint.String()}
	p, err := ps.newPort(store.Port{Number: number, Name: CentralPort, Options: options})
	if err != nil {
		return changed, err
	}
	p.info.Central = true
	if err := ps.conflict(p); err != nil {
		return changed, err
	}
	if err := p.driver.open(nil); err != nil {
		return changed, err
	}
	p.opened = true
	ps.all[number], c.tunnel = p, p
	return true, nil
}

// Numbers returns the numbers of the ports, by name. The caller holds the lock of changes.
func (ps *Ports) Numbers() map[string]uint32 {
	numbers := make(map[string]uint32, len(ps.all))
	for no, p := range ps.all {
		numbers[p.saved.Name] = no
	}
	return numbers
}

// Guest is a port that weft-central may declare.
type Guest struct {
	Name, ID string
	Up       bool
	// Added differs from that of an earlier port of the name, which was deleted.
	Added uint64
}

// Guests returns the ports of guests, by name.
func (ps *Ports) Guests() []Guest {
	ps.change.Lock()
	defer ps.change.Unlock()
	byName := map[string]Guest{}
	for _, p := range ps.all {
		if p.info.Kind != openflow.PortNormal {
			continue
		}
		up := p.problem.Load() == nil && p.driver.status().state == StateUp
		byName[p.saved.Name] = Guest{p.saved.Name, p.values["id"], up, p.added}
	}
	list := make([]Guest, 0, len(byName))
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		list = append(list, byName[name])
	}
	return list
}
