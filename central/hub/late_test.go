// SPDX-License-Identifier: Apache-2.0

package hub

import (
	"log/slog"
	"testing"

	"weft/central/store"
	"weft/central/wire"
)

// A host that asks for an address too early gets it at once when a port has it, even
// while the answer waits for the store.
func TestEarlyPullDoesNotWaitForStore(t *testing.T) {
	h := New(noStore{}, nil, slog.New(slog.DiscardHandler))
	mac := []byte{2, 0, 0, 0, 0, 2}
	h.take(1, []store.Object{
		{Kind: store.KindNet, ID: "n1", Message: &wire.Net{Id: "n1", Name: "n1", Vni: 1}},
		{Kind: store.KindHost, ID: "h1", Message: &wire.Host{Id: "h1", Name: "h1", Endpoint: []byte{192, 0, 2, 1}}},
		{Kind: store.KindPort, ID: "p1", Message: &wire.Port{Id: "p1", Name: "p1", Net: "n1", Mac: []byte{2, 0, 0, 0, 0, 1}}},
	})
	s, err := h.open("h1", &wire.Hello{Ports: []string{"p1"}})
	if err != nil {
		t.Fatal(err)
	}
	pull := &wire.Pull{Number: 1, Questions: []*wire.Question{{Net: "n1", Of: &wire.Question_Mac{Mac: mac}}}}
	if err := h.receive(s, &wire.FromHost{Message: &wire.FromHost_Pull{Pull: pull}}); err != nil {
		t.Fatal(err)
	}
	if len(h.fences) != 1 {
		t.Fatalf("%d answers wait for the store", len(h.fences))
	}
	h.take(2, []store.Object{
		{Kind: store.KindPort, ID: "p2", Message: &wire.Port{Id: "p2", Name: "p2", Net: "n1", Mac: mac}},
		{Kind: store.KindBind, ID: "p2", Message: &wire.Bind{Port: "p2", Host: "h2", Endpoint: []byte{192, 0, 2, 2}}, Revision: 2},
	})
	h.mu.Lock()
	defer h.mu.Unlock()
	h.round()
	if s.behind {
		t.Error("the address waits for the session's turn")
	}
}
