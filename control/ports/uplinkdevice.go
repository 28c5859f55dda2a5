// SPDX-License-Identifier: Apache-2.0

package ports

import (
	"errors"
	"fmt"

	"weft/control/underlay"
	"weft/engine"
)

// An uplink's device belongs to the kernel: it may go down and up, get another MTU,
// be removed, and come back under the same name. At such an event a port compares the
// device with the one on which it was set up.

// deviceFollower is a driver whose device the kernel may change.
type deviceFollower interface {
	// follow compares the device. An error is the reason why the port must be set up
	// again.
	follow(u *underlay.Kernel) error
	// present reports whether there is a device on which the port can be set up.
	present(u *underlay.Kernel) bool
}

// followDevices calls follow for all ports, and sets up at once a port whose device
// has come back. The caller holds the lock of changes.
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
		// One attempt only, because an attempt may cause further events; retryPorts
		// makes the others.
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

// device asks the kernel about the port's device, which had this index when the port
// was set up. It returns an error if the device is gone or is another one. told is
// false if the kernel did not answer; the port then continues with the device that it
// has.
func (c *portContext) device(u *underlay.Kernel, index int) (now underlay.DeviceState, told bool, err error) {
	dev := c.values["dev"]
	now, there, err := u.Device(dev)
	switch {
	case err != nil:
		c.log.Warn("the kernel does not tell of a device", "dev", dev, "error", err)
		return now, false, nil
	case !there:
		return now, true, fmt.Errorf("device %s is gone", dev)
	case now.Index != index:
		return now, true, fmt.Errorf("device %s is another one now, index %d instead of %d", dev, now.Index, index)
	}
	return now, true, nil
}

// present implements deviceFollower.
func (c *portContext) present(u *underlay.Kernel) bool {
	_, there, err := u.Device(c.values["dev"])
	return there && err == nil
}

// follow implements deviceFollower. A device that is down keeps its sockets. A device
// with another MTU keeps program and sockets, because attaching a program takes the
// link of some cards down for seconds.
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
	_, _ = p.detach()                                                           // an error means that the engine, and its use of the port, is gone
	if err := p.attachLocked(); err != nil && !errors.Is(err, engine.ErrGone) { // ErrGone: the next engine gets the uplink as it is
		p.log.Warn("attaching with the new MTU", "error", err)
		return err
	}
	return nil
}

// noteLink stores the link's state and counts the times that it went down. The caller
// holds mu.
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
