// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"log/slog"
	"net"
	"path/filepath"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"weft/central/wire"
)

// silentHub is a hub that welcomes hosts, promises regular messages, and then sends
// nothing.
type silentHub struct {
	wire.UnimplementedHubServer
	opened chan struct{}
}

func (h *silentHub) Follow(stream wire.Hub_FollowServer) error {
	if _, err := stream.Recv(); err != nil {
		return err
	}
	h.opened <- struct{}{}
	if err := stream.Send(&wire.ToHost{Message: &wire.ToHost_Welcome{Welcome: &wire.Welcome{Host: "h", BeatMs: 20}}}); err != nil {
		return err
	}
	<-stream.Context().Done()
	return nil
}

type noPorts struct{}

func (noPorts) Apply(*Changes) error { return nil }
func (noPorts) Ports() []LocalPort   { return nil }
func (noPorts) Trouble() string      { return "" }

// The agent leaves a hub that does not send the promised messages, although the
// connection stays open. It waits longer for the next hub.
func TestAgentLeavesSilentHub(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "hub")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server, hub := grpc.NewServer(), &silentHub{opened: make(chan struct{}, 100)}
	wire.RegisterHubServer(server, hub)
	go server.Serve(l)
	defer server.Stop()
	ctx, cancel := context.WithCancel(context.Background())
	a := New(Config{Centrals: []string{"unix:" + socket}, Credentials: insecure.NewCredentials(), Log: slog.New(slog.DiscardHandler)}, noPorts{})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		a.Run(ctx)
	}()
	for range 3 {
		<-hub.opened
	}
	cancel()
	<-ended
	if a.patience < 4 {
		t.Errorf("after two silent hubs the agent waits %d times as long", a.patience)
	}
}
