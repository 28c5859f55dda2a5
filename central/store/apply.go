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

// errConflict means that another write has changed a key that the request has read.
// The caller reads again and repeats the request.
var errConflict = errors.New("the intent changes too often")

// Apply applies all changes of a request, or none of them (see wire.ChangeRequest).
// It returns the revision of the transaction that changed the declaration. If a
// request with the same id has already taken effect, Apply changes nothing and
// returns the revision of that request. A request without an id gets a random one.
//
// Apply repeats a request that has failed temporarily, until ctx ends. After an error
// other than *Refused, it is not known whether the request has taken effect. The
// caller may then send the same request with the same id again.
func (s *Store) Apply(ctx context.Context, request *wire.ChangeRequest) (int64, error) {
	id := request.GetId()
	if id == "" {
		id = rand.Text()
	} else if err := checkWord("the id of the request", id); err != nil {
		return 0, err
	}
	all, err := collect(request.GetChanges())
	if err != nil {
		return 0, err
	}
	a := &applying{store: s, id: id, all: all, expected: request.GetExpected()}
	for n := 0; ; n++ {
		revision, err := a.try(ctx)
		switch {
		case err == nil:
			s.unbindDeleted(ctx, all)
			return revision, nil
		case !errors.Is(err, errConflict) && !temporary(err):
			return 0, explain(err)
		case ctx.Err() != nil || pause(ctx, n) != nil:
			return 0, fmt.Errorf("request %s may or may not have had an effect, send it again: %w", id, err)
		}
	}
}

// applying is the state of one request in progress.
type applying struct {
	store    *Store
	id       string
	all      []*wanted
	expected int64
}

// prepare reads the keys that the request concerns, and computes the request's
// changes. If the request has already taken effect, done is its revision.
func (a *applying) prepare(ctx context.Context, locked bool) (v *view, done int64, err error) {
	v, done, err = a.readState(ctx, locked)
	if err != nil || done != 0 {
		return nil, done, err
	}
	return v, 0, v.plan(ctx, a.all)
}

// readState looks for reasons not to apply the request. If the request has already
// taken effect, done is its revision. If the declaration is newer than the request
// expects, readState refuses the request. If another store applies a large request,
// readState waits for its end and returns errConflict. The argument locked means that
// this store applies a large request itself, and so holds the key "writer".
func (a *applying) readState(ctx context.Context, locked bool) (v *view, done int64, err error) {
	v = a.store.newView()
	keys := []string{requestKey(a.id)}
	if !locked {
		keys = append(keys, writerKey)
	}
	if a.expected != 0 {
		keys = append(keys, intentKey)
	}
	if err := v.load(ctx, keys); err != nil {
		return nil, 0, err
	}
	if r := v.records[requestKey(a.id)]; r.there {
		return nil, r.mod, nil
	}
	if r := v.records[writerKey]; r != nil && r.there {
		if err := a.store.awaitWriter(ctx); err != nil {
			return nil, 0, err
		}
		return nil, 0, errConflict
	}
	if a.expected != 0 {
		if r := v.records[intentKey]; r.mod > a.expected {
			return nil, 0, refusedf("the intent has changed since revision %d, in revision %d; read it again and repeat", a.expected, r.mod)
		}
	}
	return v, 0, nil
}

func (a *applying) try(ctx context.Context) (int64, error) {
	s := a.store
	if len(a.all) > s.ops { // each change needs at least one comparison
		return a.large(ctx)
	}
	v, done, err := a.prepare(ctx, false)
	if err != nil || done != 0 {
		return done, err
	}
	changes, ifs := v.changes(), v.unchanged()
	size := 0
	for _, c := range changes {
		size += c.size()
	}
	if len(changes)+2 > s.ops || len(ifs) > s.ops || size+len(ifs)*64 > s.bytes {
		return a.large(ctx)
	}
	lease, err := s.requestLease(ctx)
	if err != nil {
		return 0, err
	}
	then := make([]clientv3.Op, 0, len(changes)+2)
	for _, c := range changes {
		then = append(then, c.op())
	}
	if len(changes) > 0 {
		then = append(then, clientv3.OpPut(intentKey, a.id))
	}
	then = append(then, clientv3.OpPut(requestKey(a.id), "", clientv3.WithLease(lease)))
	timeout := attemptTimeout
	if size > largeBytes {
		timeout = largeTimeout
	}
	r, err := s.commit(ctx, timeout, ifs, then)
	switch {
	case errors.Is(rpctypes.Error(err), rpctypes.ErrLeaseNotFound):
		s.forgetLease(lease)
		return 0, errConflict
	case err != nil:
		return 0, err
	case !r.Succeeded:
		return 0, errConflict
	}
	return r.Header.Revision, nil
}

// unbindDeleted removes the bindings to hosts that a request has deleted. New
// bindings to these hosts are impossible. If the process crashes here, some bindings
// to undeclared hosts remain, and readers treat them as absent.
func (s *Store) unbindDeleted(ctx context.Context, all []*wanted) {
	deleted := map[string]bool{}
	for _, w := range all {
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
