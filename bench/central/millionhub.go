// SPDX-License-Identifier: Apache-2.0

package central

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"runtime/debug"
	"runtime/pprof"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"weft/central/centraltest"
	"weft/central/hub"
	"weft/central/store"
	"weft/central/wire"
)

// hubVariable is an environment variable with the path of a unix socket. A process that finds it set
// serves a hub on this socket.
const hubVariable = "WEFT_BENCH_MILLION_HUB"

// hubProfileVariable is an environment variable with the directory for profiles of the hub's process.
// If it is empty, the process writes no profiles.
const hubProfileVariable = "WEFT_BENCH_MILLION_PROFILE"

// hostHeader is a gRPC header with the name of a simulated host. It replaces the host's certificate,
// so many hosts can share one connection.
const hostHeader = "weft-host"

// maxMillionStreams is the largest number of hosts that share a connection.
const maxMillionStreams = 200

// serveMillion serves a hub until the process is killed. The hub's store is in memory
// and accepts every object unchecked.
func serveMillion(socket string) error {
	m := &millionHub{store: centraltest.NewMemory(), profile: os.Getenv(hubProfileVariable)}
	if err := m.startProfile(); err != nil {
		return err
	}
	m.hub = hub.New(m.store, hostInHeader, slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})))
	m.store.SetWaiting(m.hub.WaitingHost)
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	server := grpc.NewServer(grpc.ForceServerCodecV2(hub.Codec()), grpc.MaxRecvMsgSize(16<<20), grpc.MaxConcurrentStreams(maxMillionStreams))
	wire.RegisterHubServer(server, m.hub)
	wire.RegisterAdminServer(server, m)
	ended := make(chan error, 2)
	go func() { ended <- m.hub.Run(context.Background()) }()
	go func() { ended <- server.Serve(listener) }()
	return <-ended
}

func hostInHeader(ctx context.Context) (string, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	if names := md.Get(hostHeader); len(names) == 1 {
		return names[0], nil
	}
	return "", errors.New("no name")
}

// millionHub implements those methods of wire.Admin that this test calls.
type millionHub struct {
	wire.UnimplementedAdminServer
	store   *centraltest.Memory
	hub     *hub.Hub
	profile string // directory of profiles; if empty, none
}

func (m *millionHub) startProfile() error {
	if m.profile == "" {
		return nil
	}
	if err := os.MkdirAll(m.profile, 0o700); err != nil {
		return err
	}
	file, err := os.Create(filepath.Join(m.profile, "million.cpu"))
	if err != nil {
		return err
	}
	return pprof.StartCPUProfile(file)
}

// endProfile ends the CPU profile and writes a heap profile.
func (m *millionHub) endProfile() error {
	if m.profile == "" {
		return nil
	}
	pprof.StopCPUProfile()
	file, err := os.Create(filepath.Join(m.profile, "million.heap"))
	if err != nil {
		return err
	}
	defer file.Close()
	return pprof.WriteHeapProfile(file)
}

func (m *millionHub) Apply(_ context.Context, r *wire.ChangeRequest) (*wire.ChangeReply, error) {
	objects := make([]store.Object, 0, len(r.GetChanges()))
	for _, c := range r.GetChanges() {
		switch c := c.GetChange().(type) {
		case *wire.Change_SetNet:
			objects = append(objects, store.Object{Kind: store.KindNet, ID: c.SetNet.GetId(), Message: c.SetNet})
		case *wire.Change_SetHost:
			objects = append(objects, store.Object{Kind: store.KindHost, ID: c.SetHost.GetId(), Message: c.SetHost})
		case *wire.Change_SetPort:
			objects = append(objects, store.Object{Kind: store.KindPort, ID: c.SetPort.GetId(), Message: c.SetPort})
		}
	}
	return &wire.ChangeReply{Revision: m.store.Put(objects...)}, nil
}

// Status returns the revision of the hub's store, and how many ports, bound ports, hosts and connected
// hosts the hub has.
func (m *millionHub) Status(context.Context, *wire.StatusRequest) (*wire.StatusReply, error) {
	s := m.hub.Stats()
	return &wire.StatusReply{Revision: s.Revision, Ports: uint32(s.Ports), Bound: uint32(s.Bound), Hosts: uint32(s.Hosts), Connected: uint32(s.Sessions)}, nil
}

// Save frees unused memory and writes the profiles. This test calls it only for that: Save returns no
// backup, unlike the Save of weft-central.
func (m *millionHub) Save(*wire.SaveRequest, grpc.ServerStreamingServer[wire.SaveChunk]) error {
	debug.FreeOSMemory()
	return m.endProfile()
}
