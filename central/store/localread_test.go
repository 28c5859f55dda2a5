// SPDX-License-Identifier: Apache-2.0

package store

import (
	"fmt"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// A local read finds what a transaction of etcd finds, now and at an old revision. It
// fails at a revision that is compacted.
func TestLocalReadsAgreeWithTransactions(t *testing.T) {
	m := testMember(t)
	s := m.Store()
	var keys []string
	var revisions []int64
	for n := range 20 {
		id := fmt.Sprint("n", n)
		keys = append(keys, netKey(id))
		revisions = append(revisions, apply(t, s, setNet(id, uint32(n+1))))
		if n%3 == 0 {
			revisions = append(revisions, apply(t, s, deleteNet(id)))
		}
	}
	ops := make([]clientv3.Op, len(keys))
	for _, revision := range append(revisions, 0) {
		for i, k := range keys {
			ops[i] = clientv3.OpGet(k, clientv3.WithRev(revision))
		}
		want, err := s.read(t.Context(), ops)
		if err != nil {
			t.Fatal(err)
		}
		found, at, err := m.readLocal(t.Context(), keys, revision)
		if err != nil || at != want.Header.Revision {
			t.Fatalf("revision %d: read at %d, %v; expected %d", revision, at, err, want.Header.Revision)
		}
		for i, kv := range found {
			kvs := want.Responses[i].GetResponseRange().Kvs
			if (kv != nil) != (len(kvs) == 1) || kv != nil && (string(kv.Value) != string(kvs[0].Value) || kv.ModRevision != kvs[0].ModRevision) {
				t.Errorf("revision %d: %s is %v, expected %v", revision, keys[i], kv, kvs)
			}
		}
	}
	if _, err := m.Client().Compact(t.Context(), revisions[10]); err != nil {
		t.Fatal(err)
	}
	if _, _, err := m.readLocal(t.Context(), keys, revisions[3]); err == nil {
		t.Error("a compacted revision can be read")
	}
}
