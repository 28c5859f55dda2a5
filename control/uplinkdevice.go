package control

import (
	"errors"
	"fmt"
	"net"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weft/engine"
)

// An uplink's device is the kernel's: it goes down and up, is given another MTU,
// is removed, and comes back under its name. Whoever is told of such an event
// compares what is there with what the port was set up on.

// deviceFollower is a driver whose device may change under it.
type deviceFollower interface {
	// follow compares; an error says that the port must be set up anew, and why.
	follow(u *underlay) error
	// present tells whether there is a device to set the port up on.
	present(u *underlay) bool
}

// followDevices has the ports follow their devices, and sets up at once those
// whose device has come back. Caller holds change.
func (d *Daemon) followDevices() {
	for _, p := range d.ports {
		f, ok := p.driver.(deviceFollower)
		if !ok {
			continue
		}
		if p.opened && p.problem.Load() == nil {
			if err := f.follow(d.underlay); err != nil {
				d.log.Error("port has lost its device", "port", p.saved.Name, "why", err)
				d.failPort(p, err)
				p.lost = true
			}
		}
		// Only once, for an attempt may cause further events; then at intervals.
		if p.lost && f.present(d.underlay) {
			p.lost = false
			d.retryPort(p)
		}
	}
}

// failPort closes a port's device; it is tried again. Caller holds change.
func (d *Daemon) failPort(p *switchPort, why error) {
	p.driver.close()
	p.opened = false
	p.fail(why)
	d.tunnels.setPorts(d.uplinks(), d.outers())
}

// deviceState is what the kernel says of a device.
type deviceState struct {
	index, mtu  int
	up, carrier bool
}

// state asks the kernel about a device: what has been heard by subscription may
// be behind what a caller has done since. ok is false where there is none.
func (u *underlay) state(name string) (s deviceState, ok bool, err error) {
	l, err := u.handle.LinkByName(name)
	if errors.As(err, new(netlink.LinkNotFoundError)) {
		return s, false, nil
	}
	if err != nil {
		return s, false, err
	}
	a := l.Attrs()
	return deviceState{
		index: a.Index, mtu: a.MTU, up: a.Flags&net.FlagUp != 0, carrier: a.RawFlags&unix.IFF_LOWER_UP != 0,
	}, true, nil
}

// trouble is why a device does not forward, empty if it does.
func (s deviceState) trouble(dev string) string {
	switch {
	case !s.up:
		return "device " + dev + " is down"
	case !s.carrier:
		return "device " + dev + " has no carrier"
	}
	return ""
}

// device asks the kernel about the port's device, which was set up with that
// index; an error says that it is gone or another one. told is false where the
// kernel does not tell: what is there goes on.
func (c *portContext) device(u *underlay, index int) (now deviceState, told bool, err error) {
	dev := c.values["dev"]
	now, there, err := u.state(dev)
	switch {
	case err != nil:
		c.log.Warn("the kernel does not tell of a device", "dev", dev, "error", err)
		return now, false, nil
	case !there:
		return now, true, fmt.Errorf("device %s is gone", dev)
	case now.index != index:
		return now, true, fmt.Errorf("device %s is another one now, index %d instead of %d", dev, now.index, index)
	}
	return now, true, nil
}

// present is deviceFollower's.
func (c *portContext) present(u *underlay) bool {
	_, there, err := u.state(c.values["dev"])
	return there && err == nil
}

// follow is deviceFollower's. A device that is down keeps its sockets; one with
// another MTU keeps program and sockets, for a program that is attached anew
// takes the links of some cards down for seconds.
func (p *xdpPort) follow(u *underlay) error {
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
	if now.mtu == p.uplink.MTU() {
		return nil
	}
	if err := p.uplink.SetMTU(now.mtu); err != nil {
		return err
	}
	p.log.Info("MTU has changed", "dev", dev, "mtu", now.mtu)
	_, _ = p.detach()                                                           // an engine that is gone has let go of it
	if err := p.attachLocked(); err != nil && !errors.Is(err, engine.ErrGone) { // the next engine is given it as it is
		p.log.Warn("attaching with the new MTU", "error", err)
		return err
	}
	return nil
}

// noteLink keeps and counts the link's state. Caller holds mu.
func (p *xdpPort) noteLink(now deviceState) {
	trouble := now.trouble(p.values["dev"])
	if trouble == p.linkTrouble {
		return
	}
	if p.linkTrouble == "" {
		p.linkDowns++
	}
	p.log.Info("link", "up", trouble == "", "trouble", trouble, "times down", p.linkDowns)
	p.linkTrouble = trouble
}
