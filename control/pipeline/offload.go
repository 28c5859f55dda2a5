// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"sync"

	"weft/control/megaflows"
	"weft/offload"
	"weft/tunnel"
)

// offloads decides which megaflows run in the kernel (package offload): megaflows of a port with
// a table whose actions the kernel knows (offload.Plan), and whose output is another port of a
// device or a tunnel over an uplink's device. Its lock is taken after those of Pipeline.mu, of
// control/megaflows and of the underlay.
type offloads struct {
	mu        sync.Mutex
	devices   map[uint32]OffloadDevice   // by port number
	templates map[uint32]tunnel.Template // by index; those in state TemplateReady
	pauses    int                        // number of captures and traces, which see no frames of the kernel
}

// OffloadDevice is the device of a port, to which flows in the kernel may go. Table has the flows
// of the port itself; nil: they stay with the workers.
type OffloadDevice struct {
	offload.Output
	Table  *offload.Table
	Uplink bool // only tunnels go to the device
}

// SetOffloadDevice sets the device of a port and begins to run megaflows from and to it in the
// kernel. If d is nil, no flow uses the device any more when it returns. The caller holds the
// configuration lock, so that no megaflow is removed meanwhile.
func (pl *Pipeline) SetOffloadDevice(number uint32, d *OffloadDevice) {
	o := &pl.offloads
	known, uplink := o.knows(number, d)
	if known {
		return
	}
	pl.mu.RLock()
	defer pl.mu.RUnlock()
	var list []*megaflows.Megaflow
	if !uplink { // megaflows refer to an uplink only through templates
		list = pl.megaflows.List()
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if _, has := o.devices[number]; has {
		for _, m := range list {
			if inPort(m) == number || outputOf(m) == number {
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
	}
	for _, m := range list {
		if inPort(m) == number || outputOf(m) == number {
			o.install(m)
		}
	}
}

// knows reports whether the device of a port is d already, and whether the port is an uplink.
func (o *offloads) knows(number uint32, d *OffloadDevice) (known, uplink bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	former, has := o.devices[number]
	if d == nil {
		return !has, former.Uplink
	}
	return has && former == *d, d.Uplink
}

// setTemplate follows a tunnel template of the underlay, whose lock the caller holds.
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

// setOuters sets the outer headers of all tunnels over an uplink in all tables.
func (o *offloads) setOuters(uplink uint32) {
	for index, t := range o.templates {
		if t.Port == uplink {
			o.setOuter(index)
		}
	}
}

// setOuter sets the outer headers of a template in all tables.
func (o *offloads) setOuter(index uint32) {
	outer := o.outer(index)
	for _, d := range o.devices {
		if d.Table != nil {
			d.Table.SetOuter(index, outer)
		}
	}
}

// outer returns the outer headers of a template. It returns nil if the kernel cannot write them.
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

// PauseOffload makes all frames go through the workers until ResumeOffload, because a capture or a
// live trace sees only their frames.
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

// Offloaded returns the number of megaflows of a port that run in the kernel.
func (pl *Pipeline) Offloaded(number uint32) int {
	o := &pl.offloads
	o.mu.Lock()
	defer o.mu.Unlock()
	if t := o.devices[number].Table; t != nil {
		return t.Flows()
	}
	return 0
}

// inPort returns the input port that megaflow m matches, or 0.
func inPort(m *megaflows.Megaflow) uint32 {
	mask, key := m.Mask(), m.Key()
	if mask.InPort() != ^uint32(0) {
		return 0
	}
	return key.InPort()
}

// outputOf returns the output port of megaflow m if the kernel knows its actions, otherwise 0. It
// returns 0 for a tunnel.
func outputOf(m *megaflows.Megaflow) uint32 {
	_, to, known := offload.Plan(m.Actions)
	if !known {
		return 0
	}
	return to.Port
}

// install makes megaflow m run in the kernel if the kernel can.
func (o *offloads) install(m *megaflows.Megaflow) {
	rewrite, to, known := offload.Plan(m.Actions)
	from := inPort(m)
	t, key := o.devices[from].Table, m.Key()
	if !known || t == nil || m.MustAsk || m.Brief {
		return
	}
	if to.Encap != nil {
		if t.InstallTunnel(m.Slot, &key, m.Mask(), rewrite, *to.Encap) {
			t.SetOuter(to.Encap.Template, o.outer(to.Encap.Template))
		}
		return
	}
	if d, has := o.devices[to.Port]; has && !d.Uplink && from != to.Port {
		t.Install(m.Slot, &key, m.Mask(), rewrite, d.Output)
	}
}

// remove makes the frames of megaflow m go to the workers. When it returns, the filter finds the
// megaflow no more.
func (o *offloads) remove(m *megaflows.Megaflow) {
	if t := o.devices[inPort(m)].Table; t != nil {
		t.Remove(m.Slot)
	}
}

// offload makes megaflows run in the kernel that the workers have.
func (pl *Pipeline) offload(m *megaflows.Megaflow) {
	o := &pl.offloads
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.devices) > 0 {
		o.install(m)
	}
}

// reclaim makes the frames of a megaflow go to the workers, before they forget it.
func (pl *Pipeline) reclaim(m *megaflows.Megaflow) {
	o := &pl.offloads
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.devices) > 0 {
		o.remove(m)
	}
}

// discard forgets counts of a removed megaflow that no worker has taken.
func (pl *Pipeline) discard(m *megaflows.Megaflow) {
	o := &pl.offloads
	o.mu.Lock()
	defer o.mu.Unlock()
	if t := o.devices[inPort(m)].Table; t != nil {
		t.Discard(m.Slot)
	}
}
