// SPDX-License-Identifier: Apache-2.0

package ports

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"

	"weft/engine"
	"weft/internal/privilege"
	"weft/openflow/xlate"
	"weft/xsk"
)

const kindXDP = "af_xdp"

func init() {
	portKinds[kindXDP] = portKind{
		kind: xlate.PortUplink,
		options: optionTable{
			"dev":       {required: true, check: deviceName},
			"queues":    {check: numberIn(1, xsk.MaxQueues)},
			"channels":  {check: numberIn(1, xsk.MaxQueues)},
			"rss":       {check: oneOf("served", "leave")},
			"busy_poll": {check: numberIn(1, 10_000)}, // microseconds
			"replace":   {check: oneOf("on", "off")},
			"mode":      {value: xsk.ModeAuto, check: oneOf(xsk.ModeAuto, xsk.ModeZeroCopy, xsk.ModeCopy, xsk.ModeGeneric)},
		},
		make: func(c portContext) portDriver { return &xdpPort{portContext: c} },
	}
}

// xdpPort is the driver of an uplink with AF_XDP sockets and an XDP program. The control process has
// both, so they outlive the engine.
type xdpPort struct {
	portContext
	mu        sync.Mutex
	uplink    *xsk.Uplink // nil: not open
	endpoints []netip.AddrPort
	// linkTrouble is the reason why the device forwards no frames, or "". linkDowns counts how often
	// the device has stopped forwarding.
	linkTrouble string
	linkDowns   int
}

func (p *xdpPort) open(device *engine.Kept) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var err error
	if device != nil {
		if p.uplink, err = xsk.Restore(device.Request.Blob, device.FDs); err == nil {
			return nil
		}
		p.log.Warn("cannot take over the uplink of an earlier process, setting it up again", "error", err)
	}
	if err := p.permitted(privilege.XDP); err != nil {
		return err
	}
	// errors ignored: the option table has checked the values; 0: all queues, or no option
	queues, _ := strconv.Atoi(p.values["queues"])
	channels, _ := strconv.Atoi(p.values["channels"])
	busy, _ := strconv.Atoi(p.values["busy_poll"])
	p.uplink, err = xsk.Setup(xsk.Config{
		Dev: p.values["dev"], Queues: queues, Mode: p.values["mode"], Channels: channels, BusyPoll: busy,
		Steer: p.values["rss"] == "served", Replace: p.values["replace"] == "on", Logger: p.log,
	})
	if err != nil {
		p.uplink = nil
		return err
	}
	return nil
}

func (p *xdpPort) attach(bool) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.attachLocked()
}

func (p *xdpPort) attachLocked() error {
	spec, err := p.uplink.Spec()
	if err != nil {
		return err
	}
	blob, fds, err := p.uplink.Snapshot()
	if err != nil {
		return err
	}
	if err := p.keep(blob, fds); err != nil {
		return err
	}
	return p.portContext.attach(spec, p.uplink.FDs(), true)
}

func (p *xdpPort) fault(string) bool { return false }

func (p *xdpPort) network(endpoints []netip.AddrPort) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.uplink == nil {
		return
	}
	if err := p.uplink.SetEndpoints(endpoints); err != nil {
		p.log.Error("tunnel endpoints cannot be set", "error", err)
		return
	}
	if !slices.Equal(endpoints, p.endpoints) {
		p.log.Info("tunnel endpoints", "endpoints", endpoints)
		p.endpoints = slices.Clone(endpoints)
	}
}

func (p *xdpPort) status() portStatus {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.uplink == nil {
		return portStatus{state: stateFailed}
	}
	s := p.uplink.Status()
	st := portStatus{state: StateUp, mode: s.Mode}
	if p.linkTrouble != "" {
		st.state = stateDown
		s.Notes = append([]string{p.linkTrouble}, s.Notes...)
	}
	if p.linkDowns > 0 {
		s.Notes = append(s.Notes, fmt.Sprintf("link down %d times", p.linkDowns))
	}
	var reasons []string
	for _, r := range s.Refused {
		reasons = append(reasons, r.Mode+" refused: "+r.Reason)
	}
	switch {
	case len(reasons) > 0:
		st.reason = strings.Join(reasons, "; ")
	case p.values["mode"] == xsk.ModeAuto:
		st.reason = "the best mode works"
	default:
		st.reason = asked
	}
	st.detail = strings.Join(s.Notes, "; ")
	return st
}

// close detaches the port, which closes the engine's sockets, before it removes the XDP program. Some
// drivers hang in the other order.
func (p *xdpPort) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.uplink != nil {
		// the kernel's own stack receives the tunnels' datagrams from now on
		_ = p.uplink.SetEndpoints(nil)
	}
	_, _ = p.detach() // error ignored: a port of a dead engine is detached already
	p.forget()
	if p.uplink != nil {
		p.uplink.Close()
		p.uplink = nil
	}
}
