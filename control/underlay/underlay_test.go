// SPDX-License-Identifier: Apache-2.0

package underlay

import (
	"context"
	"encoding/binary"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"github.com/vishvananda/netlink"

	"weft/datapath"
	"weft/internal/testnet"
	"weft/internal/waitfor"
	"weft/packet"
	"weft/tunnel"
)

// tunnelLab has two hosts on one link. u is the Kernel of the first host.
//
//	host u0 10.1.0.1/24, fd00:1::1/64 ---- peer p0 10.1.0.2/24, fd00:1::2/64
//	                                       peer also routes 10.2.0.0/16
type tunnelLab struct {
	t          testing.TB
	host, peer *testnet.Namespace
	u          *Kernel
	peerMAC    [6]byte
	hostMAC    [6]byte
}

func newTunnelLab(t testing.TB) *tunnelLab {
	t.Helper()
	l := &tunnelLab{t: t, host: testnet.New(t), peer: testnet.New(t)}
	testnet.Join(l.host, "u0", l.peer, "p0")
	l.hostMAC, l.peerMAC = [6]byte{2, 0, 0, 0, 0, 1}, [6]byte{2, 0, 0, 0, 0, 2}
	l.host.Exec("ip", "link", "set", "u0", "address", "02:00:00:00:00:01")
	l.peer.Exec("ip", "link", "set", "p0", "address", "02:00:00:00:00:02")
	for _, a := range [][]string{{"10.1.0.1/24"}, {"fd00:1::1/64", "nodad"}, {"fe80::1/64", "nodad"}} {
		l.host.Exec(append([]string{"ip", "addr", "add", a[0], "dev", "u0"}, a[1:]...)...)
	}
	for _, a := range [][]string{{"10.1.0.2/24"}, {"fd00:1::2/64", "nodad"}, {"fe80::2/64", "nodad"}} {
		l.peer.Exec(append([]string{"ip", "addr", "add", a[0], "dev", "p0"}, a[1:]...)...)
	}
	l.host.Do(func() {
		var err error
		if l.u, err = Open(slog.New(slog.DiscardHandler)); err != nil {
			t.Fatal(err)
		}
	})
	t.Cleanup(l.u.Close)
	return l
}

func (l *tunnelLab) resolve(local, remote string) hop {
	l.t.Helper()
	from := netip.Addr{}
	if local != "" {
		from = netip.MustParseAddr(local)
	}
	return l.u.resolve(from, netip.MustParseAddr(remote), "")
}

// A probe resolves an unknown neighbour, with or without link-local addresses.
func TestNeighbourIsAskedFor(t *testing.T) {
	t.Run("link-local", func(t *testing.T) { testNeighbourIsAskedFor(t, newTunnelLab(t)) })
	t.Run("none", func(t *testing.T) {
		l := newTunnelLab(t)
		l.host.Exec("ip", "addr", "del", "fe80::1/64", "dev", "u0")
		waitfor.True(t, "the address is gone", func() bool { return !l.u.hasLinkLocal(l.resolve("", "10.1.0.2").index) })
		testNeighbourIsAskedFor(t, l)
	})
}

func testNeighbourIsAskedFor(t *testing.T, l *tunnelLab) {
	t.Helper()
	for _, c := range []struct{ remote, local string }{{"10.1.0.2", "10.1.0.1"}, {"fd00:1::2", "fd00:1::1"}} {
		h := l.resolve("", c.remote)
		if h.state != hopPending {
			t.Fatalf("%s before a probe: %+v", c.remote, h)
		}
		if err := l.u.probe(&h); err != nil {
			t.Fatal(err)
		}
		waitfor.True(t, c.remote+" is resolved", func() bool { return l.resolve("", c.remote).state == hopReady })
		h = l.resolve("", c.remote)
		if h.dstMAC != l.peerMAC || h.srcMAC != l.hostMAC || h.local.String() != c.local || h.device != "u0" || h.mtu != 1500 {
			t.Errorf("%s: %+v", c.remote, h)
		}
	}
}

func TestRoutesAreFollowed(t *testing.T) {
	l := newTunnelLab(t)
	if h := l.resolve("", "10.2.3.4"); h.state != hopNoRoute || !strings.Contains(h.reason, "10.2.3.4") {
		t.Errorf("without a route: %+v", h)
	}
	l.host.Exec("ip", "neigh", "replace", "10.1.0.2", "lladdr", "02:00:00:00:00:02", "dev", "u0", "nud", "permanent")
	l.host.Exec("ip", "route", "add", "10.2.0.0/16", "via", "10.1.0.2", "mtu", "1400")
	waitfor.True(t, "the gateway is the next hop", func() bool {
		h := l.resolve("", "10.2.3.4")
		return h.state == hopReady && h.next.String() == "10.1.0.2" && h.dstMAC == l.peerMAC && h.mtu == 1400
	})
	l.host.Exec("ip", "addr", "add", "10.1.0.9/24", "dev", "u0")
	if h := l.resolve("10.1.0.9", "10.2.3.4"); h.local.String() != "10.1.0.9" {
		t.Errorf("from a given local address: %+v", h)
	}
	if h := l.resolve("", "10.1.0.1"); h.state != hopNoRoute || !strings.Contains(h.reason, "this host") {
		t.Errorf("to the host itself: %+v", h)
	}
	waitfor.True(t, "the new address of the device is used", func() bool {
		found := 0
		for _, a := range l.u.AddressesOf("u0") {
			if a.String() == "10.1.0.9" || a.String() == "10.1.0.1" {
				found++
			}
		}
		return found == 2
	})
	l.host.Exec("ip", "link", "set", "u0", "mtu", "9000")
	waitfor.True(t, "the link's MTU is followed", func() bool { return l.resolve("", "10.1.0.2").mtu == 9000 })
	l.host.Exec("ip", "link", "set", "u0", "down")
	waitfor.True(t, "a link that is down has no route", func() bool { return l.resolve("", "10.1.0.2").state == hopNoRoute })
}

// Links returns the MAC address and the driver's settings of each device as they are after the
// device's last event.
func TestLinksAreFollowed(t *testing.T) {
	l := newTunnelLab(t)
	want := Link{MAC: l.hostMAC, Mbps: 10_000, Duplex: DuplexFull, Copper: true} // of every veth
	if got := l.u.Links()["u0"]; got != want {
		t.Errorf("veth: %+v, want %+v", got, want)
	}
	l.host.Exec("ip", "tuntap", "add", "t0", "mode", "tap")
	for _, duplex := range []string{"full", "half"} {
		l.host.Exec("ip", "link", "set", "t0", "down")
		l.host.Exec("ethtool", "-s", "t0", "speed", "50000", "duplex", duplex)
		l.host.Exec("ip", "link", "set", "t0", "up")
		waitfor.True(t, "the tap has 50 Gbit/s, "+duplex, func() bool {
			got := l.u.Links()["t0"]
			return got.Mbps == 50_000 && (got.Duplex == DuplexHalf) == (duplex == "half") && got.Duplex != DuplexUnknown
		})
	}
	l.host.Exec("ip", "link", "del", "t0")
	waitfor.True(t, "the tap is gone", func() bool { _, there := l.u.Links()["t0"]; return !there })
	select {
	case <-l.u.Linked:
	default:
		t.Error("no message about changed links")
	}
}

// A link gets an address even if the event of the address arrives before the event of
// the link.
func TestAddressBeforeItsLink(t *testing.T) {
	u := &Kernel{links: map[int]link{}, addresses: map[int][]netip.Addr{}}
	address := net.IPv4(10, 1, 0, 1)
	u.setAddress(7, address, true)
	u.setLink(&netlink.LinkAttrs{Index: 7, Name: "u0"}, Link{})
	if got := u.AddressesOf("u0"); len(got) != 1 || got[0].String() != "10.1.0.1" {
		t.Errorf("addresses %v", got)
	}
	u.setAddress(7, address, false)
	if got := u.AddressesOf("u0"); len(got)+len(u.addresses) != 0 {
		t.Errorf("addresses %v of %v after the last address was removed", got, u.addresses)
	}
}

// A refresh that releases its lock after each chunk reaches all templates.
func TestRefreshInParts(t *testing.T) {
	l, ts := newTunnelLab(t), newSent(t)
	tab := NewTemplates(l.u, slog.New(slog.DiscardHandler))
	records := make([]Record, MaxTemplates)
	const n = 2*refreshChunk + 1
	for i := range n {
		records[i] = Record{Port: 1, UDPPort: 4789, Remote: netip.AddrFrom4([4]byte{10, 9, byte(i >> 8), byte(i)}).As16()}
	}
	tab.Restore(ts, records)
	asked := func() (n int) {
		for _, e := range tab.byIndex {
			if e.hop.reason != "" { // there is no route to any
				n++
			}
		}
		return n
	}
	if more := tab.refreshSome(refreshChunk, true); !more || asked() != refreshChunk {
		t.Errorf("%d templates refreshed, more left: %v", asked(), more)
	}
	if tab.refresh(true); asked() != n {
		t.Errorf("%d of %d templates refreshed", asked(), n)
	}
}

// sent stands for the workers' command rings and records the commands.
type sent struct {
	t        testing.TB
	mu       sync.Mutex
	last     map[uint32]tunnel.Template
	verdicts map[uint32]string
}

func newSent(t testing.TB) *sent {
	return &sent{t: t, last: map[uint32]tunnel.Template{}, verdicts: map[uint32]string{}}
}

func (s *sent) Shared() []*datapath.Shared { return nil }
func (s *sent) Broadcast(msg []byte)       { s.Push(0, msg) }

func (s *sent) Push(worker int, msg []byte) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	op, arg := datapath.CommandOp(binary.LittleEndian.Uint32(msg)), binary.LittleEndian.Uint32(msg[4:])
	switch op {
	case datapath.CmdTemplate:
		var tmpl tunnel.Template
		if !tmpl.Parse(msg[8:]) {
			s.t.Errorf("template %d: %x", arg, msg[8:])
		}
		s.last[arg] = tmpl
	case datapath.CmdRetry:
		s.verdicts[arg] = "retry"
	case datapath.CmdDropHeld:
		s.verdicts[arg] = packet.DropReason(binary.LittleEndian.Uint32(msg[8:])).String()
	default:
		s.t.Errorf("command %d", op)
	}
	return true
}

func (s *sent) template(index uint32) tunnel.Template {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last[index]
}

func (s *sent) verdict(held uint32) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.verdicts[held]
}

func follow(t *testing.T, tu *Templates) {
	ctx, stop := context.WithCancel(context.Background())
	stopped := make(chan struct{})
	t.Cleanup(func() { stop(); <-stopped })
	go func() {
		defer close(stopped)
		tu.Follow(ctx)
	}()
}

func TestTemplatesFollowTheKernel(t *testing.T) {
	l := newTunnelLab(t)
	ts := newSent(t)
	tu := NewTemplates(l.u, slog.New(slog.DiscardHandler))
	tu.Replay(ts, make([]Record, MaxTemplates))
	follow(t, tu)
	state := func(index, want uint32) func() bool {
		return func() bool {
			return ts.template(index).State == want
		}
	}
	key := Tunnel{Port: 3, Remote: netip.MustParseAddr("10.1.0.2")}
	good, reason := tu.Template(key, 4789)
	if reason != packet.DropNone {
		t.Fatal(reason)
	}
	waitfor.True(t, "no uplink, no route", state(good, tunnel.TemplateNoRoute))
	tu.SetPorts(map[string]uint32{"u0": 7}, nil)
	waitfor.True(t, "the peer is resolved", state(good, tunnel.TemplateReady))
	tmpl := ts.template(good)
	if got := tmpl.Header[:12]; string(got) != string(append(l.peerMAC[:], l.hostMAC[:]...)) || tmpl.Port != 7 || tmpl.MTU != 1514 {
		t.Errorf("template: %+v", tmpl)
	}
	if again, _ := tu.Template(key, 4789); again != good {
		t.Errorf("the same tunnel has templates %d and %d", good, again)
	}

	// The template follows the peer's MAC address.
	l.peer.Exec("ip", "link", "set", "p0", "address", "02:00:00:00:00:99")
	l.host.Exec("ip", "neigh", "replace", "10.1.0.2", "lladdr", "02:00:00:00:00:99", "dev", "u0", "nud", "reachable")
	waitfor.True(t, "the new address", func() bool { return ts.template(good).Header[5] == 0x99 })

	// A frame to 10.1.0.77, which no host has, waits and is dropped as no-neighbour.
	silent, _ := tu.Template(Tunnel{Port: 3, Remote: netip.MustParseAddr("10.1.0.77")}, 4789)
	waitfor.True(t, "pending", state(silent, tunnel.TemplatePending))
	tu.Wait(silent, HeldFrame{0, 41})
	waitfor.True(t, "the neighbour has failed", state(silent, tunnel.TemplateNoNeighbour))
	waitfor.True(t, "a verdict", func() bool { return ts.verdict(41) != "" })
	if ts.verdict(41) != "no-neighbour" {
		t.Errorf("verdict for the waiting frame: %s", ts.verdict(41))
	}
	// The template becomes ready once a host has 10.1.0.77.
	l.peer.Exec("ip", "addr", "add", "10.1.0.77/24", "dev", "p0")
	waitfor.True(t, "found", state(silent, tunnel.TemplateReady))

	// When the neighbour 10.1.0.78 answers, the waiting frame is processed again.
	late, _ := tu.Template(Tunnel{Port: 3, Remote: netip.MustParseAddr("10.1.0.78")}, 4789)
	tu.Wait(late, HeldFrame{0, 42})
	l.peer.Exec("ip", "addr", "add", "10.1.0.78/24", "dev", "p0")
	waitfor.True(t, "a verdict", func() bool { return ts.verdict(42) != "" })
	if ts.verdict(42) != "retry" {
		t.Errorf("verdict for the waiting frame: %s", ts.verdict(42))
	}

	tu.DropPort(3)
	waitfor.True(t, "freed", state(good, tunnel.TemplateFree))
}

func TestTemplateRefusals(t *testing.T) {
	l := newTunnelLab(t)
	ts := newSent(t)
	tu := NewTemplates(l.u, slog.New(slog.DiscardHandler))
	records := make([]Record, MaxTemplates)
	tu.Replay(ts, records)
	for _, key := range []Tunnel{
		{Port: 1},
		{Port: 1, Remote: netip.MustParseAddr("0.0.0.0")},
		{Port: 1, Remote: netip.MustParseAddr("224.0.0.1")},
		{Port: 1, Remote: netip.MustParseAddr("10.0.0.1"), Local: netip.MustParseAddr("fd00::1")},
	} {
		if _, reason := tu.Template(key, 4789); reason != packet.DropNoRoute {
			t.Errorf("%+v: %v", key, reason)
		}
	}
	// A restored table has the same indexes.
	a := Tunnel{Port: 1, Remote: netip.MustParseAddr("10.0.0.1")}
	b := Tunnel{Port: 2, Remote: netip.MustParseAddr("fd00::1"), Local: netip.MustParseAddr("fd00::2")}
	first, _ := tu.Template(a, 4789)
	second, _ := tu.Template(b, 4790)
	next := NewTemplates(l.u, slog.New(slog.DiscardHandler))
	next.Restore(ts, records)
	gotB, _ := next.Template(b, 4790)
	gotA, _ := next.Template(a, 4789)
	if gotA != first || gotB != second {
		t.Errorf("restored indexes of %d and %d are %d and %d", first, second, gotA, gotB)
	}
}

// A multipath route has a template for each next hop that answers, and one template
// that spreads connections over them by weight. The template's shares follow changes of
// the route.
func TestWaysOfARoute(t *testing.T) {
	l := newTunnelLab(t)
	for _, peer := range []string{"10.1.0.2", "10.1.0.3", "10.1.0.4"} {
		l.host.Exec("ip", "neigh", "replace", peer, "lladdr", "02:00:00:00:00:0"+peer[len(peer)-1:], "dev", "u0", "nud", "permanent")
	}
	ts := newSent(t)
	tab := NewTemplates(l.u, slog.New(slog.DiscardHandler))
	tab.Replay(ts, make([]Record, MaxTemplates))
	tab.SetPorts(map[string]uint32{"u0": 9}, map[uint32]Encap{1: {}})
	route := func(hops ...string) {
		t.Helper()
		args := []string{"ip", "route", "replace", "10.2.0.0/16"}
		for _, h := range hops {
			via, weight, _ := strings.Cut(h, "*")
			args = append(args, "nexthop", "via", via, "weight", weight)
		}
		before := l.u.routeEvents.Load()
		l.host.Exec(args...)
		waitfor.True(t, "the event of the route change arrives", func() bool { return l.u.routeEvents.Load() != before })
		tab.refresh(true)
	}
	route("10.1.0.2*1")
	index, reason := tab.Template(Tunnel{Port: 1, Remote: netip.MustParseAddr("10.2.0.7")}, 4789)
	if reason != packet.DropNone {
		t.Fatal(reason)
	}
	shares := func() map[byte]int {
		count := map[byte]int{}
		s := ts.template(index)
		if s.State != tunnel.TemplateSpread {
			t.Fatalf("template %+v", s)
		}
		for share := range uint32(tunnel.NextHops) {
			way := ts.template(s.NextHop(share << 28))
			if way.State != tunnel.TemplateReady || way.Port != 9 {
				t.Fatalf("member template %+v", way)
			}
			count[way.Header[5]]++
		}
		return count
	}
	for _, c := range []struct {
		hops []string
		want map[byte]int
	}{
		{[]string{"10.1.0.2*1", "10.1.0.3*3"}, map[byte]int{2: 4, 3: 12}},
		{[]string{"10.1.0.2*1", "10.1.0.3*1", "10.1.0.99*1"}, map[byte]int{2: 8, 3: 8}}, // .99 does not answer
		{[]string{"10.1.0.2*1", "10.1.0.3*2", "10.1.0.4*1"}, map[byte]int{2: 4, 3: 8, 4: 4}},
	} {
		route(c.hops...)
		if got := shares(); !maps.Equal(got, c.want) {
			t.Errorf("%v: shares %v, want %v", c.hops, got, c.want)
		}
	}
	l.host.Exec("ip", "route", "replace", "10.2.0.0/16", "via", "10.1.0.4")
	waitfor.True(t, "a route with one next hop has one template", func() bool {
		tab.refresh(true)
		return ts.template(index).State == tunnel.TemplateReady && ts.template(index).Header[5] == 4
	})
	used := 0
	for _, e := range tab.byIndex {
		if e != nil {
			used++
		}
	}
	if used != 1 {
		t.Errorf("%d templates are in use for a route with one next hop", used)
	}
}
