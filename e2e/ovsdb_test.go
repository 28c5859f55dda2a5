// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"weft/e2e/lab"
)

// ruled is a weftd that follows a genuine ovsdb-server.
type ruled struct {
	*openVSwitch
	t    *testing.T
	weft *lab.Daemon
}

// needOpenvSwitch skips a test if a program of Open vSwitch is missing.
func needOpenvSwitch(t *testing.T) {
	t.Helper()
	for _, name := range []string{"ovsdb-server", "ovsdb-tool", "ovs-vsctl", "ovs-ofctl", "ovs-vswitchd"} {
		if _, err := exec.LookPath(name); err != nil {
			t.Skip(name + " is missing: run scripts/setup, and put .cache/programs/usr/bin into PATH")
		}
	}
}

func newRuled(t *testing.T, h *lab.Host) *ruled {
	t.Helper()
	needOpenvSwitch(t)
	r := &ruled{openVSwitch: newDatabase(t, h), t: t}
	r.weft = h.Weftd("--ovsdb", "unix:"+r.dir+"/db.sock")
	return r
}

// get returns a column as ovs-vsctl prints it.
func (r *ruled) get(table, record, column string) string {
	r.t.Helper()
	return strings.Trim(strings.TrimSpace(r.vsctl("get "+table+" "+record+" "+column)), `"`)
}

func (r *ruled) expect(table, record, column, want string) {
	r.t.Helper()
	eventually(r.t, func() error {
		if got := r.get(table, record, column); !strings.Contains(got, want) {
			return fmt.Errorf("%s %s %s is %s, want %s", table, record, column, got, want)
		}
		return nil
	})
}

// ovs-vsctl makes bridges and ports of each type, waits until they are in force, and reads what
// the switch writes back. Rows that the switch cannot carry out get an error in their own
// column, and do not delay other rows.
func TestOVSDB(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	h, a, b := l.Host("h"), l.Host("a"), l.Host("b")
	l.Wire(h, "p0", a, "eth0", guestMTU)
	l.Wire(h, "p1", b, "eth0", guestMTU)
	l.Wire(h, "u0", l.Host("far"), "u0", underlayMTU)
	a.Address("eth0", guestIP+"/24")
	b.Address("eth0", remoteIP+"/24")
	h.Address("u0", hostIP+"/24")
	r := newRuled(t, h)

	r.vsctl("set open_vswitch . other_config:stats-update-interval=1000")
	r.vsctl("add-br br0 -- add-port br0 p0 -- add-port br0 p1 -- set port p0 tag=5 -- set port p1 tag=5")
	if got := r.get("interface", "p0", "ofport"); got != "1" && got != "2" {
		t.Errorf("ofport of p0 is %s after ovs-vsctl has waited", got)
	}
	if got := r.get("interface", "br0", "ofport"); got != "65534" {
		t.Errorf("ofport of br0 is %s", got)
	}
	reach(t, a, remoteIP) // a bridge without controllers is a learning switch
	if text := r.run("ovs-ofctl", "dump-flows", "br0"); !strings.Contains(text, "priority=0 actions=NORMAL") {
		t.Errorf("flows of br0:\n%s", text)
	}
	h.Address("br0", "10.0.9.1/24")
	r.expect("interface", "br0", "link_state", "up")
	r.expect("interface", "p0", "statistics", "rx_packets=")
	if mac := r.get("interface", "p0", "mac_in_use"); mac != macOf(t, h, "p0") {
		t.Errorf("mac_in_use of p0 is %s", mac)
	}
	r.expect("interface", "p0", "link_speed", "10000000000") // of every veth
	r.expect("interface", "p0", "duplex", "full")
	if id := r.get("bridge", "br0", "datapath_id"); len(id) != 16 {
		t.Errorf("datapath_id of br0 is %s", id)
	}

	r.vsctl("add-br br1 -- set bridge br1 datapath_type=netdev fail_mode=secure other_config:datapath-id=00000000000000aa" +
		" -- add-port br0 to1 -- set interface to1 type=patch options:peer=to0" +
		" -- add-port br1 to0 -- set interface to0 type=patch options:peer=to1" +
		" -- add-port br1 t0 -- set interface t0 type=internal mtu_request=1400" +
		" -- add-port br1 vx -- set interface vx type=vxlan options:remote_ip=" + peerIP + " options:key=7 ofport_request=9" +
		" -- add-port br1 gn -- set interface gn type=geneve options:remote_ip=" + peerIP + " options:key=flow options:csum=true" +
		" -- add-port br1 vm -- set interface vm type=dpdkvhostuserclient options:vhost-server-path=" + r.dir + "/vm.sock ingress_policing_rate=1000")
	for _, c := range []struct{ table, record, column, want string }{
		{"bridge", "br1", "datapath_id", "00000000000000aa"},
		{"interface", "vx", "ofport", "9"},
		{"interface", "t0", "mtu", "1400"},
		{"interface", "vm", "status", "mode=client"},
		{"interface", "vx", "status", "tunnel_egress_iface=u0"},
		{"interface", "gn", "error", "[]"},
		{"open_vswitch", ".", "iface_types", "dpdkvhostuserclient"},
	} {
		r.expect(c.table, c.record, c.column, c.want)
	}
	if text := r.run("ovs-ofctl", "show", "br1"); !strings.Contains(text, "dpid:00000000000000aa") || !strings.Contains(text, "9(vx)") {
		t.Errorf("br1:\n%s", text)
	}

	r.vsctl("-- --id=@q create queue other_config:max-rate=1000000 -- --id=@qos create qos type=linux-htb queues:3=@q -- set port t0 qos=@qos")
	if text := r.weft.Weft("export"); !strings.Contains(text, "3:1000000") {
		t.Errorf("no queue of t0 in\n%s", text)
	}
	r.vsctl("add-port br0 nosuch -- add-port br0 odd -- set interface odd type=gtpu -- add-port br0 alone -- set interface alone type=internal")
	for name, want := range map[string]string{"nosuch": "could not open network device nosuch: ", "odd": "type gtpu: there is none", "alone": "[]"} {
		r.expect("interface", name, "error", want)
	}
	if got := r.get("interface", "nosuch", "ofport"); got != "-1" {
		t.Errorf("ofport of a port without a device is %s", got)
	}
	l.Wire(h, "nosuch", l.Host("late"), "eth0", guestMTU)
	r.expect("interface", "nosuch", "error", "[]") // the device has come

	appctl := func(words ...string) string {
		t.Helper()
		return r.run(append([]string{"ovs-appctl", "-t", "ovs-vswitchd"}, words...)...)
	}
	for _, c := range []struct{ words, want string }{
		{"version", "weftd "}, {"list-commands", "ofproto/trace"}, {"fdb/show br0", macOf(t, a, "eth0")}, {"dpif/show", "vx 9/"},
		{"ofproto/trace br0 in_port=p0,dl_dst=ff:ff:ff:ff:ff:ff", "Datapath actions: "}, {"dpctl/dump-flows", ""},
		{"coverage/show", "Event coverage"}, {"memory/show", "rules:"}, {"vlog/set dbg", ""}, {"vlog/list", "DEBUG"}, {"bfd/show", ""}, {"fdb/flush br0", "flushed"},
	} {
		if got := appctl(strings.Fields(c.words)...); !strings.Contains(got, c.want) {
			t.Errorf("ovs-appctl %s: %s", c.words, got)
		}
	}
	if out, err := h.Try(r.command("ovs-appctl", "-t", "ovs-vswitchd", "nosuch")...); err == nil || !strings.Contains(out+err.Error(), "is not a valid command") {
		t.Errorf("an unknown command: %v %s", err, out)
	}

	r.vsctl("del-br br0 -- del-br br1")
	if text := r.weft.Weft("list-br"); strings.TrimSpace(text) != "" {
		t.Errorf("bridges after del-br: %s", text)
	}
}

// weftd follows a server over TLS whose authority it knows, and refuses another one.
func TestOVSDBOverTLS(t *testing.T) {
	t.Parallel()
	needOpenvSwitch(t)
	l := newLab(t)
	h := l.Host("h")
	certs, others := l.Certificates(), l.Certificates()
	o := &openVSwitch{host: h, dir: t.TempDir()}
	const target = "ssl:127.0.0.1:6640"
	server := o.command("ovsdb-server", o.dir+"/conf.db", "--remote=pssl:6640:127.0.0.1", "--remote=punix:"+o.dir+"/db.sock",
		"--private-key="+certs+"/key.pem", "--certificate="+certs+"/cert.pem", "--ca-cert="+certs+"/ca.pem", "--unixctl="+o.dir+"/db.ctl")
	o.run("ovsdb-tool", "create", o.dir+"/conf.db", schema(t))
	h.Start(server...)
	vsctl := func(words ...string) string {
		t.Helper()
		return o.run(append([]string{"ovs-vsctl", "--db=unix:" + o.dir + "/db.sock", "--timeout=60"}, words...)...)
	}
	eventually(t, func() error {
		_, err := h.Try(o.command("ovs-vsctl", "--db=unix:"+o.dir+"/db.sock", "--timeout=20", "--no-wait", "init")...)
		return err
	})
	d := h.Weftd("--ovsdb", target, "--openflow-certs", certs)
	vsctl("add-br", "br0") // returns when the bridge is in force
	if text := d.Weft("list-br"); strings.TrimSpace(text) != "br0" {
		t.Errorf("bridges: %s", text)
	}
	vsctl("--no-wait", "add-port", "br0", "odd", "--", "set", "interface", "odd", "type=lisp")
	for _, c := range []struct{ certs, want string }{{certs, "interface odd: type lisp"}, {others, "certificate"}, {o.dir, "no such file"}} {
		out, err := h.Try(d.Binary("weftd"), "check-database", target, "--openflow-certs", c.certs)
		if err == nil || !strings.Contains(out+err.Error(), c.want) {
			t.Errorf("check-database with %s: %v %s, want %q", c.certs, err, out, c.want)
		}
	}
}

// Frames pass while ovsdb-server is away. After a restart of ovsdb-server or weftd the switch
// agrees with the database again, also with another one.
func TestOVSDBRestarts(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	h, a, b := l.Host("h"), l.Host("a"), l.Host("b")
	l.Wire(h, "p0", a, "eth0", guestMTU)
	l.Wire(h, "p1", b, "eth0", guestMTU)
	a.Address("eth0", guestIP+"/24")
	b.Address("eth0", remoteIP+"/24")
	r := newRuled(t, h)
	r.vsctl("add-br br0 -- add-port br0 p0 -- add-port br0 p1 -- add-port br0 t0 -- set interface t0 type=internal" +
		" -- add-port br0 t1 -- set interface t1 type=internal")
	reach(t, a, remoteIP)

	r.server.Kill()
	reach(t, a, remoteIP)
	r.serve(t)
	r.vsctl("del-port br0 t0")
	r.weft.Control().Kill()
	r.vsctl("--no-wait del-port br0 t1")
	r.weft.Start()
	r.vsctl("set port p1 tag=0")
	if ports := r.weft.Weft("dump-ports"); strings.Contains(ports, "t0") || strings.Contains(ports, "t1") {
		t.Errorf("deleted ports are there:\n%s", ports)
	}
	engine := r.weft.EnginePID()
	r.run("ovs-appctl", "-t", "ovs-vswitchd", "exit")
	if err := r.weft.Control().Wait(settle); err != nil {
		t.Errorf("weftd after exit: %v", err)
	}
	r.weft.Start()
	reach(t, a, remoteIP)
	if r.weft.EnginePID() != engine {
		t.Errorf("exit has ended the engine")
	}

	r.server.Kill()
	for _, file := range []string{"/conf.db", "/.conf.db.~lock~"} {
		if err := os.Remove(r.dir + file); err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
	}
	r.run("ovsdb-tool", "create", r.dir+"/conf.db", schema(t))
	r.serve(t)
	r.vsctl("add-br br7")
	if text := r.weft.Weft("list-br"); strings.TrimSpace(text) != "br7" {
		t.Errorf("bridges with another database: %s", text)
	}
}
