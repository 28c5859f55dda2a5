// SPDX-License-Identifier: Apache-2.0

package hub_test

import (
	"context"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"weft/central/store"
	"weft/central/wire"
	"weft/internal/waitfor"
)

// later adds a field that this version does not know.
func later(m proto.Message) {
	m.ProtoReflect().SetUnknown(protowire.AppendString(protowire.AppendTag(nil, 1000, protowire.BytesType), "of a later version"))
}

// stream opens a host's stream to the hub and sends nothing.
func (r *rig) stream(host string) wire.Hub_FollowClient {
	r.t.Helper()
	conn, err := grpc.NewClient("unix:"+r.socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { conn.Close() })
	ctx, stop := context.WithCancel(metadata.AppendToOutgoingContext(context.Background(), "weft-host", host))
	r.t.Cleanup(stop)
	stream, err := wire.NewHubClient(conn).Follow(ctx)
	if err != nil {
		r.t.Fatal(err)
	}
	return stream
}

// A host of a later version keeps its session, although it sends fields and a kind of
// message that this hub does not know.
func TestHostOfLaterVersion(t *testing.T) {
	r := newRig(t)
	r.net("n1", 100, false)
	r.memory.Put(store.Object{Kind: store.KindHost, ID: "h1", Message: &wire.Host{Id: "h1", Name: "host1", Endpoint: endpoint(1).AsSlice()}},
		portObject(1, "n1", ""), portObject(2, "n1", ""))
	stream := r.stream("host1")
	hello, attach, unknown := &wire.Hello{Version: "2", Ports: []string{"port1"}}, &wire.Attach{Port: "port2"}, &wire.FromHost{}
	for _, m := range []proto.Message{hello, attach, unknown} {
		later(m)
	}
	for _, m := range []*wire.FromHost{{Message: &wire.FromHost_Hello{Hello: hello}}, unknown, {Message: &wire.FromHost_Attach{Attach: attach}}} {
		if err := stream.Send(m); err != nil {
			t.Fatal(err)
		}
	}
	waitfor.True(t, "both ports are bound", func() bool { return len(r.memory.Declaration().Binds) == 2 })
	if s := r.hub.Stats(); s.Sessions != 1 || s.Unknown != 1 {
		t.Errorf("%d sessions, %d unknown messages, expected one of each", s.Sessions, s.Unknown)
	}
}
