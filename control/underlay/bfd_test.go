// SPDX-License-Identifier: Apache-2.0

package underlay

import (
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"weft/bfd"
	"weft/datapath"
	"weft/internal/clock"
	"weft/internal/waitfor"
)

// bfdEngine stands for an engine whose first worker runs BFD sessions. It records the commands
// for them, and executes none.
type bfdEngine struct {
	*sent
	shared datapath.Shared
	sets   []string // "begin" or "end", and the index
}

func newBFDEngine(t *testing.T) *bfdEngine {
	return &bfdEngine{sent: newSent(t), shared: datapath.Shared{BFD: make([]datapath.BFDSession, datapath.MaxBFD)}}
}

func (e *bfdEngine) Shared() []*datapath.Shared { return []*datapath.Shared{&e.shared} }

func (e *bfdEngine) Push(worker int, msg []byte) bool {
	if datapath.CommandOp(msg[0]) != datapath.CmdBFD {
		return e.sent.Push(worker, msg)
	}
	word := "begin "
	if string(msg[8:12]) == "\x00\x00\x00\x00" {
		word = "end "
	}
	e.sets = append(e.sets, word+string('0'+rune(msg[4])))
	return true
}

// run fills row i of the sessions' table as a worker that runs the session would.
func (e *bfdEngine) run(i int, port uint32, remote netip.Addr, c bfd.Config) *datapath.BFDSession {
	r := &e.shared.BFD[i]
	r.Port, r.Remote = port, remote.As16()
	r.Begin(c, 0x12340000, clock.Monotonic())
	return r
}

func (e *bfdEngine) expect(t *testing.T, want string) {
	t.Helper()
	slices.Sort(e.sets)
	if got := strings.Join(e.sets, ", "); got != want {
		t.Errorf("commands %q, want %q", got, want)
	}
	e.sets = nil
}

// The state of a remote follows its BFD session. The sessions keep their indexes under the next
// control process, and their state in the next engine.
func TestSessions(t *testing.T) {
	l := newTunnelLab(t)
	engine := newBFDEngine(t)
	tu := NewTemplates(l.u, slog.New(slog.DiscardHandler))
	tu.Replay(engine, make([]Record, MaxTemplates))
	peer, other := netip.MustParseAddr("10.1.0.2"), netip.MustParseAddr("10.1.0.77")
	times := bfd.Config{MinTx: 200_000, MinRx: 200_000, Multiplier: 4}
	list := []Session{{Tunnel: Tunnel{Port: 3, Remote: other}, UDPPort: 4789, VNI: 7, Config: times}, {Tunnel: Tunnel{Port: 3, Remote: peer}, UDPPort: 4789, VNI: 7, Config: times}}
	declare := func(tu *Templates, list []Session) {
		var remotes []Tunnel
		for _, s := range list {
			remotes = append(remotes, s.Tunnel)
		}
		tu.Watch(remotes)
		tu.SetPorts(map[string]uint32{"u0": 7}, nil)
		tu.Supervise(list)
	}
	declare(tu, list)
	engine.expect(t, "begin 0, begin 1")
	declare(tu, list)
	engine.expect(t, "")
	tu.sessions[Tunnel{Port: 3, Remote: peer}].begun = time.Now().Add(time.Hour) // even on a slow machine
	follow(t, tu)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); tu.FollowSessions(ctx) }()
	expect := func(state, reason string) {
		t.Helper()
		var got RemoteState
		waitfor.True(t, state+": "+reason, func() bool {
			states, _ := tu.RemotesOf(3)
			for _, got = range states {
				if got.Remote == peer {
					return got.State == state && strings.Contains(got.Reason, reason)
				}
			}
			return false
		})
	}
	expectLost := func(want ...netip.Addr) {
		t.Helper()
		if lost := tu.Lost(3); !slices.Equal(lost, want) {
			t.Errorf("lost remotes %v, want %v", lost, want)
		}
	}
	// The test is the worker. It holds the lock that the reader of the rows holds.
	edit := func(f func(r *datapath.BFDSession)) {
		tu.mu.Lock()
		defer tu.mu.Unlock()
		f(&tu.rows[1])
	}
	edit(func(*datapath.BFDSession) { engine.run(1, 3, peer, times) })
	expect(RemoteWaiting, "no BFD from 10.1.0.2 so far")
	expectLost()
	edit(func(r *datapath.BFDSession) {
		r.Receive(&bfd.Packet{State: bfd.Down, Mine: 9, Multiplier: 3, MinTx: 1_000_000, MinRx: 1}, clock.Monotonic())
	})
	expect(RemoteWaiting, "BFD with 10.1.0.2 is init")
	edit(func(*datapath.BFDSession) { tu.sessions[Tunnel{Port: 3, Remote: peer}].begun = time.Time{} })
	expect(RemoteDown, "BFD with 10.1.0.2 is init")
	expectLost()
	edit(func(r *datapath.BFDSession) {
		r.Receive(&bfd.Packet{State: bfd.Init, Mine: 9, Yours: r.Mine, Multiplier: 3, MinTx: 100_000, MinRx: 1}, clock.Monotonic())
	})
	expect(RemoteUp, "")

	next := newBFDEngine(t)
	tu.mu.Lock()
	tu.rings = nil
	tu.mu.Unlock()
	tu.Replay(next, make([]Record, MaxTemplates))
	if r := next.shared.BFD[1]; r.State != bfd.Up || r.Theirs != 9 {
		t.Errorf("the next engine has %+v", r)
	}
	declare(tu, list)
	next.expect(t, "begin 0, begin 1")
	edit(func(r *datapath.BFDSession) { r.Tick(r.ExpiryNS) })
	expect(RemoteDown, "no BFD from 10.1.0.2 within 600 ms")
	expectLost(peer)
	edit(func(r *datapath.BFDSession) {
		r.Receive(&bfd.Packet{State: bfd.AdminDown, Mine: 9, Yours: r.Mine, Multiplier: 3, MinTx: 100_000, MinRx: 1}, clock.Monotonic())
	})
	expect(RemoteDown, "10.1.0.2 has turned BFD off")
	edit(func(r *datapath.BFDSession) { r.Tick(r.ExpiryNS) })
	expect(RemoteDown, "no BFD from 10.1.0.2 within 600 ms")
	stop()
	<-ended
	tu.Watch([]Tunnel{list[1].Tunnel})
	expectLost() // frames still go to the only remote

	// The next control process finds the session, and ends one that is not declared.
	next.run(0, 3, other, times)
	tu2 := NewTemplates(l.u, slog.New(slog.DiscardHandler))
	tu2.Restore(next, make([]Record, MaxTemplates))
	declare(tu2, list[1:])
	next.expect(t, "begin 1, end 0")
	tu2.Supervise(nil)
	if len(next.sets) == 0 || next.sets[0] != "end 1" {
		t.Errorf("commands %q", next.sets)
	}
	if states, _ := tu2.RemotesOf(3); len(states) != 1 || states[0].BFD != nil || states[0].State == RemoteDown {
		t.Errorf("without BFD: %+v", states)
	}
}

// A remote is lost if its session has failed, but not if it has no BFD.
func TestLostRemotes(t *testing.T) {
	for _, c := range []struct {
		name string
		b    BFDState
		want bool
	}{
		{"up", BFDState{State: bfd.Up, RemoteState: bfd.Up, Diagnostic: bfd.DetectionExpired}, false},
		{"never heard", BFDState{State: bfd.Down, RemoteState: bfd.Down, Silence: -1}, false},
		{"silent", BFDState{State: bfd.Down, RemoteState: bfd.Down, Diagnostic: bfd.DetectionExpired, expired: true}, true},
		{"silent, and greets again", BFDState{State: bfd.Init, RemoteState: bfd.Down, Diagnostic: bfd.DetectionExpired}, true},
		{"hears nothing", BFDState{State: bfd.Down, RemoteState: bfd.Down, Diagnostic: bfd.NeighborSignalDown}, true},
		{"has turned BFD off", BFDState{State: bfd.Down, RemoteState: bfd.AdminDown, Diagnostic: bfd.NeighborSignalDown}, false},
		{"was silent, and has turned BFD off", BFDState{State: bfd.Down, RemoteState: bfd.AdminDown, Diagnostic: bfd.DetectionExpired}, false},
		{"heard nothing, and is silent", BFDState{State: bfd.Down, RemoteState: bfd.Down, Diagnostic: bfd.NeighborSignalDown, RemoteDiagnostic: bfd.DetectionExpired, expired: true}, true},
		{"turned BFD off a while ago", BFDState{State: bfd.Down, RemoteState: bfd.Down, Diagnostic: bfd.NeighborSignalDown, RemoteDiagnostic: bfd.AdministrativelyDown, expired: true}, false},
	} {
		if got := c.b.lost(); got != c.want {
			t.Errorf("a remote that is %s: lost %v, want %v", c.name, got, c.want)
		}
	}
}

// Sessions beyond the limit do not start, and the states of their remotes give the limit as the
// reason.
func TestTooManySessions(t *testing.T) {
	tu := NewTemplates(nil, slog.New(slog.DiscardHandler))
	used := map[uint32]bool{}
	for i := range uint32(datapath.MaxBFD) {
		used[i] = true
	}
	extra := Tunnel{Port: 3, Remote: netip.MustParseAddr("10.1.0.2")}
	tu.sessions[extra] = &session{Session: Session{Tunnel: extra}, index: tu.sessionIndex(extra, used)}
	state := RemoteState{State: RemoteUp}
	if tu.superviseState(extra, &state); state.State != RemoteDown || state.Reason != "no BFD: the switch has more than 1024 sessions" {
		t.Errorf("%+v", state)
	}
}
