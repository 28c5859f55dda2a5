// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"weft/api"
	"weft/e2e/lab"
	"weft/internal/cpu"
	"weft/vhost"
	"weft/vhost/vhosttest"
)

// Addresses and VNIs of the switch, of its underlay and of its overlay.
const (
	hostIP     = "172.16.0.1"
	peerIP     = "172.16.0.2"
	overlayVNI = 100
	memberVNI  = 7 // VNI of bystander b; bystander a is in no VNI
)

const (
	patience = 30 * time.Second
	// abandonedLimit is the time after which a request that its client has abandoned has no effect any
	// more. It is the limit in control/access/patience.go.
	abandonedLimit = 5 * time.Second
)

// site is a running switch with an uplink to an underlay peer, and two guests, the bystanders, that
// exchange frames through the switch and check them.
//
//	bystanders a, b ── weftd ── u0 ══veth══ u0 peer
//	attackers ──────────┘
type site struct {
	lab    *lab.Lab
	host   *lab.Host
	peer   *lab.Host
	daemon *lab.Daemon
	client *api.Client
	load   *vhosttest.Load
	stream *stream
	fronts []*vhosttest.FrontEnd
	// uplink is the type of the switch's uplink port.
	uplink string
	certs  string       // directory of certificates of the OpenFlow listener
	named  atomic.Int64 // number of attacks so far, which makes the names of their ports unique
}

type siteConfig struct {
	workers int
	uplink  string // type of the uplink port: "af_xdp" or "af_packet"
	// strict adds flows that output the frames of the two guests that do not attack. The action normal
	// would need learned MAC addresses, which are lost when the control process is killed.
	strict bool
	packed bool // the bystanders have packed rings
	// busy makes the two guests that do not attack send without rest, on another core than the
	// worker's.
	busy bool
	// paced makes the two guests that do not attack ask for the same number of frames in each round of
	// the loop that moves their frames.
	paced bool
	// greedy makes the two guests that do not attack ask for as many frames as they can, without rest.
	greedy bool
}

// pace returns the configuration of the loop that moves the frames of the two guests that do not
// attack.
func (c siteConfig) pace() streamConfig {
	if !c.busy && !c.greedy {
		return streamConfig{core: -1, rounds: pacedRounds, rest: 100 * time.Microsecond, paced: c.paced}
	}
	core := -1
	if cores, err := cpu.Allowed(); err == nil && len(cores) > 1 {
		core = cores[0] // weftd's first worker runs on the last core
	}
	return streamConfig{core: core, rounds: 64}
}

func newSite(l *lab.Lab, c siteConfig) *site {
	s := &site{lab: l, host: l.Host("host"), peer: l.Host("peer"), uplink: c.uplink}
	l.Wire(s.host, "u0", s.peer, "u0", 1600)
	s.host.Address("u0", hostIP+"/24")
	s.peer.Address("u0", peerIP+"/24")
	s.peer.NoOffloads("u0")
	s.certs = l.Certificates()
	s.daemon = s.host.Weftd("--workers", fmt.Sprint(c.workers), "--metrics", hostIP+":9100",
		"--openflow-listen", fmt.Sprint("pssl:", openflowTLSPort, ":", hostIP), "--openflow-certs", s.certs)
	s.weft("add-port", "uplink", "type="+c.uplink, "dev=u0")
	s.weft("add-port", "overlay", "type=vxlan", fmt.Sprint("vni=", overlayVNI), "remote="+peerIP)
	var err error
	if s.client, err = api.NewClient(s.daemon.Socket); err != nil {
		l.T.Fatalf("%v", err)
	}
	s.addBystanders(c)
	return s
}

func (s *site) weft(args ...string) { s.daemon.Weft(args...) }

func (s *site) addBystanders(c siteConfig) {
	features := uint64(vhost.FeatureVersion1 | vhost.FeatureMergeable)
	if c.packed {
		features |= vhost.FeatureRingPacked
	}
	var err error
	load := vhosttest.LoadConfig{Check: true, Repeats: true, Addresses: true, Flows: 16, InFlight: 32, FrameSize: 256, Core: -1, Features: features}
	switch {
	case c.paced:
		load.InFlight, load.MostAStep = pacedInFlight, pacedFrames
	case c.greedy:
		load.InFlight = greedyInFlight
	}
	s.load, err = vhosttest.NewLoad(load)
	if err != nil {
		s.lab.T.Fatalf("%v", err)
	}
	for i, name := range []string{"a", "b"} {
		options := []string{"add-port", name, "type=vhost-user", "path=" + s.socket(name)}
		if i == 1 {
			options = append(options, fmt.Sprint("vni=", memberVNI))
			mac := vhosttest.LoadMAC(i)
			declared := append(options, "mac="+net.HardwareAddr(mac[:]).String())
			if _, _, code := s.daemon.TryWeft(declared...); code == 0 { // an older weft without the option mac= refuses it
				continue
			}
		}
		s.weft(options...)
	}
	s.weft("add-port", newcomerPort, "type=vhost-user", "path="+s.socket(newcomerPort))
	s.weft("add-flow", "priority=100,in_port="+newcomerPort+",actions=in_port")
	if c.strict {
		s.weft("add-flow", "priority=100,in_port=a,actions=output:b")
		s.weft("add-flow", "priority=100,in_port=b,actions=output:a")
	} else {
		s.weft("add-flow", "priority=100,in_port=a,actions=normal")
		s.weft("add-flow", "priority=100,in_port=b,actions=normal")
	}
	if err := s.attachBystanders((*vhosttest.FrontEnd).Attach); err != nil {
		s.lab.T.Fatalf("bystanders: %v", err)
	}
	s.stream = startStream(s.load, c.pace())
	if err := s.circulates(); err != nil {
		s.lab.T.Fatalf("%v\n%s", err, s.log())
	}
	// the switch learns MAC addresses and starts a spare engine meanwhile
	time.Sleep(300 * time.Millisecond)
}

func (s *site) attachBystanders(attach func(*vhosttest.FrontEnd, *vhosttest.Guest) error) error {
	for _, f := range s.fronts {
		f.Close()
	}
	s.fronts = nil
	for i, name := range []string{"a", "b"} {
		f, err := s.dial(name)
		if err != nil {
			return err
		}
		s.fronts = append(s.fronts, f)
		if err := attach(f, s.load.Guests[i]); err != nil {
			return err
		}
	}
	return nil
}

// dial connects to the vhost-user socket of a port. It tries again for a while, as QEMU does with
// reconnect=1.
func (s *site) dial(name string) (f *vhosttest.FrontEnd, err error) {
	for end := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		if f, err = vhosttest.Dial(s.socket(name)); err == nil || time.Now().After(end) {
			return f, err
		}
	}
}

func (s *site) circulates() error {
	for from, end := s.stream.totals().Received, time.Now().Add(patience); s.stream.totals().Received < from+500; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			s.report()
			return fmt.Errorf("the bystanders' frames do not circulate any more, for %v; %s", patience, s.bystanders())
		}
	}
	return nil
}

// bystanders describes in one line the states of the ports of the two guests that do not attack.
func (s *site) bystanders() string {
	show, err := s.client.Show()
	if err != nil {
		return fmt.Sprintf("show: %v", err)
	}
	var ports []string
	for _, p := range show.Ports {
		if p.Name == "a" || p.Name == "b" {
			ports = append(ports, fmt.Sprintf("%s is %s: %s", p.Name, p.State, p.Detail))
		}
	}
	return strings.Join(ports, "; ")
}

// report prints the state of the switch and of the guests after a hang, if the option -v is set.
func (s *site) report() {
	if !*verbose {
		return
	}
	for _, words := range [][]string{{"show"}, {"dump-ports"}, {"dump-flows"}, {"show", "limits"}} {
		stdout, stderr, _ := s.daemon.TryWeft(words...)
		fmt.Fprintf(os.Stderr, "weft %s:\n%s%s", strings.Join(words, " "), stdout, stderr)
	}
	for i, g := range s.load.Guests {
		fmt.Fprintf(os.Stderr, "guest %d: receive ring used %d, transmit ring used %d, %d transmit buffers free\n",
			i, g.Rx[0].UsedIndex(), g.Tx[0].UsedIndex(), g.Tx[0].Free())
	}
	fmt.Fprintf(os.Stderr, "totals: %+v\n%s\n", s.stream.totals(), s.daemon.Control().Output())
}

func (s *site) log() string {
	text := s.daemon.Control().Output()
	return text[max(0, len(text)-4000):]
}

func (s *site) socket(name string) string { return filepath.Join(s.lab.Dir, name+".sock") }

func (s *site) close() {
	s.stream.end()
	for _, f := range s.fronts {
		f.Close()
	}
	s.load.Close()
}

// dropped returns the drops at the ports of the guests that do not attack, by reason. The reason
// tx-full counts all frames for which such a guest's receive ring had no room, including frames of an
// attacker.
func dropped(show *api.Show) map[string]uint64 {
	drops := map[string]uint64{}
	for _, p := range show.Ports {
		if p.Name == "a" || p.Name == "b" {
			for reason, n := range p.Stats.RxDrops {
				drops[reason] += n
			}
			for reason, n := range p.Stats.TxDropReasons {
				drops[reason] += n
			}
		}
	}
	return drops
}

func portState(show *api.Show, name string) string {
	for _, p := range show.Ports {
		if p.Name == name {
			return p.State
		}
	}
	return ""
}

// foreign reports whether a frame belongs to the traffic between the two guests that do not attack. No
// other port may receive such a frame.
func foreign(frame []byte) bool {
	if len(frame) < 12 {
		return false
	}
	a, b := vhosttest.LoadMAC(0), vhosttest.LoadMAC(1)
	is := func(mac []byte) bool { return string(mac) == string(a[:]) || string(mac) == string(b[:]) }
	return is(frame[:6]) && is(frame[6:12])
}

const plainFeatures = vhost.FeatureVersion1 | vhost.FeatureMergeable | vhost.FeatureIndirect

func hugeFree() int {
	text, _ := os.ReadFile("/proc/meminfo")
	_, rest, _ := strings.Cut(string(text), "HugePages_Free:")
	n := 0
	_, _ = fmt.Sscan(rest, &n)
	return n
}
