package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Guest to guest over VXLAN, the guests being namespaces: real stacks with real
// iperf3, on both ends of a pair of hosts that a veth joins.

// overlayShape is what the rows differ in.
type overlayShape struct {
	rules bool // connections are tracked: conntrack and NAT rules, ct flows
	hw    bool // the underlay segments nothing in tunnels, as the 82599
	spin  bool // workers spin for a second at least; else they sleep when idle
}

func overlayFamily() []*experiment {
	both, three := []string{weftPeer, linuxPeer}, []string{weftPeer, linuxPeer, ovsXDPPeer}
	one, four, udp := []string{"-P", "1"}, []string{"-P", "4"}, []string{"-u", "-b", "0", "-l", "1400"}
	rows := []struct {
		name  string
		shape overlayShape
		peers []string
		iperf []string
	}{
		{"tcp1", overlayShape{}, three, one},
		{"tcp1-userspace-tso", overlayShape{}, []string{ovsOverlayTSOPeer}, one},
		{"tcp1-rules", overlayShape{rules: true}, both, one},
		{"tcp1-rules-82599", overlayShape{rules: true, hw: true}, both, one},
		{"tcp4", overlayShape{}, three, four},
		{"tcp4-rules-82599", overlayShape{rules: true, hw: true}, both, four},
		{"udp", overlayShape{}, three, udp},
		{"udp-rules-82599", overlayShape{rules: true, hw: true}, both, udp},
	}
	var list []*experiment
	for _, row := range rows {
		list = append(list, &experiment{name: "overlay/" + row.name, unit: "bit/s", peers: row.peers,
			do: func(r *run, peer string) (float64, error) {
				o := &overlayRig{run: r, peer: peer, shape: row.shape}
				defer o.clear()
				if err := o.lay(); err != nil {
					return 0, err
				}
				return o.iperf(row.iperf...)
			}})
	}
	return list
}

// latencyFamily is round trips over the same overlay on an otherwise idle machine.
func latencyFamily() []*experiment {
	var list []*experiment
	for _, idle := range []string{"spin", "sleep"} {
		for _, size := range []int{64, 1024} {
			shape := overlayShape{spin: idle == "spin"}
			list = append(list, &experiment{name: fmt.Sprintf("latency/%s-%d", idle, size), unit: "s", less: true, peers: []string{weftPeer, linuxPeer, ovsXDPPeer},
				do: func(r *run, peer string) (float64, error) {
					o := &overlayRig{run: r, peer: peer, shape: shape}
					defer o.clear()
					if err := o.lay(); err != nil {
						return 0, err
					}
					return o.roundTrips(size)
				}})
		}
	}
	return list
}

// ovsXDPPeer is Open vSwitch's userspace datapath on AF_XDP, uplink and guests.
const ovsXDPPeer = "ovs-afxdp"

// ovsOverlayTSOPeer is the same with segmentation left to the guests, for which their
// ports and the uplink must be packet sockets. Seen with Open vSwitch 3.1: pings pass,
// no TCP connection does.
const ovsOverlayTSOPeer = "ovs-packet-tso"

// overlayRig is a run's two hosts, 0 and 1, with a guest each.
type overlayRig struct {
	*run
	peer    string
	shape   overlayShape
	started []*process
}

func (o *overlayRig) host(i int) string  { return fmt.Sprintf("weftbench-o%sh%d", o.id, i) }
func (o *overlayRig) guest(i int) string { return fmt.Sprintf("weftbench-o%sg%d", o.id, i) }
func (o *overlayRig) socket(i int) string {
	return filepath.Join(o.dir, fmt.Sprint("weft", i, ".sock"))
}

func overlayEndpoint(i int) string { return fmt.Sprint("172.31.252.", i+1) }
func overlayAddress(i int) string  { return fmt.Sprint("10.0.0.", i+1) }
func overlayMAC(i int) string      { return fmt.Sprint("02:00:00:00:00:0", i+1) }

// underlayMAC is the address of a host's end of the underlay.
func underlayMAC(i int) string { return fmt.Sprint("02:00:00:00:fc:0", i+1) }

// in has a command run in a namespace.
func in(ns string, args ...string) []string {
	return append([]string{"ip", "netns", "exec", ns}, args...)
}

// lay makes hosts and guests and what is between them, and waits until the guests
// reach each other.
func (o *overlayRig) lay() error {
	var commands [][]string
	for i := range 2 {
		for _, ns := range []string{o.host(i), o.guest(i)} {
			commands = append(commands, []string{"ip", "netns", "add", ns}, []string{"ip", "-n", ns, "link", "set", "lo", "up"})
		}
	}
	commands = append(commands, []string{"ip", "-n", o.host(0), "link", "add", "u", "mtu", "1600", "address", underlayMAC(0), "type", "veth",
		"peer", "name", "u", "mtu", "1600", "address", underlayMAC(1), "netns", o.host(1)})
	for i := range 2 {
		h := o.host(i)
		commands = append(commands, []string{"ip", "-n", h, "addr", "add", overlayEndpoint(i) + "/24", "dev", "u"}, []string{"ip", "-n", h, "link", "set", "u", "up"})
		if o.shape.hw {
			commands = append(commands, in(h, "ethtool", "-K", "u", "tx-udp_tnl-segmentation", "off", "tx-udp_tnl-csum-segmentation", "off", "tso", "off", "gso", "off", "gro", "off"))
		}
	}
	if err := all(nil, commands); err != nil {
		return err
	}
	for i := range 2 {
		if err := o.layHost(i); err != nil {
			return err
		}
	}
	return eventually(5*time.Second, func() error {
		_, err := command(nil, "ip", "netns", "exec", o.guest(0), "ping", "-n", "-q", "-c", "1", "-W", "1", overlayAddress(1))
		return err
	})
}

// layHost starts the peer's switch on host i and gives it its guest.
func (o *overlayRig) layHost(i int) error {
	switch o.peer {
	case weftPeer:
		return o.layWeft(i)
	case linuxPeer:
		return o.layLinux(i)
	case ovsXDPPeer, ovsOverlayTSOPeer:
		return o.layOVS(i)
	}
	return fmt.Errorf("no overlay is called %q", o.peer)
}

// veth makes the guest's device one end of a pair, the other being p on the host.
func (o *overlayRig) veth(i int) [][]string {
	h, g := o.host(i), o.guest(i)
	return [][]string{
		{"ip", "-n", h, "link", "add", "p", "mtu", "1500", "type", "veth", "peer", "name", "eth0", "mtu", "1500", "address", overlayMAC(i), "netns", g},
		{"ip", "-n", h, "link", "set", "p", "up"},
		{"ip", "-n", g, "addr", "add", overlayAddress(i) + "/24", "dev", "eth0"},
		{"ip", "-n", g, "link", "set", "eth0", "up"},
	}
}

// layLinux is bridge and vxlan device, and with rules those under which the
// recordings were made.
func (o *overlayRig) layLinux(i int) error {
	h := o.host(i)
	commands := append(o.veth(i),
		[]string{"ip", "-n", h, "link", "add", "br0", "type", "bridge"},
		[]string{"ip", "-n", h, "link", "set", "br0", "up"},
		[]string{"ip", "-n", h, "link", "add", "vx0", "type", "vxlan", "id", "100", "local", overlayEndpoint(i), "remote", overlayEndpoint(1 - i), "dstport", "4789"},
		[]string{"ip", "-n", h, "link", "set", "vx0", "mtu", "1500", "master", "br0", "up"},
		[]string{"ip", "-n", h, "link", "set", "p", "master", "br0"})
	if o.shape.rules {
		commands = append(commands,
			in(h, "sysctl", "-qw", "net.bridge.bridge-nf-call-iptables=1"),
			in(h, "iptables", "-t", "nat", "-A", "OUTPUT", "-m", "comment", "--comment", "trace", "-m", "addrtype", "--dst-type", "LOCAL", "-j", "RETURN"),
			in(h, "iptables", "-t", "nat", "-A", "POSTROUTING", "-s", "192.168.99.0/24", "-j", "MASQUERADE"),
			in(h, "iptables", "-A", "FORWARD", "-m", "conntrack", "--ctstate", "NEW,ESTABLISHED", "-j", "ACCEPT"))
	}
	return all(nil, commands)
}

// layWeft has one worker a host, each on a core of its own. The uplink is packet
// sockets, which on a veth carry several times what AF_XDP does in copy mode.
func (o *overlayRig) layWeft(i int) error {
	h := o.host(i)
	args := in(h, filepath.Join(o.bin, "weftd"), "--socket", o.socket(i), "--state", filepath.Join(o.dir, fmt.Sprint("state", i)), "--workers", "1", "--cores", fmt.Sprint(i))
	if o.shape.spin {
		args = append(args, "--spin-us", "1000000")
	}
	p, err := start(o.dir, fmt.Sprint("weftd", i), args[0], args[1:]...)
	if err != nil {
		return err
	}
	o.started = append(o.started, p)
	cli := func(words ...string) error {
		_, err := command([]string{"WEFT_SOCKET=" + o.socket(i)}, filepath.Join(o.bin, "weft"), words...)
		return err
	}
	if err := eventually(10*time.Second, func() error { return errors.Join(p.alive(), cli("show")) }); err != nil {
		return err
	}
	flows := "actions=normal\n"
	if o.shape.rules {
		flows = trackedFlows
	}
	file := filepath.Join(o.dir, "overlayflows")
	if err := os.WriteFile(file, []byte(flows), 0o644); err != nil {
		return err
	}
	for _, words := range []string{
		"add-port up type=af_packet dev=u",
		"add-port vx type=vxlan vni=100 remote=" + overlayEndpoint(1-i),
		fmt.Sprintf("add-port guest type=tap dev=eth0 netns=%s mac=%s mtu=1500", o.guest(i), overlayMAC(i)),
		"add-flows " + file,
	} {
		if err := cli(strings.Fields(words)...); err != nil {
			return err
		}
	}
	_, err = command(nil, "ip", "-n", o.guest(i), "addr", "add", overlayAddress(i)+"/24", "dev", "eth0")
	return err
}

// layOVS has one poll thread a host, each on a core of its own. AF_XDP has no
// offloads, so the guests have none either.
func (o *overlayRig) layOVS(i int) error {
	h := o.host(i)
	commands, device := o.veth(i), " -- set Interface p type=afxdp"
	if o.peer == ovsXDPPeer {
		commands = append(commands, in(o.guest(i), "ethtool", "-K", "eth0", "tx", "off"))
	} else {
		device = ""
	}
	if err := all(nil, commands); err != nil {
		return err
	}
	home := filepath.Join(o.dir, fmt.Sprint("ovs", i))
	if err := os.MkdirAll(home, 0o755); err != nil {
		return err
	}
	var env []string
	for _, v := range []string{"OVS_RUNDIR", "OVS_DBDIR", "OVS_LOGDIR", "OVS_SYSCONFDIR"} {
		env = append(env, v+"="+home)
	}
	db, ctl := "unix:"+home+"/db.sock", home+"/ctl"
	if _, err := command(env, "ovsdb-tool", "create", home+"/conf.db", "/usr/share/openvswitch/vswitch.ovsschema"); err != nil {
		return err
	}
	vsctl := func(words ...string) error {
		_, err := command(env, "ovs-vsctl", append([]string{"--db=" + db, "--timeout=20"}, words...)...)
		return err
	}
	run := func(name string, args ...string) error {
		p, err := start(o.dir, fmt.Sprint(name, i), args[0], args[1:]...)
		if err == nil {
			o.started = append(o.started, p)
		}
		return err
	}
	if err := run("ovsdb", append(append([]string{"env"}, env...), "ovsdb-server", home+"/conf.db", "--remote=p"+db, "--pidfile="+home+"/ovsdb.pid")...); err != nil {
		return err
	}
	if err := eventually(5*time.Second, func() error { return vsctl("--no-wait", "init") }); err != nil {
		return err
	}
	if err := vsctl("--no-wait", "set", "Open_vSwitch", ".", fmt.Sprintf("other_config:pmd-cpu-mask=%#x", 1<<i), fmt.Sprint("other_config:userspace-tso-enable=", o.peer == ovsOverlayTSOPeer)); err != nil {
		return err
	}
	if err := run("vswitchd", in(h, append(append([]string{"env"}, env...), "ovs-vswitchd", db, "--pidfile="+home+"/vswitchd.pid", "--unixctl="+ctl)...)...); err != nil {
		return err
	}
	for _, words := range []string{
		"add-br br0 -- set bridge br0 datapath_type=netdev",
		"add-port br0 p" + device,
		"add-port br0 vx -- set Interface vx type=vxlan options:key=100 options:remote_ip=" + overlayEndpoint(1-i),
		"add-br brphy -- set bridge brphy datapath_type=netdev other_config:hwaddr=" + underlayMAC(i),
		"add-port brphy u" + strings.ReplaceAll(device, " p ", " u "),
	} {
		if err := vsctl(strings.Fields(words)...); err != nil {
			return err
		}
	}
	return all(env, [][]string{
		{"ip", "-n", h, "addr", "flush", "dev", "u"},
		{"ip", "-n", h, "addr", "add", overlayEndpoint(i) + "/24", "dev", "brphy"},
		{"ip", "-n", h, "link", "set", "brphy", "up"},
		{"ovs-appctl", "-t", ctl, "ovs/route/show"},
		{"ovs-appctl", "-t", ctl, "tnl/arp/set", "brphy", overlayEndpoint(1 - i), underlayMAC(1 - i)},
	})
}

// iperf runs iperf3 from guest 0 to guest 1 and returns the bits a second that
// arrived. Noted is the machine's busy time for each gigabyte: everything on it,
// workers that spin as they are.
func (o *overlayRig) iperf(args ...string) (float64, error) {
	server := in(o.guest(1), "iperf3", "-s", "-1")
	p, err := start(o.dir, "iperf-server", server[0], server[1:]...)
	if err != nil {
		return 0, err
	}
	defer p.stop()
	var report struct {
		Error string
		End   struct {
			Received struct {
				BitsPerSecond float64 `json:"bits_per_second"`
				Bytes         float64
			} `json:"sum_received"`
			Sum struct {
				BitsPerSecond float64 `json:"bits_per_second"`
				Bytes         float64
				LostPercent   float64 `json:"lost_percent"`
			}
		}
	}
	var busy float64
	seconds := max(1, int(o.length.Seconds()))
	limit := fmt.Sprint(seconds + 10) // a path that goes dead must not keep the rest waiting
	client := in(o.guest(0), append([]string{"timeout", limit, "iperf3", "-c", overlayAddress(1), "-J", "-t", fmt.Sprint(seconds)}, args...)...)
	if err := eventually(5*time.Second, func() error {
		before := busySeconds()
		out, err := command(nil, client[0], client[1:]...)
		busy = busySeconds() - before
		report.Error = ""
		if json.Unmarshal([]byte(out), &report) != nil || report.Error != "" {
			return errors.Join(err, errors.New("iperf3: "+report.Error))
		}
		return nil
	}); err != nil {
		return 0, err
	}
	bits, bytes := report.End.Received.BitsPerSecond, report.End.Received.Bytes
	if sum := report.End.Sum; sum.Bytes > 0 { // UDP
		bits, bytes = sum.BitsPerSecond*(1-sum.LostPercent/100), sum.Bytes*(1-sum.LostPercent/100)
		o.note("lost", "%", sum.LostPercent)
	}
	if bytes == 0 {
		return 0, errors.New("iperf3: nothing arrived")
	}
	o.note("cpu", "s/GB", busy/(bytes/1e9))
	return bits, nil
}

// busySeconds is what all cores together have not been idle so far.
func busySeconds() float64 {
	text, _ := os.ReadFile("/proc/stat")
	line, _, _ := strings.Cut(string(text), "\n")
	const idle, wait, steal, last, ticks = 4, 5, 8, 9, 100
	total := 0.0
	for i, field := range strings.Fields(line) {
		if n, err := strconv.ParseFloat(field, 64); err == nil && i != idle && i != wait && i != steal && i < last {
			total += n
		}
	}
	return total / ticks
}

// clear ends and removes what lay has made.
func (o *overlayRig) clear() {
	for _, p := range o.started {
		p.stop()
	}
	for i := range 2 {
		_, _ = command(nil, "ip", "netns", "del", o.guest(i))
		_, _ = command(nil, "ip", "netns", "del", o.host(i))
	}
}
