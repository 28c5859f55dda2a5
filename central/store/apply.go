// SPDX-License-Identifier: Apache-2.0

package store

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/protobuf/proto"

	"weft/central/wire"
)

// errConflict means that another store has changed a key between the read and the transaction. The
// caller reads the keys again and repeats the transaction.
var errConflict = errors.New("the intent changes too often")

// Apply applies a whole request or nothing (see wire.ChangeRequest), and returns its
// revision. A request id takes effect only once; a repeated request returns the
// earlier revision.
//
// Apply repeats temporary failures until ctx ends. After an error other than
// *Refused and *Busy, the request may have taken effect. It can be sent again with the same
// id.
func (s *Store) Apply(ctx context.Context, request *wire.ChangeRequest) (int64, error) {
	id := request.GetId()
	if id == "" {
		id = rand.Text()
	} else if err := checkWord("the id of the request", id); err != nil {
		return 0, err
	}
	objects, err := collect(request.GetChanges())
	if err != nil {
		return 0, err
	}
	a := s.newApplying(ctx, id, objects, request)
	if err := s.requests.enqueue(s, a); err != nil {
		return 0, err
	}
	select {
	case <-a.finished:
	case <-ctx.Done():
		return 0, a.interrupted(ctx.Err())
	}
	if a.err == nil {
		s.unbindDeleted(ctx, objects)
	}
	return a.revision, s.nameMentions(ctx, a.err, objects)
}

// prepare reads the keys that the request needs and adds the request's changes to the view v. If the
// request has already taken effect, applied is its revision, and v is nil.
func (a *applying) prepare(ctx context.Context, locked bool) (v *view, applied int64, err error) {
	v, applied, err = a.readState(ctx, locked)
	if err != nil || applied != 0 {
		return nil, applied, err
	}
	return v, 0, v.plan(ctx, a.objects)
}

// readState reads the keys on which a request depends into a new view. If the request has already taken
// effect, applied is its revision. If the declaration is newer than the revision that the request
// expects, readState returns a *Refused. If another store is applying a large request, readState waits
// for its end and returns errConflict. locked is true if this store itself holds the key "writer".
func (a *applying) readState(ctx context.Context, locked bool) (v *view, applied int64, err error) {
	v = a.store.newView(false)
	keys := a.keys()
	if !locked {
		keys = append(keys, writerKey)
	}
	if a.expected != 0 {
		keys = append(keys, intentKey)
	}
	if err := v.load(ctx, keys); err != nil {
		return nil, 0, err
	}
	if r := v.records[requestKey(a.id)]; r.exists {
		return nil, r.mod, nil
	}
	if r := v.records[writerKey]; r != nil && r.exists {
		if err := a.store.awaitWriter(ctx); err != nil {
			return nil, 0, err
		}
		return nil, 0, errConflict
	}
	if err := checkExpected(v, a.expected); err != nil {
		return nil, 0, err
	}
	return v, 0, nil
}

// unbindDeleted removes the bindings to the hosts that a request has deleted. It runs after the
// request's transaction, so a crash may leave some bindings. Readers ignore bindings to undeclared hosts.
func (s *Store) unbindDeleted(ctx context.Context, objects []*target) {
	deleted := map[string]bool{}
	for _, w := range objects {
		if w.kind == "host" && w.message == nil {
			deleted[w.id] = true
		}
	}
	if len(deleted) == 0 {
		return
	}
	var stale []*mvccpb.KeyValue
	var revision int64
	err := s.list(ctx, bindPrefix, &revision, func(kv *mvccpb.KeyValue) {
		var b wire.Bind
		if proto.Unmarshal(kv.Value, &b) == nil && deleted[b.Host] && bytes.HasPrefix(kv.Key, []byte(bindPrefix)) {
			stale = append(stale, kv)
		}
	})
	if err != nil {
		return
	}
	for _, kv := range stale {
		key := string(kv.Key)
		_, _ = s.commit(ctx, attemptTimeout, []clientv3.Cmp{clientv3.Compare(clientv3.ModRevision(key), "=", kv.ModRevision)},
			[]clientv3.Op{clientv3.OpDelete(key)})
	}
}
