// SPDX-License-Identifier: Apache-2.0

package ports

import (
	"errors"
	"net"
	"net/netip"
	"strconv"
	"sync"

	"weft/control/usererr"
	"weft/engine"
	"weft/internal/privilege"
	"weft/openflow/xlate"
	"weft/tap"
)

const kindTap = "tap"

func init() {
	portKinds[kindTap] = portKind{
		kind: xlate.PortNormal,
		options: optionTable{
			"dev":   {check: deviceName},
			"netns": {check: namespaceName},
			// mac= sets the tap's own MAC address. It does not restrict the addresses from which frames
			// may come, because a bridge may be behind the tap.
			"mac": {check: macAddress},
			"mtu": {check: numberIn(68, tap.MaxMTU)},
			"vni": memberVNI, bondOption: memberBond,
			"id": portID,
			// addresses= restricts the addresses from which the tap may send. The tap's own MAC address
			// is always allowed.
			"addresses": boundAddresses,
			// queues= above 1 makes a device with IFF_MULTI_QUEUE.
			"queues": {value: "1", check: numberIn(1, tap.MaxQueues)},
			// offloads=on allows frames with unfinished checksums and large frames, in both directions.
			"offloads": {value: "on", check: oneOf("on", "off")},
		},
		make: func(c portContext) portDriver { return &tapPort{portContext: c} },
	}
}

// tapPort is the driver of a tap. The control process has the tap's descriptors, so they outlive the
// engine.
type tapPort struct {
	portContext
	mu  sync.Mutex
	tap *tap.Tap // nil: not open
}

func (p *tapPort) open(device *engine.Kept) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var err error
	if device != nil {
		if p.tap, err = tap.Restore(device.Request.Blob, device.FDs); err == nil {
			return nil
		}
		p.log.Warn("cannot take over the tap of an earlier process, making it again", "error", err)
	}
	need := privilege.Tap
	if p.values["netns"] != "" {
		need = privilege.Namespace
	}
	if err := p.permitted(need); err != nil {
		return err
	}
	cfg := tap.Config{Dev: p.values["dev"], Netns: p.values["netns"], Offloads: p.values["offloads"] == "on"}
	if cfg.Dev == "" {
		if expected := deviceName(p.name); expected != "" {
			return usererr.Errorf("port name %s: without dev= it is the tap's name too; expected %s", p.name, expected)
		}
		cfg.Dev = p.name
	}
	if mac := p.values["mac"]; mac != "" {
		cfg.MAC, _ = net.ParseMAC(mac) // valid: the option table has checked it
	}
	cfg.MTU, _ = strconv.Atoi(p.values["mtu"]) // valid if present; absent: 0
	cfg.Queues, _ = strconv.Atoi(p.values["queues"])
	p.tap, err = tap.Create(cfg)
	return err
}

func (p *tapPort) attach(bool) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.tap.CountFrames()
	spec, err := p.tap.Spec()
	if err != nil {
		return err
	}
	blob, fds, err := p.tap.Snapshot()
	if err != nil {
		return err
	}
	if err := p.keep(blob, fds); err != nil {
		return err
	}
	return p.portContext.attach(spec, p.tap.FDs(), false)
}

// setMTU changes the MTU of the tap, and then passes the device to the engine again, because the engine
// drops frames beyond the MTU that it knows. On an error the tap has its former MTU.
func (p *tapPort) setMTU(mtu int) error {
	p.mu.Lock()
	if p.tap == nil {
		p.mu.Unlock()
		return errors.New("the tap is not open; try again")
	}
	former := p.tap.Status().MTU
	err := p.tap.SetMTU(mtu)
	p.mu.Unlock()
	if err != nil {
		return err
	}
	err = p.attach(true)
	if err == nil || errors.Is(err, engine.ErrGone) { // without an engine, the next engine gets the new MTU
		return nil
	}
	p.mu.Lock()
	restored := p.tap.SetMTU(former)
	p.mu.Unlock()
	if restored == nil {
		_ = p.attach(true) // error ignored: the caller learns from err that the engine refuses the tap
	}
	return errors.Join(err, restored)
}

func (p *tapPort) fault(string) bool { return false }

func (p *tapPort) network([]netip.AddrPort) {}

func (p *tapPort) status() portStatus {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.tap == nil {
		return portStatus{state: stateFailed}
	}
	s := p.tap.Status()
	switch {
	case s.Error != "":
		return portStatus{state: stateFailed, detail: s.Error}
	case !s.Up:
		return portStatus{state: stateDown, detail: "device " + s.Dev + " is down"}
	}
	st := portStatus{state: StateUp}
	if yes, why := p.tap.Counted(); !yes && why != "" {
		st.mode, st.reason = "read", "looking for frames costs system calls: "+why
	}
	return st
}

// mtu implements mtuReader. It asks the kernel, because the operator may have changed the device's MTU.
func (p *tapPort) mtu() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.tap == nil {
		return 0
	}
	return p.tap.Status().MTU
}

func (p *tapPort) close() {
	_, _ = p.detach() // error ignored: a port of a dead engine is detached already
	p.forget()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.tap != nil {
		p.tap.Close()
		p.tap = nil
	}
}
