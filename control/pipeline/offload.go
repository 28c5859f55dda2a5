// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"sync"

	"weft/control/megaflows"
	"weft/offload"
)

// offloads decides which megaflows run in the kernel (package offload): megaflows of a port with
// a table whose actions the kernel knows (offload.Plan), and whose output is another port of a
// device. Its lock is taken after
// those of Pipeline.mu and of control/megaflows.
type offloads struct {
	mu      sync.Mutex
	devices map[uint32]OffloadDevice // by port number
	pauses  int                      // number of captures and traces, which see no frames of the kernel
}

// OffloadDevice is the device of a port, to which flows in the kernel may go. Table has the flows
// of the port itself; nil: they stay with the workers.
type OffloadDevice struct {
	offload.Output
	Table *offload.Table
}

// SetOffloadDevice sets the device of a port and begins to run megaflows from and to it in the
// kernel. If d is nil, no flow uses the device any more when it returns. The caller holds the
// configuration lock, so that no megaflow is removed meanwhile.
func (pl *Pipeline) SetOffloadDevice(number uint32, d *OffloadDevice) {
	pl.mu.RLock()
	defer pl.mu.RUnlock()
	list := pl.megaflows.List()
	o := &pl.offloads
	o.mu.Lock()
	defer o.mu.Unlock()
	if former, has := o.devices[number]; has {
		if d != nil && former == *d {
			return
		}
		for _, m := range list {
			if inPort(m) == number || outputOf(m) == number {
				o.remove(m)
			}
		}
		delete(o.devices, number)
	}
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

// outputOf returns the output port of megaflow m if the kernel knows its actions, otherwise 0.
func outputOf(m *megaflows.Megaflow) uint32 {
	_, out, known := offload.Plan(m.Actions)
	if !known {
		return 0
	}
	return out
}

// install makes megaflow m run in the kernel if the kernel can.
func (o *offloads) install(m *megaflows.Megaflow) {
	rewrite, out, known := offload.Plan(m.Actions)
	to, isDevice := o.devices[out]
	if !known || !isDevice || m.MustAsk || m.Brief {
		return
	}
	from := inPort(m)
	if t := o.devices[from].Table; t != nil && from != out {
		key := m.Key()
		t.Install(m.Slot, &key, m.Mask(), rewrite, to.Output)
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
