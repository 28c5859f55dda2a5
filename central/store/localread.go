// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/pkg/v3/traceutil"
	"go.etcd.io/etcd/server/v3/storage/mvcc"
)

// This file reads from the member of etcd in this process, without asking the other members. A read-only
// transaction of etcd returns the same, but it copies all writes that are not in the database file yet,
// and traces each key. Together this costs more than the rest of a change.

// localReader reads keys of the etcd member in this process, at a revision; 0 means the newest one.
// "found" has an element for each key, which is nil if the key is absent. newest is the newest revision
// that the member has.
type localReader func(ctx context.Context, keys []string, revision int64) (found []*mvccpb.KeyValue, newest int64, err error)

// readLocal implements localReader. The member's writes wait until it returns.
func (e *Embedded) readLocal(ctx context.Context, keys []string, revision int64) (found []*mvccpb.KeyValue, newest int64, err error) {
	trace := traceutil.TODO()
	found = make([]*mvccpb.KeyValue, len(keys))
	trace.StepWithFunction(func() { // turns off the trace of each key
		txn := e.etcd.Server.KV().Read(mvcc.SharedBufReadTxMode, trace)
		defer txn.End()
		newest = txn.Rev()
		for i, key := range keys {
			r, failed := txn.Range(ctx, []byte(key), nil, mvcc.RangeOptions{Rev: revision})
			if failed != nil {
				err = failed
				return
			}
			if len(r.KVs) > 0 {
				found[i] = r.KVs[0]
			}
		}
	}, "local read")
	return found, newest, err
}
