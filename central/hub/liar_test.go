// SPDX-License-Identifier: Apache-2.0

package hub_test

import (
	"context"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"weft/central/store"
	"weft/central/wire"
	"weft/internal/waitfor"
)

// liar is a host with a valid certificate that says what it likes.
type liar struct {
	t      *testing.T
	client wire.HubClient
	ctx    context.Context
	heard  []*wire.ToHost
}

// liar declares host n, which has no agent.
func (r *rig) liar(n int) *liar {
	r.memory.Put(store.Object{Kind: store.KindHost, ID: fmt.Sprint("h", n), Message: &wire.Host{Id: fmt.Sprint("h", n), Name: fmt.Sprint("host", n),
		Endpoint: endpoint(n).AsSlice()}})
	c, err := grpc.NewClient("unix:"+r.socket, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20)))
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { c.Close() })
	ctx, stop := context.WithTimeout(metadata.AppendToOutgoingContext(context.Background(), "weft-host", fmt.Sprint("host", n)), time.Minute)
	r.t.Cleanup(stop)
	return &liar{t: r.t, client: wire.NewHubClient(c), ctx: ctx}
}

// say opens a session and sends messages, the last of which is a question. It returns nil after an answer, or
// the error with which the hub ends the session. If refused is set, it waits for this error.
func (l *liar) say(refused bool, hello *wire.Hello, messages ...*wire.FromHost) error {
	ctx, stop := context.WithCancel(l.ctx)
	defer stop()
	s, err := l.client.Follow(ctx)
	if err != nil {
		l.t.Fatal(err)
	}
	for _, m := range append([]*wire.FromHost{{Message: &wire.FromHost_Hello{Hello: hello}}}, messages...) {
		if s.Send(m) != nil {
			break // Recv has the reason
		}
	}
	for {
		m, err := s.Recv()
		if err != nil {
			return err
		}
		l.heard = append(l.heard, m)
		l.heard = append(l.heard, m.GetBatch().GetMessages()...)
		// The hub has taken all messages before it answers the last one, a question.
		if !refused && answered(m) {
			return nil
		}
	}
}

func answered(m *wire.ToHost) bool {
	for _, part := range m.GetBatch().GetMessages() {
		if answered(part) {
			return true
		}
	}
	return m.GetAnswer() != nil
}

func attach(port string) *wire.FromHost {
	return &wire.FromHost{Message: &wire.FromHost_Attach{Attach: &wire.Attach{Port: port, Seen: true}}}
}

func ask(net string, port int) *wire.FromHost {
	return &wire.FromHost{Message: &wire.FromHost_Question{Question: &wire.Question{Net: net,
		Of: &wire.Question_Mac{Mac: []byte{2, 0, 0, 0, 0, byte(port)}}}}}
}

// A host that lies about its ports, its revisions and its networks harms only itself. The other host keeps
// its ports, and the liar learns nothing of a network in which it has none.
func TestLyingHostHarmsItself(t *testing.T) {
	r := newRig(t)
	r.net("n1", 100, false)
	r.net("n2", 200, false)
	r.memory.Put(portObject(1, "n1", "h1"), portObject(2, "n1", ""), portObject(3, "n1", "h2"), portObject(9, "n2", "h1"))
	r.host(1, locals("port1", "port2", "port9")...)
	r.settled()
	l := r.liar(2)
	var many []string
	for i := range 5000 {
		many = append(many, fmt.Sprint("none", i))
	}
	var flood []*wire.FromHost
	for _, name := range many {
		flood = append(flood, attach(name))
	}
	for _, v := range []struct {
		name     string
		want     codes.Code // OK: the session goes on
		hello    *wire.Hello
		messages []*wire.FromHost
	}{
		{"the ports of another host", codes.OK, &wire.Hello{Ports: []string{"port1", "p1", "port2", "p2", "port9", "p9"}}, []*wire.FromHost{attach("port1"), attach("p2"), attach("p9"), attach("port3")}},
		{"detach of the ports of another host", codes.OK, &wire.Hello{Ports: []string{"port3"}}, []*wire.FromHost{
			{Message: &wire.FromHost_Detach{Detach: &wire.Detach{Port: "port1"}}}, {Message: &wire.FromHost_Detach{Detach: &wire.Detach{Port: "p2"}}}}},
		{"revisions that were not sent", codes.OK, &wire.Hello{Ports: []string{"port3"}}, []*wire.FromHost{
			{Message: &wire.FromHost_Applied{Applied: &wire.Applied{Revision: math.MaxInt64}}}, {Message: &wire.FromHost_Applied{Applied: &wire.Applied{Revision: math.MinInt64}}}}},
		{"digests of networks of others", codes.OK, &wire.Hello{Ports: []string{"port3"}, Known: []*wire.NetDigest{{Net: "n2", Digest: 1}, {Net: strings.Repeat("n", 1<<16)}}}, nil},
		{"messages without a kind", codes.OK, &wire.Hello{Ports: []string{"port3"}}, []*wire.FromHost{{}, {}, {}}},
		{"too many ports", codes.ResourceExhausted, &wire.Hello{Ports: many}, nil},
		{"too many ports one by one", codes.Unavailable, &wire.Hello{}, flood},
	} {
		for range 3 { // the same again is no more
			messages := v.messages
			if v.want == codes.OK {
				messages = append(messages[:len(messages):len(messages)], ask("n2", 9), ask("n1", 1))
			}
			if err := l.say(v.want != codes.OK, v.hello, messages...); status.Code(err) != v.want {
				t.Errorf("%s: the session ends with %v, want %v", v.name, err, v.want)
			}
		}
		for _, id := range []string{"p1", "p2", "p9"} {
			if host := r.memory.Declaration().Binds[id].GetHost(); host != "h1" {
				t.Errorf("%s: %s is bound to %q", v.name, id, host)
			}
		}
	}
	r.settled()
	waitfor.True(t, "the liar's sessions end", func() bool { return r.hub.Stats().Sessions == 1 })
	for _, m := range l.heard {
		known := m.GetReset_().GetView().GetNet().GetId() == "n2" || m.GetAnswer().GetPlace().GetNet() == "n2"
		for _, own := range m.GetPort().GetPorts() {
			known = known || own.GetPort().GetNet() == "n2"
		}
		if known {
			t.Errorf("the liar has heard of the other network: %v", m)
		}
	}
}
