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

// The state of a watched remote endpoint follows routes, uplinks, neighbours and
// devices. It does so before the first frame to the endpoint, and after.
func TestRemotesAreWatched(t *testing.T) {
	l := newTunnelLab(t)
	tu := NewTemplates(l.u, slog.New(slog.DiscardHandler))
	tu.Replay(newSent(t), make([]Record, MaxTemplates))
	follow(t, tu)
	peer, silent, far := netip.MustParseAddr("10.1.0.2"), netip.MustParseAddr("10.1.0.77"), netip.MustParseAddr("10.2.0.1")
	tu.Watch([]Tunnel{{Port: 3, Remote: peer}, {Port: 3, Remote: silent}, {Port: 4, Remote: far}})
	tu.SetPorts(nil, nil)
	expect := func(port uint32, remote netip.Addr, state, reason string) {
		t.Helper()
		var got RemoteState
		waitfor.True(t, fmt.Sprintf("%s is %s: %s", remote, state, reason), func() bool {
			states, _ := tu.RemotesOf(port)
			for _, got = range states {
				if got.Remote == remote {
					return got.State == state && strings.Contains(got.Reason, reason)
				}
			}
			return false
		})
		if state == RemoteUp && (got.Device != "u0" || got.MTU != 1500) {
			t.Errorf("%+v", got)
		}
	}
	expect(3, peer, RemoteDown, "leaves through u0, which is no working uplink")
	expect(4, far, RemoteDown, "no route to 10.2.0.1")
	tu.SetPorts(map[string]uint32{"u0": 7}, nil)
	expect(3, peer, RemoteUp, "")
	expect(3, silent, RemoteDown, "10.1.0.77 does not answer on u0")
	if s := tu.Watched(3); s.Up != 1 || s.Down != 1 || s.First != silent || !strings.Contains(s.Reason, "does not answer") {
		t.Errorf("%+v", s)
	}
	if states, _ := tu.RemotesOf(3); states[0].Remote != silent {
		t.Errorf("not the remote that is down comes first: %+v", states)
	}
	l.host.Exec("ip", "route", "add", "10.2.0.0/16", "via", "10.1.0.2")
	expect(4, far, RemoteUp, "")

	if _, reason := tu.Template(Tunnel{Port: 3, Remote: peer}, 4789); reason != packet.DropNone {
		t.Fatal(reason)
	}
	l.peer.Exec("ip", "link", "set", "p0", "down")
	expect(3, peer, RemoteDown, "device u0 has no carrier")
	expect(4, far, RemoteDown, "device u0 has no carrier")
	l.peer.Exec("ip", "link", "set", "p0", "up")
	expect(3, peer, RemoteUp, "")
	l.host.Exec("ip", "link", "set", "u0", "down")
	expect(3, peer, RemoteDown, "no route to 10.1.0.2")
	l.host.Exec("ip", "link", "del", "u0")
	expect(4, far, RemoteDown, "no route to 10.2.0.1")
	tu.Watch(nil)
	if s := tu.Watched(4); s != (Summary{}) {
		t.Errorf("after the port is gone: %+v", s)
	}
}

// Remote endpoints beyond the limits are neither watched nor listed. The state of an unwatched
// endpoint gives the limit as its reason.
func TestRemotesLimits(t *testing.T) {
	tu := NewTemplates(newTunnelLab(t).u, slog.New(slog.DiscardHandler))
	var list []Tunnel
	for i := range maxWatched + 1 {
		list = append(list, Tunnel{Port: 3, Remote: netip.AddrFrom4([4]byte{10, 9, byte(i >> 8), byte(i)})})
	}
	tu.Watch(list)
	tu.refreshWatches(true)
	s := tu.Watched(3)
	states, omitted := tu.RemotesOf(3)
	if s.Down != maxWatched || s.Waiting != 1 || len(states) != maxStates || omitted != maxWatched+1-maxStates {
		t.Errorf("%+v, %d states, %d omitted", s, len(states), omitted)
	}
	last := tu.watches[3][maxWatched]
	if !strings.Contains(last.state.Reason, "not watched") {
		t.Errorf("%+v", last.state)
	}
}
