// SPDX-License-Identifier: Apache-2.0

package ports

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"sync"

	"weft/afpacket"
	"weft/control/pipeline"
	"weft/control/underlay"
	"weft/engine"
	"weft/internal/privilege"
	"weft/offload"
	"weft/openflow/xlate"
)

const kindPacket = "af_packet"

func init() {
	portKinds[kindPacket] = portKind{
		kind: xlate.PortUplink,
		options: optionTable{
			"dev":    {required: true, check: deviceName},
			"queues": {value: "1", check: numberIn(1, afpacket.MaxQueues)},
			// offload=on lets the kernel forward known flows from tunnels to other devices.
			"offload": {value: "off", check: oneOf("on", "off")},
		},
		make: func(c portContext) portDriver { return &packetPort{portContext: c} },
	}
}

// packetPort is the driver of a port over packet sockets: an uplink, or a port of type=device. The
// control process has the sockets, so they outlive the engine.
type packetPort struct {
	portContext
	mu        sync.Mutex       // also guards the uplink in announce, keepUplink and statusOfAll
	uplink    *afpacket.Uplink // nil: not open
	endpoints []netip.AddrPort // tunnel endpoints whose datagrams the sockets receive
	down      string           // reason why the device does not forward; "": it forwards
	problem   string           // reason why the tunnel endpoints are not set; "": they are set
	noRing    string           // reason why the sockets must not have rings; "": they may have rings
	takesAll  bool             // true for type=device, whose sockets take all frames; false for an uplink
}

func (p *packetPort) open(device *engine.Kept) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var err error
	if device != nil {
		if p.uplink, err = afpacket.Restore(device.Request.Blob, device.FDs); err == nil {
			p.announce() // the engine may have the port already, and then attach is not called
			return nil
		}
		p.log.Warn("cannot take over the uplink of an earlier process, setting it up again", "error", err)
	}
	if err := p.permitted(privilege.Packet); err != nil {
		return err
	}
	queues, _ := strconv.Atoi(p.values["queues"]) // valid: the option table has checked it
	if p.uplink, err = afpacket.Setup(afpacket.Config{Dev: p.values["dev"], Queues: queues, NoRing: p.noRing, All: p.takesAll,
		Offload: p.values["offload"] == "on"}); err != nil {
		p.uplink = nil
		return err
	}
	return nil
}

func (p *packetPort) attach(bool) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.attachLocked()
}

func (p *packetPort) attachLocked() error {
	spec, err := p.uplink.Spec()
	if err != nil {
		return err
	}
	if err := p.keepUplink(); err != nil {
		return err
	}
	if err := p.portContext.attach(spec, p.uplink.FDs(), !p.takesAll); err != nil {
		return err
	}
	p.announce()
	return nil
}

// announce lets the kernel forward frames from and to the port's device while the device is up.
// While it is down, the worker gets the frames and counts them as drops.
func (p *packetPort) announce() {
	if p.down != "" {
		p.offload.SetOffloadDevice(p.number, nil)
		return
	}
	table, _ := p.uplink.Flows()
	p.offload.SetOffloadDevice(p.number, &pipeline.OffloadDevice{Table: table, Uplink: !p.takesAll,
		Output: offload.Output{Port: p.number, Ifindex: p.uplink.Index(), MTU: p.uplink.MTU(), Veth: p.uplink.Veth()}})
}

// keepUplink stores the uplink's descriptors in the engine, from which the next control process takes
// them.
func (p *packetPort) keepUplink() error {
	blob, fds, err := p.uplink.Snapshot()
	if err != nil {
		return err
	}
	if err := p.keep(blob, fds); err != nil {
		return err
	}
	return p.keepExtras(p.uplink.IngressFDs())
}

func (p *packetPort) fault(string) bool { return false }

// check implements deviceChecker. Certain frames can make the kernel stop a socket's mapped ring.
// The sockets of an uplink then no longer use rings, because the sender of such a frame could stop
// the next ring too.
func (p *packetPort) check() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	err := p.uplink.Check()
	if err != nil && !p.takesAll { // the port of a device needs rings
		p.noRing = err.Error()
	}
	return err
}

// follow implements deviceFollower. The sockets stay open while the device is down. A new MTU needs a
// new attach.
func (p *packetPort) follow(u *underlay.Kernel) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	now, told, err := p.device(u, p.uplink.Index())
	if !told || err != nil {
		return err
	}
	p.down = now.Trouble(p.values["dev"])
	if now.MTU == p.uplink.MTU() {
		p.announce()
		return nil
	}
	p.log.Info("MTU has changed", "dev", p.values["dev"], "mtu", now.MTU)
	p.uplink.SetMTU(now.MTU)
	_, _ = p.detach() // error ignored: a port of a dead engine is detached already
	return p.attachLocked()
}

func (p *packetPort) network(endpoints []netip.AddrPort) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.uplink == nil || p.takesAll || slices.Equal(endpoints, p.endpoints) && p.problem == "" {
		return
	}
	if err := p.uplink.SetEndpoints(endpoints); err != nil {
		if p.problem != err.Error() {
			p.log.Error("tunnel endpoints cannot be set", "error", err)
		}
		p.problem = err.Error()
		return
	}
	p.problem, p.endpoints = "", slices.Clone(endpoints)
	p.log.Info("tunnel endpoints", "endpoints", endpoints)
	if err := p.keepUplink(); err != nil {
		p.log.Warn("the uplink cannot be kept for the next control process", "error", err)
	}
}

func (p *packetPort) status() portStatus {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.uplink == nil:
		return portStatus{state: stateFailed}
	case p.problem != "":
		return portStatus{state: stateDown, detail: p.problem}
	case p.down != "":
		return portStatus{state: stateDown, detail: p.down}
	}
	if p.takesAll {
		return p.statusOfAll()
	}
	reason, mode := asked, "packet"
	if table, why := p.uplink.Flows(); table != nil {
		mode = "kernel"
		flows, connections := p.offload.Offloaded(p.number)
		reason += fmt.Sprintf("; the kernel forwards known flows from tunnels, now %d with %d connections", flows, connections)
	} else if why != "" {
		reason += "; no known flow runs in the kernel: " + why
	}
	if ring, why := p.uplink.Ring(); !ring {
		if why == "" {
			why = "set up by an earlier version"
		}
		reason += "; no mapped ring, each frame is read with a system call: " + why
	}
	if whole, why := p.uplink.Whole(); !whole {
		reason += "; large frames in tunnels go as trains: " + why
	}
	if why := p.uplink.InStack(); why != "" {
		reason += "; the kernel's stack sees each datagram of the tunnels: " + why
	}
	st := portStatus{state: StateUp, mode: mode, reason: reason}
	if n := p.uplink.Dropped(); n > 0 {
		st.detail = fmt.Sprintf("the kernel dropped %d frames, because a ring or a queue was full", n)
	}
	return st
}

func (p *packetPort) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.offload.SetOffloadDevice(p.number, nil) // first, because the worker takes the last counts while it detaches
	_, _ = p.detach()                         // error ignored: a port of a dead engine is detached already
	// The extra descriptors are deleted first. Otherwise, if the control process is killed in
	// between, the engine has the extra descriptors without a device, and the next device with this
	// number would get them.
	_ = p.keepExtras(nil) // error ignored: a dead engine keeps no state
	p.forget()
	if p.uplink != nil {
		p.uplink.Close()
		p.uplink = nil
	}
	p.endpoints, p.down, p.problem = nil, "", "" // new sockets will receive the datagrams of no endpoint
}
