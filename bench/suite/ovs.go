package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// ovs is Open vSwitch with its userspace datapath on DPDK, from Debian's
// openvswitch-switch-dpdk. All its state is in the run's folder.
type ovs struct {
	db, vswitchd *process
	env          []string
	settings     []string // of other_config, beside those that every run needs
	dbSock, ctl  string
}

func (o *ovs) up(r *run, s setup) error {
	if err := o.daemons(r, s.site); err != nil {
		return err
	}
	if err := o.ports(r, s); err != nil {
		return errors.Join(err, o.vswitchd.alive())
	}
	flows, err := writeFlows(r, s, func(i int) string { return fmt.Sprint(ovsPort(i)) }, fmt.Sprint(ovsTunnel))
	if err != nil {
		return err
	}
	steps := [][]string{{"ovs-ofctl", "del-flows", "br0"}, {"ovs-ofctl", "--bundle", "add-flows", "br0", flows}}
	if w := s.site; w != nil {
		steps = append(steps,
			w.ip("addr", "flush", "dev", w.uplink),
			w.ip("addr", "add", w.local+"/24", "dev", "brphy"),
			w.ip("link", "set", "brphy", "up"),
			[]string{"ovs-appctl", "-t", o.ctl, "ovs/route/show"},
			[]string{"ovs-appctl", "-t", o.ctl, "tnl/arp/set", "brphy", w.remote, w.remoteMAC})
	}
	return all(o.env, steps)
}

// ovsPort is the OpenFlow port of guest i; the tunnel has one above them all.
func ovsPort(i int) int { return i + 1 }

const ovsTunnel = 1000

// daemons starts the database and the switch, its poll thread on switchCore.
func (o *ovs) daemons(r *run, w *site) error {
	home := filepath.Join(r.dir, "ovs")
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
	var err error
	if o.db, err = start(r.dir, "ovsdb", "env", append(slices.Clone(o.env), "ovsdb-server", home+"/conf.db", "--remote=p"+o.dbSock, "--pidfile="+home+"/ovsdb.pid")...); err != nil {
		return err
	}
	extra := "--no-pci"
	if w != nil {
		extra += " --vdev=net_af_xdp0,iface=" + w.uplink
	}
	if err := eventually(5*time.Second, func() error { return o.vsctl("--no-wait", "init") }); err != nil {
		return err
	}
	settings := append([]string{"dpdk-init=true", "dpdk-socket-mem=512", fmt.Sprintf("dpdk-lcore-mask=%#x", 1<<guestCore),
		fmt.Sprintf("pmd-cpu-mask=%#x", 1<<switchCore), "dpdk-extra=" + extra}, o.settings...)
	for i := range settings {
		settings[i] = "other_config:" + settings[i]
	}
	if err := o.vsctl(append([]string{"--no-wait", "set", "Open_vSwitch", "."}, settings...)...); err != nil {
		return err
	}
	args := []string{"unshare", "--net"} // its bridges' devices outlive it, but not their namespace
	if w != nil {
		args = w.in()
	}
	args = append(args, "env")
	args = append(append(args, o.env...), "/usr/lib/openvswitch-switch-dpdk/ovs-vswitchd-dpdk", o.dbSock,
		"--pidfile="+home+"/vswitchd.pid", "--unixctl="+o.ctl)
	o.vswitchd, err = start(r.dir, "vswitchd", args[0], args[1:]...)
	return err
}

// ports makes the bridge of the guests and, with an uplink, the one that the
// tunnel's datagrams leave by.
func (o *ovs) ports(r *run, s setup) error {
	steps := [][]string{{"add-br", "br0", "--", "set", "bridge", "br0", "datapath_type=netdev"}}
	for i := range s.guests {
		port := guestName(i)
		steps = append(steps, []string{"add-port", "br0", port, "--", "set", "Interface", port, "type=dpdkvhostuserclient",
			"options:vhost-server-path=" + r.socket(i), fmt.Sprint("ofport_request=", ovsPort(i))})
	}
	if w := s.site; w != nil {
		steps = append(steps,
			[]string{"add-port", "br0", "vx", "--", "set", "Interface", "vx", "type=vxlan", "options:key=100", "options:remote_ip=" + w.remote, fmt.Sprint("ofport_request=", ovsTunnel)},
			[]string{"add-br", "brphy", "--", "set", "bridge", "brphy", "datapath_type=netdev", "other_config:hwaddr=" + w.uplinkMAC},
			[]string{"add-port", "brphy", "up", "--", "set", "Interface", "up", "type=dpdk", "options:dpdk-devargs=net_af_xdp0"})
	}
	for _, s := range steps {
		if err := o.vsctl(append([]string{"--timeout=20"}, s...)...); err != nil {
			return err
		}
	}
	return nil
}

func (o *ovs) vsctl(args ...string) error {
	_, err := command(o.env, "ovs-vsctl", append([]string{"--db=" + o.dbSock}, args...)...)
	return err
}

// appctl asks the running switch, as in appctl("dpif-netdev/pmd-stats-show").
func (o *ovs) appctl(args ...string) (string, error) {
	return command(o.env, "ovs-appctl", append([]string{"-t", o.ctl}, args...)...)
}

func (o *ovs) down() {
	o.vswitchd.stop()
	o.db.stop()
	o.vswitchd, o.db = nil, nil
}
