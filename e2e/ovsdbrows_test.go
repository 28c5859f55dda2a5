// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"weft/e2e/lab"
)

// Rows that no switch can carry out get an error in their own column and a line in the log
// each. They do not affect other rows, and leave nothing behind when they are deleted.
func TestOVSDBBadRows(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	h, a, b := l.Host("h"), l.Host("a"), l.Host("b")
	l.Wire(h, "p0", a, "eth0", guestMTU)
	l.Wire(h, "p1", b, "eth0", guestMTU)
	a.Address("eth0", guestIP+"/24")
	b.Address("eth0", remoteIP+"/24")
	r := newRuled(t, h)
	r.vsctl("add-br br0 -- add-port br0 p0 -- set interface p0 ofport_request=7 -- add-port br0 p1")
	long := strings.Repeat("n", 200)
	rows := []struct{ name, columns, want string }{
		{"type", "type=nosuch", "type nosuch: there is none; expected one of"},
		{"gtpu", "type=gtpu options:remote_ip=10.0.0.9", "type gtpu: there is none"},
		{"gre", "type=gre options:remote_ip=10.0.0.9 options:key=16777216", "key=16777216"},
		{"layer3", "type=gre options:remote_ip=10.0.0.9 options:packet_type=legacy_l3", "options:packet_type=legacy_l3"},
		{"ip6gre", "type=ip6gre options:remote_ip=10.0.0.9", "type ip6gre expects an IPv6 address"},
		{"session", "type=erspan options:remote_ip=10.0.0.9 options:key=1024", "key=1024"},
		{"remote", "type=vxlan", "options:remote_ip is missing"},
		{"address", "type=vxlan options:remote_ip=300.1.1.1", "remote=300.1.1.1"},
		{"vni", "type=geneve options:remote_ip=10.0.0.9 options:key=16777216", "vni=16777216"},
		{"keys", "type=geneve options:remote_ip=10.0.0.9 options:in_key=1 options:out_key=2", "differ; expected one key"},
		{"dst", "type=vxlan options:remote_ip=10.0.0.9 options:dst_port=70000", "dst_port=70000"},
		{"ttl", "type=vxlan options:remote_ip=10.0.0.9 options:ttl=256", "ttl=256"},
		{"exts", "type=vxlan options:remote_ip=10.0.0.9 options:exts=odd", "options:exts=odd"},
		{"peer", "type=patch", "options:peer is missing"},
		{"socket", "type=dpdkvhostuserclient", "options:vhost-server-path is missing"},
		{"path", "type=dpdkvhostuserclient options:vhost-server-path=/" + long, "path="},
		{"number", "type=internal ofport_request=7", "ofport_request=7"},
		{"mac", "type=internal mac=\"01:00:00:00:00:01\"", "mac=01:00:00:00:00:01"},
		{"device", "type=system", "no network device"},
		{long, "type=internal", "dev=" + long},
	}
	var words, back []string
	for _, row := range rows {
		words = append(words, fmt.Sprintf("-- add-port br0 %s -- set interface %s %s", row.name, row.name, row.columns))
		back = append(back, "-- del-port br0 "+row.name)
	}
	r.vsctl(strings.Join(words, " "))
	for _, row := range rows {
		r.expect("interface", row.name, "error", row.want)
		if got := r.get("interface", row.name, "ofport"); got != "-1" {
			t.Errorf("%.20s: ofport is %s", row.name, got)
		}
	}
	if got := r.get("interface", "p0", "ofport"); got != "7" {
		t.Errorf("ofport of p0 is %s", got)
	}
	reach(t, a, remoteIP)

	r.vsctl("set open_vswitch . external_ids:x=1") // another change of the database must not repeat the log lines
	var named []string
	for line := range strings.Lines(r.weft.Control().Output()) {
		if strings.Contains(line, "level=WARN") || strings.Contains(line, "level=ERROR") {
			_, rest, _ := strings.Cut(line, "interface=")
			name, _, _ := strings.Cut(rest, " ")
			named = append(named, name)
		}
	}
	for _, row := range rows {
		if n := len(slices.DeleteFunc(slices.Clone(named), func(name string) bool { return name != row.name })); n != 1 {
			t.Errorf("%.20s: %d warnings, expected one", row.name, n)
		}
	}
	r.vsctl(strings.Join(back, " "))
	if got := r.vsctl("list-ports br0"); strings.Fields(got)[0] != "p0" || len(strings.Fields(got)) != 2 {
		t.Errorf("ports at the end: %s", got)
	}
	reach(t, a, remoteIP)
}

// Zones of connection tracking, limits of flow tables and the states of controllers follow
// the rows, or tell their state in them.
func TestOVSDBSettings(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	r := newRuled(t, l.Host("h"))
	r.vsctl("add-br br0 -- set-controller br0 tcp:127.0.0.1:1 -- set open_vswitch . other_config:stats-update-interval=1000")
	r.vsctl("-- --id=@t create flow_table flow_limit=2 overflow_policy=refuse -- set bridge br0 flow_tables:3=@t")
	r.run("ovs-ofctl", "add-flow", "br0", "table=3,priority=1,actions=drop")
	r.run("ovs-ofctl", "add-flow", "br0", "table=3,priority=2,actions=drop")
	if out, err := r.host.Try(r.command("ovs-ofctl", "add-flow", "br0", "table=3,priority=3,actions=drop")...); err == nil || !strings.Contains(out+err.Error(), "OFPFMFC_TABLE_FULL") {
		t.Errorf("a flow beyond flow_limit: %v %s", err, out)
	}
	r.vsctl("clear bridge br0 flow_tables")
	r.run("ovs-ofctl", "add-flow", "br0", "table=3,priority=3,actions=drop")

	r.vsctl("-- --id=@d create datapath datapath_version=x -- set open_vswitch . datapaths:system=@d")
	r.vsctl("add-zone-tp system zone=5 udp_first=7")
	if text := r.weft.Weft("ct-timeout", "zone=5"); !strings.Contains(text, "udp_first=7") {
		t.Errorf("no timeout of zone 5 in:\n%s", text)
	}
	r.vsctl("del-zone-tp system zone=5")
	if text := r.weft.Weft("ct-timeout", "zone=5"); strings.Contains(text, "udp_first=7") {
		t.Errorf("a timeout of zone 5 in:\n%s", text)
	}
	r.expect("datapath", r.get("open_vswitch", ".", "datapaths:system"), "capabilities", "ct_timeout=\"true\"")
	controller := strings.TrimSpace(r.vsctl("get bridge br0 controller"))
	controller = strings.Trim(controller, "[]")
	r.expect("controller", controller, "status", "state=BACKOFF")
	r.expect("controller", controller, "status", "connection refused")
	r.vsctl("set-ssl /no/key.pem /no/cert.pem /no/ca.pem -- set-controller br0 ssl:127.0.0.1:1")
	controller = strings.Trim(strings.TrimSpace(r.vsctl("get bridge br0 controller")), "[]")
	r.expect("controller", controller, "status", "open /no/ca.pem: no such file or directory")
}

// A bridge learns as many addresses as other_config:mac-table-size says, and forwards frames to reserved
// addresses if forward-bpdu says so. fdb/show and fdb/stats-show print what a genuine ovs-vswitchd prints
// after the same frames.
func TestOVSDBLearning(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	r := newRuled(t, l.Host("h"))
	peer := newOpenVSwitch(t, l.Host("far"))
	asked := map[string]func(words ...string) string{
		"Weft": func(words ...string) string {
			return r.run(append([]string{"ovs-appctl", "-t", "ovs-vswitchd"}, words...)...)
		},
		"Open vSwitch": func(words ...string) string {
			return peer.run(append([]string{"ovs-appctl", "-t", peer.dir + "/ctl"}, words...)...)
		},
	}
	const dst = "020000000099"
	frame := func(dst, src string) string { return dst + src + "9000" + strings.Repeat("00", 46) }
	var frames []string
	for i := range 14 {
		frames = append(frames, frame(dst, fmt.Sprintf("0200000001%02x", i)))
	}
	for name, o := range map[string]*openVSwitch{"Weft": r.openVSwitch, "Open vSwitch": peer} {
		o.vsctl("add-br br0 -- set bridge br0 datapath_type=netdev fail_mode=secure other_config:mac-table-size=10 other_config:mac-aging-time=3600")
		for _, port := range []string{"1", "2"} {
			o.vsctl("add-port br0 t" + port + " -- set interface t" + port + " type=internal ofport_request=" + port)
		}
		o.run("ovs-ofctl", "add-flow", "br0", "actions=normal")
		o.run(append([]string{"ovs-ofctl", "packet-out", "br0", "1", "NORMAL"}, frames...)...)
		o.run("ovs-ofctl", "packet-out", "br0", "2", "NORMAL", frames[13]) // this address moves
		for _, forwards := range []string{"false", "true"} {
			o.vsctl("set bridge br0 other_config:forward-bpdu=" + forwards)
			for _, dst := range []string{"01:80:c2:00:00:0f", "01:80:c2:00:00:10", "01:00:0c:cc:cc:c7", "01:00:0c:cc:cc:c8", "01:00:0c:cc:cc:cd"} {
				text := asked[name]("ofproto/trace", "br0", "in_port=1,dl_src=02:00:00:00:01:00,dl_dst="+dst)
				want := forwards == "true" || dst[9:] == "00:00:10" || dst[9:] == "cc:cc:c8"
				if forwarded := !strings.Contains(text, "Datapath actions: drop"); forwarded != want {
					t.Errorf("%s, forward-bpdu=%s: forwards a frame to %s: %v, want %v\n%s", name, forwards, dst, forwarded, want, text)
				}
			}
		}
	}
	macs := regexp.MustCompile(`(?m)^.*([0-9a-f]{2}:){5}[0-9a-f]{2}`)
	eventually(t, func() error {
		texts := map[string]string{}
		for name, ask := range asked {
			list := macs.FindAllString(ask("fdb/show", "br0"), -1)
			slices.Sort(list)
			texts[name] = strings.Join(list, "\n") + "\n" + ask("fdb/stats-show", "br0")
		}
		if ours, theirs := texts["Weft"], texts["Open vSwitch"]; ours != theirs || !strings.Contains(ours, "table: 10/10\n") {
			return fmt.Errorf("addresses of Weft:\n%s\nOpen vSwitch:\n%s", ours, theirs)
		}
		return nil
	})
	r.vsctl("set bridge br0 other_config:mac-table-size=70000 other_config:mac-aging-time=5")
	for _, line := range []string{"expected 10 to 65536 addresses; 65536 is used", "expected 15 to 3600 seconds; 15 is used"} {
		if text := r.weft.Control().Output(); !strings.Contains(text, line) {
			t.Errorf("the log lacks: %s", line)
		}
	}
	if text := asked["Weft"]("fdb/stats-clear", "br0") + asked["Weft"]("fdb/stats-show", "br0"); !strings.Contains(text, "10/65536\n") ||
		!strings.Contains(text, "learned MAC entries     : 0\n") {
		t.Errorf("after fdb/stats-clear:\n%s", text)
	}
}

// Of two weftds that follow one database, one has the lock and carries out the rows. The other
// one waits, and takes over when the first has died. It follows a restored backup like any
// other change.
func TestOVSDBFaults(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	r := newRuled(t, l.Host("h"))
	r.vsctl("add-br br0 -- add-port br0 t0 -- set interface t0 type=internal")
	backup := r.dir + "/backup.db"
	r.run("sh", "-c", "ovsdb-client backup unix:"+r.dir+"/db.sock > "+backup)
	r.vsctl("del-port br0 t0 -- add-port br0 t1 -- set interface t1 type=internal")
	r.run("sh", "-c", "ovsdb-client --force restore unix:"+r.dir+"/db.sock < "+backup)
	r.expect("interface", "t0", "error", "[]")
	r.vsctl("set bridge br0 external_ids:restored=1")
	if ports := r.weft.Weft("dump-ports"); !strings.Contains(ports, "t0") || strings.Contains(ports, "t1") {
		t.Errorf("ports after the restoration:\n%s", ports)
	}

	dir := t.TempDir() // the sockets of the other switch are beside its socket of the database
	r.run("ovs-appctl", "-t", r.dir+"/db.ctl", "ovsdb-server/add-remote", "punix:"+dir+"/db.sock")
	other := l.Host("other").Weftd("--ovsdb", "unix:"+dir+"/db.sock")
	waits := func(d *lab.Daemon) {
		t.Helper()
		eventually(t, func() error {
			if !strings.Contains(d.Control().Output(), "another process has the database's lock") {
				return fmt.Errorf("%s does not wait for the lock", d.Host.Name)
			}
			return nil
		})
	}
	waits(other)
	r.vsctl("add-port br0 t2 -- set interface t2 type=internal")
	if text := other.Weft("list-br"); strings.TrimSpace(text) != "" {
		t.Errorf("bridges of a switch without the lock: %s", text)
	}
	r.weft.Control().Kill()
	r.vsctl("del-port br0 t2 -- add-port br0 t3 -- set interface t3 type=internal") // the other one has taken over
	if ports := other.Weft("dump-ports"); !strings.Contains(ports, "t0") || !strings.Contains(ports, "t3") || strings.Contains(ports, "t2") {
		t.Errorf("ports of the other switch:\n%s", ports)
	}
	r.weft.Start()
	waits(r.weft)
	r.vsctl("del-port br0 t3")
	if ports := other.Weft("dump-ports"); strings.Contains(ports, "t3") {
		t.Errorf("ports of the other switch:\n%s", ports)
	}
}
