// SPDX-License-Identifier: Apache-2.0

package store

import (
	"bytes"
	"context"
	"iter"
	"slices"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// listPage is the number of keys in one read.
const listPage = 2000

// record is the state of one key in a view: as read from etcd, and after the request's changes.
type record struct {
	value  []byte // value after the changes so far
	exists bool
	// read means that the key was read from etcd. stored is then its value, and mod the revision that
	// wrote it; 0: the key is absent.
	read   bool
	stored []byte
	mod    int64
	// ranged means that loadPrefix has read the key together with all keys of the same prefix. The
	// transaction then has one comparison for the prefix instead of one for the key.
	ranged bool
}

// view has the keys that a request needs, all read at one revision, and the changes that the request
// makes to them. It becomes one transaction, or several if the request is large.
type view struct {
	store *Store
	// local means that one etcd member answers the reads alone, so that the data may be old.
	local    bool
	revision int64 // revision of all reads; 0 before the first read
	records  map[string]*record
	// prefixes whose keys loadPrefix has read. If another store adds a key with one of them, the
	// transaction fails as a conflict.
	prefixes []string
	// changed has the earlier states of the keys that have changed since the last call of begin, in the
	// order of the changes. The method undo restores them. remembers is true after the first call of
	// begin.
	changed   []undone
	remembers bool
}

func (s *Store) newView(local bool) *view {
	return &view{store: s, local: local, records: map[string]*record{}}
}

func (v *view) load(ctx context.Context, keys []string) error {
	missing := make([]string, 0, len(keys))
	for _, k := range keys {
		if _, ok := v.records[k]; !ok {
			v.records[k] = &record{read: true}
			missing = append(missing, k)
		}
	}
	if v.local && v.store.readLocal != nil && v.loadLocal(ctx, missing) {
		return nil
	}
	for batch := range v.store.batches(missing) {
		ops := make([]clientv3.Op, len(batch))
		for i, k := range batch {
			options := []clientv3.OpOption{clientv3.WithRev(v.revision)}
			if v.local {
				options = append(options, clientv3.WithSerializable())
			}
			ops[i] = clientv3.OpGet(k, options...)
		}
		r, err := v.store.read(ctx, ops)
		if err != nil {
			return err
		}
		if v.revision == 0 {
			v.revision = r.Header.Revision
		}
		for i, k := range batch {
			for _, kv := range r.Responses[i].GetResponseRange().Kvs {
				v.records[k].set(kv)
			}
		}
	}
	return nil
}

// batches divides keys into parts, each of which one transaction can read. A separate etcd may
// allow so many operations in a transaction that the limit of bytes is reached first.
func (s *Store) batches(keys []string) iter.Seq[[]string] {
	return func(yield func([]string) bool) {
		for len(keys) > 0 {
			n, size := 0, 0
			for n < min(len(keys), s.ops) && (n == 0 || size+opBytes(keys[n]) <= s.bytes) {
				size += opBytes(keys[n])
				n++
			}
			if !yield(keys[:n:n]) {
				return
			}
			keys = keys[n:]
		}
	}
}

// opBytes returns the largest size of an operation or a comparison without a value.
func opBytes(key string) int { return len(key) + 32 }

// loadLocal reads keys from the member of etcd in this process. It returns false if that
// fails, for example because the view's revision is compacted.
func (v *view) loadLocal(ctx context.Context, keys []string) bool {
	found, revision, err := v.store.readLocal(ctx, keys, v.revision)
	if err != nil {
		return false
	}
	if v.revision == 0 {
		v.revision = revision
	}
	for i, kv := range found {
		if kv != nil {
			v.records[keys[i]].set(kv)
		}
	}
	return true
}

// set copies the value and the revision of a key that was read from etcd into its record.
func (r *record) set(kv *mvccpb.KeyValue) {
	r.value, r.exists = kv.Value, true
	r.stored, r.mod = kv.Value, kv.ModRevision
}

// list reads all keys with a prefix and calls visit for each. It does not use a view.
// If *revision is 0, list sets it to the revision of the first page.
func (s *Store) list(ctx context.Context, prefix string, revision *int64, visit func(*mvccpb.KeyValue)) error {
	end := clientv3.GetPrefixRangeEnd(prefix)
	for from := prefix; ; {
		r, err := s.read(ctx, []clientv3.Op{clientv3.OpGet(from, clientv3.WithRange(end), clientv3.WithLimit(listPage), clientv3.WithRev(*revision))})
		if err != nil {
			return err
		}
		if *revision == 0 {
			*revision = r.Header.Revision
		}
		page := r.Responses[0].GetResponseRange()
		for _, kv := range page.Kvs {
			visit(kv)
		}
		if !page.More || len(page.Kvs) == 0 {
			return nil
		}
		from = string(page.Kvs[len(page.Kvs)-1].Key) + "\x00"
	}
}

// loadPrefix reads all keys with a prefix into the view. If another store adds such a key before the
// transaction, the transaction fails as a conflict.
func (v *view) loadPrefix(ctx context.Context, prefix string) error {
	if slices.Contains(v.prefixes, prefix) {
		return nil
	}
	v.prefixes = append(v.prefixes, prefix)
	return v.store.list(ctx, prefix, &v.revision, func(kv *mvccpb.KeyValue) {
		if _, ok := v.records[string(kv.Key)]; !ok {
			v.records[string(kv.Key)] = &record{
				value: kv.Value, exists: true, read: true, stored: kv.Value, mod: kv.ModRevision, ranged: true,
			}
		}
	})
}

func (v *view) get(key string) (value []byte, exists bool) {
	if r := v.records[key]; r != nil {
		return r.value, r.exists
	}
	return nil, false
}

func (v *view) record(key string) *record {
	r := v.records[key]
	if r == nil {
		r = &record{}
		v.records[key] = r
	}
	return r
}

func (v *view) put(key string, value []byte) {
	v.remember(key)
	r := v.record(key)
	r.value, r.exists = value, true
}

func (v *view) del(key string) {
	v.remember(key)
	r := v.record(key)
	r.value, r.exists = nil, false
}

type change struct {
	key    string
	value  []byte
	delete bool
}

func (c change) op(options ...clientv3.OpOption) clientv3.Op {
	if c.delete {
		return clientv3.OpDelete(c.key)
	}
	return clientv3.OpPut(c.key, string(c.value), options...)
}

func (c change) size() int { return len(c.key) + len(c.value) + 16 }

// changes returns the view's writes and deletions in order. Bindings come last: by then, the ports to
// delete are deleted and cannot be bound any more.
func (v *view) changes() []change {
	var objects []change
	for k, r := range v.records {
		switch {
		case r.read && r.exists == (r.mod != 0) && bytes.Equal(r.value, r.stored):
		case r.exists:
			objects = append(objects, change{key: k, value: r.value})
		default:
			objects = append(objects, change{key: k, delete: true})
		}
	}
	slices.SortFunc(objects, func(a, b change) int {
		if x, y := strings.HasPrefix(a.key, bindPrefix), strings.HasPrefix(b.key, bindPrefix); x != y {
			if x {
				return 1
			}
			return -1
		}
		return strings.Compare(a.key, b.key)
	})
	return objects
}
