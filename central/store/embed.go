// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/etcdhttp"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"weft/central/wire"
)

// Settings of the embedded etcd.
const (
	// storeQuota is the default limit of the database's size in bytes. At the limit,
	// etcd refuses writes until Reclaim has made room.
	storeQuota = 2 << 30
	// Limits of one transaction: the number of operations, and the size in bytes.
	embeddedOps   = 4096
	embeddedBytes = 4 << 20
	// Raft's heartbeat interval and election timeout in milliseconds. The election of a leader takes one
	// or two election timeouts.
	heartbeatMS = 60
	electionMS  = 600
	// backendInterval is the time between two commits of etcd to the database file,
	// during which changes wait (etcd's default: 100 ms). No acknowledged change is
	// lost, because etcd first writes it to its log.
	backendInterval = 500 * time.Millisecond
	// compactAfter is the age at which etcd deletes revisions that a later one has replaced.
	compactAfter = "10m"
	// Limits of the time that another member needs for the header of a request and for a whole request,
	// such as a snapshot. etcd has none for the header.
	memberHeaderTimeout = 10 * time.Second
	memberReadTimeout   = 5 * time.Minute
	// DefaultReady is how long a starting member waits for a quorum by default.
	DefaultReady = 60 * time.Second
)

// TLSFiles has the paths of a member's PEM files. An empty path means no TLS. etcd
// reads the CA's certificate only once.
type TLSFiles struct {
	Certificate, Key, CA string
	// Peer is a DNS name that is only in the certificates of other members. Connections without it are
	// refused.
	Peer string
}

func (t TLSFiles) info() transport.TLSInfo {
	if t.CA == "" {
		return transport.TLSInfo{}
	}
	i := transport.TLSInfo{CertFile: t.Certificate, KeyFile: t.Key, TrustedCAFile: t.CA, ClientCertAuth: true,
		// On a machine with several addresses, connections may come from an address that
		// the certificate lacks. CA and Peer restrict who may connect.
		SkipClientSANVerify: true}
	if t.Peer != "" {
		i.AllowedHostnames = []string{t.Peer}
	}
	return i
}

// Server returns the TLS settings of a server for other members.
func (t TLSFiles) Server() (*tls.Config, error) {
	c, err := t.info().ServerConfig()
	if err == nil {
		c.NextProtos = nil // members speak HTTP/1.1
	}
	return c, err
}

// EmbedConfig configures an etcd member in this process.
type EmbedConfig struct {
	Name string // name of the member, unique in the cluster
	Dir  string // database directory, created with mode 0700
	// PeerURL is the address for other members, ClientURL the address for clients.
	// AdvertisePeer and AdvertiseClient are the addresses that others are told; by
	// default they are the same.
	PeerURL, ClientURL             string
	AdvertisePeer, AdvertiseClient string
	// Cluster lists the initial members, such as
	// a=https://10.0.0.1:2380,b=https://10.0.0.2:2380. "" means that this is the only
	// member.
	Cluster string
	// Existing means that the member joins a running cluster. AddMember has added its URL to the cluster
	// before.
	Existing bool
	// Token identifies the cluster. Members refuse members with another token.
	Token string
	TLS   TLSFiles
	// Members has the connections of other members, whose TLS handshakes are done. nil: etcd listens at
	// PeerURL itself, without a limit of connections.
	Members net.Listener  `json:"-"`
	Quota   int64         // limit of the database's size in bytes; 0 means storeQuota
	Ready   time.Duration // time limit until the cluster has a leader; 0 means DefaultReady
	Log     *slog.Logger
	// DiskFull is called after a write of etcd has failed because the disk is full. etcd
	// cannot go on, so DiskFull does not return. nil: the process ends.
	DiskFull func() `json:"-"`
}

// Embedded is a running member of etcd in this process.
type Embedded struct {
	etcd    *embed.Etcd
	members *http.Server // serves EmbedConfig.Members; nil: none
	client  *clientv3.Client
	direct  *clientv3.Client // calls the member without a connection
}

// Embed starts a member of etcd in this process. It returns when the member answers
// requests.
func Embed(ctx context.Context, c EmbedConfig) (*Embedded, error) {
	config, err := c.etcd()
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(c.Dir, 0o700); err != nil {
		return nil, err
	}
	started, err := embed.StartEtcd(config)
	if err != nil {
		return nil, fmt.Errorf("etcd does not start: %w", err)
	}
	e := &Embedded{etcd: started}
	if c.Members != nil {
		e.members = &http.Server{Handler: etcdhttp.NewPeerHandler(config.GetLogger(), started.Server),
			ReadHeaderTimeout: memberHeaderTimeout, ReadTimeout: memberReadTimeout, ErrorLog: log.New(io.Discard, "", 0)}
		go func() { _ = e.members.Serve(c.Members) }()
	}
	ready := c.Ready
	if ready == 0 {
		ready = DefaultReady
	}
	timer := time.NewTimer(ready)
	defer timer.Stop()
	select {
	case <-started.Server.ReadyNotify():
	case err = <-started.Err():
		err = fmt.Errorf("etcd ended: %w", err)
	case <-started.Server.StopNotify():
		err = errors.New("etcd ended")
	case <-timer.C:
		err = fmt.Errorf("etcd has no leader after %s: start the other members, or check their addresses", ready)
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err == nil {
		e.client, err = c.dial()
	}
	if err == nil {
		e.direct = v3client.New(started.Server)
		err = e.serve(ctx, ready)
	}
	if err != nil {
		e.Close()
		return nil, err
	}
	return e, nil
}

// serve waits until the member answers requests. A new member answers only after it has
// been given a vote.
func (e *Embedded) serve(ctx context.Context, ready time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, ready)
	defer cancel()
	for n := 0; ; n++ {
		attempt, done := context.WithTimeout(ctx, attemptTimeout)
		_, err := e.client.Get(attempt, intentKey)
		done()
		if err == nil {
			return nil
		}
		if pause(ctx, n) != nil {
			return fmt.Errorf("etcd does not serve after %s: start the other members: %w", ready, err)
		}
	}
}

func (c *EmbedConfig) etcd() (*embed.Config, error) {
	e := embed.NewConfig()
	e.Name, e.Dir = c.Name, c.Dir
	for _, u := range []struct {
		to        *[]url.URL
		text, def string
	}{
		{&e.ListenPeerUrls, c.PeerURL, ""}, {&e.ListenClientUrls, c.ClientURL, ""},
		{&e.AdvertisePeerUrls, c.AdvertisePeer, c.PeerURL}, {&e.AdvertiseClientUrls, c.AdvertiseClient, c.ClientURL},
	} {
		if u.text == "" {
			u.text = u.def
		}
		parsed, err := url.Parse(u.text)
		if err != nil || u.text == "" {
			return nil, fmt.Errorf("%q is no address of etcd; expected one like https://10.0.0.1:2380", u.text)
		}
		*u.to = []url.URL{*parsed}
	}
	if c.Members != nil {
		e.ListenPeerUrls = nil
	}
	e.InitialCluster = c.Cluster
	if c.Cluster == "" {
		e.InitialCluster = c.Name + "=" + e.AdvertisePeerUrls[0].String()
	}
	e.ClusterState = embed.ClusterStateFlagNew
	if c.Existing {
		e.ClusterState = embed.ClusterStateFlagExisting
	}
	if c.Token != "" {
		e.InitialClusterToken = c.Token
	}
	e.PeerTLSInfo = c.TLS.info()
	if e.ListenClientUrls[0].Scheme == "https" {
		e.ClientTLSInfo = c.TLS.info()
	}
	e.TickMs, e.ElectionMs, e.PreVote = heartbeatMS, electionMS, true
	e.AutoCompactionMode, e.AutoCompactionRetention = embed.CompactorModePeriodic, compactAfter
	e.QuotaBackendBytes = c.Quota
	if c.Quota == 0 {
		e.QuotaBackendBytes = storeQuota
	}
	e.MaxTxnOps, e.MaxRequestBytes = embeddedOps, embeddedBytes+embeddedBytes/2
	e.WatchProgressNotifyInterval = 5 * time.Second
	e.BackendBatchInterval = backendInterval
	e.LogLevel = "error"
	e.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.New(&slogCore{log: c.Log}, zap.WithFatalHook(fatalHook{c.DiskFull})))
	return e, e.Validate()
}

// dial returns a client that connects only to this member of etcd, so that the client notices when the
// member has lost its cluster.
func (c *EmbedConfig) dial() (*clientv3.Client, error) {
	var config *tls.Config
	if strings.HasPrefix(c.ClientURL, "https:") {
		var err error
		if config, err = c.TLS.info().ClientConfig(); err != nil {
			return nil, err
		}
	}
	return Dial([]string{c.ClientURL}, config)
}

// Dial returns a client of a separate or embedded etcd.
func Dial(endpoints []string, config *tls.Config) (*clientv3.Client, error) {
	return clientv3.New(clientv3.Config{
		Endpoints: endpoints, TLS: config, DialTimeout: 5 * time.Second,
		DialKeepAliveTime: 10 * time.Second, DialKeepAliveTimeout: 3 * time.Second,
		MaxCallSendMsgSize: 2 * embeddedBytes,
		DialOptions:        []grpc.DialOption{wire.Reconnect()},
		// no retries by the client, because the store repeats requests itself
		MaxUnaryRetries: 1,
		Logger:          zap.NewNop(),
	})
}

// Store returns a Store that uses this member. Its transactions and watches are
// function calls in this process, because gRPC would cost more CPU time than etcd
// itself.
func (e *Embedded) Store() *Store {
	s := New(e.client, WithLimits(embeddedOps, embeddedBytes))
	s.kv, s.watcher, s.local, s.readLocal = e.direct, e.direct, true, e.readLocal
	s.leaderChanged = e.etcd.Server.LeaderChangedNotify
	return s
}

// Client returns a client of this member. Close closes the client.
func (e *Embedded) Client() *clientv3.Client { return e.client }

// Err returns a channel that receives an error if the member fails.
func (e *Embedded) Err() <-chan error { return e.etcd.Err() }

// Leader reports whether this member is the cluster's leader.
func (e *Embedded) Leader() bool { return e.etcd.Server.Leader() == e.etcd.Server.MemberID() }

// Close stops the member. Without the call of Stop, etcd's own Close leaks goroutines
// (etcd-io/etcd#9533).
func (e *Embedded) Close() {
	for _, c := range []*clientv3.Client{e.client, e.direct} {
		if c != nil {
			_ = c.Close()
		}
	}
	e.etcd.Server.Stop()
	e.etcd.Close()
	if e.members != nil {
		_ = e.members.Close() // last, because a leader that stops hands over by these connections
	}
}

// Snapshot returns a copy of the database. The caller closes it.
func Snapshot(ctx context.Context, client *clientv3.Client) (io.ReadCloser, error) {
	return client.Snapshot(ctx)
}
