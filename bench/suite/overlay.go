// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"time"

	"weft/e2e/lab"
)

// The functions below measure overlays. The guests are network namespaces on two hosts. A veth
// connects the hosts.

// overlayShape has the options of an overlay experiment.
type overlayShape struct {
	rules bool // iptables rules or flows track connections, with NAT
	card  bool // the underlay device has the offloads of the network card 82599 (cardOffloads)
	noGRO bool // GRO of the underlay device is off; it is on by default in every driver
	spin  bool // workers poll for a second without frames before they sleep
	// If cores is set, the worker of each host has a core of its own. Otherwise weftd uses the
	// machine's last core, its default: both workers share this core, and the guests have the others.
	cores bool
}

// cardOffloads are the offloads that a veth has and the 82599 lacks. The driver of the 82599
// (ixgbe_probe in ixgbe_main.c of Linux 6.18) has TSO for IPv4 and IPv6, UDP segmentation, checksums
// and GRO. It also announces segmentation in UDP tunnels. But ixgbe_features_check refuses it for TCP
// over IPv4 in a tunnel, unless the feature tx-tcp-mangleid-segmentation is on. That feature is off by
// default.
var cardOffloads = []string{"tx-udp_tnl-segmentation", "off", "tx-udp_tnl-csum-segmentation", "off"}

func overlayFamily() []*experiment {
	both, uplinks := []string{weftPeer, linuxPeer, weftTwoCoresPeer}, []string{weftPeer, linuxPeer, weftTwoCoresPeer, weftXDPPeer}
	three, four := []string{weftPeer, linuxPeer, ovsXDPPeer, weftTwoCoresPeer}, []string{weftPeer, linuxPeer, ovsXDPPeer, weftTwoCoresPeer, weftXDPPeer}
	card, cardNoGRO := overlayShape{rules: true, card: true}, overlayShape{rules: true, card: true, noGRO: true}
	tcp1, tcp4, udp := []string{"-P", "1"}, []string{"-P", "4"}, []string{"-u", "-b", "0", "-l", "1400"}
	// The other rows use the kernel's default congestion control, which is BBR on some machines. BBR
	// limits the data in flight by the shortest round trip, and CUBIC only by losses.
	cubic1 := []string{"-P", "1", "-C", "cubic"}
	rows := []struct {
		name  string
		shape overlayShape
		peers []string
		iperf []string
	}{
		{"tcp1", overlayShape{}, four, tcp1},
		{"tcp1-cubic", overlayShape{}, both, cubic1},
		{"tcp1-userspace-tso", overlayShape{}, []string{ovsOverlayTSOPeer}, tcp1},
		{"tcp1-rules", overlayShape{rules: true}, both, tcp1},
		{"tcp1-rules-82599-gro", card, uplinks, tcp1},
		{"tcp1-rules-82599-gro-cubic", card, both, cubic1},
		{"tcp1-rules-82599-nogro", cardNoGRO, uplinks, tcp1},
		{"tcp4", overlayShape{}, three, tcp4},
		{"tcp4-rules-82599-gro", card, both, tcp4},
		{"tcp4-rules-82599-nogro", cardNoGRO, both, tcp4},
		{"udp", overlayShape{}, four, udp},
		{"udp-1G", overlayShape{}, four, []string{"-u", "-b", "1G", "-l", "1400"}},
		{"udp-rules-82599-gro", card, uplinks, udp},
		{"udp-rules-82599-nogro", cardNoGRO, uplinks, udp},
	}
	var list []*experiment
	for _, row := range rows {
		list = append(list, &experiment{name: "overlay/" + row.name, unit: "bit/s", peers: row.peers,
			measure: func(r *run, peer string) float64 {
				o := newOverlay(r, peer, row.shape)
				return o.iperf(row.iperf...)
			}})
	}
	return list
}

// latencyFamily returns experiments that measure round trips over an overlay without other traffic.
// The worker of each host has a core of its own.
func latencyFamily() []*experiment {
	var list []*experiment
	for _, idle := range []string{"spin", "sleep"} {
		for _, size := range []int{64, 1024} {
			shape := overlayShape{spin: idle == "spin", cores: true}
			list = append(list, &experiment{name: fmt.Sprintf("latency/%s-%d", idle, size), unit: "s", smallerIsBetter: true, peers: []string{weftPeer, linuxPeer, ovsXDPPeer, weftXDPPeer, weftOneCorePeer},
				measure: func(r *run, peer string) float64 {
					o := newOverlay(r, peer, shape)
					return o.roundTrips(size)
				}})
		}
	}
	return list
}

// weftXDPPeer and weftPacketPeer are Weft with an uplink port of a fixed type: af_xdp or af_packet.
// weftPeer has type=uplink, which chooses. On a veth it chooses packet sockets, because AF_XDP copies
// each frame there.
const (
	weftXDPPeer    = "weft-afxdp"
	weftPacketPeer = "weft-afpacket"
	// With weftTwoCoresPeer, the worker of each host has a core of its own. With weftOneCorePeer, both
	// workers share a core. With weftPeer, overlayShape.cores decides.
	weftTwoCoresPeer = "weft-2cores"
	weftOneCorePeer  = "weft-1core"
)

// uplinkTypes has the type of the uplink port for each variant of Weft that is compared.
var uplinkTypes = map[string]string{weftPeer: "uplink", weftTwoCoresPeer: "uplink", weftOneCorePeer: "uplink",
	weftXDPPeer: "af_xdp", weftPacketPeer: "af_packet"}

// ovsXDPPeer is Open vSwitch's userspace datapath with AF_XDP ports.
const ovsXDPPeer = "ovs-afxdp"

// ovsOverlayTSOPeer is Open vSwitch's userspace datapath with segmentation offload. The offload works
// only with packet sockets. Open vSwitch 3.1 then forwards pings but no TCP connections.
const ovsOverlayTSOPeer = "ovs-packet-tso"

type overlayRig struct {
	*run
	peer  string
	shape overlayShape
}

func newOverlay(r *run, peer string, shape overlayShape) *overlayRig {
	o := &overlayRig{r, peer, shape}
	o.lay()
	return o
}

func (o *overlayRig) host(i int) string  { return fmt.Sprintf("weftbench-o%sh%d", o.id, i) }
func (o *overlayRig) guest(i int) string { return fmt.Sprintf("weftbench-o%sg%d", o.id, i) }

func overlayEndpoint(i int) string { return fmt.Sprint("172.31.252.", i+1) }
func overlayAddress(i int) string  { return fmt.Sprint("10.0.0.", i+1) }
func overlayMAC(i int) string      { return fmt.Sprint("02:00:00:00:00:0", i+1) }

func (o *overlayRig) underlay(i int) *underlay {
	mac := func(i int) string { return fmt.Sprint("02:00:00:00:fc:0", i+1) }
	return &underlay{netns: o.host(i), dev: "u", mac: mac(i), local: overlayEndpoint(i), remote: overlayEndpoint(1 - i), remoteMAC: mac(1 - i)}
}

func (o *overlayRig) lay() {
	o.namespaces(o.host(0), o.host(1), o.guest(0), o.guest(1))
	a, b := o.underlay(0), o.underlay(1)
	commands := [][]string{a.ip("link", "add", a.dev, "mtu", "1600", "address", a.mac, "type", "veth",
		"peer", "name", b.dev, "mtu", "1600", "address", b.mac, "netns", b.netns)}
	for _, u := range []*underlay{a, b} {
		commands = append(commands, u.ip("addr", "add", u.local+"/24", "dev", u.dev), u.ip("link", "set", u.dev, "up"))
		if o.shape.card {
			gro := "on"
			if o.shape.noGRO {
				gro = "off"
			}
			commands = append(commands, netnsCommand(u.netns, append([]string{"ethtool", "-K", u.dev, "gro", gro}, cardOffloads...)...))
		}
	}
	runCommands(nil, commands)
	for i := range 2 {
		o.layHost(i)
	}
	eventually(5*time.Second, func() {
		runCommands(nil, [][]string{netnsCommand(o.guest(0), "ping", "-n", "-q", "-c", "1", "-W", "1", overlayAddress(1))})
	})
}

func (o *overlayRig) layHost(i int) {
	switch o.peer {
	case weftPeer, weftTwoCoresPeer, weftOneCorePeer, weftXDPPeer, weftPacketPeer:
		o.layWeft(i)
	case linuxPeer:
		o.layLinux(i)
	case ovsXDPPeer, ovsOverlayTSOPeer:
		o.layOVS(i)
	default:
		panic("no overlay is called " + o.peer)
	}
}

func (o *overlayRig) veth(i int) [][]string {
	h, g := o.host(i), o.guest(i)
	return [][]string{
		{"ip", "-n", h, "link", "add", "p", "mtu", "1500", "type", "veth", "peer", "name", "eth0", "mtu", "1500", "address", overlayMAC(i), "netns", g},
		{"ip", "-n", h, "link", "set", "p", "up"},
		{"ip", "-n", g, "addr", "add", overlayAddress(i) + "/24", "dev", "eth0"},
		{"ip", "-n", g, "link", "set", "eth0", "up"},
	}
}

func (o *overlayRig) layLinux(i int) {
	h := o.host(i)
	commands := append(o.veth(i), linuxBridge(h, overlayEndpoint(i), overlayEndpoint(1-i))...)
	commands = append(commands, []string{"ip", "-n", h, "link", "set", "p", "master", "br0"})
	if o.shape.rules {
		commands = append(commands, linuxRules(h)...)
	}
	runCommands(nil, commands)
}

// layWeft starts Weft with one worker on host i. If each worker has a core of its own, it is core i.
func (o *overlayRig) layWeft(i int) {
	var options []string
	if o.shape.spin {
		options = []string{"--spin-us", "1000000"}
	}
	if o.peer == weftTwoCoresPeer || o.shape.cores && o.peer != weftOneCorePeer {
		options = append(options, "--cores", fmt.Sprint(i))
	}
	sw := new(weft)
	sw.launchAs(o.run, o.host(i), fmt.Sprint("weftd", i), options...)
	flows := "actions=normal\n"
	if o.shape.rules {
		flows = trackedFlows
	}
	file := filepath.Join(o.dir, "overlayflows")
	lab.Check(os.WriteFile(file, []byte(flows), 0o644))
	sw.do("add-port up dev=u type="+uplinkTypes[o.peer],
		"add-port vx type=vxlan vni=100 remote="+overlayEndpoint(1-i),
		fmt.Sprintf("add-port guest type=tap dev=eth0 netns=%s mac=%s mtu=1500", o.guest(i), overlayMAC(i)),
		"add-flows "+file)
	runCommands(nil, [][]string{{"ip", "-n", o.guest(i), "addr", "add", overlayAddress(i) + "/24", "dev", "eth0"}})
}

// layOVS starts Open vSwitch on host i, with one poll thread on core i. Its AF_XDP ports have no
// offloads.
func (o *overlayRig) layOVS(i int) {
	tso := o.peer == ovsOverlayTSOPeer
	commands := o.veth(i)
	port := func(dev string) string { return dev }
	if !tso {
		commands = append(commands, netnsCommand(o.guest(i), "ethtool", "-K", "eth0", "tx", "off"))
		port = func(dev string) string { return dev + " -- set Interface " + dev + " type=afxdp" }
	}
	runCommands(nil, commands)
	sw := new(ovs)
	sw.launch(o.run, netnsCommand(o.host(i)), ovsPlain, i, fmt.Sprint("userspace-tso-enable=", tso))
	sw.vsctl(ovsBridge, "add-port br0 "+port("p"))
	u := o.underlay(i)
	sw.tunnel(u, port(u.dev))
}
