// SPDX-License-Identifier: Apache-2.0

// Package central tests weft-central with the built programs, on three centrals and
// four hosts.
package central

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"weft/api"
	"weft/e2e/lab"
)

func TestMain(m *testing.M) { lab.Main(m) }

// settle is the time limit of effects that normally come at once.
const settle = 60 * time.Second

const (
	underlayMTU = 1600
	guestMTU    = 1500
)

var (
	nets  = map[string]int{"blue": 100, "red": 200}
	hosts = []string{"h1", "h2", "h3", "h4"}
)

// site is a fleet with the networks blue and red. Each host has a guest of each
// network: host h2 has b2 in blue and r2 in red.
type site struct {
	*lab.Fleet
	t      *testing.T
	lab    *lab.Lab
	guests map[string]*lab.FleetGuest
	later  string // directory of programs of a later version
}

// emptySite starts a fleet of one central, without hosts.
func emptySite(t *testing.T) *site {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("end-to-end tests need root")
	}
	l := lab.New(t)
	t.Cleanup(l.Close)
	s := &site{Fleet: l.NewFleet(underlayMTU), t: t, lab: l, guests: map[string]*lab.FleetGuest{}}
	s.AddCentral("a")
	return s
}

// newSite starts a fleet and declares its networks and ports. The third central joins
// later.
func newSite(t *testing.T) *site {
	t.Helper()
	s := emptySite(t)
	var list []*lab.FleetGuest
	for i := range hosts {
		list = append(list, s.guest("b", i+1, 0), s.guest("r", i+1, 0))
	}
	s.Weft("apply", s.File(nets, hosts, list))
	if out := s.Weft("apply", s.File(nets, hosts, list)); !strings.Contains(out, "no differences") {
		t.Errorf("the file applied twice:\n%s", out)
	}
	s.AddCentral("b")
	for i, name := range hosts {
		d := s.AddHost(name, []string{"af_xdp", "af_packet"}[i%2])
		s.guests[fmt.Sprint("b", i+1)].Attach(d, guestMTU)
		s.guests[fmt.Sprint("r", i+1)].Attach(d, guestMTU)
	}
	s.AddCentral("c")
	return s
}

// guest adds guest i to network b (blue) or r (red). If the same guest has namespaces
// on several hosts, they differ by instance.
func (s *site) guest(net string, i, instance int) *lab.FleetGuest {
	s.t.Helper()
	name, second := fmt.Sprint(net, i), map[string]int{"b": 0, "r": 1}[net]
	namespace := name
	if instance > 0 {
		namespace = fmt.Sprint(name, "-", instance)
	}
	g := s.Guest(namespace, map[string]string{"b": "blue", "r": "red"}[net],
		fmt.Sprintf("02:00:00:00:%02x:%02x", second, i), fmt.Sprintf("10.0.%d.%d", second, i))
	if instance == 0 {
		s.guests[name] = g
	}
	return g
}

func (s *site) host(i int) *lab.Daemon { return s.Hosts[i-1] }

func (s *site) eventually(name string, fn func() error) {
	s.t.Helper()
	var err error
	for end := time.Now().Add(settle); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if err = fn(); err == nil {
			return
		}
	}
	s.t.Fatalf("%s: after %v: %v", name, settle, err)
}

func (s *site) expects(args string, texts ...string) {
	s.t.Helper()
	s.eventually("weft "+args, func() error {
		out, err := s.Try(strings.Fields(args)...)
		for _, text := range texts {
			if err == nil && !strings.Contains(out, text) {
				err = fmt.Errorf("expected %q:\n%s", text, out)
			}
		}
		return err
	})
}

func (s *site) reach(from, to *lab.FleetGuest) {
	s.t.Helper()
	if err := lab.WaitPing(from, to.IP, settle); err != nil {
		s.t.Errorf("%v", err)
	}
}

// reachAll fails unless all guests of each network reach each other.
func (s *site) reachAll(list ...*lab.FleetGuest) {
	s.t.Helper()
	var running sync.WaitGroup
	for _, from := range list {
		running.Go(func() {
			for _, to := range list {
				if from != to && from.Net == to.Net {
					s.reach(from, to)
				}
			}
		})
	}
	running.Wait()
}

func (s *site) allGuests() (list []*lab.FleetGuest) {
	for _, g := range s.guests {
		list = append(list, g)
	}
	return list
}

func (s *site) silent(from *lab.FleetGuest, to string, args ...string) {
	s.t.Helper()
	if p, err := lab.Ping(from, to, 3, args...); err == nil && p.Received > 0 {
		s.t.Errorf("%s reaches %s %s", from, to, strings.Join(args, " "))
	}
}

func TestFleet(t *testing.T) {
	later := buildLater(t)
	s := newSite(t)
	s.later = later()
	for _, step := range []struct {
		name string
		do   func(s *site)
	}{
		{"declared guests reach each other", (*site).declared},
		{"networks are apart", (*site).apart},
		{"spoofed sources are dropped", (*site).spoofed},
		{"a network floods", (*site).floods},
		{"the leader stops while a port is set", (*site).leaderStops},
		{"the leader dies while a port is added", (*site).leaderDies},
		{"a port moves", (*site).moves},
		{"hosts ask in a large network", (*site).large},
		{"centrals and hosts are upgraded", (*site).upgraded},
		{"all centrals are off", (*site).centralsOff},
		{"a host dies", (*site).hostDies},
		{"what is deleted is gone", (*site).deleted},
	} {
		if !t.Run(step.name, func(t *testing.T) { s.t = t; step.do(s) }) {
			s.logs(t)
			return
		}
	}
}

func (s *site) logs(t *testing.T) {
	for _, c := range s.Centrals {
		t.Logf("%s:\n%s", c.Host, c.Process().Output())
	}
	for _, d := range s.Hosts {
		t.Logf("%s:\n%s", d.Host, d.Control().Output())
		for _, args := range []string{"show", "fdb-show", "dump-flows"} {
			out, errs, _ := d.TryWeft(args)
			t.Logf("%s: weft %s\n%s%s", d.Host, args, out, errs)
		}
	}
	out, err := s.Try("port", "list")
	t.Logf("weft port list: %v\n%s", err, out)
}

func (s *site) declared() {
	s.expects("port why b1", "on h1, generation", "on 4 of 4 hosts", "missing: nothing")
	s.expects("host list", "h1", "h4")
	s.expects("sync --wait=hosts", "4 hosts have applied it")
	s.reachAll(s.allGuests()...)
	for i := range hosts {
		var show api.Show
		s.Hosts[i].WeftJSON(&show, "show")
		if c := show.Central; c == nil || !c.Connected || c.Nets != 2 || c.Addresses != 8 || c.Trouble != "" {
			s.t.Errorf("%s: %+v", hosts[i], c)
		}
	}
}

func (s *site) apart() {
	var running sync.WaitGroup
	for _, from := range s.allGuests() {
		for _, to := range s.allGuests() {
			if from.Net != to.Net {
				running.Go(func() { s.silent(from, to.IP) })
			}
		}
	}
	running.Wait()
}

func (s *site) spoofed() {
	b1 := s.guests["b1"]
	dropped := func() uint64 {
		var ports []api.Port
		s.host(1).WeftJSON(&ports, "dump-ports", "b1")
		return ports[0].Stats.RxDrops["spoofed"]
	}
	before := dropped()
	b1.Address("eth0", "10.0.0.77/16")
	s.silent(b1, s.guests["b2"].IP, "-I", "10.0.0.77")
	if now := dropped(); now <= before {
		s.t.Errorf("another IP address: %d frames dropped, %d before", now, before)
	}
	b1.Run("ip", "address", "del", "10.0.0.77/16", "dev", "eth0")
	before = dropped()
	b1.Run("ip", "link", "set", "eth0", "address", "02:00:00:00:00:77")
	s.silent(b1, s.guests["b2"].IP)
	if now := dropped(); now <= before {
		s.t.Errorf("another MAC address: %d frames dropped, %d before", now, before)
	}
	b1.Run("ip", "link", "set", "eth0", "address", b1.MAC)
	s.reach(b1, s.guests["b2"])
}

// floods sends frames to the broadcast address, and to an address that nobody has. With the option
// flood=on, each other guest of the network gets one copy. With flood=off, no guest gets one.
func (s *site) floods() {
	from := s.guests["b1"].Raw("eth0")
	to := map[string]*lab.Raw{}
	for _, name := range []string{"b2", "b3", "b4", "r1", "r2"} {
		to[name] = s.guests[name].Raw("eth0")
	}
	number := byte(0)
	copies := func(destination string, count int) {
		s.t.Helper()
		number++
		text := fmt.Sprintf("%s020000000001 88b5 %02x", destination, number) + strings.Repeat("00", 45)
		frame, err := hex.DecodeString(strings.ReplaceAll(text, " ", ""))
		if err != nil {
			s.t.Fatal(err)
		}
		if err := from.Send(frame); err != nil {
			s.t.Fatal(err)
		}
		for name, r := range to {
			want, got, limit := count, 0, settle
			if name[0] != 'b' {
				want = 0
			}
			if want == 0 {
				limit = quiet
			}
			for {
				if _, err := r.Match(limit, func(f []byte) bool { return bytes.Equal(f, frame) }); err != nil {
					break
				}
				got++
				limit = quiet
			}
			if got != want {
				s.t.Errorf("%s gets %d copies of a frame to %s, expected %d", name, got, destination, want)
			}
		}
	}
	s.Weft("net", "set", "blue", "flood=on", "--wait=hosts")
	copies("ffffffffffff", 1)
	copies("020000000099", 1)
	s.Weft("net", "set", "blue", "flood=off", "--wait=hosts")
	copies("ffffffffffff", 0)
	copies("020000000099", 0)
}

// quiet is how long a test waits for a frame before it concludes that none comes.
const quiet = 200 * time.Millisecond

// leaderStops stops the etcd leader for a while. A change takes effect meanwhile, and
// no ping is lost.
func (s *site) leaderStops() {
	var leader *lab.Central
	s.eventually("a leader", func() (err error) { leader, _, err = s.Members(); return err })
	steady := s.steady("b1", "b4", 40)
	leader.Process().Signal(syscall.SIGSTOP)
	// weft gets only the addresses of the running centrals, because it would first wait for the stopped
	// one
	var others []string
	for _, c := range s.Centrals {
		if c != leader {
			others = append(others, c.Address)
		}
	}
	try := func(words ...string) {
		if out, err := s.TryAt(strings.Join(others, ","), words...); err != nil {
			s.t.Errorf("while the leader stands: %v\n%s", err, out)
		}
	}
	try("port", "set", "b4", "spoof-check=off")
	try("port", "why", "b4")
	steady()
	leader.Process().Signal(syscall.SIGCONT)
	s.Weft("port", "set", "b4", "spoof-check=on")
	s.expects("sync --wait=hosts", "4 hosts have applied it")
	s.reach(s.guests["b1"], s.guests["b4"])
}

// leaderDies kills the etcd leader while a port is added. No ping is lost.
func (s *site) leaderDies() {
	var leader *lab.Central
	s.eventually("a leader", func() (err error) { leader, _, err = s.Members(); return err })
	steady := s.steady("b1", "b4", 40)
	b5 := s.guest("b", 5, 0)
	added := make(chan error, 1)
	go func() {
		_, err := s.Try("port", "add", "b5", "net=blue", "mac="+b5.MAC, "addresses="+b5.IP)
		added <- err
	}()
	leader.Kill()
	b5.Attach(s.host(2), guestMTU)
	if err := <-added; err != nil {
		s.t.Fatalf("port add: %v", err)
	}
	for _, name := range []string{"b1", "b2", "b3", "b4"} {
		s.reach(s.guests[name], b5)
	}
	steady()
	s.expects("central status", "down")
	leader.Run()
	s.threeCentrals()
	s.expects("sync --wait=hosts", "4 hosts have applied it")
	s.expects("port why b5", "on h2", "missing: nothing")
}

// threeCentrals waits until all centrals are healthy.
func (s *site) threeCentrals() {
	s.t.Helper()
	s.eventually("three centrals", func() error {
		_, sessions, err := s.Members()
		if err == nil && len(sessions) < len(s.Centrals) {
			err = fmt.Errorf("%d centrals are healthy", len(sessions))
		}
		return err
	})
}

func (s *site) steady(from, to string, count int) (wait func()) {
	s.t.Helper()
	p := s.guests[from].StartPings(s.guests[to].IP, count, 0.05)
	return func() {
		s.t.Helper()
		if got, err := p.Wait(settle); err != nil || got.Received != count {
			s.t.Errorf("pings of %s to %s: %+v, %v", from, to, got, err)
		}
	}
}

func (s *site) moves() {
	r1, old := s.guests["r1"], s.guests["r2"]
	s.Weft("port", "set", "r2", "host=h2")
	moved := s.guest("r", 2, 1)
	s.host(3).Weft("add-port", "r2", "type=tap", "dev=eth0", "netns="+moved.NS, "mac="+moved.MAC, fmt.Sprint("mtu=", guestMTU))
	s.expects("port why r2", "on h2, generation")
	s.Weft("port", "set", "r2", "host=h2", "move-to=h3", "--wait=hosts")
	s.reach(r1, old)
	s.expects("port why r2", "on h2, generation")
	moved.Address("eth0", moved.IP+"/16")
	s.reach(moved, r1)
	s.expects("port why r2", "on h3, generation", "host=h3", "missing: nothing")
	if out := s.Weft("port", "why", "r2"); strings.Contains(out, "move-to") {
		s.t.Errorf("after the move:\n%s", out)
	}
	s.host(2).Weft("del-port", "r2")
	s.guests["r2"] = moved
	moved.At = s.host(3)
	for _, name := range []string{"r1", "r3", "r4"} {
		s.reach(s.guests[name], moved)
		s.reach(moved, s.guests[name])
	}
}

// large declares a network that is so large that hosts must ask for addresses.
func (s *site) large() {
	const ports = 1005 // more than the hub pushes
	var b strings.Builder
	b.WriteString("[[net]]\nname = \"green\"\nvni = 300\n")
	for i := 1; i <= ports; i++ {
		fmt.Fprintf(&b, "[[port]]\nname = \"g%d\"\nnet = \"green\"\nmac = \"02:00:00:02:%02x:%02x\"\naddresses = [\"10.2.%d.%d\", \"fd00::%x\"]\n",
			i, i/256, i%256, i/256, i%256, i)
	}
	file := filepath.Join(s.lab.Dir, "large.toml")
	if err := os.WriteFile(file, []byte(b.String()), 0o600); err != nil {
		s.t.Fatal(err)
	}
	s.Weft("apply", "--wait=hosts", file)
	for i, host := range []int{1, 4} {
		g := s.Guest(fmt.Sprint("g", i+1), "green", fmt.Sprintf("02:00:00:02:00:%02x", i+1), fmt.Sprint("10.2.0.", i+1))
		g.EnableIPv6()
		g.Attach(s.host(host), guestMTU)
		g.Address("eth0", fmt.Sprintf("fd00::%x/64", i+1))
		s.guests[g.Name] = g
	}
	g1, g2 := s.guests["g1"], s.guests["g2"]
	s.reach(g1, g2)
	for _, from := range []*lab.FleetGuest{g1, g2} {
		if err := lab.WaitPing(from, map[*lab.FleetGuest]string{g1: "fd00::2", g2: "fd00::1"}[from], settle); err != nil {
			s.t.Error(err)
		}
	}
	s.silent(g1, "10.2.3.1") // declared, and on no host
	s.silent(g1, "10.2.7.7")
	var show api.Show
	s.host(1).WeftJSON(&show, "show")
	if c := show.Central; c.Asked == 0 || c.Addresses > ports/2 {
		s.t.Errorf("h1 asked %d times and has %d addresses", c.Asked, c.Addresses)
	}
}

// centralsOff ends all centrals. Guests still reach each other, even after a restart of
// weftd.
func (s *site) centralsOff() {
	s.Weft("port", "add", "b6", "net=blue", "mac=02:00:00:00:00:06", "addresses=10.0.0.6", "--wait=hosts")
	steady := s.steady("r1", "r4", 60)
	s.Centrals[0].Kill()
	s.Centrals[1].Kill()
	s.Centrals[2].Stop()
	if out, err := s.Try("net", "list"); err == nil {
		s.t.Errorf("without a central:\n%s", out)
	}
	steady()
	s.eventually("the hosts notice", func() error {
		for i, d := range s.Hosts {
			var show api.Show
			if d.WeftJSON(&show, "show"); show.Central.Connected {
				return errors.New(hosts[i] + " is connected")
			}
		}
		return nil
	})
	s.reachAll(s.allGuests()...)

	killed := s.steady("b1", "b3", 60)
	s.host(1).Control().Kill()
	time.Sleep(300 * time.Millisecond)
	s.host(1).Start()
	killed()
	s.reachAll(s.allGuests()...)

	s.host(3).Stop()
	s.host(3).Start()
	s.readdress(s.host(3))
	s.reachAll(s.allGuests()...)

	s.host(1).Control().Kill()
	s.host(1).KillEngine()
	s.host(1).Start()
	s.readdress(s.host(1))
	s.reachAll(s.allGuests()...)

	s.host(4).KillEngine()
	s.reachAll(s.allGuests()...)

	// a guest's port gets another name meanwhile; a new port is bound once a central
	// runs again
	b2, b6 := s.guests["b2"], s.guest("b", 6, 0)
	s.host(2).Weft("del-port", "b2")
	s.host(2).Weft("add-port", "vnet7", "type=tap", "dev=eth0", "netns="+b2.NS, "mac="+b2.MAC, fmt.Sprint("mtu=", guestMTU), "id=b2")
	b2.Address("eth0", b2.IP+"/16")
	b6.Attach(s.host(4), guestMTU)
	s.reach(b2, s.guests["b1"])
	s.reach(s.guests["b4"], b2)

	for _, c := range s.Centrals {
		c.Run()
	}
	s.expects("sync --wait=hosts", "4 hosts have applied it")
	s.expects("port why b1", "on h1, generation", "missing: nothing")
	s.reachAll(s.allGuests()...)
}

// hostDies kills host h4. Its ports stay bound to it until they are declared
// elsewhere.
func (s *site) hostDies() {
	r1, old := s.guests["r1"], s.guests["r4"]
	s.host(4).Control().Kill()
	s.host(4).KillEngine()
	s.expects("port why r4", "on h4", "not connected", "missing: host h4")
	s.Weft("port", "set", "r4", "host=h2")
	again := s.guest("r", 4, 1)
	s.host(2).Weft("add-port", "r4", "type=tap", "dev=eth0", "netns="+again.NS, "mac="+again.MAC, fmt.Sprint("mtu=", guestMTU))
	again.Address("eth0", again.IP+"/16")
	again.At = s.host(2)
	s.guests["r4"] = again
	s.reach(r1, again)
	s.reach(again, r1)

	s.host(4).Start()
	s.readdress(s.host(4))
	s.expects("sync --wait=hosts", "4 hosts have applied it")
	s.expects("port why r4", "on h2, generation", "missing: nothing")
	s.eventually("the old tap", func() error { _, err := old.Try("ip", "link", "show", "eth0"); return err })
	old.Address("eth0", old.IP+"/16")
	s.silent(old, r1.IP)
	s.reachAll(s.allGuests()...)
}

func (s *site) readdress(d *lab.Daemon) {
	s.t.Helper()
	for _, g := range s.guests {
		if g.At == d {
			s.eventually("the tap", func() error { _, err := g.Try("ip", "link", "show", "eth0"); return err })
			g.Address("eth0", g.IP+"/16")
		}
	}
}

func (s *site) deleted() {
	b1, b4 := s.guests["b1"], s.guests["b4"]
	s.host(4).Weft("del-port", "b4")
	s.expects("port why b4", "bound: nowhere", "missing: no host has the port")
	s.silent(b1, b4.IP)
	s.Weft("port", "del", "b4", "--wait=hosts")
	s.Weft("port", "del", "b3", "--wait=hosts")
	for i, d := range s.Hosts {
		if out := d.Weft("fdb-show"); strings.Contains(out, b4.MAC) || strings.Contains(out, s.guests["b3"].MAC) {
			s.t.Errorf("%s has a deleted port:\n%s", hosts[i], out)
		}
	}
	s.silent(b1, s.guests["b3"].IP)
	s.silent(s.guests["b3"], b1.IP)
	s.reach(b1, s.guests["b2"])

	s.Weft("apply", "--prune", "--wait=hosts", s.File(nil, hosts, nil))
	s.silent(b1, s.guests["b2"].IP)
	for i, d := range s.Hosts {
		var show api.Show
		d.WeftJSON(&show, "show")
		if c := show.Central; c.Nets != 0 || c.Addresses != 0 {
			s.t.Errorf("%s: %+v", hosts[i], c)
		}
		if out := d.Weft("fdb-show"); strings.Contains(out, "declared") {
			s.t.Errorf("%s has declared addresses:\n%s", hosts[i], out)
		}
	}
}
