// SPDX-License-Identifier: Apache-2.0

package ports

import (
	"slices"

	"weft/api"
	"weft/control/change"
)

// This file has the ports' part in a transaction. Additions, changes and deletions alter the set
// at once. The commit makes one view of it, attaches the new ports, saves, and closes the ports
// that have left.

// changes is what a transaction has changed in the set of ports.
type changes struct {
	moved     bool     // ports have come, left or changed, more than their liveness
	forgotten []uint32 // ports whose learned addresses are forgotten after the next view
	dropped   []uint32 // ports whose tunnel templates are dropped after the next view
	entered   []*entry
	closing   []*switchPort // have left, and are not closed yet
	// interrupted means that the engine has ended while it was to attach a port.
	interrupted bool
}

// entry is a port that a transaction has added. onFailure gets the error if the commit cannot attach
// or save the port.
type entry struct {
	number    uint32
	added     uint64 // of the port, because another one may have its number by now
	onFailure func(error)
}

// replaced notes that the port with this number has other options.
func (c *changes) replaced(number uint32) {
	c.forgotten, c.dropped = append(c.forgotten, number), append(c.dropped, number)
}

// changeOne makes one change of a port in a transaction of its own, and describes the port. If the
// engine has ended while the port was added, it waits until the next engine has the port.
func (ps *Ports) changeOne(one func(tx *change.Tx, onFailure func(error)) (*switchPort, error)) (described api.Port, err error) {
	var p *switchPort
	var failure error
	waits := false
	err = ps.configuration.Update(func(tx *change.Tx) (err error) {
		if p, err = one(tx, func(err error) { failure = err }); err != nil {
			return err
		}
		tx.At(change.Tell, &described, func() error {
			if failure == nil {
				p.interrupted = p.interrupted || change.State[changes](tx, ps).interrupted
				described, waits = ps.describeChanged(tx, p), p.interrupted
			}
			return nil
		})
		return nil
	})
	if err == nil {
		err = failure
	}
	if err != nil {
		return api.Port{}, err
	}
	if waits {
		return ps.completeAddition(p)
	}
	return described, nil
}

// touch returns the changes of a transaction. The commit makes a new view of the ports, and updates
// everything that depends on it.
func (ps *Ports) touch(tx *change.Tx) *changes {
	c := ps.look(tx)
	c.moved = true
	ps.pipeline.PortsChanged(tx)
	return c
}

// look returns the changes of a transaction. The commit makes a new view of the ports.
func (ps *Ports) look(tx *change.Tx) *changes {
	c := change.State[changes](tx, ps)
	tx.At(change.Show, ps, func() error { ps.show(tx, c); return nil })
	return c
}

// show makes a new view of the ports. If ports have come, left or changed, it updates everything that
// depends on the view, except the megaflows.
func (ps *Ports) show(tx *change.Tx, c *changes) {
	ps.updateView(tx) // after this call, nothing is learned on ports that have left, or by old options
	for _, number := range c.forgotten {
		ps.pipeline.Addresses().Forget(number)
	}
	for _, number := range c.dropped {
		ps.templates.DropPort(number)
	}
	c.forgotten, c.dropped = nil, nil
	if c.moved {
		c.moved = false
		ps.updateDependents(tx)
	}
}

// enterPort puts a new port with an open device and empty statistics into the set.
func (ps *Ports) enterPort(tx *change.Tx, p *switchPort, onFailure func(error)) {
	ps.additions++
	p.added, p.fresh = ps.additions, true
	ps.byNumber[p.saved.Number] = p
	ps.pipeline.ForgetSeen(p.saved.Number)
	ps.statistics.ResetPort(p.saved.Number)
	e := &entry{p.saved.Number, p.added, onFailure}
	c := ps.touch(tx)
	c.entered = append(c.entered, e)
	tx.At(change.Attach, ps, func() error { ps.attachEntered(tx, c); return nil })
	tx.Undo(func(cause error) { ps.takeBack(tx, e, cause) })
}

// attachEntered attaches the ports that a transaction has added. A port that cannot be attached
// leaves the set.
func (ps *Ports) attachEntered(tx *change.Tx, c *changes) {
	list := c.entered
	c.entered = nil
	for _, e := range list {
		p := ps.entered(e)
		if p == nil { // deleted in the same transaction
			continue
		}
		interrupted, err := p.attachFirst()
		if err != nil {
			ps.takeBack(tx, e, err)
			continue
		}
		c.interrupted = c.interrupted || interrupted
		p.fresh = false
		ps.store.SavePort(tx, p.saved)
		tx.At(change.Tell, e, func() error {
			if p := ps.entered(e); p != nil {
				ps.remember(p)
				ps.log.Info("port added", "port", p.saved.Name, "number", e.number, "type", p.kind)
			}
			return nil
		})
	}
}

// entered returns the port of an entry, or nil if it is not in the set.
func (ps *Ports) entered(e *entry) *switchPort {
	if p := ps.byNumber[e.number]; p != nil && p.added == e.added {
		return p
	}
	return nil
}

// takeBack takes a port that could not be added out of the set.
func (ps *Ports) takeBack(tx *change.Tx, e *entry, cause error) {
	if p := ps.entered(e); p != nil {
		p.fresh = true
		ps.leave(tx, p)
		e.onFailure(cause)
	}
}

// delete deletes a port. If the transaction cannot be saved, the port stays.
func (ps *Ports) delete(tx *change.Tx, p *switchPort) {
	c := ps.leave(tx, p)
	ps.store.DeletePort(tx, p.saved.Number)
	tx.Undo(func(error) {
		if i := slices.Index(c.closing, p); i >= 0 { // otherwise it is closed already
			c.closing = slices.Delete(c.closing, i, i+1)
			ps.byNumber[p.saved.Number] = p
			ps.touch(tx)
		}
	})
}

// leave takes a port out of the set. The commit closes it.
func (ps *Ports) leave(tx *change.Tx, p *switchPort) *changes {
	delete(ps.byNumber, p.saved.Number)
	c := ps.touch(tx)
	c.forgotten, c.closing = append(c.forgotten, p.saved.Number), append(c.closing, p)
	tx.At(change.Close, ps, func() error {
		for _, p := range c.closing {
			ps.templates.DropPort(p.saved.Number)
			ps.closePort(p)
		}
		c.closing = nil
		return nil
	})
	return c
}

// settle closes the ports that the transaction has deleted, because a new port may need a number
// or a device of theirs. Then they stay deleted even if the transaction cannot be saved.
func (ps *Ports) settle(tx *change.Tx) {
	if c := change.State[changes](tx, ps); len(c.closing) > 0 {
		tx.Settle()
	}
}
