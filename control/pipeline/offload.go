// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"iter"
	"maps"
	"sync"

	"weft/control/megaflows"
	"weft/offload"
	"weft/tunnel"
)

// offloads decides which megaflows also run in the kernel, as BPF programs (package offload). A
// megaflow may run there if its frames arrive at a port whose network device has BPF programs, and
// if the programs can execute its actions (offload.Plan). The frames leave through the device of
// another port, or into a tunnel over the device of an uplink. The programs of an uplink's device
// handle the frames that arrive from tunnels.
//
// The lock mu is taken after Pipeline.mu and the locks of control/megaflows and the underlay.
type offloads struct {
	mu        sync.Mutex
	devices   map[uint32]OffloadDevice      // by port number
	templates map[uint32]tunnel.Template    // templates in state TemplateReady, by index
	tunnels   map[uint32]tunnel.Termination // by index, which is equal to the port number
	ends      offload.Ends                  // all ends of tunnels, for the tables of uplinks
	pauses    int                           // number of captures and traces, which see no frames of the kernel
}

// OffloadDevice is the network device of a port, through which megaflows in the kernel may send
// frames. Table has the megaflows in the kernel whose frames arrive at the device. For an uplink, it
// has those from tunnels. If Table is nil, the workers handle all frames from the device.
type OffloadDevice struct {
	offload.Output
	Table  *offload.Table
	Uplink bool // only tunnels go to the device
}

// SetOffloadDevice sets the network device of a port. Megaflows from and to the device then run in
// the kernel. If d is nil, no megaflow in the kernel uses the device any more when SetOffloadDevice
// returns. The caller holds the configuration lock, so no megaflow is removed meanwhile.
func (pl *Pipeline) SetOffloadDevice(number uint32, d *OffloadDevice) {
	o := &pl.offloads
	known, concerned := o.knows(number, d)
	if known {
		return
	}
	pl.mu.RLock()
	defer pl.mu.RUnlock()
	var list []*megaflows.Megaflow
	if concerned {
		list = pl.megaflows.List()
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if former, has := o.devices[number]; has {
		for _, m := range list {
			switch {
			case former.Uplink:
				if former.Table != nil {
					former.Table.Remove(m.Slot)
				}
			case inPort(m) == number || outputOf(m) == number:
				o.remove(m)
			}
		}
		delete(o.devices, number)
	}
	defer o.setOuters(number)
	if d == nil {
		return
	}
	if o.devices == nil {
		o.devices = map[uint32]OffloadDevice{}
	}
	o.devices[number] = *d
	if d.Table != nil {
		d.Table.Pause(o.pauses > 0)
		d.Table.SetEnds(o.ends)
	}
	for _, m := range list {
		if in := inPort(m); in == 0 || in == number || outputOf(m) == number || d.Uplink && o.isTunnel(in) {
			o.install(m)
		}
	}
}

// knows compares d with the stored device of a port. isKnown is true if they are equal, or if d is
// nil and no device is stored. concerned is true if the change can affect megaflows in the kernel.
// The device of an uplink without a Table has no such megaflows. Only the headers of tunnels refer
// to it.
func (o *offloads) knows(number uint32, d *OffloadDevice) (isKnown, concerned bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	former, has := o.devices[number]
	if d == nil {
		return !has, !former.Uplink || former.Table != nil
	}
	return has && former == *d, !d.Uplink || d.Table != nil || former.Table != nil
}

// SetOffloadTunnels replaces the list of tunnels. "rows" has the local end of each tunnel, by index.
// Megaflows whose frames arrive from a new tunnel begin to run in the kernel. The caller holds the
// configuration lock.
func (pl *Pipeline) SetOffloadTunnels(rows map[uint32]tunnel.Termination) {
	o := &pl.offloads
	pl.mu.RLock()
	defer pl.mu.RUnlock()
	var list []*megaflows.Megaflow
	if o.hasUplinks() {
		list = pl.megaflows.List()
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.tunnels, o.ends = maps.Clone(rows), offload.NewEnds(rows)
	for _, d := range o.devices {
		if d.Uplink && d.Table != nil {
			d.Table.SetEnds(o.ends)
		}
	}
	for _, m := range list {
		if o.isTunnel(inPort(m)) {
			o.install(m)
		}
	}
}

// hasUplinks reports whether megaflows from tunnels can run in the kernel: whether the device of an
// uplink has a Table.
func (o *offloads) hasUplinks() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, d := range o.devices {
		if d.Uplink && d.Table != nil {
			return true
		}
	}
	return false
}

// isTunnel reports whether a port number belongs to a tunnel.
func (o *offloads) isTunnel(number uint32) bool {
	_, is := o.tunnels[number]
	return is
}

// tables yields the Tables that may have megaflows from the port "from", each with the port number
// of its device. If "from" is 0, it yields those for megaflows that match frames of any port.
func (o *offloads) tables(from uint32) iter.Seq2[uint32, *offload.Table] {
	return func(yield func(uint32, *offload.Table) bool) {
		for number, d := range o.devices {
			if d.Table != nil && (d.Uplink || number == from || from == 0) && !yield(number, d.Table) {
				return
			}
		}
	}
}

// setTemplate stores the present outer headers of a tunnel remote (its template). The underlay calls
// it under its own lock.
func (o *offloads) setTemplate(index uint32, t tunnel.Template) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if t.State != tunnel.TemplateReady {
		delete(o.templates, index)
	} else {
		if o.templates == nil {
			o.templates = map[uint32]tunnel.Template{}
		}
		o.templates[index] = t
	}
	o.setOuter(index)
}

// setOuters passes the outer headers of all tunnel remotes behind an uplink to the kernel.
func (o *offloads) setOuters(uplink uint32) {
	for index, t := range o.templates {
		if t.Port == uplink {
			o.setOuter(index)
		}
	}
}

// setOuter passes the outer headers of a tunnel remote to the kernel, for each device with megaflows
// in the kernel.
func (o *offloads) setOuter(index uint32) {
	outer := o.outer(index)
	for _, d := range o.devices {
		if d.Table != nil {
			d.Table.SetOuter(index, outer)
		}
	}
}

// outer returns the outer headers of a tunnel remote, or nil if the BPF programs cannot write them.
func (o *offloads) outer(index uint32) *offload.Outer {
	t := o.templates[index]
	d, has := o.devices[t.Port]
	if !has || !d.Uplink {
		return nil
	}
	outer, known := offload.NewOuter(&t, d.Output)
	if !known {
		return nil
	}
	return &outer
}

// PauseOffload makes all frames go through the workers until ResumeOffload, because captures and live
// traces see only frames of workers. Calls may nest.
func (pl *Pipeline) PauseOffload()  { pl.offloads.pause(1) }
func (pl *Pipeline) ResumeOffload() { pl.offloads.pause(-1) }

func (o *offloads) pause(change int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.pauses += change
	for _, d := range o.devices {
		if d.Table != nil {
			d.Table.Pause(o.pauses > 0)
		}
	}
}

// Offloaded returns how many megaflows and connections from a port run in the kernel. A connection
// counts once for each direction.
func (pl *Pipeline) Offloaded(number uint32) (flows, connections int) {
	o := &pl.offloads
	o.mu.Lock()
	defer o.mu.Unlock()
	if t := o.devices[number].Table; t != nil {
		return t.Flows(), t.Connections()
	}
	return 0, 0
}

// InKernel reports whether megaflow m runs in the kernel. If it does not, although its port has a
// device with BPF programs, reason says why.
func (pl *Pipeline) InKernel(m *megaflows.Megaflow) (runs bool, reason string) {
	o := &pl.offloads
	o.mu.Lock()
	defer o.mu.Unlock()
	from, tables := inPort(m), 0
	for number, t := range o.tables(from) {
		if o.devices[number].Uplink && from != 0 && !o.isTunnel(from) {
			continue
		}
		if tables++; t.Has(m.Slot) {
			return true, ""
		}
	}
	rewrite, to, known := offload.Plan(m.Actions)
	d, has := o.devices[to.Port]
	key := m.Key()
	switch {
	case tables == 0:
		return false, ""
	case m.MustAsk || m.Brief:
		return false, "control decides its frames"
	case !known:
		return false, "its actions"
	case rewrite.Tracks() && key.Recirc() != 0:
		return false, "it tracks again"
	case !to.Recirculates && to.Encap == nil && (!has || d.Uplink):
		return false, "its output has no offload=on"
	case to.Encap != nil && o.outer(to.Encap.Template) == nil:
		return false, "its tunnel"
	}
	return false, "its match, or a limit"
}

// inPort returns the input port that megaflow m matches, or 0.
func inPort(m *megaflows.Megaflow) uint32 {
	mask, key := m.Mask(), m.Key()
	if mask.InPort() != ^uint32(0) {
		return 0
	}
	return key.InPort()
}

// outputOf returns the port to which the BPF programs would send the frames of megaflow m. It
// returns 0 if they cannot execute the actions of m (see offload.Plan), or if the frames go into a
// tunnel.
func outputOf(m *megaflows.Megaflow) uint32 {
	_, to, known := offload.Plan(m.Actions)
	if !known {
		return 0
	}
	return to.Port
}

// install makes megaflow m run in the kernel if the kernel can execute it.
func (o *offloads) install(m *megaflows.Megaflow) {
	rewrite, to, known := offload.Plan(m.Actions)
	if !known || m.MustAsk || m.Brief {
		return
	}
	key, from := m.Key(), inPort(m)
	for number, t := range o.tables(from) {
		uplink := o.devices[number].Uplink
		if uplink && from != 0 && !o.isTunnel(from) {
			continue
		}
		d, has := o.devices[to.Port]
		switch {
		case to.Recirculates:
			t.InstallTracking(m.Slot, &key, m.Mask())
		case uplink && from == 0: // stays with the workers: which tunnel counts the frames is unknown
		case to.Encap != nil:
			if t.InstallTunnel(m.Slot, &key, m.Mask(), rewrite, *to.Encap) {
				t.SetOuter(to.Encap.Template, o.outer(to.Encap.Template))
			}
		case has && !d.Uplink && number != to.Port:
			t.Install(m.Slot, &key, m.Mask(), rewrite, d.Output)
		}
	}
}

// remove makes the frames of megaflow m go to the workers. When it returns, the BPF programs no
// longer find the megaflow.
func (o *offloads) remove(m *megaflows.Megaflow) {
	for _, t := range o.tables(inPort(m)) {
		t.Remove(m.Slot)
	}
}

// offload makes megaflow m run in the kernel too, if the BPF programs can execute it. The workers
// have the megaflow already.
func (pl *Pipeline) offload(m *megaflows.Megaflow) {
	o := &pl.offloads
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.devices) > 0 {
		o.install(m)
	}
}

// reclaim removes megaflow m from the kernel, so that its frames go to the workers. The caller
// removes m from the workers afterwards, because a worker then reads the kernel's last counts.
func (pl *Pipeline) reclaim(m *megaflows.Megaflow) {
	o := &pl.offloads
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.devices) > 0 {
		o.remove(m)
	}
}

// discard sets the kernel's counts of a megaflow to 0, after all workers have removed the megaflow.
// If the engine died, no worker has read these counts. The next megaflow with the same index must
// not get them.
func (pl *Pipeline) discard(m *megaflows.Megaflow) {
	o := &pl.offloads
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, t := range o.tables(inPort(m)) {
		t.Discard(m.Slot)
	}
}
