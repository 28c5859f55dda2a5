// SPDX-License-Identifier: Apache-2.0

package store

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/protobuf/proto"

	"weft/central/wire"
)

// errConflict means that a key has changed after it was read. The caller starts again.
var errConflict = errors.New("the intent changes too often")

// Apply applies a whole request or nothing (see wire.ChangeRequest), and returns its
// revision. A request id takes effect only once; a repeated request returns the
// earlier revision.
//
// Apply repeats temporary failures until ctx ends. After an error other than
// *Refused, the request may have taken effect. It can be sent again with the same id.
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
	a := &applying{store: s, id: id, objects: objects, expected: request.GetExpected(), local: s.local}
	for n := 0; ; n++ {
		local := a.local
		revision, err := a.try(ctx)
		a.local = false
		var refused *Refused
		switch {
		case local && (errors.Is(err, errConflict) || errors.As(err, &refused)):
			// what was read may have been old
		case err == nil:
			s.unbindDeleted(ctx, objects)
			return revision, nil
		case !errors.Is(err, errConflict) && !temporary(err):
			return 0, explain(err)
		case ctx.Err() != nil || pause(ctx, n) != nil:
			return 0, fmt.Errorf("request %s may or may not have had an effect, send it again: %w", id, err)
		}
	}
}

// applying is one request in progress.
type applying struct {
	store    *Store
	id       string
	objects  []*target
	expected int64
	local    bool // see Store.local
}

// prepare reads the keys that the request concerns and computes the changes. If the
// request has already taken effect, applied is its revision.
func (a *applying) prepare(ctx context.Context, locked bool) (v *view, applied int64, err error) {
	v, applied, err = a.readState(ctx, locked)
	if err != nil || applied != 0 {
		return nil, applied, err
	}
	return v, 0, v.plan(ctx, a.objects)
}

// readState reads the state of the store for a request. It refuses the request if the
// declaration is newer than expected. If another store is applying a large request,
// readState waits and returns errConflict. locked means that this store holds the key
// "writer".
func (a *applying) readState(ctx context.Context, locked bool) (v *view, applied int64, err error) {
	v = a.store.newView(a.local)
	keys := []string{requestKey(a.id)}
	if !locked {
		keys = append(keys, writerKey)
	}
	if a.expected != 0 {
		keys = append(keys, intentKey)
	}
	// read everything that the method plan needs at once
	for _, w := range a.objects {
		keys = append(append(append(append(keys, w.key()), guards(w.message)...), references(w.message)...), namesakes(w.message)...)
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
	if a.expected != 0 {
		if r := v.records[intentKey]; r.mod > a.expected {
			return nil, 0, refuse(Changed, "the intent has changed since revision %d, in revision %d; read it again and repeat", a.expected, r.mod)
		}
	}
	return v, 0, nil
}

func (a *applying) try(ctx context.Context) (int64, error) {
	s := a.store
	if len(a.objects) > s.ops { // each change has a comparison
		return a.large(ctx)
	}
	v, done, err := a.prepare(ctx, false)
	if err != nil || done != 0 {
		return done, err
	}
	bound, err := v.bindWaiting(ctx, a.objects)
	if err != nil {
		return 0, err
	}
	changes, ifs := v.changes(), v.unchanged()
	size := 0
	for _, c := range changes {
		size += c.size()
	}
	compared := 0
	for i := range ifs {
		compared += opBytes(string(ifs[i].KeyBytes()))
	}
	if len(changes)+2 > s.ops || len(ifs) > s.ops || size+compared > s.bytes {
		return a.large(ctx)
	}
	lease, err := s.requestLease(ctx)
	if err != nil {
		return 0, err
	}
	ops := make([]clientv3.Op, 0, len(changes)+2)
	for _, c := range changes {
		ops = append(ops, c.op())
	}
	if len(changes) > 0 {
		ops = append(ops, clientv3.OpPut(intentKey, a.id))
	}
	ops = append(ops, clientv3.OpPut(requestKey(a.id), "", clientv3.WithLease(lease)))
	timeout := attemptTimeout
	if size > largeBytes {
		timeout = largeTimeout
	}
	r, err := s.commit(ctx, timeout, ifs, ops)
	switch {
	case errors.Is(rpctypes.Error(err), rpctypes.ErrLeaseNotFound):
		s.forgetLease(lease)
		return 0, errConflict
	case err != nil:
		return 0, err
	case !r.Succeeded:
		return 0, errConflict
	}
	s.boundAtOnce.Add(uint64(bound))
	return r.Header.Revision, nil
}

// unbindDeleted removes the bindings to deleted hosts. After a crash some may be left;
// readers ignore them.
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
