// SPDX-License-Identifier: Apache-2.0

// Package central makes a switch follow weft-central.
//
//	central.go   runs the agent and renews the host's certificate
//	switch.go    the switch that the agent programs: turns its changes into declared ports,
//	             networks and addresses
//	declared.go  the addresses behind the switch's ports, and the events for the agent
//
// The configuration lock guards a Switch and the addresses of its Declared. Events go to
// the agent without any lock, because the agent may hold its own lock.
package central

import (
	"context"
	"log/slog"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/credentials"

	"weft/api"
	"weft/central/client"
	"weft/central/pki"
	"weft/control/agent"
	"weft/control/loop"
	"weft/control/store"
	"weft/control/usererr"
	"weft/internal/buildinfo"
)

const (
	// stateFile is the name of the agent's file in the state directory.
	stateFile = "central.state"
	// renewEvery is the interval at which the certificate's age is checked. Renewal
	// begins at two thirds of the certificate's validity, so that many attempts may
	// fail.
	renewEvery = time.Hour
)

// Setup has what a Central needs.
type Setup struct {
	Addresses []string // of weft-central, HOST:PORT
	Certs     string   // directory with the host's certificate, key and CA, see pki.FilesIn
	Dir       string   // the state directory
	Switch    agent.Switch
	Log       *slog.Logger
}

// Central makes a switch follow weft-central: it runs the agent and renews the host's certificate.
type Central struct {
	setup Setup
	keys  *pki.Keys
	ports *restoring
	agent *agent.Agent
}

// New reads the certificate and makes the agent. Run starts the agent.
func New(s Setup) (*Central, error) {
	for _, a := range s.Addresses {
		if err := client.CheckAddress(a); err != nil {
			return nil, usererr.Errorf("%v", err)
		}
	}
	keys, err := pki.Load(pki.FilesIn(s.Certs))
	if err != nil {
		return nil, usererr.Errorf("central-certs %s: %v; expected ca.pem, cert.pem and key.pem of this host", s.Certs, err)
	}
	name, role, err := keys.Identity()
	if err != nil || role != pki.Host {
		return nil, usererr.Errorf("central-certs %s: the certificate of %q has the role %q; expected host", s.Certs, name, role)
	}
	c := &Central{setup: s, keys: keys, ports: &restoring{Switch: s.Switch}}
	c.agent = agent.New(agent.Config{Centrals: s.Addresses, Credentials: credentials.NewTLS(keys.Client()),
		File: filepath.Join(s.Dir, stateFile), Version: buildinfo.Own().String(), Log: s.Log}, c.ports)
	return c, nil
}

// Events returns the receiver of the switch's events, which is the agent.
func (c *Central) Events() agent.Events { return c.agent }

// Restore programs the switch with the agent's saved state. The caller calls it before
// it loads the stored ports, so that the ports' megaflows and counts survive. The
// caller must not hold the configuration lock.
func (c *Central) Restore(stored []store.Port) {
	c.ports.stored.Store(storedPorts(stored))
	if err := c.agent.Restore(); err != nil {
		c.setup.Log.Error("what central said before cannot be restored completely", "error", err)
	}
}

// Run follows weft-central until ctx ends. When it returns, weft-central still regards the declared ports
// as being on this host.
func (c *Central) Run(ctx context.Context) {
	c.ports.load()
	renewed := make(chan struct{})
	go func() {
		defer close(renewed)
		c.renew(ctx)
	}()
	c.agent.Run(ctx)
	<-renewed
}

// Status returns the state of the agent for the API.
func (c *Central) Status() *api.Central {
	s := c.agent.Stats()
	return &api.Central{Address: s.Central, Connected: s.Connected, Revision: s.Revision, Nets: s.Nets, Addresses: s.Places,
		Asked: s.Asked, Refused: s.Refused, Pulls: s.Pulls, PullsRefused: s.PullsRefused, PullsAnswered: s.PullsAnswered,
		Rechecks: s.Rechecks, Stale: s.Stale, ReceivedBytes: s.Received, Trouble: client.PlainText(s.Trouble)}
}

func (c *Central) renew(ctx context.Context) {
	for {
		if time.Now().After(c.keys.Renewal()) {
			if err := client.Renew(ctx, c.setup.Addresses, c.keys); err != nil {
				c.setup.Log.Warn("the certificate for central is not renewed", "error", err)
			} else {
				c.setup.Log.Info("renewed the certificate for central")
			}
		}
		if !loop.Sleep(ctx, renewEvery) {
			return
		}
	}
}

// restoring is the Switch that the agent programs. Until the control process has loaded the stored ports,
// it tells the agent of these instead of the switch's ports.
type restoring struct {
	agent.Switch
	stored atomic.Pointer[[]agent.LocalPort] // nil: the ports are loaded
	// loaded has the value LocalPort.Added of each loaded port, by port name. The agent gets 0 instead,
	// the same as before the port was loaded, so that it does not take the port for a new one.
	loaded map[string]uint64
}

func (r *restoring) load() {
	r.loaded = map[string]uint64{}
	for _, l := range r.Switch.Ports() {
		r.loaded[l.Name] = l.Added
	}
	r.stored.Store(nil)
}

// Ports implements agent.Switch.
func (r *restoring) Ports() []agent.LocalPort {
	if p := r.stored.Load(); p != nil {
		return *p
	}
	list := r.Switch.Ports()
	for i := range list {
		if added, ok := r.loaded[list[i].Name]; ok && added == list[i].Added {
			list[i].Added = 0
		}
	}
	return list
}

// storedPorts returns the stored ports that weft-central may declare: the ports of
// guests.
func storedPorts(stored []store.Port) *[]agent.LocalPort {
	list := []agent.LocalPort{}
	for _, p := range stored {
		l, guest := agent.LocalPort{Name: p.Name}, false
		for _, o := range p.Options {
			switch key, value, _ := strings.Cut(o, "="); key {
			case "id":
				l.ID = value
			case "type":
				guest = value == "vhost-user" || value == "tap"
			}
		}
		if guest {
			list = append(list, l)
		}
	}
	return &list
}
