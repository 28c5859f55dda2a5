// SPDX-License-Identifier: Apache-2.0

package hub_test

import (
	"context"
	"log/slog"
	"testing"

	"weft/central/hub"
	"weft/central/store"
	"weft/central/wire"
	"weft/control/agent"
	"weft/internal/waitfor"
)

// Each hub knows which undeclared ports hosts have: its own hosts, and the hosts of
// other hubs.
func TestWaitingPortsAreAnnounced(t *testing.T) {
	r := newRig(t)
	r.net("n1", 100, false)
	r.memory.Put(portObject(1, "n1", ""))
	other := hub.New(r.memory, nil, slog.New(slog.DiscardHandler))
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { other.Run(ctx); close(ended) }()
	defer func() { stop(); <-ended }()
	one := r.host(1, agent.LocalPort{Name: "port1", Up: true}, agent.LocalPort{Name: "port2", Up: true}, agent.LocalPort{Name: "tap", ID: "p3", Up: true})
	r.settled()
	announced := make(chan error)
	announce := func() {
		go func() {
			announced <- r.hub.AnnounceWaiting(ctx, func(m *wire.WaitingPorts) error {
				other.NoteWaiting("a", m.GetPorts())
				return nil
			})
		}()
	}
	announce()
	waiting := func(h *hub.Hub, n int, host string) string {
		return h.WaitingHost(portObject(n, "n1", host).Message.(*wire.Port))
	}
	both := func(n int, host, want string) {
		t.Helper()
		waitfor.True(t, "both hubs know the host", func() bool { return waiting(r.hub, n, host) == want && waiting(other, n, host) == want })
	}
	both(2, "", "h1")
	both(3, "h1", "h1") // by its id
	both(2, "h2", "")   // it is declared for another host
	both(4, "", "")
	one.local = append(one.local[:1:1], agent.LocalPort{Name: "port4", Up: true})
	one.recorder.SetPorts(one.local...)
	one.agent.PortsChanged()
	both(2, "", "")
	both(4, "", "h1")
	r.memory.Put(portObject(4, "n1", ""))
	r.settled()
	waitfor.True(t, "the other hub forgets the declared port", func() bool { return waiting(other, 4, "") == "" })
	one.stop()
	one.local = locals("port1", "port5")
	r.startAgent(one)
	both(5, "", "h1")
	r.stop() // ends the announcement
	if err := <-announced; err == nil {
		t.Error("the announcement ends without an error")
	}
	other.ForgetWaiting("a")
	if host := waiting(other, 5, ""); host != "" {
		t.Errorf("the other hub still knows %s", host)
	}
	r.start()
	announce()
	waitfor.True(t, "the other hub knows the host again", func() bool { return waiting(other, 5, "") == "h1" })
	waitfor.True(t, "the hub releases the port that its host has no more", func() bool { return r.hub.Stats().Bound == 1 })
	// a port and its binding in one revision
	p := portObject(5, "n1", "")
	r.memory.Put(p, store.Object{Kind: store.KindBind, ID: "p5", Message: &wire.Bind{Port: "p5", Host: "h1", Endpoint: endpoint(1).AsSlice()}})
	r.settled()
	waitfor.True(t, "the hub knows the binding", func() bool { return r.hub.Stats().Bound == 2 })
	if s := r.hub.Stats(); s.Refused != 0 {
		t.Errorf("%d bindings refused", s.Refused)
	}
	stop()
	<-announced
}
