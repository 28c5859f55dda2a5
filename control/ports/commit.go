// SPDX-License-Identifier: Apache-2.0

package ports

import (
	"slices"

	"weft/api"
	"weft/control/change"
)

// This file has what a transaction does when ports change. Additions, changes and deletions alter
// the set of ports at once. The commit then makes one copy of the set, the view, which look-ups of
// frames read without a lock. It attaches the new ports, saves them, and closes the devices of
// deleted ports.

// changes records what a transaction has changed in the set of ports, for the stages of its commit.
type changes struct {
	moved     bool     // ports were added, deleted or changed; a change of liveness alone does not count
	forgotten []uint32 // ports whose learned addresses are forgotten after the next view
	dropped   []uint32 // ports whose tunnel templates are removed after the next view
	entered   []*entry
	closing   []*switchPort // deleted ports whose devices are still open
	// interrupted means that the engine ended while the commit attached a port.
	interrupted bool
}

// entry is a port that a transaction has added. onFailure gets the error if the commit cannot attach or
// save the port; the port then leaves the set.
type entry struct {
	number    uint32
	added     uint64 // the port's field "added", because another port may have the number by now
	onFailure func(error)
}

// replaced records that the options of the port with this number have changed. The commit then
// forgets the port's learned addresses and its tunnel headers.
func (c *changes) replaced(number uint32) {
	c.forgotten, c.dropped = append(c.forgotten, number), append(c.dropped, number)
}

// changeOne changes one port in a transaction of its own, and describes the port. If the engine ends
// while a new port is attached, changeOne waits until the next engine has the port.
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

// touch records that ports were added, deleted or changed. The commit then makes a new copy of the
// set of ports for the look-ups of frames. It also updates the tunnels and megaflows that depend on
// the ports.
func (ps *Ports) touch(tx *change.Tx) *changes {
	c := ps.look(tx)
	c.moved = true
	ps.pipeline.PortsChanged(tx)
	return c
}

// look makes the commit build a new copy of the set of ports for the look-ups of frames. It returns
// what the transaction has changed so far.
func (ps *Ports) look(tx *change.Tx) *changes {
	c := change.State[changes](tx, ps)
	tx.At(change.Show, ps, func() error { ps.show(tx, c); return nil })
	return c
}

// show makes a new copy of the set of ports for the look-ups of frames. If ports were added, deleted
// or changed, it also updates the tunnels and the uplinks. The megaflows are updated later.
func (ps *Ports) show(tx *change.Tx, c *changes) {
	ps.updateView(tx) // now no address is learned on a deleted port or by old options
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

// enterPort adds a port with an open device to the set of ports and clears its statistics. The
// commit attaches the port.
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

// attachEntered passes the ports that a transaction has added to the engine. If a port cannot be
// attached, it removes the port from the set.
func (ps *Ports) attachEntered(tx *change.Tx, c *changes) {
	list := c.entered
	c.entered = nil
	for _, e := range list {
		p := ps.entered(e)
		if p == nil { // the transaction has deleted it again
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

// entered returns the port of an entry, or nil if the port is no longer in the set.
func (ps *Ports) entered(e *entry) *switchPort {
	if p := ps.byNumber[e.number]; p != nil && p.added == e.added {
		return p
	}
	return nil
}

// takeBack removes a new port from the set because attaching or saving it failed.
func (ps *Ports) takeBack(tx *change.Tx, e *entry, cause error) {
	if p := ps.entered(e); p != nil {
		p.fresh = true
		ps.leave(tx, p)
		e.onFailure(cause)
	}
}

// delete deletes a port. If the transaction cannot be saved, the port is put back.
func (ps *Ports) delete(tx *change.Tx, p *switchPort) {
	c := ps.leave(tx, p)
	ps.store.DeletePort(tx, p.saved.Number)
	tx.Undo(func(error) {
		if i := slices.Index(c.closing, p); i >= 0 { // else the port is closed already
			c.closing = slices.Delete(c.closing, i, i+1)
			ps.byNumber[p.saved.Number] = p
			ps.touch(tx)
		}
	})
}

// leave removes a port from the set of ports. The commit closes the port's device.
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

// settle closes the ports that the transaction has deleted so far, because a new port may need the
// number or the device of one of them. These deletions stay even if the transaction cannot be saved.
func (ps *Ports) settle(tx *change.Tx) {
	if c := change.State[changes](tx, ps); len(c.closing) > 0 {
		tx.Settle()
	}
}
