package control

import (
	"encoding/binary"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"weft/datapath"
	"weft/engine"
	"weft/internal/shm"
	"weft/internal/testnet"
	"weft/packet"
	"weft/tunnel"
)

// tunnelLab is two hosts on a wire: the first is asked, by u.
//
//	host u0 10.1.0.1/24, fd00:1::1/64 ---- peer p0 10.1.0.2/24, fd00:1::2/64
//	                                       peer also routes 10.2.0.0/16
type tunnelLab struct {
	t          testing.TB
	host, peer *testnet.Namespace
	u          *underlay
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
		if l.u, err = newUnderlay(slog.New(slog.DiscardHandler)); err != nil {
			t.Fatal(err)
		}
	})
	t.Cleanup(l.u.close)
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

// An unknown neighbour is pending until the kernel, asked by a probe, has it;
// with link-local addresses on the link and without.
func TestNeighbourIsAskedFor(t *testing.T) {
	t.Run("link-local", func(t *testing.T) { testNeighbourIsAskedFor(t, newTunnelLab(t)) })
	t.Run("none", func(t *testing.T) {
		l := newTunnelLab(t)
		l.host.Exec("ip", "addr", "del", "fe80::1/64", "dev", "u0")
		eventually(t, "the address is gone", func() bool { return !l.u.hasLinkLocal(l.resolve("", "10.1.0.2").index) })
		testNeighbourIsAskedFor(t, l)
	})
}

func testNeighbourIsAskedFor(t *testing.T, l *tunnelLab) {
	t.Helper()
	for _, c := range []struct{ remote, local string }{{"10.1.0.2", "10.1.0.1"}, {"fd00:1::2", "fd00:1::1"}} {
		h := l.resolve("", c.remote)
		if h.state != hopPending {
			t.Fatalf("%s before it is asked for: %+v", c.remote, h)
		}
		if err := l.u.probe(&h); err != nil {
			t.Fatal(err)
		}
		eventually(t, c.remote+" is resolved", func() bool { return l.resolve("", c.remote).state == hopReady })
		h = l.resolve("", c.remote)
		if h.dstMAC != l.peerMAC || h.srcMAC != l.hostMAC || h.local.String() != c.local || h.device != "u0" || h.mtu != 1500 {
			t.Errorf("%s: %+v", c.remote, h)
		}
	}
}

func TestRoutesAreFollowed(t *testing.T) {
	l := newTunnelLab(t)
	if h := l.resolve("", "10.2.3.4"); h.state != hopNoRoute || !strings.Contains(h.why, "10.2.3.4") {
		t.Errorf("without a route: %+v", h)
	}
	l.host.Exec("ip", "neigh", "replace", "10.1.0.2", "lladdr", "02:00:00:00:00:02", "dev", "u0", "nud", "permanent")
	l.host.Exec("ip", "route", "add", "10.2.0.0/16", "via", "10.1.0.2", "mtu", "1400")
	eventually(t, "the gateway is the next hop", func() bool {
		h := l.resolve("", "10.2.3.4")
		return h.state == hopReady && h.next.String() == "10.1.0.2" && h.dstMAC == l.peerMAC && h.mtu == 1400
	})
	l.host.Exec("ip", "addr", "add", "10.1.0.9/24", "dev", "u0")
	if h := l.resolve("10.1.0.9", "10.2.3.4"); h.local.String() != "10.1.0.9" {
		t.Errorf("from an address that is given: %+v", h)
	}
	if h := l.resolve("", "10.1.0.1"); h.state != hopNoRoute || !strings.Contains(h.why, "this host") {
		t.Errorf("to the host itself: %+v", h)
	}
	eventually(t, "addresses are followed", func() bool {
		found := 0
		for _, a := range l.u.addressesOf("u0") {
			if a.String() == "10.1.0.9" || a.String() == "10.1.0.1" {
				found++
			}
		}
		return found == 2
	})
	l.host.Exec("ip", "link", "set", "u0", "mtu", "9000")
	eventually(t, "the link's MTU is followed", func() bool { return l.resolve("", "10.1.0.2").mtu == 9000 })
	l.host.Exec("ip", "link", "set", "u0", "down")
	eventually(t, "a link that is down has no route", func() bool { return l.resolve("", "10.1.0.2").state == hopNoRoute })
}

// Links and their addresses come by subscriptions of their own: an address that is
// heard of first is its link's once that is.
func TestAddressBeforeItsLink(t *testing.T) {
	u := &underlay{links: map[int]link{}, addresses: map[int][]netip.Addr{}}
	address := net.IPv4(10, 1, 0, 1)
	u.setAddress(7, address, true)
	u.setLink(&netlink.LinkAttrs{Index: 7, Name: "u0"})
	if got := u.addressesOf("u0"); len(got) != 1 || got[0].String() != "10.1.0.1" {
		t.Errorf("addresses %v", got)
	}
	u.setAddress(7, address, false)
	if got := u.addressesOf("u0"); len(got)+len(u.addresses) != 0 {
		t.Errorf("addresses %v of %v once there is none", got, u.addresses)
	}
}

// The kernel is asked about some templates at a time, all in the end.
func TestRefreshInParts(t *testing.T) {
	l, ts := newTunnelLab(t), newTemplates(t)
	tab := newTunnels(l.u, slog.New(slog.DiscardHandler))
	records := make([]tunnelRecord, maxTemplates)
	const n = 2*refreshChunk + 1
	for i := range n {
		records[i] = tunnelRecord{Port: 1, UDPPort: 4789, Remote: netip.AddrFrom4([4]byte{10, 9, byte(i >> 8), byte(i)}).As16()}
	}
	tab.restore(ts.w, records)
	asked := func() (n int) {
		for _, e := range tab.byIndex {
			if e.hop.why != "" { // there is no route to any
				n++
			}
		}
		return n
	}
	if more := tab.refreshSome(refreshChunk, true); !more || asked() != refreshChunk {
		t.Errorf("asked about %d, and more are left: %v", asked(), more)
	}
	if tab.refresh(true); asked() != n {
		t.Errorf("asked about %d of %d", asked(), n)
	}
}

// templates records the templates, retries and drops that workers are sent.
type templates struct {
	w        *workers
	commands *shm.Consumer
	last     map[uint32]tunnel.Template
	verdicts map[uint32]string
}

func newTemplates(t testing.TB) *templates {
	t.Helper()
	m, err := engine.NewMemory(engine.Start{Cores: []int{0}, Sizes: testSizes}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	e := newFakeEngine()
	t.Cleanup(func() { _ = e.Kill() })
	return &templates{
		w: newWorkers(m, e), commands: shm.NewConsumer(m.Shared[0].Commands),
		last: map[uint32]tunnel.Template{}, verdicts: map[uint32]string{},
	}
}

func (ts *templates) read(t testing.TB) {
	t.Helper()
	for msg := ts.commands.Next(); msg != nil; msg = ts.commands.Next() {
		op, arg := datapath.CommandOp(binary.LittleEndian.Uint32(msg)), binary.LittleEndian.Uint32(msg[4:])
		switch op {
		case datapath.CmdTemplate:
			var tmpl tunnel.Template
			if !tmpl.Parse(msg[8:]) {
				t.Fatalf("template %d: %x", arg, msg[8:])
			}
			ts.last[arg] = tmpl
		case datapath.CmdRetry:
			ts.verdicts[arg] = "retry"
		case datapath.CmdDropHeld:
			ts.verdicts[arg] = packet.DropReason(binary.LittleEndian.Uint32(msg[8:])).String()
		default:
			t.Fatalf("command %d", op)
		}
	}
	ts.commands.Release()
}

// follow does what the daemon's goroutine does.
func follow(t *testing.T, u *underlay, tu *tunnels) {
	stop, stopped := make(chan struct{}), make(chan struct{})
	t.Cleanup(func() { close(stop); <-stopped })
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			case <-u.changed:
				tu.refresh(true)
			case <-time.After(20 * time.Millisecond):
				tu.refresh(false)
			}
		}
	}()
}

func TestTemplatesFollowTheKernel(t *testing.T) {
	l := newTunnelLab(t)
	ts := newTemplates(t)
	tu := newTunnels(l.u, slog.New(slog.DiscardHandler))
	tu.replay(ts.w, make([]tunnelRecord, maxTemplates))
	follow(t, l.u, tu)
	state := func(index, want uint32) func() bool {
		return func() bool {
			ts.read(t)
			return ts.last[index].State == want
		}
	}
	key := tunnelKey{port: 3, remote: netip.MustParseAddr("10.1.0.2")}
	good, why := tu.template(key, 4789)
	if why != packet.DropNone {
		t.Fatal(why)
	}
	eventually(t, "no uplink, no route", state(good, tunnel.TemplateNoRoute))
	tu.setPorts(map[string]uint32{"u0": 7}, nil)
	eventually(t, "the peer is resolved", state(good, tunnel.TemplateReady))
	tmpl := ts.last[good]
	if got := tmpl.Header[:12]; string(got) != string(append(l.peerMAC[:], l.hostMAC[:]...)) || tmpl.Port != 7 || tmpl.MTU != 1514 {
		t.Errorf("template: %+v", tmpl)
	}
	if again, _ := tu.template(key, 4789); again != good {
		t.Errorf("the same tunnel has templates %d and %d", good, again)
	}

	// The peer gets another address: the kernel learns it, and we with it.
	l.peer.Exec("ip", "link", "set", "p0", "address", "02:00:00:00:00:99")
	l.host.Exec("ip", "neigh", "replace", "10.1.0.2", "lladdr", "02:00:00:00:00:99", "dev", "u0", "nud", "reachable")
	eventually(t, "the new address", func() bool { ts.read(t); return ts.last[good].Header[5] == 0x99 })

	// Nobody is 10.1.0.77: frames wait, and are dropped for that reason.
	silent, _ := tu.template(tunnelKey{port: 3, remote: netip.MustParseAddr("10.1.0.77")}, 4789)
	eventually(t, "pending", state(silent, tunnel.TemplatePending))
	tu.wait(silent, heldFrame{0, 41})
	eventually(t, "given up", state(silent, tunnel.TemplateNoNeighbour))
	eventually(t, "a verdict", func() bool { ts.read(t); return ts.verdicts[41] != "" })
	if ts.verdicts[41] != "no-neighbour" {
		t.Errorf("the frame that waited: %s", ts.verdicts[41])
	}
	// It turns up after all, and is found without anybody's help.
	l.peer.Exec("ip", "addr", "add", "10.1.0.77/24", "dev", "p0")
	eventually(t, "found", state(silent, tunnel.TemplateReady))

	// A frame that waits goes on when the answer comes.
	late, _ := tu.template(tunnelKey{port: 3, remote: netip.MustParseAddr("10.1.0.78")}, 4789)
	tu.wait(late, heldFrame{0, 42})
	l.peer.Exec("ip", "addr", "add", "10.1.0.78/24", "dev", "p0")
	eventually(t, "a verdict", func() bool { ts.read(t); return ts.verdicts[42] != "" })
	if ts.verdicts[42] != "retry" {
		t.Errorf("the frame that waited: %s", ts.verdicts[42])
	}

	tu.drop(3)
	eventually(t, "freed", state(good, tunnel.TemplateFree))
}

func TestTemplateRefusals(t *testing.T) {
	l := newTunnelLab(t)
	ts := newTemplates(t)
	tu := newTunnels(l.u, slog.New(slog.DiscardHandler))
	records := make([]tunnelRecord, maxTemplates)
	tu.replay(ts.w, records)
	for _, key := range []tunnelKey{
		{port: 1},
		{port: 1, remote: netip.MustParseAddr("0.0.0.0")},
		{port: 1, remote: netip.MustParseAddr("224.0.0.1")},
		{port: 1, remote: netip.MustParseAddr("10.0.0.1"), local: netip.MustParseAddr("fd00::1")},
	} {
		if _, why := tu.template(key, 4789); why != packet.DropNoRoute {
			t.Errorf("%+v: %v", key, why)
		}
	}
	// The next control process finds the same tunnel under the same index.
	a := tunnelKey{port: 1, remote: netip.MustParseAddr("10.0.0.1")}
	b := tunnelKey{port: 2, remote: netip.MustParseAddr("fd00::1"), local: netip.MustParseAddr("fd00::2")}
	first, _ := tu.template(a, 4789)
	second, _ := tu.template(b, 4790)
	next := newTunnels(l.u, slog.New(slog.DiscardHandler))
	next.restore(ts.w, records)
	gotB, _ := next.template(b, 4790)
	gotA, _ := next.template(a, 4789)
	if gotA != first || gotB != second {
		t.Errorf("indexes %d and %d became %d and %d", first, second, gotA, gotB)
	}
}

// A route of several next hops has a template for each that answers, by weight, and
// one that spreads over them; a hop that goes is left out and comes back.
func TestWaysOfARoute(t *testing.T) {
	l := newTunnelLab(t)
	for _, peer := range []string{"10.1.0.2", "10.1.0.3", "10.1.0.4"} {
		l.host.Exec("ip", "neigh", "replace", peer, "lladdr", "02:00:00:00:00:0"+peer[len(peer)-1:], "dev", "u0", "nud", "permanent")
	}
	ts := newTemplates(t)
	tab := newTunnels(l.u, slog.New(slog.DiscardHandler))
	tab.replay(ts.w, make([]tunnelRecord, maxTemplates))
	tab.setPorts(map[string]uint32{"u0": 9}, map[uint32]outer{1: {}})
	route := func(hops ...string) {
		t.Helper()
		args := []string{"ip", "route", "replace", "10.2.0.0/16"}
		for _, h := range hops {
			via, weight, _ := strings.Cut(h, "*")
			args = append(args, "nexthop", "via", via, "weight", weight)
		}
		before := l.u.routes.Load()
		l.host.Exec(args...)
		eventually(t, "the change is heard of", func() bool { return l.u.routes.Load() != before })
		tab.refresh(true)
	}
	route("10.1.0.2*1")
	index, why := tab.template(tunnelKey{port: 1, remote: netip.MustParseAddr("10.2.0.7")}, 4789)
	if why != packet.DropNone {
		t.Fatal(why)
	}
	shares := func() map[byte]int {
		count := map[byte]int{}
		ts.read(t)
		s := ts.last[index]
		if s.State != tunnel.TemplateSpread {
			t.Fatalf("template %+v", s)
		}
		for share := range uint32(tunnel.Ways) {
			way := ts.last[s.Way(share<<28)]
			if way.State != tunnel.TemplateReady || way.Port != 9 {
				t.Fatalf("way %+v", way)
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
	eventually(t, "one way is a template of its own", func() bool {
		tab.refresh(true)
		ts.read(t)
		return ts.last[index].State == tunnel.TemplateReady && ts.last[index].Header[5] == 4
	})
	used := 0
	for _, e := range tab.byIndex {
		if e != nil {
			used++
		}
	}
	if used != 1 {
		t.Errorf("%d templates are left of a route with one way", used)
	}
}
