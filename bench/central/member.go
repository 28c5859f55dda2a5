// SPDX-License-Identifier: Apache-2.0

package central

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	_ "net/http/pprof" // imported because it serves CPU profiles at memberConfig.Profile
	"os"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"weft/central/hub"
	"weft/central/pki"
	"weft/central/store"
	"weft/central/wire"
)

// memberConfig is the configuration of a weft-central server that runs Serve. The server reads it from
// a JSON file.
type memberConfig struct {
	Etcd    store.EmbedConfig
	Listen  string   // address of the central's gRPC server
	Peers   []string // addresses of the other centrals' gRPC servers
	Profile string   // address for CPU profiles (net/http/pprof); empty: none
}

// Serve runs a weft-central server and its etcd member until the process is killed. The file has the
// server's configuration.
func Serve(file string) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var c memberConfig
	if err := json.Unmarshal(data, &c); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	c.Etcd.Log = log
	if c.Profile != "" {
		go func() { _ = http.ListenAndServe(c.Profile, nil) }()
	}
	_ = os.Remove(strings.TrimPrefix(c.Etcd.ClientURL, "unix://")) // of a central that was killed
	ctx := context.Background()
	embedded, err := store.Embed(ctx, c.Etcd)
	if err != nil {
		return err
	}
	defer embedded.Close()
	config, err := serverTLS(c.Etcd.TLS)
	if err != nil {
		return err
	}
	m := &member{embedded: embedded, store: embedded.Store(), name: c.Etcd.Name}
	m.hub = hub.New(m.store, caller, log)
	if err := m.dialPeers(c.Peers, config); err != nil {
		return err
	}
	// Agents send a keep-alive every ten seconds. Without this policy, gRPC would close their
	// connections.
	server := grpc.NewServer(append(hub.ServerOptions(), grpc.Creds(credentials.NewTLS(config)),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second}),
		grpc.MaxRecvMsgSize(16<<20))...)
	m.store.SetWaiting(m.hub.WaitingHost)
	for i, p := range m.peers {
		go m.followWaiting(ctx, c.Peers[i], p)
	}
	wire.RegisterHubServer(server, m.hub)
	wire.RegisterAdminServer(server, m)
	wire.RegisterPeerServer(server, &peerServer{hub: m.hub})
	listener, err := net.Listen("tcp", c.Listen)
	if err != nil {
		return err
	}
	ended := make(chan error, 2)
	go func() { ended <- m.hub.Run(ctx) }()
	go func() { ended <- server.Serve(listener) }()
	return <-ended
}

func serverTLS(f store.TLSFiles) (*tls.Config, error) {
	own, err := tls.LoadX509KeyPair(f.Certificate, f.Key)
	if err != nil {
		return nil, err
	}
	ca, err := os.ReadFile(f.CA)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(ca) {
		return nil, fmt.Errorf("%s has no certificate", f.CA)
	}
	return &tls.Config{Certificates: []tls.Certificate{own}, ClientCAs: pool, RootCAs: pool,
		ClientAuth: tls.RequireAndVerifyClientCert, MinVersion: tls.VersionTLS13,
		DynamicRecordSizingDisabled: pki.LargeRecords}, nil
}

func caller(ctx context.Context) (string, error) {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return "", errors.New("no connection")
	}
	info, ok := p.AuthInfo.(credentials.TLSInfo)
	if !ok || len(info.State.PeerCertificates) == 0 {
		return "", errors.New("no certificate")
	}
	return info.State.PeerCertificates[0].Subject.CommonName, nil
}

type member struct {
	wire.UnimplementedAdminServer
	name     string
	embedded *store.Embedded
	store    *store.Store
	hub      *hub.Hub
	peers    []wire.PeerClient
}

func (m *member) dialPeers(addresses []string, config *tls.Config) error {
	for _, address := range addresses {
		conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(credentials.NewTLS(config)))
		if err != nil {
			return err
		}
		m.peers = append(m.peers, wire.NewPeerClient(conn))
	}
	return nil
}

// followWaiting receives another weft-central server's list of undeclared ports: ports that hosts of
// that server have, but that no administrator has declared. In weft-central, admin.Service.FollowPeers
// does this.
func (m *member) followWaiting(ctx context.Context, address string, p wire.PeerClient) {
	for ; ctx.Err() == nil; time.Sleep(time.Second) {
		stream, err := p.Waiting(ctx, &wire.WaitingRequest{})
		for err == nil {
			var ports *wire.WaitingPorts
			if ports, err = stream.Recv(); err == nil {
				m.hub.NoteWaiting(address, ports.GetPorts())
			}
		}
		m.hub.ForgetWaiting(address)
	}
}

func (m *member) Apply(ctx context.Context, r *wire.ChangeRequest) (*wire.ChangeReply, error) {
	revision, err := m.store.Apply(ctx, r)
	var refused *store.Refused
	var busy *store.Busy
	switch {
	case errors.As(err, &busy):
		return nil, wire.BusyError(err.Error(), busy.RetryIn)
	case errors.As(err, &refused):
		return nil, status.Error(codes.FailedPrecondition, err.Error())
	case err != nil:
		return nil, status.Error(codes.Unavailable, err.Error())
	}
	return &wire.ChangeReply{Revision: revision}, nil
}

func (m *member) Sync(ctx context.Context, r *wire.SyncRequest) (*wire.SyncReply, error) {
	replies := make([]*wire.SyncReply, len(m.peers)+1)
	failed := make([]error, len(m.peers)+1)
	var done sync.WaitGroup
	for i, p := range m.peers {
		done.Go(func() { replies[i], failed[i] = p.Sync(ctx, r) })
	}
	replies[len(m.peers)], failed[len(m.peers)] = (&peerServer{hub: m.hub}).Sync(ctx, r)
	done.Wait()
	if err := errors.Join(failed...); err != nil {
		return nil, err
	}
	sum := &wire.SyncReply{Revision: r.GetRevision()}
	for _, p := range replies {
		sum.Hosts += p.GetHosts()
	}
	return sum, nil
}

func (m *member) Status(context.Context, *wire.StatusRequest) (*wire.StatusReply, error) {
	s := m.hub.Stats()
	return &wire.StatusReply{Revision: s.Revision, Nets: uint32(s.Nets), Ports: uint32(s.Ports), Bound: uint32(s.Bound),
		Hosts: uint32(s.Hosts), Connected: uint32(s.Sessions),
		Centrals: []*wire.Central{{Name: m.name, Leader: m.embedded.Leader(), Healthy: m.hub.Ready(), Sessions: uint32(s.Sessions)}}}, nil
}

// peerServer answers requests of the other weft-central servers.
type peerServer struct {
	wire.UnimplementedPeerServer
	hub *hub.Hub
}

func (p *peerServer) Sync(ctx context.Context, r *wire.SyncRequest) (*wire.SyncReply, error) {
	hosts, err := p.hub.Sync(ctx, r.GetRevision())
	return &wire.SyncReply{Revision: r.GetRevision(), Hosts: uint32(len(hosts))}, err
}

func (p *peerServer) Waiting(_ *wire.WaitingRequest, stream wire.Peer_WaitingServer) error {
	return p.hub.AnnounceWaiting(stream.Context(), stream.Send)
}
