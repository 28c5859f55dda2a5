// SPDX-License-Identifier: Apache-2.0

package control

import (
	"crypto/tls"
	"hash/fnv"
	"net"
	"os"
	"path/filepath"
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

func (d *Daemon) openFlow(policy *access.Policy) error {
	c := &d.config.OpenFlow
	setup := ofconn.Setup{Switch: ofswitch.New(&d.change, d.pipeline, d.ports, d.tracking, d.log), DatapathID: c.DatapathID, Name: d.switchName(), Version: buildinfo.Own().String(),
		Controllers: c.Controllers, Standalone: c.Standalone, Frames: d.controllerFrames.Set, Log: d.log,
		Role: func(nc net.Conn) (ofconn.Role, string) { return wireRole(policy, nc) }}
	if setup.DatapathID == 0 {
		setup.DatapathID = datapathID(d.config.StateDir)
	}
	for _, text := range append(c.Listen[:len(c.Listen):len(c.Listen)], c.Controllers...) {
		if !strings.HasPrefix(text, "pssl:") && !strings.HasPrefix(text, "ssl:") || setup.TLS != nil {
			continue
		}
		config, err := ofconn.LoadTLS(c.Certs)
		if err != nil {
			return usererr.Errorf("%s: %v; expected the directory of the certificates in --openflow-certs", text, err)
		}
		setup.TLS = config
	}
	listeners, err := openFlowListeners(c, policy, setup.TLS)
	if err != nil {
		return err
	}
	setup.Listeners = listeners
	d.wire = ofconn.New(setup)
	d.limits.Add(d.wire.LimitRows)
	d.flowMonitors.wire = d.wire
	d.controllerFrames.Attach(d.wire)
	return nil
}

// switchName returns the name of the switch for the description in OpenFlow.
func (d *Daemon) switchName() string {
	if d.config.Name == "" {
		return "weft"
	}
	return d.config.Name
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

// datapathID returns a 48-bit number. It is always the same for the same machine and
// state directory.
func datapathID(stateDir string) uint64 {
	h := fnv.New64a()
	machine, _ := os.ReadFile("/etc/machine-id")
	if dir, err := filepath.Abs(stateDir); err == nil {
		stateDir = dir
	}
	h.Write(append(machine, stateDir...))
	return h.Sum64() >> 16
}

// flowMonitors passes changes of flows to the API and to OpenFlow connections.
type flowMonitors struct {
	api  *observe.Monitors
	wire *ofconn.Service // nil before newDaemon has made it
}

func (m *flowMonitors) Count() int {
	if m.wire == nil {
		return m.api.Count()
	}
	return m.api.Count() + m.wire.Count()
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
	if m.wire != nil && m.wire.Count() > 0 {
		m.wire.TellFlow(wireEvents[event], r)
	}
}
