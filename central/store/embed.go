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
	// StoreQuota is the size of the database, bytes. Beyond it etcd refuses writes until
	// somebody compacts, defragments and disarms its alarm.
	StoreQuota = 2 << 30
	// EmbeddedOps and EmbeddedBytes bound a transaction.
	EmbeddedOps   = 4096
	EmbeddedBytes = 4 << 20
	// The timers of raft. A leader that stops is replaced after one to two elections.
	heartbeatMS = 60
	electionMS  = 600
	// compactAfter is how long etcd keeps old revisions.
	compactAfter = "10m"
	// DefaultReady bounds the wait for a member of a cluster without quorum.
	DefaultReady = 60 * time.Second
)

// TLSFiles names the PEM files of a member. Empty: no TLS. They are read again at each
// handshake, except the CA.
type TLSFiles struct {
	Certificate, Key, CA string
	// Peer is a DNS name that the certificates of all members have and no other of the
	// CA has.
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
	// PeerURL and ClientURL are where the member listens, and what it tells others if
	// the following two are empty.
	PeerURL, ClientURL             string
	AdvertisePeer, AdvertiseClient string
	// Cluster has all members at the start, as in a=https://10.0.0.1:2380,b=...; empty:
	// this member alone.
	Cluster string
	// Existing: the member joins a cluster that runs, which knows its URL already.
	Existing bool
	// Token tells clusters apart that meet by mistake.
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

// Embed starts a member and waits until it is part of a cluster with a leader.
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

// serve waits until the member answers. A new member does after the others have given it
// a vote.
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

// dial connects to this member only: its process has no other, and a cut-off member
// must show.
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

// Dial connects to an etcd that is not embedded, or to members of one that is.
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

// Client returns the client of this member; Close closes it.
func (e *Embedded) Client() *clientv3.Client { return e.client }

// Err reports that the member ended.
func (e *Embedded) Err() <-chan error { return e.etcd.Err() }

// Leader tells whether the member leads the cluster.
func (e *Embedded) Leader() bool { return e.etcd.Server.Leader() == e.etcd.Server.MemberID() }

// Close stops the member. Stop comes before Close: Close alone leaves the server's
// goroutines waiting (etcd-io/etcd#9533).
func (e *Embedded) Close() {
	if e.client != nil {
		_ = e.client.Close()
	}
	e.etcd.Server.Stop()
	e.etcd.Close()
}

// Snapshot reads the database of a member. The caller closes the reader.
func Snapshot(ctx context.Context, client *clientv3.Client) (io.ReadCloser, error) {
	return client.Snapshot(ctx)
}
