// SPDX-License-Identifier: Apache-2.0

package store

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"weft/central/wire"
)

// smallMember starts a member whose database has a small limit.
func smallMember(t *testing.T, quota int64) *Embedded {
	t.Helper()
	e, err := Embed(t.Context(), EmbedConfig{Name: "a", Dir: "data", PeerURL: "unix://peer:1", ClientURL: "unix://client:1", Quota: quota})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// mostFilled is the largest number of bytes that fill writes. etcd counts only
// committed writes, so the writes of one commit interval may exceed a member's limit.
const mostFilled = 64 << 20

// fill writes to the store until etcd refuses a write. key returns the key of value
// number n.
func fill(t *testing.T, s *Store, key func(n int) string) {
	t.Helper()
	value := strings.Repeat("x", 64<<10)
	for n := range mostFilled / len(value) {
		_, err := s.client.Put(t.Context(), key(n), value)
		if errors.Is(rpctypes.Error(err), rpctypes.ErrNoSpace) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	t.Fatal("the store takes everything")
}

// A full store refuses each kind of write with ErrFull. Reads and followers continue.
// Reclaim removes old revisions. If the present values alone exceed the limit, Reclaim
// fails with this reason. It succeeds after the limit was raised.
func TestFullStore(t *testing.T) {
	t.Chdir(t.TempDir())
	e := smallMember(t, 8<<20)
	t.Cleanup(e.Close)
	s := e.Store()
	apply(t, s, setNet("blue", 1), setHost("h1", 1), setPort(port("p1", "blue", 1)), setPort(port("p2", "blue", 2)))
	bind(t, s, bindTo("p1", "h1", 1, 0))
	sink := follow(t, s)
	if done, err := s.Reclaim(t.Context()); done || err != nil {
		t.Errorf("an empty store is reclaimed: %v, %v", done, err)
	}
	fill(t, s, func(int) string { return "/junk" })
	wantFull(t, s)
	if _, objects, err := s.Objects(t.Context(), KindPort, KindBind); err != nil || len(objects) != 3 {
		t.Errorf("the full store has %d objects, %v", len(objects), err)
	}
	if h, err := s.Health(t.Context()); err != nil || !h.Full || h.Leader != "a" || h.Limit != 8<<20 || h.Bytes < h.Limit/2 {
		t.Errorf("%+v, %v", h, err)
	}
	if done, err := s.Reclaim(t.Context()); !done || err != nil {
		t.Fatalf("not reclaimed: %v, %v", done, err)
	}
	revision := apply(t, s, setNet("red", 2))
	wantCopy(t, s, sink.until(t, revision))
	if h, err := s.Health(t.Context()); err != nil || h.Full || h.Bytes > h.Limit/2 {
		t.Errorf("after Reclaim: %+v, %v", h, err)
	}

	fill(t, s, func(n int) string { return fmt.Sprint("/junk", n) })
	if done, err := s.Reclaim(t.Context()); done || err == nil || !strings.Contains(err.Error(), "raise quota-mib") {
		t.Errorf("reclaimed: %v, %v", done, err)
	}
	wantFull(t, s)
}

// wantFull fails the test unless the store refuses each kind of write with ErrFull.
func wantFull(t *testing.T, s *Store) {
	t.Helper()
	_, err := s.Apply(t.Context(), &wire.ChangeRequest{Changes: []*wire.Change{setNet("green", 3)}})
	if !errors.Is(err, ErrFull) || strings.Contains(err.Error(), "\n") {
		t.Errorf("a change: %v", err)
	}
	if r := s.Bind(t.Context(), []BindRequest{bindTo("p2", "h1", 1, 0)})[0]; !errors.Is(r.Err, ErrFull) {
		t.Errorf("a binding: %v", r.Err)
	}
	if err := s.PutStatus(t.Context(), []*wire.HostStatus{{Host: "h1", Applied: 1}}); !errors.Is(err, ErrFull) {
		t.Errorf("a status: %v", err)
	}
	if err := s.Invite(t.Context(), "digest", &wire.InviteRequest{Role: "host", Name: "h2"}, 1); !errors.Is(err, ErrFull) {
		t.Errorf("an invitation: %v", err)
	}
}

// If the declaration alone fills a store, the store takes changes again after its
// member was started with a larger limit.
func TestFullStoreGetsALargerLimit(t *testing.T) {
	t.Chdir(t.TempDir())
	e := smallMember(t, 4<<20)
	fill(t, e.Store(), func(n int) string { return fmt.Sprint("/junk", n) })
	e.Close()
	e = smallMember(t, 2*mostFilled)
	defer e.Close()
	s := e.Store()
	if done, err := s.Reclaim(t.Context()); !done || err != nil {
		t.Fatalf("not reclaimed: %v, %v", done, err)
	}
	apply(t, s, setNet("red", 2))
}
