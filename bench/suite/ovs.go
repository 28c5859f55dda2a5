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

func (o *ovs) up(r *run, s setup) error {
	extra, place := "--no-pci", []string{"unshare", "--net"} // the bridges' devices would outlive the switch in the host's namespace
	if s.site != nil {
		extra += " --vdev=net_af_xdp0,iface=" + s.site.dev
		place = netnsCommand(s.site.netns)
	}
	settings := []string{"dpdk-init=true", "dpdk-socket-mem=512", fmt.Sprintf("dpdk-lcore-mask=%#x", 1<<guestCore), "dpdk-extra=" + extra}
	if err := o.launch(r, place, ovsDPDK, switchCore, append(settings, o.settings...)...); err != nil {
		return err
	}
	if err := o.ports(r, s); err != nil {
		return errors.Join(err, o.vswitchd.alive())
	}
	flows, err := writeFlows(r, s, func(i int) string { return fmt.Sprint(ovsPort(i)) }, fmt.Sprint(ovsTunnel))
	if err != nil {
		return err
	}
	return runCommands(o.env, [][]string{{"ovs-ofctl", "del-flows", "br0"}, {"ovs-ofctl", "--bundle", "add-flows", "br0", flows}})
}

// ovsPort returns the OpenFlow port number of guest i. ovsTunnel is above all of them.
func ovsPort(i int) int { return i + 1 }

const ovsTunnel = 1000

// launch starts the database and the switch, which both end with the run. place is a prefix of both
// command lines, such as "ip netns exec NAME". core is the core of the poll thread.
func (o *ovs) launch(r *run, place []string, program string, core int, settings ...string) error {
	home := filepath.Join(r.dir, fmt.Sprint("ovs", core))
	if err := os.MkdirAll(home, 0o755); err != nil {
		return err
	}
	o.env = nil
	for _, v := range []string{"OVS_RUNDIR", "OVS_DBDIR", "OVS_LOGDIR", "OVS_SYSCONFDIR"} {
		o.env = append(o.env, v+"="+home)
	}
	o.dbSock, o.ctl = "unix:"+home+"/db.sock", home+"/ctl"
	if _, err := command(o.env, "ovsdb-tool", "create", home+"/conf.db", "/usr/share/openvswitch/vswitch.ovsschema"); err != nil {
		return err
	}
	env := append([]string{"env"}, o.env...)
	var err error
	if o.db, err = r.start(fmt.Sprint("ovsdb", core), append(slices.Clone(env), "ovsdb-server", home+"/conf.db", "--remote=p"+o.dbSock, "--pidfile="+home+"/ovsdb.pid")...); err != nil {
		return err
	}
	if err := eventually(5*time.Second, func() error { return o.vsctl("--no-wait init") }); err != nil {
		return err
	}
	set := []string{"--no-wait", "set", "Open_vSwitch", "."}
	for _, s := range append([]string{fmt.Sprintf("pmd-cpu-mask=%#x", 1<<core)}, settings...) {
		set = append(set, "other_config:"+s)
	}
	if err := o.vsctlWords(set...); err != nil {
		return err
	}
	o.vswitchd, err = r.start(fmt.Sprint("vswitchd", core), append(append(slices.Clone(place), env...), program, o.dbSock,
		"--pidfile="+home+"/vswitchd.pid", "--unixctl="+o.ctl)...)
	return err
}

func (o *ovs) ports(r *run, s setup) error {
	lines := []string{ovsBridge}
	for i := range s.guests {
		port := guestName(i)
		lines = append(lines, fmt.Sprintf("add-port br0 %s -- set Interface %s type=dpdkvhostuserclient options:vhost-server-path=%s ofport_request=%d",
			port, port, r.socket(i), ovsPort(i)))
	}
	if err := o.vsctl(lines...); err != nil || s.site == nil {
		return err
	}
	return o.tunnel(&s.site.underlay, "up -- set Interface up type=dpdk options:dpdk-devargs=net_af_xdp0")
}

// ovsBridge has the ovs-vsctl arguments that create the guests' bridge.
const ovsBridge = "add-br br0 -- set bridge br0 datapath_type=netdev"

// tunnel adds the tunnel's port to the guests' bridge. It also adds a second bridge, which has the
// uplink and its addresses. uplinkWords has the ovs-vsctl arguments for the uplink port.
func (o *ovs) tunnel(u *underlay, uplinkWords string) error {
	if err := o.vsctl(
		fmt.Sprintf("add-port br0 vx -- set Interface vx type=vxlan options:key=100 options:remote_ip=%s ofport_request=%d", u.remote, ovsTunnel),
		"add-br brphy -- set bridge brphy datapath_type=netdev other_config:hwaddr="+u.mac,
		"add-port brphy "+uplinkWords,
	); err != nil {
		return err
	}
	return runCommands(o.env, [][]string{
		u.ip("addr", "flush", "dev", u.dev),
		u.ip("addr", "add", u.local+"/24", "dev", "brphy"),
		u.ip("link", "set", "brphy", "up"),
		{"ovs-appctl", "-t", o.ctl, "ovs/route/show"},
		{"ovs-appctl", "-t", o.ctl, "tnl/arp/set", "brphy", u.remote, u.remoteMAC},
	})
}

func (o *ovs) vsctl(lines ...string) error {
	for _, line := range lines {
		if err := o.vsctlWords(strings.Fields(line)...); err != nil {
			return err
		}
	}
	return nil
}

func (o *ovs) vsctlWords(words ...string) error {
	_, err := command(o.env, "ovs-vsctl", append([]string{"--db=" + o.dbSock, "--timeout=20"}, words...)...)
	return err
}

func (o *ovs) appctl(args ...string) (string, error) {
	return command(o.env, "ovs-appctl", append([]string{"-t", o.ctl}, args...)...)
}
