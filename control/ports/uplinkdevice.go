// SPDX-License-Identifier: Apache-2.0

package ports

import (
	"errors"
	"fmt"

	"weft/control/underlay"
	"weft/engine"
)

// An uplink's device belongs to the kernel. It may go down and up, get another MTU,
// be removed, and be created again under the same name. After each such event the
// port compares the device with the device on which it was set up.

// deviceFollower is a driver whose device the kernel may change or remove.
type deviceFollower interface {
	// follow checks the device for changes. The port must be set up again if follow
	// returns an error, which is the reason.
	follow(u *underlay.Kernel) error
	// present reports whether the port's device exists.
	present(u *underlay.Kernel) bool
}

// followDevices calls the method follow of each port whose device the kernel may
// change. If a port's device has appeared again, followDevices sets up the port at
// once. The caller holds the lock of changes.
func (ps *Ports) followDevices() {
	for _, p := range ps.all {
		f, ok := p.driver.(deviceFollower)
		if !ok {
			continue
		}
		if p.opened && p.problem.Load() == nil {
			if err := f.follow(ps.kernel); err != nil {
				ps.log.Error("port has lost its device", "port", p.saved.Name, "why", err)
				ps.failPort(p, err)
				p.lost = true
			}
		}
		// The port is set up only once here, because setting up may cause further
		// events. retryPorts makes further attempts.
		if p.lost && f.present(ps.kernel) {
			p.lost = false
			ps.retryPort(p)
		}
	}
}

// failPort closes a port's device; retryPorts sets the port up again. The caller
// holds the lock of changes.
func (ps *Ports) failPort(p *switchPort, why error) {
	p.driver.close()
	p.opened = false
	p.fail(why)
	ps.SetTunnels()
}

// device returns the kernel's state of the port's device. index is the device's index
// when the port was set up. device returns an error if the device is gone or has been
// replaced. The result told is false if the kernel did not answer; the port then
// keeps its device.
func (c *portContext) device(u *underlay.Kernel, index int) (now underlay.DeviceState, told bool, err error) {
	dev := c.values["dev"]
	now, there, err := u.Device(dev)
	switch {
	case err != nil:
		c.log.Warn("cannot query the state of a device", "dev", dev, "error", err)
		return now, false, nil
	case !there:
		return now, true, fmt.Errorf("device %s is gone", dev)
	case now.Index != index:
		return now, true, fmt.Errorf("device %s has been replaced, its index is %d instead of %d", dev, now.Index, index)
	}
	return now, true, nil
}

// present implements deviceFollower.
func (c *portContext) present(u *underlay.Kernel) bool {
	_, there, err := u.Device(c.values["dev"])
	return there && err == nil
}

// follow implements deviceFollower. The port keeps its sockets while the device is
// down. It keeps the XDP program and the sockets when the MTU changes, because
// attaching a program takes the link of some cards down for seconds.
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
	_, _ = p.detach()                                                           // error ignored: a port of a dead engine is detached already
	if err := p.attachLocked(); err != nil && !errors.Is(err, engine.ErrGone) { // ErrGone is no failure: the next engine attaches the uplink with the new MTU
		p.log.Warn("attaching with the new MTU", "error", err)
		return err
	}
	return nil
}

// noteLink stores the link's state and counts how often the link has gone down. The
// caller holds p.mu.
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
