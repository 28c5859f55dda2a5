// SPDX-License-Identifier: Apache-2.0

package store

import (
	"bytes"
	"context"
	"slices"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// listPage is the number of keys that list reads with one request.
const listPage = 2000

// record is the state of one key in a view.
type record struct {
	value []byte // value after the changes that were entered into the view so far
	there bool
	// read is set if the key was read from etcd. The fields stored and mod then have
	// the key's value and revision in etcd; mod is 0 if the key is absent.
	read   bool
	stored []byte
	mod    int64
	// ranged is set if loadPrefix has read the key, together with all keys of a
	// prefix.
	ranged bool
}

// view has the keys that a request has read, all at the same revision, and the
// changes that the request makes to them. The changes reach etcd only when a
// transaction is committed.
type view struct {
	store    *Store
	revision int64 // revision of all reads; 0 before the first read
	records  map[string]*record
	// prefixes of which loadPrefix has read all keys. If another store adds a key
	// with such a prefix, the transaction of the request fails with a conflict.
	prefixes []string
}

func (s *Store) newView() *view { return &view{store: s, records: map[string]*record{}} }

// load reads those of the given keys that the view has not read yet.
func (v *view) load(ctx context.Context, keys []string) error {
	missing := make([]string, 0, len(keys))
	for _, k := range keys {
		if _, ok := v.records[k]; !ok {
			v.records[k] = &record{read: true}
			missing = append(missing, k)
		}
	}
	for batch := range slices.Chunk(missing, v.store.ops) {
		ops := make([]clientv3.Op, len(batch))
		for i, k := range batch {
			ops[i] = clientv3.OpGet(k, clientv3.WithRev(v.revision))
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
				rec := v.records[k]
				rec.value, rec.there = kv.Value, true
				rec.stored, rec.mod = kv.Value, kv.ModRevision
			}
		}
	}
	return nil
}

// list reads all keys with a prefix, in pages, and calls the function each for every
// key. It does not add the keys to a view. If *revision is 0, list sets it to the
// revision of the first page.
func (s *Store) list(ctx context.Context, prefix string, revision *int64, each func(*mvccpb.KeyValue)) error {
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
			each(kv)
		}
		if !page.More || len(page.Kvs) == 0 {
			return nil
		}
		from = string(page.Kvs[len(page.Kvs)-1].Key) + "\x00"
	}
}

// loadPrefix reads all keys with a prefix into the view. If another store later adds
// such a key, the transaction of the request fails with a conflict.
func (v *view) loadPrefix(ctx context.Context, prefix string) error {
	if slices.Contains(v.prefixes, prefix) {
		return nil
	}
	v.prefixes = append(v.prefixes, prefix)
	return v.store.list(ctx, prefix, &v.revision, func(kv *mvccpb.KeyValue) {
		if _, ok := v.records[string(kv.Key)]; !ok {
			v.records[string(kv.Key)] = &record{
				value: kv.Value, there: true, read: true, stored: kv.Value, mod: kv.ModRevision, ranged: true,
			}
		}
	})
}

// get returns the value of a key after the changes that were entered so far.
func (v *view) get(key string) (value []byte, there bool) {
	if r := v.records[key]; r != nil {
		return r.value, r.there
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
	r := v.record(key)
	r.value, r.there = value, true
}

// del deletes a key in the view, whether the view has read it or not.
func (v *view) del(key string) {
	r := v.record(key)
	r.value, r.there = nil, false
}

// change is a put or a deletion of one key.
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

// The method changes returns the operations that change the stored keys as the view
// has them. A large request executes them in this order. Operations on bindings come
// last: by then the deleted ports are gone, so nobody can bind them again.
func (v *view) changes() []change {
	var all []change
	for k, r := range v.records {
		switch {
		case r.read && r.there == (r.mod != 0) && bytes.Equal(r.value, r.stored):
		case r.there:
			all = append(all, change{key: k, value: r.value})
		default:
			all = append(all, change{key: k, delete: true})
		}
	}
	slices.SortFunc(all, func(a, b change) int {
		if x, y := strings.HasPrefix(a.key, bindPrefix), strings.HasPrefix(b.key, bindPrefix); x != y {
			if x {
				return 1
			}
			return -1
		}
		return strings.Compare(a.key, b.key)
	})
	return all
}

// unchanged returns comparisons for a transaction. They succeed only if no key that
// the view has read has changed since.
func (v *view) unchanged() []clientv3.Cmp {
	var ifs []clientv3.Cmp
	for k, r := range v.records {
		if r.read && !r.ranged {
			ifs = append(ifs, clientv3.Compare(clientv3.ModRevision(k), "=", r.mod))
		}
	}
	for _, p := range v.prefixes {
		ifs = append(ifs, clientv3.Compare(clientv3.ModRevision(p).WithPrefix(), "<", v.revision+1))
	}
	return ifs
}
