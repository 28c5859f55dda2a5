// SPDX-License-Identifier: Apache-2.0

package bridges

import (
	"crypto/tls"
	"hash/fnv"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"weft/api"
	"weft/control/access"
	"weft/control/ofconn"
	"weft/control/store"
	"weft/control/usererr"
	"weft/internal/buildinfo"
)

// OpenFlow configures the OpenFlow connections of a bridge.
type OpenFlow struct {
	Socket      string   // path of the unix socket; "": none
	Listen      []string // ptcp:PORT[:HOST] and pssl:PORT[:HOST]
	Controllers []string // tcp:HOST:PORT and ssl:HOST:PORT
	Certs       string   // directory with ca.pem, cert.pem and key.pem
	Standalone  bool     // the switch forwards on its own while no controller is connected
	DatapathID  uint64   // 0: computed from /etc/machine-id and the path of the state directory
}

// connections has the settings and the open listeners of a bridge's OpenFlow connections.
type connections struct {
	OpenFlow
	listeners []net.Listener
	fresh     bool // the bridge is new, so its tables are empty
	bare      bool // see ofconn.Following
}

// listenFor opens the listeners of a bridge that was added by a request.
func (bs *Bridges) listenFor(s *store.Bridge) (c connections, err error) {
	c.OpenFlow = OpenFlow{Controllers: s.Controllers, Certs: bs.setup.OpenFlow.Certs, Standalone: s.FailMode == api.FailStandalone,
		DatapathID: s.DatapathID}
	if bs.setup.OpenFlow.Socket != "" {
		c.Socket = filepath.Join(filepath.Dir(bs.setup.OpenFlow.Socket), s.Name+".mgmt")
	}
	if err = bs.checkCertificates(s.Controllers); err == nil {
		c.listeners, err = openListeners(&c.OpenFlow, bs.setup.Policy, nil) // it has no TLS listeners
	}
	return c, err
}

// connect makes the OpenFlow service of a bridge. The service owns the listeners in c.
func (bs *Bridges) connect(b *Bridge, c *connections) {
	s := &bs.setup
	setup := ofconn.Setup{
		Switch: newSwitch(s.Configuration, b.Pipeline, s.Ports, s.Tracking, s.Log),
		Name:   b.Name, DatapathID: c.DatapathID, Version: buildinfo.Own().String(),
		Listeners: c.listeners, Following: ofconn.Following{Controllers: c.Controllers, Standalone: c.Standalone, Bare: c.bare, TLS: bs.loadCertificates},
		Fresh: c.fresh, Bundles: bs.bundles,
		Frames: func(enabled, misses, expired bool) { s.Frames.Set(b.Pipeline, enabled, misses, expired) },
		Role:   func(nc net.Conn) (ofconn.Role, string) { return wireRole(s.Policy, nc) },
		Log:    s.Log,
	}
	if setup.Name == "" {
		setup.Name = "weft"
	}
	if setup.DatapathID == 0 {
		name := b.Name
		if b.Number == 0 {
			name = "" // the first bridge's ID does not depend on its name
		}
		setup.DatapathID = datapathID(s.StateDir, name)
	}
	b.wire = ofconn.New(setup)
}

// checkCertificates returns an error if one of the controllers uses TLS, but there are no certificates. It
// checks only the directory of the configuration. If SetCertificates has set other files, it returns nil,
// because these files may appear later.
func (bs *Bridges) checkCertificates(controllers []string) error {
	if bs.certificates.Load() != nil {
		return nil
	}
	_, err := loadTLS(controllers, bs.setup.OpenFlow.Certs)
	return err
}

// listen opens the listeners of the first bridge. It loads the certificates if a listener or a controller
// uses TLS.
func listen(c *OpenFlow, policy *access.Policy) ([]net.Listener, error) {
	config, err := loadTLS(slices.Concat(c.Listen, c.Controllers), c.Certs)
	if err != nil {
		return nil, err
	}
	return openListeners(c, policy, config)
}

// LoadCertificates reads the certificates of OpenFlow connections. The connection to an OVSDB server
// uses the same certificates.
func (c *OpenFlow) LoadCertificates() (*tls.Config, error) { return ofconn.LoadTLS(c.Certs) }

// SetCertificates replaces the certificates of connections to controllers by those in files. nil stands
// for the directory of the configuration. Present connections stay.
func (bs *Bridges) SetCertificates(files *ofconn.Certificates) { bs.certificates.Store(files) }

// loadCertificates reads the certificates for a connection to a controller.
func (bs *Bridges) loadCertificates() (*tls.Config, error) {
	if files := bs.certificates.Load(); files != nil {
		return files.Load()
	}
	return bs.setup.OpenFlow.LoadCertificates()
}

// loadTLS loads the certificate from a directory if one of the targets (listeners or controllers) uses
// TLS. Otherwise it returns nil.
func loadTLS(targets []string, dir string) (*tls.Config, error) {
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

func openListeners(c *OpenFlow, policy *access.Policy, config *tls.Config) (list []net.Listener, err error) {
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

// wireRole returns what a peer of an OpenFlow connection may do, and whose quota it uses. Every peer of
// a TCP listener may write, as with Open vSwitch. A TLS listener requires a certificate.
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

// datapathID computes a datapath ID of 48 bits. It stays the same for a machine, a state directory and a
// bridge's name.
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
