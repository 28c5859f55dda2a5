// SPDX-License-Identifier: Apache-2.0

package install

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// installOpenvSwitch installs Open vSwitch in the test machine, from the packages that
// scripts/setup has fetched, unless this machine has it.
func installOpenvSwitch(m *machine) {
	m.t.Helper()
	if _, err := os.Stat("/usr/lib/openvswitch-switch/ovs-vswitchd"); err != nil {
		m.installFetched("openvswitch")
	}
	m.run("systemctl", "start", "openvswitch-switch")
}

// database has the commands that fill Open vSwitch's database: a bridge that forwards by flows,
// and one without flows, which learns. Flows and a group name ports by number.
var database = [][]string{
	{"ovs-vsctl", "add-br", "br0", "--", "set", "bridge", "br0", "datapath_type=netdev", "fail_mode=secure"},
	{"ovs-vsctl", "add-port", "br0", "gone", "--", "set", "interface", "gone", "type=internal"}, // takes number 1
	{"ovs-vsctl", "add-port", "br0", "pa"},
	{"ovs-vsctl", "add-port", "br0", "pb"},
	{"ovs-vsctl", "del-port", "gone"},
	{"ovs-vsctl", "add-br", "br1", "--", "set", "bridge", "br1", "datapath_type=netdev"},
	{"ip", "addr", "add", "10.0.1.1/24", "dev", "br1"},
	{"ip", "link", "set", "br1", "up"},
	{"ip", "route", "add", "10.9.0.0/16", "via", "10.0.1.9"},
	{"ovs-ofctl", "-O", "OpenFlow14", "add-group", "br0", "group_id=7,type=all,bucket=output:pb"},
	{"ovs-ofctl", "-O", "OpenFlow14", "add-flow", "br0", "in_port=pa,actions=group:7"},
	{"ovs-ofctl", "-O", "OpenFlow14", "add-flow", "br0", "in_port=pb,cookie=0x5,actions=output:pa"},
}

// flows returns the flows and groups of bridge br0 as text.
func (m *machine) flows() string {
	m.t.Helper()
	lines := strings.Split(m.run("ovs-ofctl", "-O", "OpenFlow14", "--no-names", "--no-stats", "dump-flows", "br0")+
		m.run("ovs-ofctl", "-O", "OpenFlow14", "dump-groups", "br0"), "\n")
	lines = slices.DeleteFunc(lines, func(line string) bool { return line == "" || strings.HasPrefix(line, "OFPST_") })
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// checkInCharge checks that the switch named in "daemon", weft or openvswitch, serves the
// database and the units, and that it has the flows and the addresses.
func (m *machine) checkInCharge(daemon, flows string) {
	m.t.Helper()
	if got := strings.TrimSpace(m.run("weft-migrate", "status")); got != daemon {
		m.t.Errorf("%s is in charge, want %s", got, daemon)
	}
	m.eventually("an answer of "+daemon, func() bool { // systemctl does not wait for units that restart along
		version, err := m.try("ovs-appctl", "-t", "ovs-vswitchd", "version")
		_, active := m.try("systemctl", "is-active", "openvswitch-switch", "ovs-vswitchd", "ovsdb-server")
		return err == nil && active == nil && strings.Contains(version, "Weft") == (daemon == "weft")
	})
	if got := m.flows(); got != flows {
		m.t.Errorf("%s has the flows\n%s\nwant\n%s", daemon, got, flows)
	}
	m.run("ovs-vsctl", "--timeout=60", "add-port", "br1", "probe", "--", "set", "interface", "probe", "type=internal")
	m.run("ip", "link", "show", "probe")
	m.run("ovs-vsctl", "--timeout=60", "del-port", "probe")
	if out, err := m.try("ip", "route", "get", "10.9.0.1"); err != nil {
		m.t.Errorf("%s: %s\n%s", daemon, out, m.run("sh", "-c", "ip route; ip addr; journalctl --no-pager -n 40 -k"))
	}
	m.eventually("a ping passes "+daemon, func() bool {
		_, err := m.try("ip", "netns", "exec", "a", "ping", "-c", "1", "-W", "1", "10.0.0.2")
		return err == nil
	})
}

// The test moves a machine with Debian's Open vSwitch to Weft and back, while pings run. Flows,
// addresses and routes survive, and Debian's units work all the time.
func TestMigration(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: boots a machine of namespaces")
	}
	if _, err := os.Stat("/usr/lib/openvswitch-switch/ovs-vswitchd"); err != nil && len(fetched("openvswitch", "openvswitch-switch_")) == 0 {
		t.Skip("needs openvswitch-switch, which scripts/setup could not fetch")
	}
	dir := packages(t)
	m := boot(t, dir)
	defer lintian(t, dir+"/weft-openvswitch_1.0-1_all.deb")()
	installOpenvSwitch(m)
	m.run("dpkg", "-i", m.deb("1.0"), "/deb/weft-openvswitch_1.0-1_all.deb")
	for n, name := range []string{"a", "b"} {
		m.run("ip", "netns", "add", name)
		m.run("ip", "link", "add", "p"+name, "type", "veth", "peer", "name", "eth0", "netns", name)
		m.run("ip", "link", "set", "p"+name, "up")
		m.run("ip", "-n", name, "addr", "add", []string{"10.0.0.1/24", "10.0.0.2/24"}[n], "dev", "eth0")
		m.run("ip", "-n", name, "link", "set", "eth0", "up")
	}
	for _, command := range database {
		m.run(command...)
	}
	flows := m.flows()
	m.checkInCharge("openvswitch", flows)

	// If the database has something that Weft cannot do, weft-migrate names it and changes
	// nothing.
	m.run("ovs-vsctl", "--no-wait", "add-port", "br1", "odd", "--", "set", "interface", "odd", "type=lisp")
	if out, err := m.try("weft-migrate", "to-weft"); err == nil || !strings.Contains(out, "interface odd: type lisp") {
		t.Errorf("a database with lisp: %v %s", err, out)
	}
	m.run("ovs-vsctl", "--no-wait", "del-port", "odd")
	if out := m.run("weft-migrate", "--dry-run", "to-weft"); !strings.Contains(out, "ovs-appctl -t ovs-vswitchd exit") {
		t.Errorf("a dry run prints %s", out)
	}
	m.checkInCharge("openvswitch", flows)

	pings := m.startTrain("pings", "10.0.0.2")
	t.Logf("to-weft: %s", m.run("weft-migrate", "to-weft"))
	m.checkInCharge("weft", flows)
	pings.progress()
	if s := m.show(); s.User != "weft" || len(s.MissingCapabilities) != 0 {
		t.Errorf("weftd runs as %s and lacks %v", s.User, s.MissingCapabilities)
	}
	lost, sent, _ := pings.lost()
	t.Logf("to-weft: %d of %d pings lost, one each 10 ms", lost, sent)
	// Debian's units restart the switch and the database, whose socket is new then.
	for _, unit := range []string{"ovsdb-server", "ovs-vswitchd", "openvswitch-switch", "weftd"} {
		m.run("systemctl", "restart", unit)
		m.checkInCharge("weft", flows)
	}
	before, _, _ := pings.lost()
	if before != lost {
		t.Errorf("restarts of units lost %d pings", before-lost)
	}
	t.Logf("to-openvswitch: %s", m.run("weft-migrate", "to-openvswitch"))
	m.checkInCharge("openvswitch", flows)
	lost, _, _ = pings.lost()
	t.Logf("to-openvswitch: %d pings lost", lost-before)

	// The removal of the package is the way back, too.
	m.run("weft-migrate", "to-weft")
	m.run("dpkg", "--purge", "weft-openvswitch")
	m.eventually("ovs-vswitchd runs", func() bool {
		out, _ := m.try("ovs-appctl", "-t", "ovs-vswitchd", "version")
		return strings.Contains(out, "Open vSwitch")
	})
	if got := m.flows(); got != flows {
		t.Errorf("after the removal the flows are\n%s\nwant\n%s", got, flows)
	}
	if out, err := m.try("ls", "/var/lib/weft-openvswitch", "/etc/systemd/system/weftd.service.d"); err == nil {
		t.Errorf("left by the purge: %s", out)
	}
}
