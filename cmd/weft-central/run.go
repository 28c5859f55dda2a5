// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"

	"weft/central/admin"
	"weft/central/hub"
	"weft/central/pki"
	"weft/central/store"
	"weft/central/wire"
	"weft/cmd/exit"
)

const (
	// maxMessage is the largest message in bytes that a central accepts. A request
	// with some 100,000 ports fits.
	maxMessage = 16 << 20
	// maxStreams is the limit of simultaneous calls on one connection.
	maxStreams = 64
	// If a connection is idle for the time pingEvery, the central sends a ping. It
	// closes the connection if the answer takes longer than pingTimeout.
	pingEvery   = 10 * time.Second
	pingTimeout = 5 * time.Second
	// stopTimeout is how long a central that stops waits for running calls.
	stopTimeout = 2 * time.Second
	// choresEvery is the interval of a central's regular work (see chores).
	choresEvery = time.Second
	// reclaimEvery is the shortest time between two attempts to make room in a full
	// store. The etcd member does not answer during an attempt.
	reclaimEvery = 10 * time.Second
	// maxSocket is the largest length in bytes of the path of a unix socket (sun_path
	// without the final zero).
	maxSocket = 107
)

// moveGrace is the value that the central sets for hub.Hub.MoveGrace. Tests make it shorter.
var moveGrace = hub.DefaultMoveGrace

func runCommand() *cobra.Command {
	var data string
	var verbose bool
	cmd := &cobra.Command{
		Use: "run", Short: "run the central that init or join has prepared", Args: exactly(0, "flags only"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := readSettings(data)
			if err != nil {
				return err
			}
			level := slog.LevelInfo
			if verbose {
				level = slog.LevelDebug
			}
			log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
			ctx, stop := signal.NotifyContext(cmd.Context(), unix.SIGINT, unix.SIGTERM)
			defer stop()
			c := &central{settings: s, data: data, log: log, conns: map[string]*grpc.ClientConn{}}
			return c.run(ctx)
		},
	}
	cmd.Flags().StringVar(&data, "data", defaultData, "directory of the central")
	cmd.Flags().BoolVar(&verbose, "verbose", false, "log debug messages, too")
	return cmd
}

// central is the running process weft-central.
type central struct {
	*settings
	data  string
	log   *slog.Logger
	keys  *pki.Keys
	ca    *pki.CA // nil: the site's, without its key
	store *store.Store
	hub   *hub.Hub
	gate  *admin.Gate
	front *front
	// members is the front for the other centrals, which passes their connections to the embedded etcd;
	// nil: the site has its own etcd
	members *front
	// applied is a histogram of times. Each is the time for which a call of Sync has waited until all
	// hosts had applied a revision.
	applied prometheus.Histogram

	mu    sync.Mutex // guards conns
	conns map[string]*grpc.ClientConn
}

func (c *central) run(ctx context.Context) error {
	if err := c.loadKeys(); err != nil {
		return err
	}
	if !c.awaitRoom(ctx) {
		return nil
	}
	listener, err := net.Listen("tcp", c.Listen)
	if err != nil {
		return err
	}
	defer listener.Close()
	client, ended, closeStore, err := c.openStore(ctx)
	if err != nil {
		return err
	}
	defer closeStore()
	if err := c.store.RenewGenerations(ctx); err != nil && !errors.Is(err, store.ErrFull) {
		return err
	}
	c.hub, c.gate = hub.New(c.store, admin.IdentifyHost, c.log), admin.NewGate()
	c.hub.OnRevocations, c.hub.MoveGrace = c.gate.Revocations, moveGrace
	c.store.SetWaiting(c.hub.WaitingHost)
	c.applied = newApplied()
	service := c.service(client)
	c.front = newFront(listener, c.keys.Server(), limitsOfClients())
	known, strangers := c.servers(service)
	failed := make(chan error, 8)
	var running sync.WaitGroup
	defer running.Wait()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	running.Go(func() { failed <- c.hub.Run(ctx) })
	running.Go(func() { _ = c.store.Register(ctx, &wire.Central{Name: c.Name, Address: c.Address}) })
	running.Go(func() { service.FollowPeers(ctx) })
	running.Go(func() { c.chores(ctx) })
	running.Go(func() { failed <- c.front.run() })
	running.Go(func() { failed <- known.Serve(c.front.known) })
	running.Go(func() { failed <- strangers.Serve(c.front.strangers) })
	defer stopServer(known)
	defer strangers.Stop()
	if c.Metrics != "" {
		closeMetrics, err := c.serveMetrics(failed)
		if err != nil {
			return err
		}
		defer closeMetrics()
	}
	c.log.Info("ready", "name", c.Name, "address", c.Address, "data", c.data, "pid", os.Getpid())
	select {
	case <-ctx.Done():
		return nil
	case err = <-ended:
		err = fmt.Errorf("etcd ended: %w", err)
	case err = <-failed:
	}
	stop()
	return err
}

func (c *central) loadKeys() (err error) {
	if c.keys, err = pki.Load(c.files(c.data)); err != nil {
		return err
	}
	name, role, err := c.keys.Identity()
	if err != nil || role != pki.Central {
		return fmt.Errorf("the certificate of %q has the role %q; expected central", name, role)
	}
	certFile, keyFile := filepath.Join(c.data, "ca.pem"), filepath.Join(c.data, "ca-key.pem")
	if c.Certificate != "" {
		certFile, keyFile = c.CA, c.CAKey
	}
	if keyFile == "" {
		return nil
	}
	c.ca, err = pki.LoadCA(certFile, keyFile)
	return err
}

// openStore starts the embedded etcd, or connects to the etcd of the site.
func (c *central) openStore(ctx context.Context) (client *clientv3.Client, ended <-chan error, closeStore func(), err error) {
	if len(c.Etcd) > 0 {
		var config *tls.Config
		if c.EtcdCA != "" || c.EtcdCertificate != "" {
			info := transport.TLSInfo{CertFile: c.EtcdCertificate, KeyFile: c.EtcdKey, TrustedCAFile: c.EtcdCA}
			if config, err = info.ClientConfig(); err != nil {
				return nil, nil, nil, err
			}
		}
		if client, err = store.Dial(c.Etcd, config); err != nil {
			return nil, nil, nil, fmt.Errorf("etcd %v: %w", c.Etcd, err)
		}
		ops := c.EtcdMaxTxnOps
		if ops == 0 {
			ops = store.DefaultOps
		}
		c.store = store.New(client, store.WithLimits(ops, store.DefaultBytes))
		return client, nil, func() { _ = client.Close() }, nil
	}
	// Clients connect to etcd by a unix socket in a directory of mode 0700, so that
	// only this user can connect. Other etcd members connect by TLS.
	data, err := filepath.Abs(c.data)
	if err != nil {
		return nil, nil, nil, err
	}
	socket := filepath.Join(data, "etcd.sock")
	if len(socket) > maxSocket {
		return nil, nil, nil, exit.Usagef("%s is longer than %d bytes; give a shorter --data", socket, maxSocket)
	}
	_ = os.Remove(socket) // of a central that was killed
	f := c.files(data)
	files := store.TLSFiles{Certificate: f.Certificate, Key: f.Key, CA: f.CA, Peer: pki.CentralName}
	if err := c.listenMembers(files); err != nil {
		return nil, nil, nil, err
	}
	e, err := store.Embed(ctx, store.EmbedConfig{
		Name: c.Name, Dir: filepath.Join(data, "etcd"), PeerURL: "https://" + c.Peer, ClientURL: "unix://" + socket,
		Cluster: c.Cluster, Existing: c.Existing, Quota: c.QuotaMiB << 20, Log: c.log, DiskFull: c.startAgain,
		TLS: files, Members: c.members.known,
	})
	if store.IsDiskFull(err) {
		c.startAgain()
	}
	if err != nil {
		c.members.close()
		return nil, nil, nil, err
	}
	c.store = e.Store()
	return e.Client(), e.Err(), func() {
		e.Close()
		c.members.close()
	}, nil
}

func (c *central) service(client *clientv3.Client) *admin.Service {
	return admin.New(admin.Config{
		Name: c.Name, Store: c.store, Hub: c.hub, CA: c.ca, Members: len(c.Etcd) == 0, Dial: c.dial, Log: c.log,
		Save:   func(ctx context.Context) (io.ReadCloser, error) { return store.Snapshot(ctx, client) },
		Synced: func(d time.Duration) { c.applied.Observe(d.Seconds()) },
	})
}

// servers makes two gRPC servers: for connections with a certificate, and for those without one. Both
// have all services. So a caller without a certificate gets the error that it needs one.
func (c *central) servers(service *admin.Service) (known, strangers *grpc.Server) {
	known = grpc.NewServer(append(append(c.gate.Authorize(), hub.ServerOptions()...),
		grpc.Creds(proven{}),
		grpc.MaxRecvMsgSize(maxMessage), grpc.MaxConcurrentStreams(maxStreams),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: pingEvery, Timeout: pingTimeout}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: pingTimeout, PermitWithoutStream: true}))...)
	strangers = grpc.NewServer(append(append(c.gate.Authorize(), strangerOptions()...), grpc.Creds(proven{}))...)
	for _, server := range []*grpc.Server{known, strangers} {
		wire.RegisterHubServer(server, c.hub)
		service.Register(server)
	}
	return known, strangers
}

// stopServer stops the server. Running calls may end within stopTimeout; then they are cancelled.
func stopServer(server *grpc.Server) {
	timer := time.AfterFunc(stopTimeout, server.Stop)
	defer timer.Stop()
	server.GracefulStop()
}

// dial returns the connection to the central with this address. It opens the connection at the first
// call and keeps it. If packets are lost, gRPC's pings end the connection. TCP would keep it for many
// minutes.
func (c *central) dial(address string) (grpc.ClientConnInterface, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if conn := c.conns[address]; conn != nil {
		return conn, nil
	}
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(credentials.NewTLS(c.keys.Client())), wire.Reconnect(),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: pingEvery, Timeout: pingTimeout}))
	if err != nil {
		return nil, err
	}
	c.conns[address] = conn
	return conn, nil
}

// chores does a central's regular work until ctx ends. It gives new members of etcd their votes, makes
// room in a full store, sets GOGC for the size of the heap, and renews the certificate when it is due.
func (c *central) chores(ctx context.Context) {
	tick := time.NewTicker(choresEvery)
	defer tick.Stop()
	var reclaimed time.Time
	var gc gcTuner
	for {
		gc.tune()
		select {
		case <-ctx.Done():
			c.mu.Lock()
			defer c.mu.Unlock()
			for _, conn := range c.conns {
				_ = conn.Close()
			}
			return
		case <-tick.C:
		}
		if len(c.Etcd) == 0 {
			_ = c.store.PromoteMembers(ctx) // error ignored: a new member may still copy the database; the next tick tries again
			if time.Since(reclaimed) > reclaimEvery && c.reclaim(ctx) {
				reclaimed = time.Now()
			}
		}
		if c.ca != nil && c.Certificate == "" && time.Now().After(c.keys.Renewal()) {
			if err := c.renew(); err != nil {
				c.log.Warn("the certificate is not renewed", "error", err)
			} else {
				c.log.Info("renewed the certificate")
			}
		}
	}
}

// reclaim tries to make room if the store is full. It returns true if it has tried.
func (c *central) reclaim(ctx context.Context) (tried bool) {
	done, err := c.store.Reclaim(ctx)
	switch {
	case err != nil && ctx.Err() == nil:
		c.log.Error("no room in the store", "error", err)
	case done:
		c.log.Warn("the store was full; its old revisions are deleted, and it takes changes again")
	}
	return done || err != nil
}

func (c *central) renew() error {
	return c.keys.Renew(c.addresses(), func(csr []byte) (cert, ca []byte, err error) {
		cert, err = c.ca.Renew(csr, c.keys.Certificate(), pki.DefaultLife)
		return cert, c.ca.DER(), err
	})
}
