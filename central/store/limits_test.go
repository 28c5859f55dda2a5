// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/server/v3/embed"

	"weft/central/wire"
)

// separateEtcd starts an etcd with etcd's default settings, except for the limit of operations
// in a transaction.
func separateEtcd(t *testing.T, maxTxnOps uint) *Store {
	t.Helper()
	dir := t.TempDir()
	t.Chdir(dir)
	c := embed.NewConfig()
	c.Dir, c.LogLevel, c.MaxTxnOps = dir+"/data", "panic", maxTxnOps
	peer, client := url.URL{Scheme: "unix", Host: "peer:1"}, url.URL{Scheme: "unix", Host: "client:1"}
	c.ListenPeerUrls, c.AdvertisePeerUrls = []url.URL{peer}, []url.URL{peer}
	c.ListenClientUrls, c.AdvertiseClientUrls = []url.URL{client}, []url.URL{client}
	c.InitialCluster = c.Name + "=" + peer.String()
	e, err := embed.StartEtcd(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	<-e.Server.ReadyNotify()
	dialed, err := Dial([]string{client.String()}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dialed.Close() })
	return New(dialed, WithLimits(int(maxTxnOps), DefaultBytes))
}

// Reads stay within etcd's limit of bytes even if its limit of operations is far larger.
func TestReadsWithinEtcdsLimitOfBytes(t *testing.T) {
	s := separateEtcd(t, 1<<17)
	// The test uses few long keys. Many short keys would reach the limit, too, but a transaction with
	// thousands of operations may take longer than an attempt on a busy machine.
	ids, keys := make([]string, 1_000), make([]string, 1_000)
	for i := range ids {
		ids[i] = fmt.Sprintf("%04000d", i)
		keys[i] = nameGuard("port", ids[i])
	}
	if err := s.newView(false).load(t.Context(), keys); err != nil {
		t.Error(err)
	}
	if _, err := s.Get(t.Context(), KindPort, ids...); err != nil {
		t.Error(err)
	}
}

// A large request that changes nothing takes effect, like a small one.
func TestApplyLargeTwice(t *testing.T) {
	s := separateEtcd(t, DefaultOps)
	changes := manyPorts(2 * DefaultOps)
	first := apply(t, s, changes...)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	second, err := s.Apply(ctx, &wire.ChangeRequest{Changes: changes})
	if err != nil || second <= first {
		t.Errorf("revision %d after %d, %v", second, first, err)
	}
	wantGuards(t, s)
}

// A request larger than the journal's limit is refused before anything is written. A journal
// with more chunks would count as damaged.
func TestTooManyChunks(t *testing.T) {
	a := &applying{}
	if err := a.writeChunks(t.Context(), &writer{}, make([][]change, maxChunks+1)); err == nil || !strings.Contains(err.Error(), "expected at most 1048576; split it") {
		t.Errorf("%v", err)
	}
}
