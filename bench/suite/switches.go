package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// A peer is a switch under test. Its one busy core is switchCore; the guest's
// is guestCore. It connects as vhost-user client to vh0.sock and vh1.sock of
// dir, which the guest creates later.
type peer interface {
	name() string
	// up starts the switch with what the scenario asks for.
	up(dir string, sc *scenario) error
	// down ends all that up started, also after up has failed half-way.
	down()
}

const (
	switchCore = 0
	guestCore  = 1
)

// inNamespace prefixes a command so that it runs where the scenario's uplink is.
func (sc *scenario) inNamespace(args ...string) []string {
	if sc.netns == "" {
		return args
	}
	return append([]string{"ip", "netns", "exec", sc.netns}, args...)
}

// weft is this project's own switch.
type weft struct {
	bin    string // folder of weftd and weft
	daemon *process
	socket string
}

func (w *weft) name() string { return "weft" }

func (w *weft) up(dir string, sc *scenario) error {
	w.socket = filepath.Join(dir, "weft.sock")
	args := sc.inNamespace(filepath.Join(w.bin, "weftd"), "--socket", w.socket,
		"--state", filepath.Join(dir, "state"), "--workers", "1", "--cores", fmt.Sprint(switchCore))
	var err error
	if w.daemon, err = start(dir, "weftd", args[0], args[1:]...); err != nil {
		return err
	}
	if err := eventually(10*time.Second, func() error {
		return errors.Join(w.daemon.alive(), w.cli("show"))
	}); err != nil {
		return err
	}
	var verbs []string
	for i := range 2 {
		verbs = append(verbs, fmt.Sprintf("add-port vh%d type=vhost-user path=%s mode=client", i, filepath.Join(dir, fmt.Sprintf("vh%d.sock", i))))
	}
	if sc.netns != "" {
		verbs = append(verbs, "add-port up type=af_xdp dev="+sc.uplink,
			"add-port vx type=vxlan vni=100 remote="+sc.remote)
	}
	for _, f := range sc.flows("vh0", "vh1", "vx") {
		verbs = append(verbs, "add-flow "+f)
	}
	for _, v := range verbs {
		if err := w.cli(strings.Fields(v)...); err != nil {
			return err
		}
	}
	return nil
}

func (w *weft) cli(args ...string) error {
	_, err := run([]string{"WEFT_SOCKET=" + w.socket}, filepath.Join(w.bin, "weft"), args...)
	return err
}

func (w *weft) down() {
	w.daemon.stop()
	w.daemon = nil
}

// ovs is Open vSwitch with its userspace datapath on DPDK, from Debian's
// openvswitch-switch-dpdk. All its state is in dir.
type ovs struct {
	db, vswitchd *process
	env          []string
	dbSock, ctl  string
}

func (o *ovs) name() string { return "ovs-dpdk" }

func (o *ovs) up(dir string, sc *scenario) error {
	run := filepath.Join(dir, "ovs")
	if err := os.MkdirAll(run, 0o755); err != nil {
		return err
	}
	o.env = nil
	for _, v := range []string{"OVS_RUNDIR", "OVS_DBDIR", "OVS_LOGDIR", "OVS_SYSCONFDIR"} {
		o.env = append(o.env, v+"="+run)
	}
	o.dbSock = "unix:" + run + "/db.sock"
	if err := all(o.env, [][]string{{"ovsdb-tool", "create", run + "/conf.db", "/usr/share/openvswitch/vswitch.ovsschema"}}); err != nil {
		return err
	}
	var err error
	if o.db, err = start(dir, "ovsdb", "env", append(o.env, "ovsdb-server", run+"/conf.db", "--remote=p"+o.dbSock, "--pidfile="+run+"/ovsdb.pid")...); err != nil {
		return err
	}
	extra := "--no-pci"
	if sc.netns != "" {
		extra += " --vdev=net_af_xdp0,iface=" + sc.uplink
	}
	if err := eventually(5*time.Second, func() error { return o.vsctl("--no-wait", "init") }); err != nil {
		return err
	}
	if err := o.vsctl("--no-wait", "set", "Open_vSwitch", ".", "other_config:dpdk-init=true", "other_config:dpdk-socket-mem=512",
		fmt.Sprintf("other_config:dpdk-lcore-mask=%#x", 1<<guestCore), fmt.Sprintf("other_config:pmd-cpu-mask=%#x", 1<<switchCore),
		"other_config:dpdk-extra="+extra); err != nil {
		return err
	}
	args := sc.inNamespace(append(append([]string{"env"}, o.env...), "/usr/lib/openvswitch-switch-dpdk/ovs-vswitchd-dpdk", o.dbSock,
		"--pidfile="+run+"/vswitchd.pid", "--unixctl="+run+"/ctl")...)
	o.ctl = run + "/ctl"
	if o.vswitchd, err = start(dir, "vswitchd", args[0], args[1:]...); err != nil {
		return err
	}
	steps := [][]string{{"add-br", "br0", "--", "set", "bridge", "br0", "datapath_type=netdev"}}
	for i := range 2 {
		port := fmt.Sprintf("vh%d", i)
		steps = append(steps, []string{"add-port", "br0", port, "--", "set", "Interface", port, "type=dpdkvhostuserclient",
			"options:vhost-server-path=" + filepath.Join(dir, port+".sock"), fmt.Sprintf("ofport_request=%d", i+1)})
	}
	if sc.netns != "" {
		steps = append(steps,
			[]string{"add-port", "br0", "vx", "--", "set", "Interface", "vx", "type=vxlan", "options:key=100", "options:remote_ip=" + sc.remote, "ofport_request=3"},
			[]string{"add-br", "brphy", "--", "set", "bridge", "brphy", "datapath_type=netdev", "other_config:hwaddr=" + sc.uplinkMAC},
			[]string{"add-port", "brphy", "up", "--", "set", "Interface", "up", "type=dpdk", "options:dpdk-devargs=net_af_xdp0"})
	}
	for _, s := range steps {
		if err := o.vsctl(append([]string{"--timeout=20"}, s...)...); err != nil {
			return errors.Join(err, o.vswitchd.alive())
		}
	}
	commands := [][]string{{"ovs-ofctl", "del-flows", "br0"}}
	for _, f := range sc.flows("1", "2", "3") {
		commands = append(commands, []string{"ovs-ofctl", "add-flow", "br0", f})
	}
	if sc.netns != "" {
		commands = append(commands,
			[]string{"ip", "-n", sc.netns, "addr", "flush", "dev", sc.uplink},
			[]string{"ip", "-n", sc.netns, "addr", "add", sc.local + "/24", "dev", "brphy"},
			[]string{"ip", "-n", sc.netns, "link", "set", "brphy", "up"},
			[]string{"ovs-appctl", "-t", o.ctl, "ovs/route/show"},
			[]string{"ovs-appctl", "-t", o.ctl, "tnl/arp/set", "brphy", sc.remote, sc.remoteMAC})
	}
	return all(o.env, commands)
}

func (o *ovs) vsctl(args ...string) error {
	_, err := run(o.env, "ovs-vsctl", append([]string{"--db=" + o.dbSock}, args...)...)
	return err
}

func (o *ovs) down() {
	o.vswitchd.stop()
	o.db.stop()
	o.vswitchd, o.db = nil, nil
}

// testpmdSwitch is DPDK's vhost forwarding, which looks at nothing: the limit.
type testpmdSwitch struct{ proc *process }

func (t *testpmdSwitch) name() string { return "testpmd" }

func (t *testpmdSwitch) up(dir string, sc *scenario) error {
	if sc.netns != "" {
		return errors.New("has no tunnels")
	}
	var err error
	t.proc, err = start(dir, "testpmd-switch", "dpdk-testpmd", "-l", "0,1", "--main-lcore", fmt.Sprint(guestCore), "--no-pci", "--in-memory",
		"--socket-mem", "256", "--file-prefix=weft-switch",
		"--vdev=net_vhost0,iface="+dir+"/vh0.sock,client=1", "--vdev=net_vhost1,iface="+dir+"/vh1.sock,client=1",
		"--", "-i", "--auto-start", "--nb-cores=1", "--rxd=1024", "--txd=1024", "--forward-mode=io")
	return err
}

func (t *testpmdSwitch) down() {
	t.proc.stop()
	t.proc = nil
}

// weftVersion is what the results call this build.
func weftVersion() string {
	out, err := run(nil, "git", "describe", "--always", "--dirty")
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(out)
}
