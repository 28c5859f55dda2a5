// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// Central is a weft-central process that runs in a host's network namespace.
type Central struct {
	Host    *Host
	Address string // HOST:PORT to which hosts and administrators connect
	Data    string // data directory
	// Programs is the directory of the weft-central that the next Run starts; "": the one that the
	// lab has built
	Programs string

	proc *Process
}

// Run starts the weft-central process and does not wait for an answer.
func (c *Central) Run() {
	c.Host.lab.T.Helper()
	program := filepath.Join(c.Programs, "weft-central")
	if c.Programs == "" {
		program = c.Host.lab.central()
	}
	c.proc = c.Host.Start(program, "run", "--data", c.Data)
}

// Process returns the weft-central process that the last Run has started.
func (c *Central) Process() *Process { return c.proc }

// Peer returns the HOST:PORT to which the etcd members of other weft-central servers connect.
func (c *Central) Peer() string {
	return strings.Replace(c.Address, fmt.Sprint(":", centralPort), fmt.Sprint(":", centralPort+1), 1)
}

// Kill ends the weft-central process by SIGKILL.
func (c *Central) Kill() { c.proc.Kill() }

// Stop ends the weft-central process by SIGTERM. It fails the test if the process takes too
// long.
func (c *Central) Stop() {
	c.Host.lab.T.Helper()
	c.proc.Signal(syscall.SIGTERM)
	if err := c.proc.Wait(stopLimit); err != nil {
		c.Host.lab.T.Fatalf("%s: weft-central after SIGTERM: %v\n%s", c.Host.Name, err, c.proc.Output())
	}
}

// centralPort is the TCP port of each weft-central server. Its etcd uses the next port.
const centralPort = 7700

// Fleet is a group of hosts that several weft-central servers manage. Servers, hosts and the
// administrator are on one network segment:
//
//	admin 172.16.0.1 ──┐            ┌── central a 172.16.0.11, b .12, c .13
//	                  bridge of namespace segment
//	hosts h1 172.16.0.101, h2 172.16.0.102, ...
type Fleet struct {
	Centrals []*Central
	Hosts    []*Daemon
	// Echo, if set, is called with each command line that the administrator runs.
	Echo func(line string)

	lab     *Lab
	mtu     int
	segment *Host
	weft    *Daemon // the administrator's host, which runs no weftd
	central string  // addresses of all centrals, for the option --central
}

// NewFleet returns an empty fleet. mtu is the MTU of the network between the hosts.
func (l *Lab) NewFleet(mtu int) *Fleet {
	l.T.Helper()
	f := &Fleet{lab: l, mtu: mtu, segment: l.Host("segment")}
	f.segment.Run("ip", "link", "add", "br0", "type", "bridge")
	f.segment.Run("ip", "link", "set", "br0", "mtu", fmt.Sprint(mtu))
	f.segment.Address("br0", "172.16.0.1/24")
	f.weft = &Daemon{Host: f.segment, Socket: filepath.Join(l.Dir, "none.sock")}
	return f
}

func (f *Fleet) plug(name, address string) *Host {
	f.lab.T.Helper()
	h := f.lab.Host(name)
	f.lab.Wire(h, "u0", f.segment, "p-"+name, f.mtu)
	f.segment.Run("ip", "link", "set", "p-"+name, "master", "br0")
	h.Address("u0", address+"/24")
	return h
}

// AddCentral starts a weft-central server and waits for its answer. The first server creates an etcd
// cluster; the others join it.
func (f *Fleet) AddCentral(name string) *Central {
	f.lab.T.Helper()
	ip := fmt.Sprint("172.16.0.", 11+len(f.Centrals))
	c := &Central{Host: f.plug("central-"+name, ip), Address: fmt.Sprint(ip, ":", centralPort), Data: filepath.Join(f.lab.Dir, "central-"+name)}
	if len(f.Centrals) == 0 {
		c.Host.Run(f.lab.central(), "init", "--name", name, "--address", c.Address, "--data", c.Data)
	} else {
		f.join(c, name)
	}
	f.Centrals = append(f.Centrals, c)
	c.Run()
	f.eventually(func() error { _, err := f.TryAt(c.Address, "net", "list"); return err })
	f.central = strings.TrimPrefix(f.central+","+c.Address, ",")
	return c
}

// join adds a weft-central server to the etcd cluster. It repeats the attempt, because etcd refuses a
// new member shortly after the previous one.
func (f *Fleet) join(c *Central, name string) {
	f.lab.T.Helper()
	f.eventually(func() error {
		token, err := f.Try("central", "invite", "--role", "central", "--name", name)
		if err != nil {
			return err
		}
		os.RemoveAll(c.Data)
		_, err = c.Host.Try(f.lab.central(), "join", "--token", strings.TrimSpace(token), "--address", c.Address, "--data", c.Data, f.Centrals[0].Address)
		return err
	})
}

// AddHost adds a host to the fleet. weft-central must know the host already. AddHost gets a certificate
// for the host and starts weftd on it. "uplink" is the type of the host's uplink: af_xdp or af_packet.
func (f *Fleet) AddHost(name, uplink string, options ...string) *Daemon {
	f.lab.T.Helper()
	h := f.plug(name, f.Endpoint(len(f.Hosts)))
	certs := filepath.Join(f.lab.Dir, name+"-certs")
	token := strings.TrimSpace(f.Weft("central", "invite", "--role", "host", "--name", name))
	h.Run(f.lab.binary("weft"), "--central", f.central, "--central-certs", certs, "central", "enrol", "--token", token)
	d := h.Weftd("--central", f.addresses(), "--central-certs", certs)
	d.Weft(append([]string{"add-port", "uplink", "type=" + uplink, "dev=u0"}, options...)...)
	f.Hosts = append(f.Hosts, d)
	return d
}

func (f *Fleet) addresses() string {
	var list []string
	for i := range 3 {
		list = append(list, fmt.Sprintf("172.16.0.%d:%d", 11+i, centralPort))
	}
	return strings.Join(list, ",")
}

// Endpoint returns the address of a host in the network between the hosts. The number
// of the first host is 0.
func (f *Fleet) Endpoint(hostNumber int) string { return fmt.Sprint("172.16.0.", 101+hostNumber) }

// Weft runs the weft client as the administrator. If it fails, the test ends.
func (f *Fleet) Weft(args ...string) string {
	f.lab.T.Helper()
	if f.Echo != nil {
		f.Echo("weft " + shellJoin(args))
	}
	out, err := f.Try(args...)
	if err != nil {
		f.lab.T.Fatalf("weft %s: %v", strings.Join(args, " "), err)
	}
	return out
}

// Try runs the weft client as the administrator, like Weft, but returns an error if it fails.
func (f *Fleet) Try(args ...string) (string, error) { return f.TryAt(f.central, args...) }

// TryAt runs the weft client as Try does. "addresses" has the addresses of the weft-central servers to
// which the client may connect.
func (f *Fleet) TryAt(addresses string, args ...string) (string, error) {
	certs := filepath.Join(f.lab.Dir, "central-a", "admin")
	out, errs, code := f.weft.TryWeft(append([]string{"--central", addresses, "--central-certs", certs}, args...)...)
	if code != 0 {
		return out, fmt.Errorf("exit code %d: %s", code, strings.TrimSpace(errs))
	}
	return out, nil
}

// Members returns the weft-central server whose etcd member is the leader. The map "sessions" has an
// entry for each healthy server: its address and the number of hosts that are connected to it.
func (f *Fleet) Members() (leader *Central, sessions map[string]int, err error) {
	out, err := f.Try("central", "status", "--json")
	if err != nil {
		return nil, nil, err
	}
	var state struct {
		Centrals []struct {
			Address  string
			Leader   bool
			Healthy  bool
			Sessions int
		}
	}
	if err := json.Unmarshal([]byte(out), &state); err != nil {
		return nil, nil, err
	}
	sessions = map[string]int{}
	for _, m := range state.Centrals {
		if !m.Healthy {
			continue
		}
		sessions[m.Address] = m.Sessions
		for _, c := range f.Centrals {
			if m.Leader && c.Address == m.Address {
				leader = c
			}
		}
	}
	if leader == nil {
		return nil, sessions, fmt.Errorf("no central leads:\n%s", out)
	}
	return leader, sessions, nil
}

func (f *Fleet) eventually(fn func() error) {
	f.lab.T.Helper()
	var err error
	for end := time.Now().Add(startLimit); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		if err = fn(); err == nil {
			return
		}
	}
	f.lab.T.Fatalf("lab: after %v: %v", startLimit, err)
}

// FleetGuest is a guest in a network of a fleet, made of a network namespace. Attach connects
// it to a host.
type FleetGuest struct {
	*Host
	Net, MAC, IP string
	At           *Daemon // host to which the guest is connected; nil: none
}

// Guest adds a guest to a network. The guest is not yet connected to a host.
func (f *Fleet) Guest(name, net, mac, ip string) *FleetGuest {
	f.lab.T.Helper()
	return &FleetGuest{Host: f.lab.Host(name), Net: net, MAC: mac, IP: ip}
}

// Attach connects the guest to a host by a tap port. The prefix length of its address
// is 16.
func (g *FleetGuest) Attach(d *Daemon, mtu int) {
	g.lab.T.Helper()
	d.Tap(g.Host, g.MAC, g.IP+"/16", mtu)
	g.At = d
}

// AttachDevice connects the guest to a host by a veth, whose end on the host is a port of type=device. The
// prefix length of its address is 16, as for Attach.
func (g *FleetGuest) AttachDevice(d *Daemon, mtu int, options ...string) {
	g.lab.T.Helper()
	dev := "v-" + g.Name
	g.lab.Wire(d.Host, dev, g.Host, "eth0", mtu)
	g.Run("ip", "link", "set", "eth0", "address", g.MAC)
	d.Weft(append([]string{"add-port", g.Name, "type=device", "dev=" + dev}, options...)...)
	g.Address("eth0", g.IP+"/16")
	g.At = d
}

// File writes a declaration of networks, hosts and guests for weft-central to a file, and
// returns the path. nets maps network names to VNIs.
func (f *Fleet) File(nets map[string]int, hosts []string, guests []*FleetGuest) string {
	f.lab.T.Helper()
	var b strings.Builder
	for name, vni := range nets {
		fmt.Fprintf(&b, "[[net]]\nname = %q\nvni = %d\n\n", name, vni)
	}
	for i, name := range hosts {
		fmt.Fprintf(&b, "[[host]]\nname = %q\nendpoint = %q\n\n", name, f.Endpoint(i))
	}
	for _, g := range guests {
		fmt.Fprintf(&b, "[[port]]\nname = %q\nnet = %q\nmac = %q\naddresses = [%q]\n\n", g.Name, g.Net, g.MAC, g.IP)
	}
	path := filepath.Join(f.lab.Dir, "fleet.toml")
	if err := os.WriteFile(path, []byte(b.String()), 0o600); err != nil {
		f.lab.T.Fatalf("lab: %v", err)
	}
	return path
}
