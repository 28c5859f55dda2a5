package ports

import (
	"errors"
	"fmt"

	"weft/control/underlay"
	"weft/engine"
)

// An uplink's device is the kernel's: it goes down and up, is given another MTU,
// is removed, and comes back under its name. Whoever is told of such an event
// compares what is there with what the port was set up on.

// deviceFollower is a driver whose device may change under it.
type deviceFollower interface {
	// follow compares; an error says that the port must be set up anew, and why.
	follow(u *underlay.Kernel) error
	// present tells whether there is a device to set the port up on.
	present(u *underlay.Kernel) bool
}

// followDevices has the ports follow their devices, and sets up at once those
// whose device has come back. Caller holds change.
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
		// Only once, for an attempt may cause further events; then at intervals.
		if p.lost && f.present(ps.kernel) {
			p.lost = false
			ps.retryPort(p)
		}
	}
}

// failPort closes a port's device; it is tried again. Caller holds change.
func (ps *Ports) failPort(p *switchPort, why error) {
	p.driver.close()
	p.opened = false
	p.fail(why)
	ps.SetTunnels()
}

// device asks the kernel about the port's device, which was set up with that
// index; an error says that it is gone or another one. told is false where the
// kernel does not tell: what is there goes on.
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

// present is deviceFollower's.
func (c *portContext) present(u *underlay.Kernel) bool {
	_, there, err := u.Device(c.values["dev"])
	return there && err == nil
}

// follow is deviceFollower's. A device that is down keeps its sockets; one with
// another MTU keeps program and sockets, for a program that is attached anew
// takes the links of some cards down for seconds.
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
	_, _ = p.detach()                                                           // an engine that is gone has let go of it
	if err := p.attachLocked(); err != nil && !errors.Is(err, engine.ErrGone) { // the next engine is given it as it is
		p.log.Warn("attaching with the new MTU", "error", err)
		return err
	}
	return nil
}

// noteLink keeps and counts the link's state. Caller holds mu.
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
