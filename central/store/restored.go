// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"fmt"
	"slices"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// clusterKey holds the id of the etcd cluster whose revisions are the generations of
// all bindings. A cluster that is restored from a backup has another id.
const clusterKey = Prefix + "cluster"

// RenewGenerations writes all bindings again if etcd was restored from a backup. Hosts
// may have seen later bindings than those in the backup. They would ignore a restored
// binding, because its generation is smaller. The restored cluster starts with a
// revision larger than all revisions that hosts have seen, so the new generations are
// larger. A central calls RenewGenerations when it starts.
func (s *Store) RenewGenerations(ctx context.Context) error {
	for n := 0; ; n++ {
		r, err := s.read(ctx, []clientv3.Op{clientv3.OpGet(clusterKey)})
		if err != nil {
			return err
		}
		id := fmt.Sprintf("%x", r.Header.ClusterId)
		known := int64(0)
		for _, kv := range r.Responses[0].GetResponseRange().Kvs {
			if string(kv.Value) == id {
				return nil
			}
			known = kv.ModRevision
		}
		if err = s.rewriteBindings(ctx); err == nil {
			var done *clientv3.TxnResponse
			done, err = s.commit(ctx, attemptTimeout, []clientv3.Cmp{clientv3.Compare(clientv3.ModRevision(clusterKey), "=", known)},
				[]clientv3.Op{clientv3.OpPut(clusterKey, id)})
			if err == nil && done.Succeeded {
				return nil
			}
		}
		if err != nil && !temporary(err) {
			return explain(err)
		}
		if pause(ctx, n) != nil {
			return fmt.Errorf("the generations of restored bindings are not renewed: %w", ctx.Err())
		}
	}
}

// rewriteBindings writes each binding again. It leaves out a binding that another store
// writes in the meantime, because it is new then.
func (s *Store) rewriteBindings(ctx context.Context) error {
	var objects []*mvccpb.KeyValue
	var revision int64
	if err := s.list(ctx, bindPrefix, &revision, func(kv *mvccpb.KeyValue) { objects = append(objects, kv) }); err != nil {
		return err
	}
	for batch := range slices.Chunk(objects, max(1, s.ops/2)) {
		if err := s.rewrite(ctx, batch); err != nil {
			return err
		}
	}
	return nil
}

// rewrite writes keys again with the same values, which gives them a new revision. If a key has changed
// in the meantime, rewrite divides the batch and tries each half.
func (s *Store) rewrite(ctx context.Context, batch []*mvccpb.KeyValue) error {
	var ifs []clientv3.Cmp
	var ops []clientv3.Op
	for _, kv := range batch {
		ifs = append(ifs, clientv3.Compare(clientv3.ModRevision(string(kv.Key)), "=", kv.ModRevision))
		ops = append(ops, clientv3.OpPut(string(kv.Key), string(kv.Value)))
	}
	r, err := s.commit(ctx, largeTimeout, ifs, ops)
	if err != nil || r.Succeeded || len(batch) == 1 {
		return err
	}
	half := len(batch) / 2
	if err := s.rewrite(ctx, batch[:half]); err != nil {
		return err
	}
	return s.rewrite(ctx, batch[half:])
}
