// SPDX-License-Identifier: Apache-2.0

package ports

import (
	"errors"
	"fmt"

	"weft/control/change"
	"weft/control/underlay"
	"weft/engine"
)

// The kernel may change, remove and recreate the device of a port. After each event about links, the
// port's driver checks its device.

// deviceFollower is a driver whose device the kernel may change or remove.
type deviceFollower interface {
	// follow checks the device after an event about links. An error is the reason why the port must be
	// set up again.
	follow(u *underlay.Kernel) error
	// present reports whether the port's device exists.
	present(u *underlay.Kernel) bool
}

// deviceChecker is a driver whose device may stop working without an event from the kernel.
type deviceChecker interface {
	// check returns the reason why the port must be set up again, or nil.
	check() error
}

// checkDevices checks the devices of all drivers that are a deviceChecker. If a check fails, it sets
// up the port again. If a port was set up, changed is true and the caller updates what depends on
// the ports.
func (ps *Ports) checkDevices(tx *change.Tx) (changed bool) {
	for _, p := range ps.byNumber {
		c, ok := p.driver.(deviceChecker)
		if !ok || !p.opened || p.problem.Load() != nil {
			continue
		}
		if err := c.check(); err != nil {
			ps.log.Error("port has stopped and is set up again", "port", p.saved.Name, "why", err)
			ps.failPort(tx, p, err)
			changed = ps.retryPort(tx, p) || changed
		}
	}
	return changed
}

// followDevices makes each driver check its device, and sets up a port again when its device has
// come back. If a port was set up, changed is true and the caller updates what depends on the ports.
func (ps *Ports) followDevices(tx *change.Tx) (changed bool) {
	for _, p := range ps.byNumber {
		f, ok := p.driver.(deviceFollower)
		if !ok {
			continue
		}
		if p.opened && p.problem.Load() == nil {
			if err := f.follow(ps.kernel); err != nil {
				if p.kind == kindDevice { // no error, because containers come and go; the words are those of ovs-vswitchd
					ps.log.Warn("could not open network device "+p.values["dev"], "port", p.saved.Name, "why", err)
				} else {
					ps.log.Error("port has lost its device", "port", p.saved.Name, "why", err)
				}
				ps.failPort(tx, p, err)
				p.lost = true
			}
		}
		// There is only one attempt, because setting up a device may cause more events. retryPorts
		// makes the further attempts.
		if p.lost && f.present(ps.kernel) {
			p.lost = false
			changed = ps.retryPort(tx, p) || changed
		}
	}
	return changed
}

// failPort closes a port's device and stores the reason. retryPorts opens it again later.
func (ps *Ports) failPort(tx *change.Tx, p *switchPort, reason error) {
	p.driver.close()
	p.opened = false
	p.fail(reason)
	ps.SetTunnels(tx)
}

// device asks the kernel about the port's device. It returns an error if the device is missing, or if
// its interface index differs from index, which it had at set-up. answered is false if the kernel did
// not answer.
func (c *portContext) device(u *underlay.Kernel, index int) (state underlay.DeviceState, answered bool, err error) {
	dev := c.values["dev"]
	state, there, err := u.Device(dev)
	switch {
	case err != nil:
		c.log.Warn("cannot query the state of a device", "dev", dev, "error", err)
		return state, false, nil
	case !there:
		return state, true, fmt.Errorf("device %s is gone", dev)
	case state.Index != index:
		return state, true, fmt.Errorf("device %s has been replaced, its index is %d instead of %d", dev, state.Index, index)
	}
	return state, true, nil
}

func (c *portContext) present(u *underlay.Kernel) bool {
	_, there, err := u.Device(c.values["dev"])
	return there && err == nil
}

// follow implements deviceFollower. The sockets and the XDP program stay while the device is down or
// changes its MTU, because attaching a program takes some cards down for seconds.
func (p *xdpPort) follow(u *underlay.Kernel) error {
	dev := p.values["dev"]
	p.mu.Lock()
	defer p.mu.Unlock()
	now, told, err := p.device(u, p.uplink.Index())
	switch {
	case !told || err != nil:
		return err
	case !p.uplink.Attached():
		return fmt.Errorf("the XDP program was taken off %s", dev)
	}
	p.noteLink(now)
	if now.MTU == p.uplink.MTU() {
		return nil
	}
	if err := p.uplink.SetMTU(now.MTU); err != nil {
		return err
	}
	p.log.Info("MTU has changed", "dev", dev, "mtu", now.MTU)
	_, _ = p.detach() // error ignored: a port of a dead engine is detached already
	// If there is no engine (ErrGone), the next engine gets the new MTU.
	if err := p.attachLocked(); err != nil && !errors.Is(err, engine.ErrGone) {
		p.log.Warn("cannot attach the device with its new MTU", "error", err)
		return err
	}
	return nil
}

// noteLink stores whether the link is up, and counts how often it went down. The caller holds p.mu.
func (p *xdpPort) noteLink(now underlay.DeviceState) {
	trouble := now.Trouble(p.values["dev"])
	if trouble == p.linkTrouble {
		return
	}
	if p.linkTrouble == "" {
		p.linkDowns++
	}
	p.log.Info("link", "up", trouble == "", "trouble", trouble, "times down", p.linkDowns)
	p.linkTrouble = trouble
}
