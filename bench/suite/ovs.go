// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"weft/e2e/lab"
)

// ovs is Open vSwitch's userspace datapath, from Debian's packages.
type ovs struct {
	db, vswitchd *process
	env          []string
	settings     []string // other_config settings in addition to DPDK's
	dbSock, ctl  string
}

const (
	ovsPlain = "ovs-vswitchd"
	ovsDPDK  = "/usr/lib/openvswitch-switch-dpdk/ovs-vswitchd-dpdk"
)

func (o *ovs) up(r *run, s setup) {
	extra, place := "--no-pci", []string{"unshare", "--net"} // the bridges' devices would outlive the switch in the host's namespace
	if s.site != nil {
		extra += " --vdev=net_af_xdp0,iface=" + s.site.dev
		place = netnsCommand(s.site.netns)
	}
	settings := []string{"dpdk-init=true", "dpdk-socket-mem=512", fmt.Sprintf("dpdk-lcore-mask=%#x", 1<<guestCore), "dpdk-extra=" + extra}
	o.launch(r, place, ovsDPDK, switchCore, append(settings, o.settings...)...)
	if err := lab.Attempt(func() { o.ports(r, s) }); err != nil {
		lab.Check(errors.Join(err, o.vswitchd.alive()))
	}
	flows := writeFlows(r, s, func(i int) string { return fmt.Sprint(ovsPort(i)) }, fmt.Sprint(ovsTunnel))
	runCommands(o.env, [][]string{{"ovs-ofctl", "del-flows", "br0"}, {"ovs-ofctl", "--bundle", "add-flows", "br0", flows}})
}

// ovsPort returns the OpenFlow port number of guest i. ovsTunnel is above all of them.
func ovsPort(i int) int { return i + 1 }

const ovsTunnel = 1000

// launch starts the database and the switch, which both end with the run. "place" comes first in both
// command lines, such as "ip netns exec NAME". "core" is the core of the poll thread.
func (o *ovs) launch(r *run, place []string, program string, core int, settings ...string) {
	home := filepath.Join(r.dir, fmt.Sprint("ovs", core))
	lab.Check(os.MkdirAll(home, 0o755))
	o.env = nil
	for _, v := range []string{"OVS_RUNDIR", "OVS_DBDIR", "OVS_LOGDIR", "OVS_SYSCONFDIR"} {
		o.env = append(o.env, v+"="+home)
	}
	o.dbSock, o.ctl = "unix:"+home+"/db.sock", home+"/ctl"
	lab.Must(command(o.env, "ovsdb-tool", "create", home+"/conf.db", "/usr/share/openvswitch/vswitch.ovsschema"))
	env := append([]string{"env"}, o.env...)
	o.db = r.start(fmt.Sprint("ovsdb", core), append(slices.Clone(env), "ovsdb-server", home+"/conf.db", "--remote=p"+o.dbSock, "--pidfile="+home+"/ovsdb.pid")...)
	eventually(5*time.Second, func() { o.vsctl("--no-wait init") })
	set := []string{"--no-wait", "set", "Open_vSwitch", "."}
	for _, s := range append([]string{fmt.Sprintf("pmd-cpu-mask=%#x", 1<<core)}, settings...) {
		set = append(set, "other_config:"+s)
	}
	o.vsctlWords(set...)
	o.vswitchd = r.start(fmt.Sprint("vswitchd", core), append(append(slices.Clone(place), env...), program, o.dbSock,
		"--pidfile="+home+"/vswitchd.pid", "--unixctl="+o.ctl)...)
}

func (o *ovs) ports(r *run, s setup) {
	lines := []string{ovsBridge}
	for i := range s.guests {
		port := guestName(i)
		lines = append(lines, fmt.Sprintf("add-port br0 %s -- set Interface %s type=dpdkvhostuserclient options:vhost-server-path=%s ofport_request=%d",
			port, port, r.socket(i), ovsPort(i)))
	}
	o.vsctl(lines...)
	if s.site != nil {
		o.tunnel(&s.site.underlay, "up -- set Interface up type=dpdk options:dpdk-devargs=net_af_xdp0")
	}
}

// ovsBridge has the ovs-vsctl arguments that create the guests' bridge.
const ovsBridge = "add-br br0 -- set bridge br0 datapath_type=netdev"

// tunnel adds the tunnel's port to the guests' bridge. It also adds a second bridge, which has the
// uplink and its addresses. uplinkWords has the ovs-vsctl arguments for the uplink port.
func (o *ovs) tunnel(u *underlay, uplinkWords string) {
	o.vsctl(
		fmt.Sprintf("add-port br0 vx -- set Interface vx type=vxlan options:key=100 options:remote_ip=%s ofport_request=%d", u.remote, ovsTunnel),
		"add-br brphy -- set bridge brphy datapath_type=netdev other_config:hwaddr="+u.mac,
		"add-port brphy "+uplinkWords,
	)
	runCommands(o.env, [][]string{
		u.ip("addr", "flush", "dev", u.dev),
		u.ip("addr", "add", u.local+"/24", "dev", "brphy"),
		u.ip("link", "set", "brphy", "up"),
		{"ovs-appctl", "-t", o.ctl, "ovs/route/show"},
		{"ovs-appctl", "-t", o.ctl, "tnl/arp/set", "brphy", u.remote, u.remoteMAC},
	})
}

func (o *ovs) vsctl(lines ...string) {
	for _, line := range lines {
		o.vsctlWords(strings.Fields(line)...)
	}
}

func (o *ovs) vsctlWords(words ...string) {
	lab.Must(command(o.env, "ovs-vsctl", append([]string{"--db=" + o.dbSock, "--timeout=20"}, words...)...))
}

func (o *ovs) appctl(args ...string) string {
	return lab.Must(command(o.env, "ovs-appctl", append([]string{"-t", o.ctl}, args...)...))
}
