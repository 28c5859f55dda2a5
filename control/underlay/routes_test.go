// SPDX-License-Identifier: Apache-2.0

package underlay

import (
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"testing"

	"weft/internal/waitfor"
	"weft/packet"
)

// Routes lists the path to a declared remote, one path for each next hop of a route that is in
// use, or the reason why there is no path.
func TestRoutes(t *testing.T) {
	l := newTunnelLab(t)
	for _, peer := range []string{"10.1.0.2", "10.1.0.3"} {
		l.host.Exec("ip", "neigh", "replace", peer, "lladdr", "02:00:00:00:00:0"+peer[len(peer)-1:], "dev", "u0", "nud", "permanent")
	}
	before := l.u.routeEvents.Load()
	l.host.Exec("ip", "route", "replace", "10.2.0.0/16", "mtu", "1400", "nexthop", "via", "10.1.0.3", "nexthop", "via", "10.1.0.2")
	waitfor.True(t, "the event of the route arrives", func() bool { return l.u.routeEvents.Load() != before })
	tu := NewTemplates(l.u, slog.New(slog.DiscardHandler))
	tu.Replay(newSent(t), make([]Record, MaxTemplates))
	peer, far, away := netip.MustParseAddr("10.1.0.2"), netip.MustParseAddr("10.2.0.1"), netip.MustParseAddr("10.3.0.1")
	tu.Watch([]Tunnel{{Port: 3, Remote: peer}, {Port: 3, Remote: away}})
	tu.SetPorts(map[string]uint32{"u0": 7}, nil)
	if _, reason := tu.Template(Tunnel{Port: 4, Remote: far}, 4789); reason != packet.DropNone {
		t.Fatal(reason)
	}
	want := []string{
		"3 10.1.0.2 from 10.1.0.1 via 10.1.0.2 02:00:00:00:00:02 dev u0 mtu 1500 reachable",
		"3 10.3.0.1 none no route to 10.3.0.1",
		"4 10.2.0.1 from 10.1.0.1 via 10.1.0.2 02:00:00:00:00:02 dev u0 mtu 1400 reachable",
		"4 10.2.0.1 from 10.1.0.1 via 10.1.0.3 02:00:00:00:00:03 dev u0 mtu 1400 reachable",
	}
	var got []string
	waitfor.True(t, "the carrier of u0 is known", func() bool {
		tu.refresh(true)
		got = nil
		for _, r := range tu.Routes() {
			line := fmt.Sprintf("%d %s from %s via %s %s dev %s mtu %d %s", r.Port, r.Remote, r.Local, r.NextHop, r.MAC, r.Device, r.MTU, r.State)
			if r.State == RouteNone {
				line = fmt.Sprintf("%d %s none %s", r.Port, r.Remote, r.Reason)
			}
			got = append(got, line)
		}
		return len(got) > 0 && !strings.Contains(got[0], "no carrier")
	})
	for i, w := range want {
		if i >= len(got) || !strings.HasPrefix(got[i], w) {
			t.Fatalf("routes\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
}

// The path to a remote that was declared just now is still unknown. Routes shows that state,
// not a missing route.
func TestRouteOfANewRemoteIsAwaited(t *testing.T) {
	tu := NewTemplates(nil, slog.New(slog.DiscardHandler))
	tu.Watch([]Tunnel{{Port: 3, Remote: netip.MustParseAddr("10.1.0.2")}})
	if r := tu.Routes(); len(r) != 1 || r[0].State != RouteWaiting || r[0].Reason != "not known yet" {
		t.Errorf("routes %+v", r)
	}
}

// The state of a route follows its next hop and device.
func TestRouteStates(t *testing.T) {
	for _, c := range []struct {
		state   hopState
		failed  bool
		carrier bool
		want    string
	}{
		{hopReady, false, true, RouteReachable},
		{hopReady, false, false, RouteNone},
		{hopStale, false, true, RouteStale},
		{hopPending, false, true, RouteWaiting},
		{hopPending, true, true, RouteFailed},
		{hopFailed, false, true, RouteFailed},
		{hopNoRoute, false, true, RouteNone},
	} {
		if got := routeOf(Tunnel{}, &hop{state: c.state, carrier: c.carrier, device: "u0"}, c.failed); got.State != c.want {
			t.Errorf("hop state %d, failed %v, carrier %v: %s, want %s", c.state, c.failed, c.carrier, got.State, c.want)
		}
	}
}
