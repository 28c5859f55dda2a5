// SPDX-License-Identifier: Apache-2.0

package control

import (
	"crypto/tls"
	"hash/fnv"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"weft/api"
	"weft/control/access"
	"weft/control/observe"
	"weft/control/ofconn"
	"weft/control/ofswitch"
	"weft/control/pipeline"
	"weft/control/tables"
	"weft/control/usererr"
	"weft/internal/buildinfo"
	"weft/internal/clock"
	"weft/openflow"
	"weft/openflow/ofp"
)

// OpenFlow is the configuration of OpenFlow connections.
type OpenFlow struct {
	Socket      string   // path of the unix socket; "": none
	Listen      []string // ptcp:PORT[:HOST] and pssl:PORT[:HOST]
	Controllers []string // tcp:HOST:PORT and ssl:HOST:PORT
	Certs       string   // directory with ca.pem, cert.pem and key.pem
	Standalone  bool     // the switch forwards on its own while no controller is connected
	DatapathID  uint64   // 0: computed from the machine's id and the path of the state directory
}

// firstBridge makes the bridge of weftd's configuration.
func (d *Daemon) firstBridge() error {
	c := &d.config.OpenFlow
	listeners, config, err := openFlowSetup(c, d.policy)
	if err != nil {
		return err
	}
	b := &bridge{name: d.config.Name, socket: c.Socket}
	d.handle(b, d.pipeline.First(), &connections{*c, listeners, config})
	d.limits.Add(d.bridges.LimitRows)
	return nil
}

// connect makes the service of a bridge's connections. It takes ownership of the listeners.
func (d *Daemon) connect(b *bridge, c *connections) {
	setup := ofconn.Setup{Switch: ofswitch.New(&d.change, b.pipe, d.ports, d.tracking, d.log), DatapathID: c.DatapathID, Name: b.name, Version: buildinfo.Own().String(),
		Following: ofconn.Following{Controllers: c.Controllers, Standalone: c.Standalone, TLS: c.tls}, Log: d.log, Listeners: c.listeners,
		Frames: func(enabled, misses, expired bool) { d.controllerFrames.Set(b.pipe, enabled, misses, expired) },
		Role:   func(nc net.Conn) (ofconn.Role, string) { return wireRole(d.policy, nc) }}
	if setup.Name == "" {
		setup.Name = "weft"
	}
	if setup.DatapathID == 0 {
		name := b.name
		if b.number == 0 {
			name = "" // the number of a switch with one bridge does not depend on its name
		}
		setup.DatapathID = datapathID(d.config.StateDir, name)
	}
	b.wire = ofconn.New(setup)
}

// openFlowSetup makes the listeners of a bridge, and loads the certificate if it needs one.
func openFlowSetup(c *OpenFlow, policy *access.Policy) (list []net.Listener, config *tls.Config, err error) {
	if config, err = openFlowTLS(slices.Concat(c.Listen, c.Controllers), c.Certs); err != nil {
		return nil, nil, err
	}
	list, err = openFlowListeners(c, policy, config)
	return list, config, err
}

// openFlowTLS loads the certificate in a directory if a listener or controller of targets
// needs one.
func openFlowTLS(targets []string, dir string) (*tls.Config, error) {
	for _, text := range targets {
		if !strings.HasPrefix(text, "pssl:") && !strings.HasPrefix(text, "ssl:") {
			continue
		}
		config, err := ofconn.LoadTLS(dir)
		if err != nil {
			return nil, usererr.Errorf("%s: %v; expected the directory of the certificates in --openflow-certs", text, err)
		}
		return config, nil
	}
	return nil, nil
}

func openFlowListeners(c *OpenFlow, policy *access.Policy, config *tls.Config) (list []net.Listener, err error) {
	defer func() {
		if err != nil {
			for _, l := range list {
				l.Close()
			}
		}
	}()
	if c.Socket != "" {
		l, err := access.ListenUnix(c.Socket, policy)
		if err != nil {
			return list, err
		}
		list = append(list, l)
	}
	for _, text := range c.Listen {
		l, err := ofconn.Listen(text, config)
		if err != nil {
			return list, usererr.Errorf("openflow-listen: %v", err)
		}
		list = append(list, l)
	}
	return list, nil
}

// wireRole returns the role of a peer that connects over OpenFlow. Every peer of a TCP
// listener has role Write, as with Open vSwitch. A TLS listener requires a certificate.
func wireRole(policy *access.Policy, nc net.Conn) (ofconn.Role, string) {
	peer := policy.Identify(nc)
	if _, unix := nc.(*net.UnixConn); !unix {
		return ofconn.Write, peer.Share
	}
	switch peer.Role {
	case access.Write:
		return ofconn.Write, peer.Share
	case access.Read:
		return ofconn.Read, peer.Share
	}
	return ofconn.None, peer.Share
}

// datapathID returns a number of 48 bits, constant for the machine, the state directory
// and a bridge's name.
func datapathID(stateDir, bridge string) uint64 {
	h := fnv.New64a()
	machine, _ := os.ReadFile("/etc/machine-id")
	if dir, err := filepath.Abs(stateDir); err == nil {
		stateDir = dir
	}
	h.Write(append(machine, stateDir...))
	h.Write([]byte(bridge))
	return h.Sum64() >> 16
}

// flowMonitors passes changes of flows to the API and to the OpenFlow connections of their
// bridge.
type flowMonitors struct {
	api     *observe.Monitors
	bridges *bridges
}

func (m *flowMonitors) Count() int {
	n := m.api.Count()
	for _, b := range m.bridges.snapshot() {
		n += b.wire.Count()
	}
	return n
}

// The names of pipeline.Event in the API, and their numbers in OpenFlow.
var (
	flowEvents = [...]string{pipeline.Added: api.EventAdded, pipeline.Modified: api.EventModified,
		pipeline.Deleted: api.EventDeleted, pipeline.Expired: api.EventExpired}
	wireEvents = [...]ofp.FlowEvent{pipeline.Added: ofp.FlowAdded, pipeline.Modified: ofp.FlowModified,
		pipeline.Deleted: ofp.FlowDeleted, pipeline.Expired: ofp.FlowDeleted}
)

func (m *flowMonitors) TellFlow(now time.Time, event pipeline.Event, r *openflow.Rule, names openflow.Names) {
	m.api.TellFlow(now, flowEvents[event], r, func() api.Flow { return tables.DescribeFlow(r, clock.Monotonic(), names) })
	if b := m.bridges.withNumber(r.Bridge); b != nil && b.wire.Count() > 0 {
		b.wire.TellFlow(wireEvents[event], r)
	}
}
