// SPDX-License-Identifier: Apache-2.0

package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

const (
	// progressEvery is the interval at which the watch reports the current revision.
	progressEvery = time.Second
	// silentMost is how long a watch may be silent before Follow opens a new one. A silent member of etcd
	// may hang.
	silentMost = 5 * time.Second
)

// Follow passes all objects to the sink, and then every change, until ctx ends or a permanent error
// occurs.
//
// The sink gets all changes of one revision together. A large request takes several revisions (see
// journal.go). Until it is complete, Follow holds back the request's objects and the bindings of its
// ports. Meanwhile it passes other bindings to the sink, but does not call Progress. If etcd has
// deleted old revisions that Follow has not read yet, the sink gets all differences in one call of
// Change.
func (s *Store) Follow(ctx context.Context, sink Sink) error {
	f := &follower{store: s, sink: sink}
	for n := 0; ; n++ {
		before := f.revision
		err := f.follow(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		switch {
		case errors.Is(rpctypes.Error(err), rpctypes.ErrCompacted):
			f.relist = true
		case err != nil && !temporary(err) && !errors.Is(err, errWatchEnded):
			return explain(err)
		}
		if f.revision != before {
			n = 0
		}
		if pause(ctx, n) != nil {
			return ctx.Err()
		}
	}
}

var errWatchEnded = errors.New("the watch ended")

type objectKey struct {
	kind Kind
	id   string
}

type follower struct {
	store    *Store
	sink     Sink
	cluster  uint64 // id of the etcd cluster
	revision int64  // last revision that was read completely
	relist   bool
	known    map[objectKey]int64 // revision of each object in the sink
	// holding is true while a large request is incomplete. The request's objects wait in the map
	// "held".
	holding bool
	held    map[objectKey]Object
}

func (f *follower) follow(ctx context.Context) error {
	r, err := f.store.read(ctx, []clientv3.Op{clientv3.OpGet(intentKey, clientv3.WithKeysOnly())})
	if err != nil {
		return err
	}
	// a restored cluster has a new id, and perhaps a lower revision
	restored := f.cluster != r.Header.ClusterId || r.Header.Revision < f.revision
	if restored || f.relist {
		if err := f.list(ctx, restored); err != nil {
			return err
		}
		f.cluster, f.relist = r.Header.ClusterId, false
	}
	return f.watch(ctx)
}

// list reads all objects. If reset is set, it passes them to the sink as a Reset. Otherwise it passes
// only those that differ from what the sink has.
func (f *follower) list(ctx context.Context, reset bool) error {
	s := f.store
	revision, err := s.settled(ctx)
	if err != nil {
		return err
	}
	var objects []Object
	for i := range kinds {
		err := s.list(ctx, kinds[i].prefix, &revision, func(kv *mvccpb.KeyValue) {
			if o, ok := s.decodeOrCount(kv, false); ok {
				objects = append(objects, o)
			}
		})
		if err != nil {
			return err
		}
	}
	f.holding, f.held = false, nil
	f.revision = revision
	known := make(map[objectKey]int64, len(objects))
	for _, o := range objects {
		known[objectKey{o.Kind, o.ID}] = o.Revision
	}
	before := f.known
	f.known = known
	if reset {
		f.sink.Reset(revision, objects)
		return nil
	}
	changed := slices.DeleteFunc(objects, func(o Object) bool { return before[objectKey{o.Kind, o.ID}] == o.Revision })
	for k := range before {
		if _, there := known[k]; !there {
			changed = append(changed, Object{Kind: k.kind, ID: k.id, Revision: revision})
		}
	}
	f.sink.Change(revision, changed)
	return nil
}

// decodeOrCount decodes a stored object. isObject is false if the key does not belong to an object, or
// if the value is no valid object. decodeOrCount counts invalid values for Undecodable.
func (s *Store) decodeOrCount(kv *mvccpb.KeyValue, deleted bool) (o Object, isObject bool) {
	o, isObject, err := decode(kv.Key, kv.Value, deleted, kv.ModRevision)
	if err != nil {
		s.undecodable.Add(1)
		return o, false
	}
	return o, isObject
}

// Undecodable returns how many values were skipped because they are no valid objects.
func (s *Store) Undecodable() uint64 { return s.undecodable.Load() }

func (f *follower) watch(ctx context.Context) error {
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	defer cancel()
	watch := f.store.watcher.Watch(ctx, Prefix, clientv3.WithPrefix(), clientv3.WithRev(f.revision+1),
		clientv3.WithFragment(), clientv3.WithProgressNotify())
	tick := time.NewTicker(progressEvery)
	defer tick.Stop()
	heard := time.Now()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
			if time.Since(heard) > silentMost {
				return fmt.Errorf("%w: nothing heard for %s", errWatchEnded, silentMost)
			}
			ask, done := context.WithTimeout(ctx, progressEvery)
			// error ignored: if etcd does not answer, the watch stays silent
			_ = f.store.watcher.RequestProgress(ask)
			done()
		case r, ok := <-watch:
			if !ok {
				return errWatchEnded
			}
			if err := r.Err(); err != nil {
				if r.Canceled && r.CompactRevision == 0 && !temporary(err) {
					return err
				}
				if r.CompactRevision != 0 {
					return rpctypes.ErrCompacted
				}
				return fmt.Errorf("%w: %w", errWatchEnded, err)
			}
			heard = time.Now()
			f.take(&r)
		}
	}
}

// take passes the objects of a watch message to the sink, revision by revision.
func (f *follower) take(r *clientv3.WatchResponse) {
	for events := r.Events; len(events) > 0; {
		revision := events[0].Kv.ModRevision
		n := 1
		for n < len(events) && events[n].Kv.ModRevision == revision {
			n++
		}
		if revision > f.revision {
			f.takeRevision(revision, events[:n])
		}
		events = events[n:]
	}
	if r.IsProgressNotify() && r.Header.Revision > f.revision {
		f.revision = r.Header.Revision
		if !f.holding {
			f.sink.Progress(f.revision)
		}
	}
}

func (f *follower) takeRevision(revision int64, events []*clientv3.Event) {
	f.revision = revision
	var objects []Object
	ended := false
	for _, e := range events {
		if string(e.Kv.Key) == writerKey {
			ended = f.takeWriter(e)
			continue
		}
		if o, ok := f.store.decodeOrCount(e.Kv, e.Type == clientv3.EventTypeDelete); ok {
			objects = append(objects, o)
		}
	}
	if f.holding {
		objects = slices.DeleteFunc(objects, f.hold)
	}
	if ended {
		objects = append(objects, f.release()...)
	}
	for _, o := range objects {
		if k := (objectKey{o.Kind, o.ID}); o.Message == nil {
			delete(f.known, k)
		} else {
			f.known[k] = o.Revision
		}
	}
	switch {
	case len(objects) > 0:
		f.sink.Change(revision, objects)
	case !f.holding:
		f.sink.Progress(revision)
	}
}

// takeWriter handles a change of the key "writer", which exists while a large request is in progress.
// It returns true if the change ends a committed request.
func (f *follower) takeWriter(e *clientv3.Event) (ended bool) {
	if e.Type == clientv3.EventTypeDelete {
		return f.holding
	}
	w, err := decodeWriter(e.Kv.Value, e.Kv.ModRevision)
	if err != nil {
		f.store.undecodable.Add(1)
		return false
	}
	if w.Committed && !f.holding {
		f.holding, f.held = true, map[objectKey]Object{}
	}
	return false
}

// hold reports whether an object belongs to the large request in progress. If so, it stores the object
// in f.held, from where the method release takes it.
func (f *follower) hold(o Object) bool {
	switch o.Kind {
	case KindNet, KindHost, KindGroup, KindPort:
	case KindBind:
		_, port := f.held[objectKey{KindPort, o.ID}]
		_, bind := f.held[objectKey{KindBind, o.ID}]
		if !port && !bind {
			return false
		}
	default:
		return false
	}
	f.held[objectKey{o.Kind, o.ID}] = o
	return true
}

func (f *follower) release() []Object {
	objects := make([]Object, 0, len(f.held))
	for _, o := range f.held {
		objects = append(objects, o)
	}
	slices.SortFunc(objects, func(a, b Object) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(a.ID, b.ID))
	})
	f.holding, f.held = false, nil
	return objects
}

// rank returns the position of an object in the order in which a Reset passes kinds. An object comes
// after the objects to which it refers.
func rank(o Object) int {
	return slices.IndexFunc(kinds, func(k kindRow) bool { return k.kind == o.Kind })
}
