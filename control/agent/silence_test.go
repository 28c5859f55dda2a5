// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"weft/central/wire"
)

// silentHub is a hub that welcomes hosts, promises regular messages, and then sends
// nothing.
type silentHub struct {
	wire.UnimplementedHubServer
	opened chan struct{}
	mute   bool // the hub does not even welcome hosts
}

func (h *silentHub) Follow(stream wire.Hub_FollowServer) error {
	if _, err := stream.Recv(); err != nil {
		return err
	}
	h.opened <- struct{}{}
	if h.mute {
		<-stream.Context().Done()
		return nil
	}
	if err := stream.Send(&wire.ToHost{Message: &wire.ToHost_Welcome{Welcome: &wire.Welcome{Host: "h", BeatMs: 20}}}); err != nil {
		return err
	}
	<-stream.Context().Done()
	return nil
}

type noPorts struct{}

func (noPorts) Apply(*Changes) error { return nil }
func (noPorts) Ports() []LocalPort   { return nil }

// followSilent lets an agent follow a silent hub until it has opened three sessions, and
// returns the error of the second.
func followSilent(t *testing.T, a *Agent, hub *silentHub) (trouble string) {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "hub")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	hub.opened = make(chan struct{}, 100)
	wire.RegisterHubServer(server, hub)
	go server.Serve(l)
	defer server.Stop()
	a.config.Centrals = []string{"unix:" + socket}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		a.Run(ctx)
	}()
	for range 3 {
		<-hub.opened
	}
	trouble = a.Stats().Trouble
	cancel()
	<-ended
	return trouble
}

func newQuietAgent() *Agent {
	return New(Config{Credentials: insecure.NewCredentials(), Log: slog.New(slog.DiscardHandler)}, noPorts{})
}

// The agent leaves a hub that does not send the promised messages, although the
// connection stays open. It waits longer for the next hub.
func TestAgentLeavesSilentHub(t *testing.T) {
	a := newQuietAgent()
	followSilent(t, a, &silentHub{})
	if a.patience < 4 {
		t.Errorf("after two silent hubs the agent waits %d times as long", a.patience)
	}
	if a.welcomeWithin != welcomeWithin {
		t.Errorf("after a welcome the agent waits %s for the next one", a.welcomeWithin)
	}
}

// The agent leaves a hub that does not welcome it, and waits longer for the next one.
func TestAgentLeavesMuteHub(t *testing.T) {
	a := newQuietAgent()
	const first = 20 * time.Millisecond
	a.welcomeWithin = first
	trouble := followSilent(t, a, &silentHub{mute: true})
	if a.welcomeWithin < 4*first {
		t.Errorf("after two mute hubs the agent waits %s", a.welcomeWithin)
	}
	if !strings.Contains(trouble, "does not answer") {
		t.Errorf("the agent says: %s", trouble)
	}
}
