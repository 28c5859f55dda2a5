// SPDX-License-Identifier: Apache-2.0

package hub

import (
	"context"
	"log/slog"
	"testing"

	"google.golang.org/protobuf/proto"

	"weft/central/store"
	"weft/central/wire"
)

// noStore stores nothing.
type noStore struct{ Store }

// A hub does not crash, whatever message a host sends. The session's use of memory
// stays within its limits.
func FuzzFromHost(f *testing.F) {
	for _, m := range []*wire.FromHost{
		{Message: &wire.FromHost_Hello{Hello: &wire.Hello{Known: []*wire.NetDigest{{Net: "n1", Digest: 7}}, Ports: []string{"p1"}}}},
		{Message: &wire.FromHost_Attach{Attach: &wire.Attach{Port: "p1", Seen: true}}},
		{Message: &wire.FromHost_Detach{Detach: &wire.Detach{Port: "p1"}}},
		{Message: &wire.FromHost_Applied{Applied: &wire.Applied{Revision: 1 << 40}}},
		{Message: &wire.FromHost_Question{Question: &wire.Question{Number: 1, Net: "n1", Of: &wire.Question_Mac{Mac: []byte{2}}}}},
		{Message: &wire.FromHost_Question{Question: &wire.Question{Number: 1, Net: "n1", Of: &wire.Question_Address{Address: []byte{1, 2, 3}}}}},
	} {
		b, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b, b)
	}
	f.Fuzz(func(t *testing.T, first, second []byte) {
		h := New(noStore{}, func(context.Context) (string, error) { return "h1", nil }, slog.New(slog.DiscardHandler))
		h.take(1, []store.Object{
			{Kind: store.KindNet, ID: "n1", Message: &wire.Net{Id: "n1", Name: "n1", Vni: 1}},
			{Kind: store.KindHost, ID: "h1", Message: &wire.Host{Id: "h1", Name: "h1", Endpoint: []byte{192, 0, 2, 1}}},
			{Kind: store.KindPort, ID: "p1", Message: &wire.Port{Id: "p1", Name: "p1", Net: "n1", Mac: []byte{2, 0, 0, 0, 0, 1}}},
		})
		hello := &wire.Hello{Ports: []string{"p1"}}
		messages := []*wire.FromHost{{}, {}}
		for i, b := range [][]byte{first, second} {
			if proto.Unmarshal(b, messages[i]) != nil {
				return
			}
			if m := messages[i].GetHello(); m != nil {
				hello = m
			}
		}
		s, err := h.open("h1", hello)
		if err != nil {
			return
		}
		for _, m := range messages {
			_ = h.receive(s, m)
			h.mu.Lock()
			h.round()
			h.mu.Unlock()
		}
		h.end(s)
		if len(h.sessions)+len(h.attached) != 0 || h.stats.Interests != 0 && !h.fleet.ports["p1"].interested.empty() {
			t.Errorf("the session leaves %d sessions, %d ports, %d interests", len(h.sessions), len(h.attached), h.stats.Interests)
		}
	})
}
