// SPDX-License-Identifier: Apache-2.0

package ports

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"

	"weft/engine"
	"weft/internal/privilege"
	"weft/openflow/xlate"
	"weft/vhost"
)

const kindVhost = "vhost-user"

func init() {
	portKinds[kindVhost] = portKind{
		kind: xlate.PortNormal,
		options: optionTable{
			"path": {required: true, check: socketPath},
			"vni":  memberVNI,
			"id":   portID,
			// mac= and addresses= restrict the addresses from which the guest may send.
			"mac":       boundMACs,
			"addresses": boundAddresses,
			"mode":      {value: "server", check: oneOf("client", "server")},
			// socket-owner=, socket-group= and socket-mode= apply to the socket on
			// which the port listens.
			"socket-owner": {check: account},
			"socket-group": {check: account},
			"socket-mode":  {check: permissionBits},
			"queues":       {value: "1", check: numberIn(1, vhost.MaxQueuePairs)},
			// mtu= is announced to the guest through VIRTIO_NET_F_MTU.
			"mtu":      {check: numberIn(68, 65535)},
			"offloads": {value: "on", check: oneOf("on", "off")},
		},
		make: func(c portContext) portDriver { return &vhostPort{portContext: c} },
	}
}

// vhostPort is the driver of a vhost-user port. Its session with the guest's front end outlives the
// engine. The engine stores the session's state for the next control process.
type vhostPort struct {
	portContext
	mu      sync.Mutex
	session *vhost.Session // nil: not open
	stop    context.CancelFunc

	// keeping is locked while the session's state is stored in the engine, so that an older state
	// never replaces a newer one.
	keeping   sync.Mutex
	forgotten bool // the session has ended, so nothing more is stored; guarded by keeping
}

func (p *vhostPort) open(device *engine.Kept) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	queues, _ := strconv.Atoi(p.values["queues"]) // valid: the option table has checked it
	mtu, _ := strconv.Atoi(p.values["mtu"])       // valid if present; absent: 0
	cfg := vhost.Config{Path: p.values["path"], Client: p.values["mode"] == "client", Queues: queues,
		MTU: mtu, NoOffloads: p.values["offloads"] == "off", Forget: p.forgetSnapshot, Logger: p.log}
	backend := (*vhostBackend)(p)
	access, unknown := socketAccess(p.values)
	cfg.Access = access
	var err error
	if device != nil {
		cfg.Memory = p.guests.Guest(p.number)
		parts := []vhost.Part{{Blob: device.Request.Blob, FDs: device.FDs}}
		for n, k := range device.Parts {
			parts = append(parts, vhost.Part{Number: n, Blob: k.Request.Blob, FDs: k.FDs})
		}
		if p.session, err = vhost.Restore(cfg, backend, parts); err != nil {
			p.log.Warn("cannot take over the session of an earlier process, waiting for the guest again", "error", err)
		}
	}
	if device == nil || err != nil {
		if unknown != nil { // a session that was taken over has its socket already
			return unknown
		}
		if givesAway(access) {
			if err := p.permitted(privilege.Owner); err != nil {
				return err
			}
		}
		cfg.Memory = p.guests.Guest(p.number)
		if p.session, err = vhost.NewSession(cfg, backend); err != nil {
			p.session = nil
			if errors.Is(err, unix.EACCES) {
				err = fmt.Errorf("port %s: %w", p.name, privilege.Explain(err, "use a directory of this user, such as /run/weft"))
			}
			return err
		}
	}
	p.portContext.open.set(p.number, p.session)
	ctx, stop := context.WithCancel(context.Background())
	p.stop = stop
	go func(s *vhost.Session) {
		if err := s.Run(ctx); err != nil {
			p.log.Error("vhost-user session", "error", err)
		}
	}(p.session)
	return nil
}

// attach passes the device of a session to the engine, if the guest has started it. vhostBackend.Start
// passes a device that the guest starts later.
func (p *vhostPort) attach(resume bool) error {
	p.mu.Lock()
	s := p.session
	p.mu.Unlock()
	if s == nil {
		return errors.New("vhost-user: there is no session")
	}
	p.keepParts(s.Snapshot)
	spec, fds, running := s.Spec(resume)
	if !running {
		return nil
	}
	defer closeFDs(fds)
	return p.portContext.attach(spec, fds, false)
}

// keepParts stores parts of the session's state in the engine for the next control process. The
// function makeParts returns the parts. It is Session.Snapshot, which returns all, for an engine
// that has none yet. Later it is Session.Changes, which returns the parts that have changed.
func (p *vhostPort) keepParts(makeParts func() []vhost.Part) {
	p.keeping.Lock()
	defer p.keeping.Unlock()
	if p.forgotten {
		return
	}
	var failed error
	for _, part := range makeParts() {
		if failed == nil {
			failed = p.keepPart(part.Number, part.Blob, part.FDs)
		}
		part.Close()
	}
	if failed != nil && !errors.Is(failed, engine.ErrGone) {
		p.log.Error("the session cannot be kept for the next control process", "error", failed)
	}
}

// forgetSnapshot deletes the session's state from the engine, and prevents that it is stored again.
func (p *vhostPort) forgetSnapshot() {
	p.keeping.Lock()
	defer p.keeping.Unlock()
	p.forgotten = true
	queues, _ := strconv.Atoi(p.values["queues"]) // valid: the option table has checked it
	p.forgetParts(vhost.Parts(queues))            // first, because a device with missing parts cannot be restored
	p.forget()
}

func closeFDs(fds []int) {
	for _, fd := range fds {
		unix.Close(fd)
	}
}

// fault ends the session with the guest. The session logs the reason.
func (p *vhostPort) fault(reason string) bool {
	p.mu.Lock()
	s := p.session
	p.mu.Unlock()
	if s != nil {
		s.Break(reason)
	}
	return true
}

func (p *vhostPort) network([]netip.AddrPort) {}

func (p *vhostPort) status() portStatus {
	p.mu.Lock()
	s := p.session
	p.mu.Unlock()
	if s == nil {
		return portStatus{state: stateFailed}
	}
	st := s.Status()
	switch {
	case st.Running:
		return portStatus{state: StateUp}
	case st.Connected:
		return portStatus{state: stateWaiting, detail: "connected, the guest's driver is not ready"}
	case st.LastError != "":
		return portStatus{state: stateWaiting, detail: st.LastError}
	}
	return portStatus{state: stateWaiting, detail: "no guest is connected"}
}

func (p *vhostPort) close() {
	p.mu.Lock()
	s, stop := p.session, p.stop
	p.session = nil
	p.portContext.open.set(p.number, nil)
	p.mu.Unlock()
	if s != nil {
		s.Close()
		stop()
	}
	_, _ = p.detach() // the engine may have a device that the session does not know
	p.forgetSnapshot()
}

// vhostBackend implements vhost.Backend: it passes a session's devices to the engine. Without an engine
// it returns no error, because the method attach of vhostPort passes the devices to the next engine.
type vhostBackend vhostPort

func (b *vhostBackend) Start(spec []byte, fds []int) error {
	err := (*vhostPort)(b).portContext.attach(spec, fds, false)
	if errors.Is(err, engine.ErrGone) {
		return nil
	}
	return err
}

func (b *vhostBackend) Stop() ([]byte, error) { return (*vhostPort)(b).detach() }

func (b *vhostBackend) Changed() {
	p := (*vhostPort)(b)
	p.mu.Lock()
	s := p.session
	p.mu.Unlock()
	if s != nil {
		p.keepParts(s.Changes)
	}
}
