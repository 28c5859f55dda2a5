// SPDX-License-Identifier: Apache-2.0

package central

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"weft/control/agent"
	"weft/control/change"
	"weft/control/lease"
	"weft/control/pipeline"
	"weft/control/ports"
	"weft/control/usererr"
	"weft/openflow/fdb"
	"weft/openflow/xlate"
)

const (
	// maxMembers limits the hosts to which a broadcast is copied, because the actions
	// of a megaflow are limited. Further hosts get no broadcasts, and Apply returns an
	// error.
	maxMembers = 1024
	maxVNI     = 1<<24 - 1
	// portsInterval is the interval at which Run checks the ports for changes.
	portsInterval = time.Second
)

// Switch implements agent.Switch with the pipeline and the ports of this control process.
type Switch struct {
	configuration *change.Configuration
	pipeline      *pipeline.Pipeline
	ports         *ports.Ports
	declared      *Declared
	groupSets     map[string]*fdb.Groups // sets by the ids of their groups; the configuration lock guards it
}

// NewSwitch returns the switch that the agent programs. pl and ps must have been made with the same
// Declared. The agent may call Apply before the stored ports are loaded. A port's declaration then takes
// effect when the port is loaded.
func NewSwitch(configuration *change.Configuration, pl *pipeline.Pipeline, ps *ports.Ports, declared *Declared) *Switch {
	return &Switch{configuration: configuration, pipeline: pl, ports: ps, declared: declared}
}

// Run passes events and changes of the switch's ports to the agent until ctx ends.
func (f *Switch) Run(ctx context.Context, events agent.Events) {
	f.declared.events.Store(&events)
	tick := time.NewTicker(portsInterval)
	defer tick.Stop()
	var known []agent.LocalPort
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-f.declared.moved:
		}
		for _, port := range f.declared.takeSeen() {
			events.Seen(port)
		}
		if now := f.Ports(); !slices.Equal(now, known) {
			known = now
			events.PortsChanged()
		}
	}
}

// Ports implements agent.Switch: it returns the ports of guests.
func (f *Switch) Ports() []agent.LocalPort {
	var list []agent.LocalPort
	for _, g := range f.ports.Guests() {
		list = append(list, agent.LocalPort{Name: g.Name, ID: g.ID, Up: g.Up, Added: g.Added})
	}
	return list
}

// Trouble implements agent.Switch.
func (f *Switch) Trouble() string { return f.ports.CentralTrouble() }

// Apply implements agent.Switch. All changes are in one transaction.
func (f *Switch) Apply(c *agent.Changes) error {
	return f.configuration.Update(func(tx *change.Tx) error {
		b := batch{f: f, local: f.declared.local, leases: map[string]*lease.Port{},
			change: fdb.Change{Networks: map[fdb.Segment]*fdb.Network{}}}
		b.nets(c.Nets)
		declared := b.ports(c.Ports)
		b.removed(c.Removed)
		b.addresses(c.Addresses, f.ports.Numbers(tx))
		if left := f.pipeline.Addresses().Change(&b.change); left > 0 {
			b.fail("addresses: %d more than the %d for which there is room; they are left out", left, fdb.MaxNetAddresses)
		}
		f.pipeline.Leases().Set(b.leases)
		if err := f.ports.Declare(tx, c.Endpoint, declared); err != nil {
			b.fail("endpoint %v: %v", c.Endpoint, err)
		}
		switch {
		case b.newNets:
			f.pipeline.PortsChanged(tx)
		case len(c.Nets)+len(c.Addresses)+len(c.Removed) > 0:
			f.pipeline.RevalidateAddresses(tx)
		}
		absent := make([]fdb.Question, len(c.Unknown))
		for i, u := range c.Unknown {
			absent[i] = fdb.Question{Segment: fdb.SegmentOf(u.VNI), IP: u.IP}
			if !u.IP.IsValid() {
				absent[i].MAC = u.MAC
			}
		}
		tx.At(change.Tell, f, func() error { f.pipeline.AnswerQuestions(absent); return nil })
		return b.err()
	})
}

// batch is the state of one call of Apply.
type batch struct {
	f        *Switch
	local    map[addressKey]*localAddress // see Declared
	change   fdb.Change
	newNets  bool // the set of reachable ports has changed
	leases   map[string]*lease.Port
	problems []string
	omitted  int
}

// maxProblems limits the number of problems that one error of Apply lists.
const maxProblems = 3

func (b *batch) fail(format string, args ...any) {
	if len(b.problems) == maxProblems {
		b.omitted++
		return
	}
	b.problems = append(b.problems, fmt.Sprintf(format, args...))
}

func (b *batch) err() error {
	if len(b.problems) == 0 {
		return nil
	}
	text := strings.Join(b.problems, "; ")
	if b.omitted > 0 {
		text += fmt.Sprintf("; and %d more", b.omitted)
	}
	return usererr.Errorf("%s", text)
}

func (b *batch) validVNI(name string, vni uint32) bool {
	if vni > maxVNI {
		b.fail("%s: vni %d: expected a number from 0 to %d", name, vni, maxVNI)
	}
	return vni <= maxVNI
}

func (b *batch) nets(list []agent.Net) {
	for i := range list {
		n := &list[i]
		if !b.validVNI("network", n.VNI) {
			continue
		}
		s := fdb.SegmentOf(n.VNI)
		b.newNets = b.newNets || n.Gone == b.hasNetwork(s)
		if n.Gone {
			b.change.RemovedNetworks = append(b.change.RemovedNetworks, s)
			delete(b.change.Networks, s)
			for key := range b.local {
				if key.segment == s {
					delete(b.local, key)
				}
			}
			continue
		}
		members := n.Members
		if len(members) > maxMembers {
			b.fail("network of vni %d: %d members, of which the first %d get broadcasts", n.VNI, len(members), maxMembers)
			members = members[:maxMembers]
		}
		b.change.Networks[s] = &fdb.Network{Flood: n.Flood, Asked: n.Asked, Members: slices.Clone(members), Services: servicesOf(n.Services)}
	}
}

func (b *batch) ports(list []agent.Port) map[string]*ports.Declaration {
	declared := map[string]*ports.Declaration{}
	for i := range list {
		p := &list[i]
		switch {
		case p.Gone:
			declared[p.Name], b.leases[p.Name] = nil, nil
		case b.validVNI("port "+p.Name, p.VNI) && (p.Unchecked || b.validMAC("port "+p.Name, p.MAC)):
			d := &ports.Declaration{VNI: p.VNI, Policy: b.f.policy(p.Groups)}
			if !p.Unchecked {
				d.Binding = xlate.BindTo(p.MAC, p.IPs)
			}
			declared[p.Name], b.leases[p.Name] = d, leaseOf(p)
		}
	}
	return declared
}

func (b *batch) validMAC(name string, mac uint64) bool {
	valid := mac != 0 && mac>>40&1 == 0 && mac>>48 == 0
	if !valid {
		b.fail("%s: MAC address %012x: expected a unicast one", name, mac)
	}
	return valid
}

func (b *batch) addresses(list []agent.Address, numbers map[string]uint32) {
	for i := range list {
		a := &list[i]
		if !b.validVNI("address", a.VNI) || !b.validMAC("address", a.MAC) {
			continue
		}
		if !b.hasNetwork(fdb.SegmentOf(a.VNI)) {
			b.fail("address %012x: vni %d is no network of this host", a.MAC, a.VNI)
			continue
		}
		n := fdb.NetAddress{Segment: fdb.SegmentOf(a.VNI), MAC: a.MAC, IPs: slices.Clone(a.IPs),
			Place: fdb.Place{Remote: a.Remote, Groups: b.f.groupSet(a.Groups)}, Generation: a.Generation}
		key := addressKey{n.Segment, n.MAC}
		old := b.local[key]
		current := old == nil || old.Generation <= n.Generation
		switch {
		case !a.Remote.IsValid():
			n.Port = numbers[a.Port]
			if current {
				b.local[key] = &localAddress{n, a.Port}
			}
		case current:
			delete(b.local, key)
		}
		b.change.Addresses = append(b.change.Addresses, n)
	}
}

func (b *batch) removed(list []agent.RemovedAddress) {
	for _, r := range list {
		key := addressKey{fdb.SegmentOf(r.VNI), r.MAC}
		if old := b.local[key]; old != nil && old.Generation <= r.Generation {
			delete(b.local, key)
		}
		b.change.Removed = append(b.change.Removed, fdb.RemovedNetAddress{Segment: key.segment, MAC: key.mac, Generation: r.Generation})
	}
}

// hasNetwork reports whether the network of a segment (a bridge and a VNI) is declared, given the changes
// that the batch has collected so far.
func (b *batch) hasNetwork(s fdb.Segment) bool {
	if b.change.Networks[s] != nil {
		return true
	}
	return !slices.Contains(b.change.RemovedNetworks, s) && b.f.pipeline.Addresses().Network(s) != nil
}
