// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"weft/api"
	"weft/e2e/lab"
)

// bfdSite is a switch with tunnels to two other switches, all with BFD. A group sends the
// guest's frames to the first tunnel that is up.
//
//	guest ── near 172.16.0.1 ──┬── 172.16.0.2 first
//	                           └── 172.16.0.3 second
type bfdSite struct {
	t                   *testing.T
	near, first, second *lab.Daemon
}

func newBFDSite(t *testing.T) *bfdSite {
	l := newLab(t)
	segment := l.Host("segment")
	segment.Run("ip", "link", "add", "br0", "type", "bridge")
	segment.Run("ip", "link", "set", "br0", "mtu", fmt.Sprint(underlayMTU), "up")
	s := &bfdSite{t: t}
	for i, d := range []**lab.Daemon{&s.near, &s.first, &s.second} {
		h := l.Host(fmt.Sprint("h", i))
		l.Wire(h, "u0", segment, fmt.Sprint("s", i), underlayMTU)
		segment.Run("ip", "link", "set", fmt.Sprint("s", i), "master", "br0")
		h.Address("u0", fmt.Sprintf("172.16.0.%d/24", i+1))
		*d = h.Weftd()
		(*d).Weft("add-port", "uplink", "type=af_packet", "dev=u0")
	}
	key := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(key, []byte("a key of BFD\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	protected := []string{"bfd=on", "bfd_one_hop=on", "bfd_auth=meticulous-keyed-sha1", "bfd_key_file=" + key}
	s.near.Weft(append([]string{"add-port", "to1", "type=vxlan", "vni=7", "remote=172.16.0.2"}, protected...)...)
	s.near.Weft("add-port", "to2", "type=vxlan", "vni=7", "remote=172.16.0.3", "bfd=on")
	s.first.Weft(append([]string{"add-port", "back", "type=vxlan", "vni=7", "remote=172.16.0.1"}, protected...)...)
	s.second.Weft("add-port", "back", "type=vxlan", "vni=7", "remote=172.16.0.1", "bfd=on")
	s.near.Weft("add-port", "both", "type=vxlan", "vni=8", "remote=172.16.0.2,172.16.0.3", "bfd=on")
	s.first.Weft("add-port", "back8", "type=vxlan", "vni=8", "remote=172.16.0.1", "bfd=on")
	s.second.Weft("add-port", "back8", "type=vxlan", "vni=8", "remote=172.16.0.1", "bfd=on")
	s.near.Tap(l.Host("guest"), guestMAC, guestIP+"/24", guestMTU)
	s.near.Weft("add-group", "group_id=1,type=ff,bucket=watch_port:to1,actions=output:to1,bucket=watch_port:to2,actions=output:to2")
	s.near.Weft("add-flow", "in_port=guest,actions=group:1")
	s.near.Weft("add-flow", "priority=40000,in_port=guest,dl_dst="+toBoth+",actions=output:both")
	return s
}

// session returns the only remote of a port and its BFD state.
func (s *bfdSite) session(d *lab.Daemon, port string) (api.Remote, api.BFD) {
	s.t.Helper()
	p := portOf(s.t, d, port)
	switch {
	case len(p.Remotes) != 1:
		s.t.Fatalf("%+v", p)
	case p.Remotes[0].BFD == nil: // the worker has not begun the session yet
		return p.Remotes[0], api.BFD{}
	}
	return p.Remotes[0], *p.Remotes[0].BFD
}

func (s *bfdSite) up(d *lab.Daemon, port string) {
	s.t.Helper()
	eventually(s.t, func() error {
		if r, b := s.session(d, port); r.State != "up" || b.State != "up" || b.RemoteState != "up" {
			return fmt.Errorf("%s: %+v %+v", port, r, b)
		}
		return nil
	})
}

// expectOutput waits until the group sends the guest's frames to a port.
func (s *bfdSite) expectOutput(port string) {
	s.t.Helper()
	eventually(s.t, func() error {
		trace := s.near.Weft("trace", "in_port=guest,dl_src="+guestMAC+",dl_dst=ff:ff:ff:ff:ff:ff")
		if !strings.Contains(trace, "output:"+port+"\n") {
			return errors.New(trace)
		}
		return nil
	})
}

// expectRoute checks the only path of a tunnel to its remote.
func (s *bfdSite) expectRoute(port, remote string) {
	s.t.Helper()
	var routes []api.Route
	s.near.WeftJSON(&routes, "show", "routes", port)
	if len(routes) != 1 || routes[0].Port != port || routes[0].Remote != remote || routes[0].NextHop != remote ||
		routes[0].Local != "172.16.0.1" || routes[0].Device != "u0" || routes[0].MAC == "" || routes[0].MTU != underlayMTU || routes[0].Reason != "" {
		s.t.Errorf("paths of %s: %+v\n%s", port, routes, s.near.Weft("show", "routes"))
	}
}

// toBoth is the destination of frames to the port with two remotes.
const toBoth = "02:00:00:00:00:99"

// expectLost waits until frames to the port with two remotes leave out the first remote, or, if
// want is false, until both remotes get them.
func (s *bfdSite) expectLost(want bool) {
	s.t.Helper()
	eventually(s.t, func() error {
		trace := s.near.Weft("trace", "in_port=guest,dl_src="+guestMAC+",dl_dst="+toBoth)
		if strings.Contains(trace, "no copy to 172.16.0.2: its BFD session has failed") != want || strings.Contains(trace, "no copy to 172.16.0.3") {
			return errors.New(trace)
		}
		return nil
	})
}

// A group leaves a tunnel whose remote switch has ended, although the remote host answers
// ARP, and returns to it. Sessions outlive the control process and the engine.
func TestBFD(t *testing.T) {
	t.Parallel()
	s := newBFDSite(t)
	for _, port := range []string{"to1", "to2"} {
		s.up(s.near, port)
	}
	s.expectOutput("to1")
	s.expectRoute("to1", "172.16.0.2")

	_, before := s.session(s.near, "to1")
	s.near.Control().Kill()
	s.near.Start()
	s.up(s.near, "to1")
	if _, after := s.session(s.near, "to1"); after.Sent < before.Sent || after.Received < before.Received {
		t.Errorf("the next control process began another session: %+v, was %+v", after, before)
	}
	_, before = s.session(s.near, "to1")
	s.near.KillEngine()
	eventually(t, func() error {
		if _, after := s.session(s.near, "to1"); after.State != "up" || after.Sent <= before.Sent || after.Received <= before.Received {
			return fmt.Errorf("the next engine began another session: %+v, was %+v", after, before)
		}
		return nil
	})

	s.first.Stop()
	eventually(t, func() error {
		if p := portOf(t, s.near, "to1"); p.State != "down" || !strings.Contains(p.Detail, "no BFD from 172.16.0.2 within ") {
			return fmt.Errorf("%s: %s", p.State, p.Detail)
		}
		return nil
	})
	s.expectOutput("to2")
	s.expectLost(true)
	s.first.Start()
	s.up(s.near, "to1")
	s.expectOutput("to1")
	s.expectLost(false)

	s.near.Weft("mod-port", "to2", "bfd=")
	if p := portOf(t, s.near, "to2"); p.Remotes[0].BFD != nil {
		t.Errorf("%+v", p.Remotes[0])
	}
	eventually(t, func() error {
		if r, b := s.session(s.second, "back"); r.State != "down" {
			return fmt.Errorf("%+v %+v", r, b)
		}
		return nil
	})
}

// openVSwitch is an Open vSwitch with the userspace datapath, in a host's namespace.
type openVSwitch struct {
	host   *lab.Host
	dir    string
	server *lab.Process // ovsdb-server
}

func newOpenVSwitch(t *testing.T, h *lab.Host) *openVSwitch {
	t.Helper()
	o := newDatabase(t, h)
	h.Spawn(o.command("ovs-vswitchd", "unix:"+o.dir+"/db.sock", "--unixctl="+o.dir+"/ctl")...)
	return o
}

// newDatabase starts Open vSwitch's ovsdb-server without ovs-vswitchd.
func newDatabase(t *testing.T, h *lab.Host) *openVSwitch {
	t.Helper()
	o := &openVSwitch{host: h, dir: t.TempDir()}
	o.run("ovsdb-tool", "create", o.dir+"/conf.db", schema(t))
	o.serve(t)
	return o
}

// serve starts ovsdb-server and waits until it answers.
func (o *openVSwitch) serve(t *testing.T) {
	t.Helper()
	o.server = o.host.Start(o.command("ovsdb-server", o.dir+"/conf.db", "--remote=punix:"+o.dir+"/db.sock", "--unixctl="+o.dir+"/db.ctl")...)
	eventually(t, func() error {
		_, err := o.host.Try(o.command("ovs-vsctl", "--db=unix:"+o.dir+"/db.sock", "--timeout=20", "--no-wait", "init")...)
		return err
	})
}

// schema returns the path of the schema of Open vSwitch's database: in the installed package,
// or beside the ovs-vswitchd that scripts/setup has fetched.
func schema(t *testing.T) string {
	t.Helper()
	const name, installed = "vswitch.ovsschema", "/usr/share/openvswitch/vswitch.ovsschema"
	if _, err := os.Stat(installed); err == nil {
		return installed
	}
	program, err := exec.LookPath("ovs-vswitchd")
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(filepath.Dir(program), name)
}

// command returns the command line of a program of this Open vSwitch.
func (o *openVSwitch) command(words ...string) []string {
	return append([]string{"env", "OVS_RUNDIR=" + o.dir, "OVS_DBDIR=" + o.dir, "OVS_LOGDIR=" + o.dir, "OVS_SYSCONFDIR=" + o.dir}, words...)
}

func (o *openVSwitch) run(words ...string) string { return o.host.Run(o.command(words...)...) }

func (o *openVSwitch) vsctl(line string) string {
	return o.run(append([]string{"ovs-vsctl", "--db=unix:" + o.dir + "/db.sock", "--timeout=60"}, strings.Fields(line)...)...)
}

// A session with Open vSwitch's userspace datapath comes up, accepts new intervals, and
// follows the state of Open vSwitch's session.
func TestBFDWithOpenVSwitch(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"ovs-vswitchd", "ovsdb-server", "ovs-vsctl", "ovs-appctl"} {
		if _, err := exec.LookPath(name); err != nil {
			t.Skip(name + " is missing: install openvswitch-switch")
		}
	}
	l := newLab(t)
	near, far := l.Host("near"), l.Host("far")
	l.Wire(near, "u0", far, "u0", underlayMTU)
	near.Address("u0", "172.16.0.1/24")
	far.NoOffloads("u0")
	o := newOpenVSwitch(t, far)
	o.vsctl("add-br br0 -- set bridge br0 datapath_type=netdev")
	o.vsctl("add-br phy -- set bridge phy datapath_type=netdev")
	o.vsctl("add-port phy u0")
	far.Address("phy", "172.16.0.2/24")
	o.vsctl("add-port br0 vx -- set interface vx type=vxlan options:key=7 options:remote_ip=172.16.0.1 bfd:enable=true")

	s := &bfdSite{t: t, near: near.Weftd()}
	s.near.Weft("add-port", "uplink", "type=af_packet", "dev=u0")
	s.near.Weft("add-port", "to1", "type=vxlan", "vni=7", "remote=172.16.0.2", "bfd=on")
	peer := func(want string) {
		t.Helper()
		eventually(t, func() error {
			if out := o.run("ovs-appctl", "-t", o.dir+"/ctl", "bfd/show", "vx"); !strings.Contains(out, want) {
				return fmt.Errorf("no %q in\n%s", want, out)
			}
			return nil
		})
	}
	s.up(s.near, "to1")
	peer("Remote Session State: up")
	peer("Forwarding: true")
	// Open vSwitch confirms other intervals while the session is up.
	s.near.Weft("mod-port", "to1", "bfd_min_rx=300")
	peer("Remote Minimum RX Interval: 300ms")
	s.up(s.near, "to1")

	o.vsctl("set interface vx bfd:enable=false")
	eventually(t, func() error {
		if r, b := s.session(s.near, "to1"); r.State != "down" || b.State == "up" {
			return fmt.Errorf("%+v %+v", r, b)
		}
		return nil
	})
	o.vsctl("set interface vx bfd:enable=true")
	s.up(s.near, "to1")
	s.near.Weft("mod-port", "to1", "bfd=", "bfd_min_rx=")
	peer("Forwarding: false")
}
