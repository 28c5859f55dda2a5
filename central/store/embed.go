// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/url"
	"os"
	"strings"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
)

// Settings of the embedded etcd.
const (
	// StoreQuota is the limit of the database in bytes. At the limit etcd refuses
	// writes until an operator compacts and defragments it and disarms its alarm.
	StoreQuota = 2 << 30
	// EmbeddedOps is the limit of operations, and EmbeddedBytes the limit of bytes,
	// in one transaction of the embedded etcd.
	EmbeddedOps   = 4096
	EmbeddedBytes = 4 << 20
	// Raft's heartbeat interval and election timeout, in ms. A leader that stops is
	// replaced after one to two election timeouts.
	heartbeatMS = 60
	electionMS  = 600
	// compactAfter is the time for which etcd keeps old revisions.
	compactAfter = "10m"
	// DefaultReady is the longest time that Embed waits until the cluster has a
	// leader.
	DefaultReady = 60 * time.Second
)

// TLSFiles has the paths of a member's PEM files; without a path of the CA the member
// uses no TLS. Each handshake reads the certificate and the key again, but not the
// CA.
type TLSFiles struct {
	Certificate, Key, CA string
	// Peer is a DNS name by which members recognise each other: the certificates of
	// all members have it, and no other certificate of the CA has it.
	Peer string
}

func (t TLSFiles) info() transport.TLSInfo {
	if t.CA == "" {
		return transport.TLSInfo{}
	}
	i := transport.TLSInfo{CertFile: t.Certificate, KeyFile: t.Key, TrustedCAFile: t.CA, ClientCertAuth: true}
	if t.Peer != "" {
		i.AllowedHostnames = []string{t.Peer}
	}
	return i
}

// EmbedConfig describes a member of etcd in this process.
type EmbedConfig struct {
	Name string // unique in the cluster
	Dir  string // of the data; made with mode 0700
	// The member listens at PeerURL for other members, and at ClientURL for clients.
	// It announces AdvertisePeer and AdvertiseClient instead if they are not empty.
	PeerURL, ClientURL             string
	AdvertisePeer, AdvertiseClient string
	// Cluster lists the members with which the cluster starts, as in
	// a=https://10.0.0.1:2380,b=...; empty: only this member.
	Cluster string
	// Existing is true if the member joins a running cluster, to which its URL has
	// already been added.
	Existing bool
	// Token is the id of the cluster. Members of clusters with different tokens
	// refuse each other, if a wrong address connects them.
	Token string
	TLS   TLSFiles
	Ready time.Duration // 0: DefaultReady
	Log   *slog.Logger
}

// Embedded is a running member.
type Embedded struct {
	etcd   *embed.Etcd
	client *clientv3.Client
}

// Embed starts a member. It returns when the member's cluster has a leader and the
// member answers requests.
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
		err = e.serve(ctx, ready)
	}
	if err != nil {
		e.Close()
		return nil, err
	}
	return e, nil
}

// serve waits until the member answers requests. A member that joins a cluster does
// so only after it has got its vote.
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
	e.QuotaBackendBytes = StoreQuota
	e.MaxTxnOps, e.MaxRequestBytes = EmbeddedOps, EmbeddedBytes+EmbeddedBytes/2
	e.WatchProgressNotifyInterval = 5 * time.Second
	e.LogLevel = "error"
	e.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.New(&slogCore{log: c.Log}))
	return e, e.Validate()
}

// dial connects only to this member, because its process uses no other. A member
// without a connection to the others must be noticed.
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

// Dial connects to an etcd of the site, or to members of an embedded one.
func Dial(endpoints []string, config *tls.Config) (*clientv3.Client, error) {
	return clientv3.New(clientv3.Config{
		Endpoints: endpoints, TLS: config, DialTimeout: 5 * time.Second,
		DialKeepAliveTime: 10 * time.Second, DialKeepAliveTimeout: 3 * time.Second,
		MaxCallSendMsgSize: 2 * EmbeddedBytes,
		// Every attempt is the store's own.
		MaxUnaryRetries: 1,
		Logger:          zap.NewNop(),
	})
}

// Store returns a store on this member.
func (e *Embedded) Store() *Store {
	return New(e.client, WithLimits(EmbeddedOps, EmbeddedBytes))
}

// Client returns the client that is connected to this member. Close closes it.
func (e *Embedded) Client() *clientv3.Client { return e.client }

// Err reports that the member ended.
func (e *Embedded) Err() <-chan error { return e.etcd.Err() }

// Leader reports whether this member leads the cluster.
func (e *Embedded) Leader() bool { return e.etcd.Server.Leader() == e.etcd.Server.MemberID() }

// Close stops the member. It calls the server's Stop before etcd's own Close, because
// the latter alone leaves goroutines waiting (etcd-io/etcd#9533).
func (e *Embedded) Close() {
	if e.client != nil {
		_ = e.client.Close()
	}
	e.etcd.Server.Stop()
	e.etcd.Close()
}

// Snapshot returns a reader of a copy of the member's database. The caller closes the
// reader.
func Snapshot(ctx context.Context, client *clientv3.Client) (io.ReadCloser, error) {
	return client.Snapshot(ctx)
}
